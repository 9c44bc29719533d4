"""Verdicts: what the comparison of an engine's answer with a record says."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from reference.engine import Precision
from reference.errors import Array
from reference.numerics import log_softmax


class Verdict(str, Enum):
    """The kinds of verdict; what was planned is the sum of all of them."""

    PASS = "pass"
    FAIL = "fail"
    NEAR_TIE = "near_tie"
    UNSUPPORTED = "unsupported"
    HARNESS_ERROR = "harness_error"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Judgement:
    """A verdict, and one sentence for a person where it is not a pass."""

    verdict: Verdict
    sentence: str = ""


PASS = Judgement(Verdict.PASS)

TOLERANCES: Mapping[Precision, float] = {"exact": 0.0, "f64": 1e-10, "f32": 1e-4}
"""Largest difference of a logit or logprob, relative to max(1, the row's largest |logit|).

Measured over all rows of the forward and cache records: at most 1.0e-5 for the fast twin in float32 and 3.4e-5 for
transformers in float32 (median 4e-7 for both).
"""


def compare_logits(expected: Array, answered: Array, precision: Precision) -> Judgement:
    """Logits [T, V] against logits [T, V]: the first row out of tolerance, with its largest difference."""
    if answered.shape != expected.shape:
        return fail(f"expected logits {list(expected.shape)}, got {list(answered.shape)}")
    for position, (right, given) in enumerate(zip(expected, answered, strict=True)):
        limit = TOLERANCES[precision] * max(1.0, float(np.max(np.abs(right))))
        off = difference(right, given)
        if not np.max(off) <= limit:
            token = int(np.argmax(off))  # the first NaN, if there is one
            return fail(
                f"first divergence at position {position}: logit of token {token} is {given[token]:.9g}, "
                f"expected {right[token]:.9g} (largest difference {off[token]:.3g}, tolerance {limit:.3g})"
            )
    return PASS


def difference(right: Array, given: Array) -> Array:
    """|logit difference| and |logprob difference| of a row, whichever is larger, [V] -> [V].

    Both: a constant added to all logits leaves logprobs alone, and is wrong.
    """
    given = np.asarray(given, dtype=np.float64)
    logprobs: Array = np.abs(log_softmax(given) - log_softmax(right))
    return np.maximum(logprobs, np.abs(given - right))


def compare_tokens(
    expected: Sequence[int], answered: Sequence[int], margins: Sequence[float] | None, precision: Precision
) -> Judgement:
    """Token ids against token ids: the first divergence. Within the precision's noise of a tie it is a near tie.

    margins[i] is the specification's top-1 margin, in logits, where it chose expected[i].
    """
    for index, (right, given) in enumerate(zip(expected, answered, strict=False)):
        if right == given:
            continue
        margin = math.inf if margins is None else margins[index]
        sentence = f"first divergence at output token {index}: {given}, expected {right} (margin {margin:.3g} logits)"
        is_near = margin <= 2.0 * TOLERANCES[precision]
        return Judgement(Verdict.NEAR_TIE if is_near else Verdict.FAIL, sentence)
    if len(expected) != len(answered):
        return fail(f"expected {len(expected)} tokens, got {len(answered)}")
    return PASS


def compare_fields(expected: object, answered: object, place: str = "$") -> Judgement:
    """JSON values field by field: the first field that differs."""
    if isinstance(expected, dict) and isinstance(answered, dict):
        for name in sorted(expected.keys() | answered.keys()):
            if name not in expected or name not in answered:
                return fail(f"field {place}.{name} is {'missing' if name in expected else 'not expected'}")
            judgement = compare_fields(expected[name], answered[name], f"{place}.{name}")
            if judgement is not PASS:
                return judgement
        return PASS
    if isinstance(expected, list) and isinstance(answered, list):
        if len(expected) != len(answered):
            return fail(f"{place} has {len(answered)} entries, expected {len(expected)}")
        for index, (right, given) in enumerate(zip(expected, answered, strict=True)):
            judgement = compare_fields(right, given, f"{place}[{index}]")
            if judgement is not PASS:
                return judgement
        return PASS
    # In Python True == 1; in JSON they differ.
    is_equal = expected == answered and isinstance(expected, bool) == isinstance(answered, bool)
    return PASS if is_equal else fail(f"{place} is {answered!r}, expected {expected!r}")


def fail(sentence: str) -> Judgement:
    """A failure with its sentence."""
    return Judgement(Verdict.FAIL, sentence)
