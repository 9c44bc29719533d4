"""Hugging Face transformers on CPU: `LlamaForCausalLM` with its own attention kernels, caches and generate()."""

import copy
import warnings

import torch
import transformers
from transformers import DynamicCache, LlamaForCausalLM, StaticCache

warnings.filterwarnings("ignore", category=FutureWarning)
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
torch.set_grad_enabled(False)

DTYPES = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class Llama:
    """Scaled dot product attention; the dynamic cache."""

    attention = "sdpa"
    cache_implementation = "dynamic"

    def hello(self):
        return {
            "name": f"transformers ({self.attention}, {self.cache_implementation} cache)",
            "version": f"{transformers.__version__} (torch {torch.__version__})",
            "precisions": {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"},
            "features": ["finish_reason", "batch", "logprobs"],
            "choices": {
                "attention": self.attention,
                "cache": self.cache_implementation,
                "finish_reason": "derived by the adapter: generate() returns tokens only",
                "batch": "prompts are padded on the left, with an attention mask",
            },
        }

    def load(self, model_dir, dtype):
        self.dtype = DTYPES[dtype]
        self.model = self._read(model_dir)
        self.sessions = {}

    def score(self, tokens):
        return self._forward(tokens, DynamicCache())

    def generate(self, prompts, max_tokens, eos_ids, logprobs):
        limit = self._context_length()
        # A row's room is its own, so rows are computed to the longest and cut.
        longest = max(len(prompt) for prompt in prompts)
        rooms = [min(max_tokens, limit - len(prompt)) for prompt in prompts]
        room = min(max(rooms), limit - longest) if len(prompts) > 1 else rooms[0]
        if any(own > room for own in rooms):
            raise NotImplementedError("a batch in which the longest prompt leaves no room for the others")
        ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        answer = self.model.generate(
            ids, attention_mask=mask, max_new_tokens=room, **self._settings(eos_ids, self.cache_implementation)
        )
        rows = zip(answer.sequences[:, longest:].tolist(), rooms, strict=True)
        outputs = [self._cut(tokens[:own], own, eos_ids) for tokens, own in rows]
        for row, output in enumerate(outputs):
            output["batch_size"] = len(prompts)
            if logprobs:
                steps = zip(answer.logits, output["tokens"], strict=False)
                output["logprobs"] = [float(step[row].double().log_softmax(-1)[token]) for step, token in steps]
        return outputs

    def speculate(self, draft_dir, prompt, gamma, max_tokens, eos_ids):
        draft = self._read(draft_dir)
        # Always gamma drafts, however sure the draft is of them.
        draft.generation_config.num_assistant_tokens = gamma
        draft.generation_config.num_assistant_tokens_schedule = "constant"
        draft.generation_config.assistant_confidence_threshold = 0.0
        room = min(max_tokens, self._context_length() - len(prompt))
        ids = torch.tensor([list(prompt)])
        with CountedDrafts() as counted:
            answer = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=room,
                assistant_model=draft,
                **self._settings(eos_ids, None),
            )
        output = self._cut(answer.sequences[0, len(prompt) :].tolist(), room, eos_ids)
        return {**output, "num_accepted": counted.num_accepted, "num_rejected": counted.num_rejected}

    def open(self):
        return self._keep(self._new_cache())

    def extend(self, session, tokens):
        return self._forward(tokens, self.sessions[session])

    def truncate(self, session, num_tokens):
        num_dropped = self.sessions[session].get_seq_length() - num_tokens
        # crop takes the number to drop, negated; 0 would drop everything.
        if num_dropped > 0:
            self.sessions[session].crop(-num_dropped)

    def fork(self, session):
        return self._keep(copy.deepcopy(self.sessions[session]))

    def kv_bytes(self, session):
        layers = [layer for layer in self.sessions[session].layers if getattr(layer, "keys", None) is not None]
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)

    def close(self, session):
        del self.sessions[session]

    def _read(self, model_dir):
        model = LlamaForCausalLM.from_pretrained(
            model_dir, dtype=self.dtype, attn_implementation=self.attention, local_files_only=True
        )
        return model.eval()

    def _forward(self, tokens, cache):
        logits = self.model(torch.tensor([list(tokens)]), past_key_values=cache, use_cache=True).logits[0]
        return logits.to(torch.float64 if self.dtype == torch.float64 else torch.float32).numpy()

    def _settings(self, eos_ids, cache_implementation):
        return {
            "do_sample": False,
            "eos_token_id": list(eos_ids) or None,
            "pad_token_id": 0,
            "return_dict_in_generate": True,
            "output_logits": True,
            "cache_implementation": cache_implementation,
        }

    def _cut(self, tokens, room, eos_ids):
        """A row up to its first eos; what follows is padding."""
        ends = [index for index, token in enumerate(tokens) if token in eos_ids]
        if ends:
            return {"tokens": tokens[: ends[0] + 1], "finish_reason": "stop"}
        return {"tokens": tokens, "finish_reason": "length" if len(tokens) == room else None}

    def _new_cache(self):
        return DynamicCache()

    def _context_length(self):
        """With dynamic RoPE the positions beyond max_position_embeddings are what the type is for."""
        rope = self.model.config.rope_parameters
        factor = rope["factor"] if rope["rope_type"] == "dynamic" else 1
        return int(self.model.config.max_position_embeddings * factor)

    def _keep(self, cache):
        handle = max(self.sessions, default=-1) + 1
        self.sessions[handle] = cache
        return handle


class LlamaEager(Llama):
    """Attention as plain matrix products."""

    attention = "eager"


class LlamaStatic(Llama):
    """A cache of fixed size, allocated at once."""

    cache_implementation = "static"
    truncate = fork = kv_bytes = property()

    def _new_cache(self):
        return StaticCache(config=self.model.config, max_cache_len=self._context_length())


class CountedDrafts:
    """Counts the drafts of assisted generation: its candidate generator is told how many of each step matched."""

    def __enter__(self):
        from transformers.generation.candidate_generator import AssistedCandidateGenerator

        self.num_accepted = self.num_rejected = 0
        self._class, self._propose = AssistedCandidateGenerator, AssistedCandidateGenerator.get_candidates
        self._update = AssistedCandidateGenerator.update_candidate_strategy
        counted, propose, update = self, self._propose, self._update
        num_drafts = 0

        def get_candidates(generator, input_ids, *rest, **named):
            nonlocal num_drafts
            proposed = propose(generator, input_ids, *rest, **named)
            num_drafts = proposed[0].shape[1] - input_ids.shape[1]
            return proposed

        def update_candidate_strategy(generator, input_ids, scores, num_matches):
            counted.num_accepted += int(num_matches)
            counted.num_rejected += num_drafts - int(num_matches)
            return update(generator, input_ids, scores, num_matches)

        self._class.get_candidates = get_candidates
        self._class.update_candidate_strategy = update_candidate_strategy
        return self

    def __exit__(self, *_):
        self._class.get_candidates = self._propose
        self._class.update_candidate_strategy = self._update
