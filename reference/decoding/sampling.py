"""From logits to a token: greedily, or by a coin from a distribution.

A coin is a number in [0, 1) and always an argument.
"""

import numpy as np

from reference.errors import Array, Refusal, RefusedError
from reference.numerics import argmax, cumulative, softmax, sum_last

# A row of float64 probabilities sums to 1 within V roundings; a row of rounded decimals is not a distribution.
SUM_TOLERANCE = 1e-9


def greedy(logits: Array) -> int:
    """[DEC-1] The most likely token of logits [V]; ties go to the lowest token id. Raises: NOT_A_NUMBER."""
    return argmax(logits)


def distribution(logits: Array, temperature: float = 1.0) -> Array:
    """[DEC-2] softmax(logits / temperature), [V] -> [V] or [T, V] -> [T, V].

    Raises: LIMIT_NOT_POSITIVE if the temperature is not above 0 (greedy decoding is its own rule).
    """
    if not 0.0 < temperature < np.inf:
        raise RefusedError(Refusal.LIMIT_NOT_POSITIVE, f"temperature {temperature} must be above 0 and finite")
    return softmax(logits / temperature)


def draw(p: Array, coin: float) -> int:
    """[DEC-3] Inverse CDF: the lowest token whose cumulative probability exceeds the coin, p [V].

    So token x answers the coins in [P(< x), P(<= x)), and no coin selects a token of probability 0. Where rounding
    leaves the whole sum at or below the coin, the last token of positive probability is taken.
    Raises: NOT_A_DISTRIBUTION, COIN_OUT_OF_RANGE.
    """
    check_distribution(p, "p")
    check_coin(coin)
    chosen = np.flatnonzero(cumulative(p) > coin)
    return int(chosen[0]) if len(chosen) > 0 else int(np.flatnonzero(p > 0)[-1])


def check_distribution(p: Array, name: str) -> None:
    """Refuses rows of p [..., V] that are negative, not finite or do not sum to 1. Raises: NOT_A_DISTRIBUTION."""
    if not np.all(p >= 0):
        raise RefusedError(Refusal.NOT_A_DISTRIBUTION, f"{name} holds a negative probability or a NaN")
    total = sum_last(p)
    if not np.all(abs(total - 1) <= SUM_TOLERANCE):
        raise RefusedError(Refusal.NOT_A_DISTRIBUTION, f"{name} sums to {total}, not to 1")


def check_coin(coin: float) -> None:
    """Raises: COIN_OUT_OF_RANGE."""
    if not 0 <= coin < 1:
        raise RefusedError(Refusal.COIN_OUT_OF_RANGE, f"coin {coin} is not in [0, 1)")
