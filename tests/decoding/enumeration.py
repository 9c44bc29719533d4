"""The exact law of draft-verify steps: the real `verify` run once for every cell of its coins, in fractions.

p and q are context-dependent: each prefix has its own pair of distributions, with zeros among the probabilities.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise, product

import numpy as np

from reference.decoding.verification import verify

Law = Sequence[Fraction]
LawOf = Callable[[tuple[int, ...]], Law]
"""A prefix -> the law of the token after it."""
Outcomes = dict[tuple[int, ...], Fraction]

HAIR = Fraction(1, 10**12)


def context_dependent(name: str, num_tokens: int) -> LawOf:
    """A law for every prefix, from weights 0 .. 4 that depend on name and prefix (str seeds are stable)."""
    memory: dict[tuple[int, ...], Law] = {}

    def law(prefix: tuple[int, ...]) -> Law:
        if prefix not in memory:
            weights = [0]
            source = random.Random(f"{name} {prefix}")
            while sum(weights) == 0:
                weights = [source.randrange(5) for _ in range(num_tokens)]
            memory[prefix] = [Fraction(weight, sum(weights)) for weight in weights]
        return memory[prefix]

    return law


def exact(rows: Sequence[Law]) -> np.ndarray:
    return np.array([list(row) for row in rows], dtype=object)


def cells(*laws: Law) -> list[tuple[Fraction, Fraction]]:
    """(lower end, width) of the intervals on which the inverse CDFs of all the laws are constant."""
    edges = sorted({Fraction(0), Fraction(1), *(edge for law in laws for edge in accumulate(law) if edge < 1)})
    return [(low, high - low) for low, high in pairwise(edges)]


def surplus_law(p: Law, q: Law) -> Law:
    """norm(max(0, p - q)), written independently of the code under test."""
    surplus = [max(Fraction(0), a - b) for a, b in zip(p, q, strict=True)]
    return [part / sum(surplus) for part in surplus] if sum(surplus) > 0 else p


def drafts_of(q_of: LawOf, num_tokens: int, gamma: int) -> list[tuple[tuple[int, ...], Fraction]]:
    """Every sequence of drafts with its probability, if positive."""
    weighted = []
    for drafts in product(range(num_tokens), repeat=gamma):
        weight = Fraction(1)
        for i, x in enumerate(drafts):
            weight *= q_of(drafts[:i])[x]
        if weight > 0:
            weighted.append((drafts, weight))
    return weighted


def law_of_a_step(p_of: LawOf, q_of: LawOf, num_tokens: int, gamma: int) -> Outcomes:
    """Emitted tokens -> probability, over drafts from q, accept coins and the final coin.

    A coin at or below the accept probability a accepts: its cell has weight a and is represented by its upper end
    a itself; the rejecting cell by a hair above a. Cells of the final coin are represented by their lower end.
    """
    law: Outcomes = defaultdict(Fraction)
    for drafts, draft_weight in drafts_of(q_of, num_tokens, gamma):
        p = [p_of(drafts[:i]) for i in range(gamma + 1)]
        q = [q_of(drafts[:i]) for i in range(gamma)]
        accept = [min(Fraction(1), p[i][x] / q[i][x]) for i, x in enumerate(drafts)]
        for first_rejected in range(gamma + 1):
            weight = draft_weight
            coins = []
            for i, a in enumerate(accept):
                if i == first_rejected:
                    weight *= 1 - a
                    coins.append(a + HAIR)
                else:
                    # After a rejection coins do not matter.
                    weight *= a if i < first_rejected else 1
                    coins.append(min(a, 1 - HAIR))
            if weight == 0:
                continue
            last = p[-1:] if first_rejected == gamma else [surplus_law(p[first_rejected], q[first_rejected])]
            for coin, width in cells(*last, p[min(first_rejected, gamma)], p[-1]):
                law[verify(exact(p), exact(q), drafts, coins, coin).tokens] += weight * width
    return dict(law)


def law_of_prefixes(p_of: LawOf, length: int, num_tokens: int, start: Outcomes | None = None) -> Outcomes:
    """The law of the first `length` tokens when `start` is continued by plain sampling from the target."""
    law: Outcomes = defaultdict(Fraction)
    for prefix, weight in ({(): Fraction(1)} if start is None else start).items():
        for rest in product(range(num_tokens), repeat=length - len(prefix)):
            probability = weight
            for i in range(len(prefix), length):
                probability *= p_of((*prefix, *rest)[:i])[(*prefix, *rest)[i]]
            law[(*prefix, *rest)] += probability
    return {tokens: probability for tokens, probability in law.items() if probability > 0}


def first_token_law(outcomes: Outcomes, num_tokens: int) -> list[Fraction]:
    return [sum((w for tokens, w in outcomes.items() if tokens[0] == x), Fraction(0)) for x in range(num_tokens)]


def distance(one: Outcomes, other: Outcomes) -> Fraction:
    """Total variation, written independently of the code under test."""
    zero = Fraction(0)
    return sum((abs(one.get(k, zero) - other.get(k, zero)) for k in one.keys() | other.keys()), zero) / 2
