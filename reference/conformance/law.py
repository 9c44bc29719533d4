"""The law of an engine's verifier, measured: the integral of its answer over all its coins."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np

from reference.decoding.verification import accept_probability, residual, total_variation
from reference.errors import Array
from reference.numerics import cumulative

ROUNDING = 1e-12
"""Distances below this are rounding: each law is a sum of a few dozen float64 products."""


class Emitted(Protocol):
    """The answer of a verifier, as far as its law is concerned."""

    @property
    def tokens(self) -> tuple[int, ...]: ...


Verify = Callable[[Array, Array, Sequence[int], Sequence[float], float], Emitted]


def distance_to_target(verify: Verify, p: Array, q: Array) -> float:
    """Total variation between p [V] and the law of the first token of a one-draft step of `verify`."""
    return total_variation(p, emitted_law(verify, p, q))


def emitted_law(verify: Verify, p: Array, q: Array) -> Array:
    """Law [V] of the first token of a one-draft step, the draft drawn from q, both coins uniform.

    The answer is constant between the coins at which a rule can change: acceptance probabilities and the cumulative
    sums of p, q and the residual. It is asked for at the middle of each cell and weighed with the cell's size.
    """
    V = len(p)
    accept_edges = [0.0, 1.0, *(accept_probability(p[x], q[x]) for x in range(V) if q[x] > 0)]
    draw_edges = [0.0, 1.0, *cumulative(p), *cumulative(q), *cumulative(residual(p, q))]
    law = np.zeros(V)
    for x in np.flatnonzero(q > 0).tolist():
        for accept_coin, accept_size in _cells(accept_edges):
            for final_coin, final_size in _cells(draw_edges):
                answer = verify(np.stack((p, p)), q[None, :], [x], [accept_coin], final_coin)
                law[answer.tokens[0]] += q[x] * accept_size * final_size
    return law


def _cells(edges: Sequence[float]) -> list[tuple[float, float]]:
    """Middle and size of every cell between neighbouring edges in [0, 1]."""
    inside = sorted({min(1.0, float(edge)) for edge in edges})
    return [((low + high) / 2.0, high - low) for low, high in pairwise(inside)]
