"""Several prompts as one flat sequence without padding, as engines with continuous batching have them.

Every forward takes the new tokens of all sessions, one session after the other: whole prompts first, then one token
of each that still runs. A slot of the cache knows its session, and a token sees the slots of its own session only.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from reference.decoding.generate import check_prompt
from reference.engine import Description, Output, ReferenceEngine
from reference.errors import Array
from reference.model.config import ModelConfig, check_tokens
from reference.model.rope import rotation
from tests.mutants.shapes.padded_batch import Booleans, Integers, Row, empty_cache, forward, max_tokens_of


class PackedBatchEngine(ReferenceEngine):
    """Decodes the prompts of a generate together; the other verbs are the specification's."""

    def describe(self) -> Description:
        return replace(super().describe(), name="packed batch")

    def generate(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, eos_ids: Sequence[int], logprobs: bool = False
    ) -> list[Output]:
        stop = self._stop(max_tokens, eos_ids)
        for prompt in prompts:
            check_prompt(self.model.config, prompt, stop)
            check_tokens(self.model.config, prompt, 0)
        rows = [Row(len(prompt)) for prompt in prompts]
        num_slots = sum(len(prompt) + max_tokens_of(prompts, stop) for prompt in prompts)
        cache = empty_cache(self.model.config, 1, num_slots)
        owners = np.full(num_slots, -1)  # session of each slot
        segments = list(enumerate(prompts))  # sessions and their new tokens
        while segments:
            old, new = cache.num_used, cache.num_used + sum(len(tokens) for _, tokens in segments)
            starts = [int(np.sum(owners == session)) for session, _ in segments]
            owners[old:new] = np.repeat([session for session, _ in segments], [len(tokens) for _, tokens in segments])
            flat = np.concatenate([tokens for _, tokens in segments])[None]  # [1, T]
            tables = rotations(self.model.config, starts, [tokens for _, tokens in segments])
            logits = forward(self.model, flat, tables, may_see(owners, old, new), cache)[0]
            lasts = np.cumsum([len(tokens) for _, tokens in segments]) - 1
            for (session, _), last in zip(segments, lasts, strict=True):
                rows[session].append(logits[last], stop)
            segments = [(session, row.tokens[-1:]) for session, row in enumerate(rows) if row.reason is None]
        return [row.output(logprobs, len(rows)) for row in rows]


def rotations(
    config: ModelConfig, starts: Sequence[int], segments: Sequence[Sequence[int]]
) -> tuple[Array, Array]:  # -> [T, D/2] each
    """Cosines and sines of the new tokens: a segment's positions go on where its session ended."""
    tables = [rotation(config, start, len(tokens)) for start, tokens in zip(starts, segments, strict=True)]
    cosines, sines = zip(*tables, strict=True)
    return np.concatenate(cosines), np.concatenate(sines)


def may_see(owners: Integers, old: int, new: int) -> Booleans:  # [S] -> [1, T, S]
    """Whether the query of a new slot sees a slot: one of its own session that is not after it."""
    slots = np.arange(len(owners))
    queries = slots[old:new, None]
    visible: Booleans = (slots <= queries) & (owners == owners[queries])
    return visible[None]
