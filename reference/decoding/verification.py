"""Verification of drafted tokens, in the letters of Leviathan, Kalman and Matias 2023 (arXiv 2211.17192).

p is the target's distribution, q the draft's, gamma the number of drafts. Every rule is exact for exact types: with
arrays of fractions.Fraction the same code gives exact laws.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from reference.decoding.sampling import check_coin, check_distribution, draw, greedy
from reference.errors import Array, Refusal, RefusedError
from reference.numerics import sum_last

Outcome = Literal["accepted", "rejected_and_resampled", "bonus"]


@dataclass(frozen=True)
class Verdict:
    """What happened at one position of a draft-verify step."""

    position: int
    draft_token: int
    p_target: float  # p(draft_token)
    q_draft: float  # q(draft_token)
    accept_prob: float
    accept_coin: float
    outcome: Outcome
    emitted_token: int


@dataclass(frozen=True)
class Verification:
    """The tokens of one draft-verify step: `num_accepted` drafts and one more, resampled or bonus."""

    num_accepted: int
    tokens: tuple[int, ...]
    verdicts: tuple[Verdict, ...]  # one per draft looked at


def accept_probability(p_x: float, q_x: float) -> float:
    """[SPEC-1] min(1, p(x)/q(x)) (sec. 2.3). Raises: DRAFT_IMPOSSIBLE if q(x) is 0: then x was not drawn from q."""
    if q_x <= 0:
        raise RefusedError(Refusal.DRAFT_IMPOSSIBLE, "a drafted token has draft probability 0")
    return 1 if p_x >= q_x else p_x / q_x


def residual(p: Array, q: Array) -> Array:
    """[SPEC-2] norm(max(0, p - q)), the law of the token that replaces a rejected draft; p, q [V] (sec. 2.3).

    Where p and q are equal no draft is ever rejected; there the residual is defined as p.
    """
    surplus = np.maximum(0, p - q)
    mass = sum_last(surplus)
    return surplus / mass if mass > 0 else p


def verify(
    p: Array, q: Array, drafts: Sequence[int], accept_coins: Sequence[float], final_coin: float
) -> Verification:
    """[SPEC-3] One draft-verify step; p [gamma + 1, V], q [gamma, V], gamma drafts and coins (Algorithm 1).

    Draft i is accepted when its coin u <= min(1, p_i(x)/q_i(x)) (the paper rejects when u > p/q), but never where
    p_i(x) is 0: the coin 0 must not emit a token the target cannot emit. The first rejection ends the step with a
    token from the residual; if all are accepted, a bonus token comes from p[gamma]. That last token is drawn with
    `final_coin`, never with an accept coin: an accept coin is not uniform any more once it is known to have rejected.
    Raises: NOT_A_DISTRIBUTION, COIN_OUT_OF_RANGE, DRAFT_IMPOSSIBLE, TOKEN_OUT_OF_RANGE.
    """
    _check_step(p, q, drafts, accept_coins, final_coin)
    verdicts: list[Verdict] = []
    for i, (x, coin) in enumerate(zip(drafts, accept_coins, strict=True)):
        accept_prob = accept_probability(p[i, x], q[i, x])
        is_accepted = bool(coin <= accept_prob) and accept_prob > 0
        token = x if is_accepted else draw(residual(p[i], q[i]), final_coin)
        outcome: Outcome = "accepted" if is_accepted else "rejected_and_resampled"
        verdicts.append(Verdict(i, x, p[i, x], q[i, x], accept_prob, coin, outcome, token))
        if not is_accepted:
            return Verification(i, (*drafts[:i], token), tuple(verdicts))
    bonus = draw(p[-1], final_coin)
    return Verification(len(drafts), (*drafts, bonus), tuple(verdicts))


def verify_greedy(target_logits: Array, drafts: Sequence[int]) -> tuple[int, ...]:
    """[SPEC-4] The target's greedy tokens for as long as the drafts agree, and one more; logits [gamma + 1, V]."""
    for i, (row, x) in enumerate(zip(target_logits[:-1], drafts, strict=True)):
        if greedy(row) != x:
            return (*drafts[:i], greedy(row))
    return (*drafts, greedy(target_logits[-1]))


def total_variation(p: Array, q: Array) -> float:
    """[SPEC-5] sum |p - q| / 2, p and q [V]. 1 minus it is the acceptance rate beta (Corollary 3.6)."""
    return sum_last(abs(p - q)) / 2  # type: ignore[return-value]


def acceptance(p: Array, q: Array) -> float:
    """[SPEC-6] beta = sum min(p, q), the probability that a token drawn from q is accepted (Theorem 3.5)."""
    return sum_last(np.minimum(p, q))  # type: ignore[return-value]


def output_law(p: Array, q: Array, replacement: Array) -> Array:
    """[SPEC-7] Law of the first emitted token when a rejected draft is replaced by a draw from `replacement`; [V].

    min(p, q) + (1 - beta) replacement; with the residual it is p itself (Appendix A.1).
    """
    law: Array = np.minimum(p, q) + (1 - acceptance(p, q)) * replacement
    return law


def expected_tokens(alpha: float, gamma: int) -> float:
    """[SPEC-8] (1 - alpha**(gamma + 1)) / (1 - alpha), the mean number of tokens of a step (eq. 1); gamma + 1 at 1.

    Raises: NOT_A_DISTRIBUTION if alpha is not in [0, 1]; LIMIT_NOT_POSITIVE if gamma is below 1.
    """
    if not 0 <= alpha <= 1:
        raise RefusedError(Refusal.NOT_A_DISTRIBUTION, f"acceptance rate {alpha} is not in [0, 1]")
    if gamma < 1:
        raise RefusedError(Refusal.LIMIT_NOT_POSITIVE, f"gamma is {gamma}; at least one draft is needed")
    if alpha == 1:
        return gamma + 1
    # A product in fixed order: the last bit of ** is the C library's.
    return (1 - math.prod([alpha] * (gamma + 1))) / (1 - alpha)


def _check_step(p: Array, q: Array, drafts: Sequence[int], accept_coins: Sequence[float], final_coin: float) -> None:
    gamma = len(drafts)
    if gamma < 1:
        raise RefusedError(Refusal.LIMIT_NOT_POSITIVE, "at least one draft is needed")
    if p.ndim != 2 or p.shape[0] != gamma + 1 or q.shape != (gamma, p.shape[1]):
        sentence = f"{gamma} drafts need p [{gamma + 1}, V] and q [{gamma}, V]; got {p.shape} and {q.shape}"
        raise RefusedError(Refusal.NOT_A_DISTRIBUTION, sentence)
    check_distribution(p, "p")
    check_distribution(q, "q")
    if len(accept_coins) != gamma:
        sentence = f"{gamma} drafts need {gamma} accept coins; got {len(accept_coins)}"
        raise RefusedError(Refusal.COIN_OUT_OF_RANGE, sentence)
    for coin in (*accept_coins, final_coin):
        check_coin(coin)
    for x in drafts:
        if not 0 <= x < p.shape[1]:
            raise RefusedError(Refusal.TOKEN_OUT_OF_RANGE, f"draft {x} is not in 0 .. {p.shape[1] - 1}")
