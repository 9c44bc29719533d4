"""Hugging Face transformers on CPU in float32 as an engine (scaled dot product attention, its dynamic cache)."""

import copy
import importlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reference.decoding.generate import Generation, StopRule, finish_reason
from reference.engine import Description, Engine
from reference.errors import Array, Refusal, RefusedError
from reference.model.checkpoint import load_config


class TransformersEngine(Engine):
    """`LlamaForCausalLM.generate` decides the tokens; it gives no finish reason, so that follows from the tokens."""

    def __init__(self) -> None:
        try:
            torch: Any = importlib.import_module("torch")
            transformers: Any = importlib.import_module("transformers")
        except ImportError as error:
            sentence = (
                f"{error.name} is not installed; pip install '.[transformers]', or make conform ENGINE=transformers"
            )
            raise RefusedError(Refusal.NOT_FOUND, sentence) from error
        # past_key_values has a new name in 5.24, which earlier releases of 5 do not know.
        warnings.filterwarnings("ignore", message=".*past_key_values.*", category=FutureWarning)
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        self._torch, self._transformers = torch, transformers
        self._sessions: dict[int, Any] = {}

    def describe(self) -> Description:
        version = f"{self._transformers.__version__} (torch {self._torch.__version__})"
        return Description("transformers float32", version, "f32")

    def load(self, model_dir: Path) -> None:
        self._config = load_config(model_dir)
        self._model = self._transformers.LlamaForCausalLM.from_pretrained(
            model_dir, dtype=self._torch.float32, attn_implementation="sdpa", local_files_only=True
        ).eval()
        self._sessions = {}

    def score(self, tokens: Sequence[int]) -> Array:
        return self._forward(tokens, self._transformers.DynamicCache())

    def generate(self, prompt: Sequence[int], max_tokens: int, eos_ids: Sequence[int]) -> Generation:
        stop = StopRule(max_tokens, tuple(eos_ids), self._config.context_length)
        room = min(max_tokens, self._config.context_length - len(prompt))
        inputs = self._torch.tensor([list(prompt)])
        with self._torch.inference_mode():
            tokens = self._model.generate(
                inputs,
                attention_mask=self._torch.ones_like(inputs),
                do_sample=False,
                max_new_tokens=room,
                eos_token_id=list(eos_ids) or None,
                pad_token_id=0,
            )[0, len(prompt) :].tolist()
        reason = finish_reason(len(prompt), tokens, stop)
        return Generation(tuple(tokens), reason or "length")

    def open(self) -> int:
        return self._keep(self._transformers.DynamicCache())

    def extend(self, session: int, tokens: Sequence[int]) -> Array:
        return self._forward(tokens, self._sessions[session])

    def truncate(self, session: int, num_tokens: int) -> None:
        cache = self._sessions[session]
        num_dropped = cache.get_seq_length() - num_tokens
        # crop takes the number to drop, negated; 0 would drop everything.
        if num_dropped > 0:
            cache.crop(-num_dropped)

    def fork(self, session: int) -> int:
        return self._keep(copy.deepcopy(self._sessions[session]))

    def close(self, session: int) -> None:
        del self._sessions[session]

    def _forward(self, tokens: Sequence[int], cache: Any) -> Array:
        with self._torch.inference_mode():
            answer = self._model(self._torch.tensor([list(tokens)]), past_key_values=cache, use_cache=True)
        logits: Array = answer.logits[0].double().numpy()
        return logits

    def _keep(self, cache: Any) -> int:
        handle = max(self._sessions, default=-1) + 1
        self._sessions[handle] = cache
        return handle
