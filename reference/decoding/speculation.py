"""Speculative decoding of one session by two models, with rollback of both KV caches.

Between steps a model's cache holds all tokens but the last, whose keys and values nobody has computed yet. After a
step with every draft accepted, the draft model also lacks its own last draft: it was proposed but never fed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reference.decoding.generate import FinishReason, StopRule, check_prompt, finish_reason
from reference.decoding.sampling import distribution, draw, greedy
from reference.decoding.verification import verify, verify_greedy
from reference.errors import Array, Refusal, RefusedError
from reference.model.cache import KVCache, empty_cache
from reference.model.transformer import forward
from reference.model.weights import Model


@dataclass(frozen=True)
class StepCoins:
    """The coins of one draft-verify step: gamma to draw drafts, gamma to accept them, one for the last token."""

    draft: tuple[float, ...]
    accept: tuple[float, ...]
    final: float


@dataclass(frozen=True)
class Step:
    """One draft-verify step as it was verified, before the output is cut at its end."""

    drafts: tuple[int, ...]
    num_accepted: int
    tokens: tuple[int, ...]
    target_cached: int  # entries in the target's cache after rollback
    draft_cached: int


@dataclass(frozen=True)
class SpeculativeGeneration:
    """The output of one session and how it came about."""

    tokens: tuple[int, ...]
    finish_reason: FinishReason
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Sampling:
    """Decode by sampling at a temperature; step i uses coins[i]. Without it decoding is greedy."""

    temperature: float
    coins: Sequence[StepCoins]


def generate_speculatively(
    target: Model, draft: Model, prompt: Sequence[int], stop: StopRule, gamma: int, sampling: Sampling | None = None
) -> SpeculativeGeneration:
    """[SPEC-9] Decodes `target` with gamma drafts a step. Greedily the tokens are those of plain decoding.

    A step drafts fewer than gamma tokens where the output could not hold them and the token after them.
    Raises: as generate; LIMIT_NOT_POSITIVE if gamma is below 1; CONFIG_INVALID if the vocabularies differ;
    COIN_OUT_OF_RANGE if coins run out.
    """
    _check_pair(target, draft, prompt, stop, gamma)
    output: list[int] = []
    steps: list[Step] = []
    target_cache, draft_cache = empty_cache(target.config), empty_cache(draft.config)
    while True:
        tokens = (*prompt, *output)
        room = min(stop.max_tokens - len(output), stop.context_length - len(tokens))
        num_drafts = min(gamma, room - 1)
        coins = None if sampling is None else _coins_of_step(sampling, len(steps), num_drafts)
        temperature = None if sampling is None else sampling.temperature
        drafts, q, draft_cache = propose(draft, draft_cache, tokens, num_drafts, temperature, coins)
        logits, target_cache = forward(target, (*tokens[len(target_cache) :], *drafts), target_cache)
        emitted = emit(logits[-len(drafts) - 1 :], q, drafts, temperature, coins)
        num_kept = len(tokens) + len(emitted) - 1
        target_cache = target_cache.truncate(num_kept)
        draft_cache = draft_cache.truncate(min(num_kept, len(draft_cache)))
        steps.append(Step(drafts, len(emitted) - 1, emitted, len(target_cache), len(draft_cache)))
        for token in emitted:
            output.append(token)
            reason = finish_reason(len(prompt), output, stop)
            if reason is not None:
                return SpeculativeGeneration(tuple(output), reason, tuple(steps))


def propose(
    draft: Model,
    cache: KVCache,
    tokens: Sequence[int],
    num_drafts: int,
    temperature: float | None,
    coins: StepCoins | None,
) -> tuple[tuple[int, ...], Array, KVCache]:
    """[SPEC-10] Drafts after `tokens`, their laws q [num_drafts, V], and the draft's cache without the last draft."""
    drafts: list[int] = []
    rows = np.zeros((num_drafts, draft.config.vocab_size))
    for i in range(num_drafts):
        new_tokens = [*tokens, *drafts][len(cache) :]
        logits, cache = forward(draft, new_tokens, cache)
        if temperature is None or coins is None:
            drafts.append(greedy(logits[-1]))
            continue
        rows[i] = distribution(logits[-1], temperature)
        drafts.append(draw(rows[i], coins.draft[i]))
    return tuple(drafts), rows, cache


def emit(
    target_logits: Array, q: Array, drafts: tuple[int, ...], temperature: float | None, coins: StepCoins | None
) -> tuple[int, ...]:
    """[SPEC-11] The tokens of a step: accepted drafts and one more; target_logits [gamma + 1, V], q [gamma, V]."""
    if temperature is None or coins is None:
        return verify_greedy(target_logits, drafts)
    p = distribution(target_logits, temperature)
    if len(drafts) == 0:
        return (draw(p[0], coins.final),)
    return verify(p, q, drafts, coins.accept, coins.final).tokens


def _coins_of_step(sampling: Sampling, step: int, num_drafts: int) -> StepCoins:
    if step >= len(sampling.coins):
        raise RefusedError(Refusal.COIN_OUT_OF_RANGE, f"step {step} has no coins; {len(sampling.coins)} steps have")
    coins = sampling.coins[step]
    if min(len(coins.draft), len(coins.accept)) < num_drafts:
        raise RefusedError(Refusal.COIN_OUT_OF_RANGE, f"step {step} needs {num_drafts} draft and accept coins")
    return StepCoins(coins.draft[:num_drafts], coins.accept[:num_drafts], coins.final)


def _check_pair(target: Model, draft: Model, prompt: Sequence[int], stop: StopRule, gamma: int) -> None:
    check_prompt(target.config, prompt, stop)
    if gamma < 1:
        raise RefusedError(Refusal.LIMIT_NOT_POSITIVE, f"gamma is {gamma}; at least one draft is needed")
    if target.config.vocab_size != draft.config.vocab_size:
        sentence = f"vocab_size of target and draft differ: {target.config.vocab_size}, {draft.config.vocab_size}"
        raise RefusedError(Refusal.CONFIG_INVALID, sentence)
    if stop.context_length > draft.config.context_length:
        sentence = f"a context of {stop.context_length} exceeds the draft's {draft.config.context_length}"
        raise RefusedError(Refusal.CONTEXT_EXCEEDED, sentence)
