"""llama.cpp in process, through the server object of xllamacpp: token ids in, token ids and logprobs out."""

import json
import math
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import xllamacpp
from gguf_file import write_gguf

# The goldens are tiny: a second thread gains nothing, and waits in spin loops for a core that is busy.
THREADS = 1
# Greedy, and nothing that could change a logit.
GREEDY = {
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "post_sampling_probs": False,
}
# What the server says when it refuses a prompt, and the reason that is.
REFUSALS = {
    "must not be empty": "prompt_empty",
    "invalid tokens": "token_out_of_range",
    "exceeds the available context": "context_exceeded",
}


class RefusedError(Exception):
    """The server refuses a prompt."""

    def __init__(self, reason, message):
        super().__init__(message)
        self.reason = reason


class Llama:
    """Float32 weights and KV cache, flash attention off, one slot."""

    label = "flash attention off"
    precision = "f32"
    flash_attention = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    num_slots = 1

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="llama-cpp-")
        self.files, self.servers = {}, {}

    def hello(self):
        return {
            "name": f"llama.cpp ({self.label})",
            "version": f"xllamacpp {xllamacpp.__version__}",
            "precisions": {"float32": self.precision},
            "scores": "logprobs",
            "features": ["finish_reason", "logprobs", "cached_tokens", *(["batch"] if self.num_slots > 1 else [])],
            "choices": {
                "attention": self.label,
                "slots": str(self.num_slots),
                "eos": "the GGUF file names the ids asked for (eos, eot, eom), or none; the engine ends by itself",
                "score": "one request a position, a prefill of all tokens before; logprobs before sampling",
                "num_accepted, num_rejected": "the engine's counts; it counts a run that an eos ends as rejected",
            },
        }

    def load(self, model_dir, dtype):
        """Ends the servers of the checkpoint before, so nothing is left of it but converted files."""
        self.servers.clear()
        self.model_dir = model_dir
        self.config = self.converted(model_dir, ())[1]
        self.serving(())

    def converted(self, model_dir, eos_ids):
        """The GGUF file of a checkpoint that ends at these ids, and its config."""
        if (model_dir, eos_ids) not in self.files:
            path = Path(self.folder.name) / f"{len(self.files)}.gguf"
            self.files[model_dir, eos_ids] = (path, write_gguf(model_dir, path, eos_ids))
        return self.files[model_dir, eos_ids]

    def serving(self, eos_ids, draft_dir=None, gamma=None):
        """The server of the checkpoint that ends at these ids, with a draft or without."""
        asked = (tuple(eos_ids), draft_dir, gamma)
        if asked not in self.servers:
            parameters = self.server_parameters(self.converted(self.model_dir, tuple(eos_ids))[0])
            if draft_dir is not None:
                # Its eos ids must be the target's, or the server does without the draft.
                self.add_draft(parameters, self.converted(draft_dir, tuple(eos_ids))[0], gamma)
            server = xllamacpp.Server(parameters)
            # A server that ends before its loop has begun hangs; after the first answer it has begun.
            server.handle_metrics()
            self.servers[asked] = server
        return self.servers[asked]

    def server_parameters(self, path):
        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(path)
        parameters.n_ctx = self.config["max_position_embeddings"] * self.num_slots
        parameters.n_parallel = self.num_slots
        parameters.n_batch = parameters.n_ubatch = 512
        parameters.cache_type_k = parameters.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        parameters.flash_attn_type = self.flash_attention
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = THREADS
        parameters.warmup = parameters.fit_params = False
        parameters.endpoint_metrics = True
        return parameters

    def add_draft(self, parameters, path, gamma):
        """Always gamma drafts, however sure the draft is of them."""
        parameters.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        draft = parameters.speculative.draft
        draft.mparams.path = str(path)
        draft.n_max, draft.p_min = gamma, 0.0
        draft.cache_type_k = draft.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32

    def score(self, tokens):
        """Without the prompt cache: a row decoded after cached ones differs from a prefilled one in its last bits."""
        server, vocab_size = self.serving(()), self.config["vocab_size"]
        rows = np.full((len(tokens), vocab_size), np.nan)
        for end, row in enumerate(rows, start=1):
            (step,) = steps(complete(server, tokens[:end], 1, num_probs=vocab_size, use_cache=False))
            for told in step["top_logprobs"]:
                row[told["id"]] = told["logprob"]
        return rows

    def generate(self, prompts, max_tokens, eos_ids, logprobs=False):
        server = self.serving(eos_ids)
        before = counters(server)
        with ThreadPoolExecutor(len(prompts)) as pool:
            answers = list(pool.map(lambda prompt: complete(server, prompt, max_tokens), prompts))
        num_tokens, num_decodes = (after - then for after, then in zip(counters(server), before, strict=True))
        outputs = [output_of(answer) for answer in answers]
        for output, answer in zip(outputs, answers, strict=True):
            most_others = min(len(prompts) - 1, self.num_slots)
            output["batch_size"] = least_batch(len(output["tokens"]), num_tokens, num_decodes, most_others)
            if logprobs:
                output["logprobs"] = [step["logprob"] for step in steps(answer)]
        return outputs

    def speculate(self, draft_dir, prompt, gamma, max_tokens, eos_ids):
        answer = complete(self.serving(eos_ids, draft_dir, gamma), prompt, max_tokens)
        drafted, accepted = (answer["timings"].get(name, 0) for name in ("draft_n", "draft_n_accepted"))
        return {**output_of(answer), "num_accepted": accepted, "num_rejected": drafted - accepted}

    def bye(self):
        self.servers.clear()
        self.folder.cleanup()


class LlamaFlash(Llama):
    """Flash attention, the default where llama.cpp can. Keys and values are rounded to float16, also in float32."""

    label = "flash attention on"
    precision = "f16"
    flash_attention = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED


class LlamaSlots(Llama):
    """Four slots that are decoded together."""

    label = "flash attention off, 4 slots"
    num_slots = 4


def complete(server, prompt, num_tokens, num_probs=1, use_cache=True):
    """The server's answer to one request. Raises RefusedError with the server's words."""
    asked = {"prompt": list(prompt), "n_predict": num_tokens, "n_probs": num_probs, "cache_prompt": use_cache}
    answer = server.handle_completions({**asked, **GREEDY})
    if "error" in answer:
        message = answer["error"]["message"]
        reason = next((reason for words, reason in REFUSALS.items() if words in message), None)
        raise RuntimeError(json.dumps(answer["error"])) if reason is None else RefusedError(reason, message)
    return answer


def steps(answer):
    """What is told of every output token."""
    return answer["choices"][0]["logprobs"]["content"]


def output_of(answer):
    return {
        "tokens": [step["id"] for step in steps(answer)],
        "finish_reason": answer["choices"][0]["finish_reason"],
        "cached_tokens": answer["timings"]["cache_n"],
    }


def counters(server):
    """Output tokens and decode calls of the server so far."""
    told = dict(line.split() for line in server.handle_metrics().splitlines() if line.startswith("llamacpp:"))
    return int(told["llamacpp:tokens_predicted_total"]), int(told["llamacpp:n_decode_total"])


def least_batch(own, num_tokens, num_decodes, most_others):
    """Outputs that were together in one decode call with an output of `own` tokens: at least so many.

    A call without it gave at most `most_others` tokens to the others; the rest of theirs is from calls with it.
    """
    together = num_tokens - own - (num_decodes - own) * most_others
    return 1 + math.ceil(max(together, 0) / own)
