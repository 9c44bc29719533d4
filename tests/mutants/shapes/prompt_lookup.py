"""Greedy decoding with drafts copied from the tokens so far (prompt lookup, Saxena 2023): several tokens a step.

Tokens, logprobs and finish reasons are those of plain decoding; only the number of forwards differs. A run is cut at
its first eos; that it does not exceed max_tokens is owed to the number of drafts.
"""

from collections.abc import Sequence

from reference.decoding.generate import StopRule, check_prompt, finish_reason
from reference.decoding.verification import verify_greedy
from reference.engine import Output, ReferenceEngine
from reference.model.cache import empty_cache
from reference.model.transformer import forward
from reference.numerics import log_softmax

NUM_DRAFTS = 3


class PromptLookup(ReferenceEngine):
    """Drafts need no model: they are what followed the last token where it stood before."""

    def generate(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, eos_ids: Sequence[int], logprobs: bool = False
    ) -> list[Output]:
        stop = self._stop(max_tokens, eos_ids)
        return [self._decode(prompt, stop, logprobs) for prompt in prompts]

    def _decode(self, prompt: Sequence[int], stop: StopRule, logprobs: bool) -> Output:
        check_prompt(self.model.config, prompt, stop)
        # Angles that depend on the length make the split into forwards part of the result.
        is_drafted = self.model.config.rope.rope_type not in ("dynamic", "longrope")
        cache = empty_cache(self.model.config)
        output: list[int] = []
        told: list[float] = []
        while True:
            tokens = (*prompt, *output)
            room = min(stop.max_tokens - len(output), stop.context_length - len(tokens))
            drafts = lookup(tokens, min(NUM_DRAFTS, room - 1)) if is_drafted else ()
            logits, cache = forward(self.model, (*tokens[len(cache) :], *drafts), cache)
            rows = logits[-len(drafts) - 1 :]
            run = until_eos(verify_greedy(rows, drafts), stop.eos_ids)
            told += [float(log_softmax(row)[token]) for row, token in zip(rows, run, strict=False)]
            output += run
            cache = cache.truncate(len(tokens) + len(run) - 1)
            reason = finish_reason(len(prompt), output, stop)
            if reason is not None:
                return Output(tuple(output), reason, tuple(told) if logprobs else None)


def lookup(tokens: tuple[int, ...], num_drafts: int) -> tuple[int, ...]:
    """At most num_drafts tokens that followed the last token where it stood the last time before."""
    earlier = [place for place, token in enumerate(tokens[:-1]) if token == tokens[-1]]
    if not earlier:
        return ()
    start = earlier[-1] + 1
    return tokens[start : start + num_drafts]


def until_eos(run: tuple[int, ...], eos_ids: Sequence[int]) -> tuple[int, ...]:
    """A run up to and with its first eos."""
    ends = [place for place, token in enumerate(run) if token in eos_ids]
    return run[: ends[0] + 1] if ends else run
