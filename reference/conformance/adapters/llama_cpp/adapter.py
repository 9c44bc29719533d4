"""llama.cpp in process, through the server object of xllamacpp: token ids in, token ids and logprobs out."""

import json
import math
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import xllamacpp
from gguf_file import write_gguf

THREADS = 2
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
    "return_tokens": True,
    "cache_prompt": True,
}


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
                "eos": "a GGUF file must have one: the adapter asks for more where that ends an output, and cuts at "
                "the ids asked for",
                "score": "one request a position, with the KV cache of the prompt before",
            },
        }

    def load(self, model_dir, dtype):
        self.path, self.config = self.converted(model_dir)
        self.server = self.serving(self.path)

    def converted(self, model_dir):
        """The GGUF file of a checkpoint, and its config."""
        if model_dir not in self.files:
            path = Path(self.folder.name) / f"{len(self.files)}.gguf"
            self.files[model_dir] = (path, write_gguf(model_dir, path))
        return self.files[model_dir]

    def serving(self, path, draft=None, gamma=None):
        """The server of a model, and of a draft with it. None is ever ended: that has been seen to hang."""
        if (path, draft, gamma) not in self.servers:
            parameters = self.server_parameters(path)
            if draft is not None:
                parameters.speculative.types = [
                    xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE
                ]
                parameters.speculative.draft.mparams.path = str(draft)
                # Always gamma drafts, however sure the draft is of them.
                parameters.speculative.draft.n_max, parameters.speculative.draft.p_min = gamma, 0.0
                parameters.speculative.draft.cache_type_k = xllamacpp.ggml_type.GGML_TYPE_F32
                parameters.speculative.draft.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
            self.servers[path, draft, gamma] = xllamacpp.Server(parameters)
        return self.servers[path, draft, gamma]

    def server_parameters(self, path):
        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(path)
        parameters.n_ctx = self.config["max_position_embeddings"] * self.num_slots
        parameters.n_parallel = self.num_slots
        parameters.n_batch = parameters.n_ubatch = 512
        parameters.cache_type_k = parameters.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        parameters.flash_attn_type = self.flash_attention
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = THREADS
        parameters.warmup = False
        parameters.endpoint_metrics = True
        return parameters

    def score(self, tokens):
        rows = [self.complete(tokens[: end + 1], 1, self.config["vocab_size"]) for end in range(len(tokens))]
        return np.stack([self.row(steps(answer)[0]) for answer in rows])

    def row(self, step):
        """Logprobs [V] of a position; a token that the engine leaves out has none."""
        row = np.full(self.config["vocab_size"], np.nan)
        for told in step["top_logprobs"]:
            row[told["id"]] = told["logprob"]
        return row

    def generate(self, prompts, max_tokens, eos_ids, logprobs):
        before = self.counters()
        with ThreadPoolExecutor(self.num_slots) as pool:
            asked = [pool.submit(self.decode, self.server, prompt, max_tokens, eos_ids) for prompt in prompts]
            outputs = [answer.result() for answer in asked]
        predicted, decodes = (after - then for after, then in zip(self.counters(), before, strict=True))
        for output in outputs:
            # Tokens a decode call on average: with two slots busy now and then it is above 1.
            output["batch_size"] = math.ceil(predicted / decodes) if len(prompts) > 1 else 1
            if not logprobs:
                del output["logprobs"]
        return outputs

    def speculate(self, draft_dir, prompt, gamma, max_tokens, eos_ids):
        draft, _ = self.converted(draft_dir)
        server = self.serving(self.path, draft, gamma)
        output = self.decode(server, prompt, max_tokens, eos_ids)
        del output["logprobs"]
        return output

    def decode(self, server, prompt, max_tokens, eos_ids):
        """One output; more than one request where the file's eos ends it unasked."""
        room = min(max_tokens, self.config["max_position_embeddings"] - len(prompt))
        tokens, logprobs, timings = [], [], []
        while len(tokens) < room and not (tokens and tokens[-1] in eos_ids):
            answer = self.complete([*prompt, *tokens], room - len(tokens), 1, server)
            timings.append(answer["timings"])
            told = [(step["id"], step["logprob"]) for step in steps(answer)]
            if not told:
                raise RuntimeError(f"no token after {len(tokens)}: {json.dumps(answer)[:500]}")
            end = next((index for index, (token, _) in enumerate(told) if token in eos_ids), len(told) - 1)
            tokens += [token for token, _ in told[: end + 1]]
            logprobs += [logprob for _, logprob in told[: end + 1]]
        drafted, accepted = (sum(each.get(name, 0) for each in timings) for name in ("draft_n", "draft_n_accepted"))
        return {
            "tokens": tokens,
            "finish_reason": "stop" if tokens[-1] in eos_ids else "length",
            "logprobs": logprobs,
            "cached_tokens": timings[0]["cache_n"],
            "num_accepted": accepted,
            "num_rejected": drafted - accepted,
        }

    def complete(self, prompt, num_tokens, num_probs, server=None):
        asked = {"prompt": list(prompt), "n_predict": num_tokens, "n_probs": num_probs, **GREEDY}
        answer = (server or self.server).handle_completions(asked)
        if "error" in answer:
            raise RuntimeError(json.dumps(answer["error"]))
        return answer

    def counters(self):
        """Output tokens and decode calls of the server so far."""
        told = dict(
            line.split() for line in self.server.handle_metrics().splitlines() if line.startswith("llamacpp:")
        )
        return int(told["llamacpp:tokens_predicted_total"]), int(told["llamacpp:n_decode_total"])

    def bye(self):
        self.folder.cleanup()


class LlamaFlash(Llama):
    """Flash attention, the default where llama.cpp can."""

    label = "flash attention on"
    precision = "f16"
    flash_attention = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED


class LlamaSlots(Llama):
    """Four slots that are decoded together."""

    label = "flash attention off, 4 slots"
    num_slots = 4


def steps(answer):
    """What is told of every output token."""
    return answer["choices"][0]["logprobs"]["content"]
