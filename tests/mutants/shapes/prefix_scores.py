"""An engine that keeps the KV cache and the logits of its last prompt; of the next it computes what is not shared.

Logits are in one buffer [context, V] that is never cleared: rows of a shared prefix are those that are there.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from reference.decoding.generate import StopRule, check_prompt, finish_reason
from reference.decoding.sampling import greedy
from reference.engine import Description, Output, ReferenceEngine
from reference.errors import Array
from reference.model.cache import KVCache, empty_cache
from reference.model.config import check_tokens
from reference.model.transformer import forward
from reference.numerics import log_softmax


class PrefixScores(ReferenceEngine):
    """Invariant: `_rows[: len(_tokens)]` are the logits, `_cache` the keys and values of `_tokens`."""

    def describe(self) -> Description:
        told = super().describe()
        return Description("prefix scores", "0.1.0", "exact", claims=told.claims | {"cached_tokens"}, kv_itemsize=8)

    def load(self, model_dir: Path) -> None:
        super().load(model_dir)
        config = self.model.config
        self._tokens: tuple[int, ...] = ()
        self._cache = empty_cache(config)
        self._rows = np.zeros((config.context_length, config.vocab_size))

    def score(self, tokens: Sequence[int]) -> Array:
        self._prefill(tokens)
        return self._rows[: len(tokens)].copy()

    def generate(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, eos_ids: Sequence[int], logprobs: bool = False
    ) -> list[Output]:
        stop = self._stop(max_tokens, eos_ids)
        return [self._decode(prompt, stop, logprobs) for prompt in prompts]

    def _decode(self, prompt: Sequence[int], stop: StopRule, logprobs: bool) -> Output:
        check_prompt(self.model.config, prompt, stop)
        cache, num_cached = self._prefill(prompt)
        row = self._rows[len(prompt) - 1]
        output: list[int] = []
        told: list[float] = []
        while True:
            output.append(greedy(row))
            told.append(float(log_softmax(row)[output[-1]]))
            reason = finish_reason(len(prompt), output, stop)
            if reason is not None:
                return Output(tuple(output), reason, tuple(told) if logprobs else None, cached_tokens=num_cached)
            logits, cache = forward(self.model, output[-1:], cache)
            row = logits[-1]

    def _prefill(self, tokens: Sequence[int]) -> tuple[KVCache, int]:
        """The cache of the tokens, whose logits are in the buffer now; and how many of them were kept."""
        check_tokens(self.model.config, tokens, 0)
        num_kept = self._num_shared(tokens)
        self._cache = self._cache.truncate(num_kept)
        if num_kept < len(tokens):
            logits, self._cache = forward(self.model, tokens[num_kept:], self._cache)
            self._rows[num_kept : len(tokens)] = logits
        self._tokens = tuple(tokens)
        return self._cache, num_kept

    def _num_shared(self, tokens: Sequence[int]) -> int:
        # Angles that depend on the length make the split into forwards part of the result.
        if self.model.config.rope.rope_type in ("dynamic", "longrope"):
            return 0
        differ = [place for place, pair in enumerate(zip(tokens, self._tokens, strict=False)) if pair[0] != pair[1]]
        return differ[0] if differ else min(len(tokens), len(self._tokens))
