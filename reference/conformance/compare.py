"""Verdicts: what the comparison of an engine's answer with a record says."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import numpy as np

from reference.engine import Precision, Scores
from reference.errors import Array
from reference.numerics import log_softmax


class Verdict(str, Enum):
    """The kinds of verdict; what was planned is the sum of all of them."""

    PASS = "pass"
    FAIL = "fail"
    NEAR_TIE = "near_tie"
    XFAIL = "xfail"
    XPASS = "xpass"
    UNSUPPORTED = "unsupported"
    NOT_APPLICABLE = "not_applicable"
    HARNESS_ERROR = "harness_error"
    TIMEOUT = "timeout"

    def __str__(self) -> str:
        return self.value


GOOD = frozenset({Verdict.PASS, Verdict.NEAR_TIE})
BAD = frozenset({Verdict.FAIL, Verdict.XPASS, Verdict.HARNESS_ERROR, Verdict.TIMEOUT})

NO_DETAILS: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Judgement:
    """A verdict, one sentence for a person where it is not a plain pass, and the numbers behind it."""

    verdict: Verdict
    sentence: str = ""
    details: Mapping[str, Any] = field(default_factory=lambda: NO_DETAILS)
    crashes: int = 0  # times the engine died while it was asked
    evidence: Mapping[str, Any] = field(default_factory=lambda: NO_DETAILS, compare=False)  # for a diagnosis


PASS = Judgement(Verdict.PASS)

DECISIVE = 0.25
"""A tolerance beyond this share of the row's largest |logit| accepts almost everything."""

TOLERANCES: Mapping[Precision, float] = {
    "exact": 0.0,
    "f64": 1e-10,
    "f32": 1e-4,
    "f16": 2e-3,
    "bf16": 1.6e-2,
    "int8": 2e-1,
}
"""Largest difference of a logit or logprob, relative to max(1, the row's largest |logit|).

For f16 and bf16, four units of rounding: what is allowed at least. The measured noise of a position (noise.py) is
more. A class int8 no engine of ours claims; it is a guess.

Measured over all rows of the forward and cache records: at most 1.0e-5 for the fast twin in float32 and 3.4e-5 for
transformers in float32 (median 4e-7 for both).
"""


def tolerances(rows: Array, precision: Precision, noise: Array | None = None) -> Array:
    """Largest difference that is no divergence, of each row of logits [T, V]; noise [T] is what was measured."""
    relative = TOLERANCES[precision] if noise is None else np.maximum(TOLERANCES[precision], noise)
    limits: Array = relative * np.maximum(1.0, np.abs(rows).max(axis=-1))
    return limits


def compare_logits(
    expected: Array,
    answered: Array,
    precision: Precision,
    scores: Scores = "logits",
    noise: Array | None = None,
) -> Judgement:
    """Scores [T, V] against logits [T, V]: the first row out of tolerance, with its largest difference.

    Not applicable where the measured noise leaves no row that could tell a wrong engine from a right one.
    """
    if answered.shape != expected.shape:
        return fail(f"expected {scores} {list(expected.shape)}, got {list(answered.shape)}")
    limits = tolerances(expected, precision, noise)
    off = np.array([difference(*rows, scores) for rows in zip(expected, answered, strict=True)])
    largest = off.max(axis=-1)
    is_far = ~(largest <= limits) if noise is None else ~(largest <= limits) & np.isfinite(limits)
    wrong = np.flatnonzero(is_far)
    if len(wrong) == 0:
        if noise is not None and noise.min() > DECISIVE:
            return Judgement(Verdict.NOT_APPLICABLE, f"every position has a noise beyond {DECISIVE} in {precision}")
        return PASS
    position = int(wrong[0])
    token = int(np.argmax(off[position]))  # the first NaN, if there is one
    right = expected[position] if scores == "logits" else log_softmax(expected[position])
    sentence = (
        f"first divergence at position {position}: {scores[:-1]} of token {token} is "
        f"{answered[position, token]:.9g}, expected {right[token]:.9g} (largest difference "
        f"{off[position, token]:.3g}, tolerance {limits[position]:.3g})"
    )
    details = {
        "position": position,
        "token": token,
        "expected_value": float(right[token]),
        "answered_value": float(answered[position, token]),
        "expected_top_token": int(np.argmax(right)),
        "answered_top_token": int(np.argmax(answered[position])),
        "differences": largest.tolist(),
        "tolerances": limits.tolist(),
    }
    return Judgement(Verdict.FAIL, sentence, details)


def difference(right: Array, given: Array, scores: Scores = "logits") -> Array:
    """|logit difference| and |logprob difference| of a row, whichever is larger, [V] -> [V].

    Both: a constant added to all logits leaves logprobs alone, and is wrong. An engine that gives logprobs is asked
    for no more.
    """
    given = np.asarray(given, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        logprobs: Array = np.abs((given if scores == "logprobs" else log_softmax(given)) - log_softmax(right))
        return logprobs if scores == "logprobs" else np.maximum(logprobs, np.abs(given - right))


Logits = Callable[[int], Array]
"""Index of an output token -> the specification's logits [V] where it was chosen."""


def compare_tokens(
    expected: Sequence[int],
    answered: Sequence[int],
    precision: Precision,
    logits: Logits,
    noise: Array | None = None,
) -> Judgement:
    """Token ids against token ids: the first divergence, a near tie where the precision's noise could cause it.

    `noise` holds what was measured where each token is chosen.
    """
    both = {"expected_tokens": list(expected), "answered_tokens": list(answered)}
    for index, (right, given) in enumerate(zip(expected, answered, strict=False)):
        if right != given:
            row = logits(index)
            limit = float(tolerances(row, precision, None if noise is None else noise[index]))
            judgement = _divergence(index, right, given, row, 2.0 * limit)
            return replace(judgement, details={**judgement.details, **both})
    if len(expected) != len(answered):
        return Judgement(Verdict.FAIL, _other_end(expected, answered), both)
    return PASS


def _other_end(expected: Sequence[int], answered: Sequence[int]) -> str:
    """One output is the beginning of the other."""
    index, counts = min(len(expected), len(answered)), f"expected {len(expected)} tokens, got {len(answered)}"
    if len(answered) == index:
        return f"first divergence at output token {index}: the output ends, expected {expected[index]}; {counts}"
    return f"first divergence at output token {index}: {answered[index]}, expected the output to end; {counts}"


def _divergence(index: int, right: int, given: int, row: Array, limit: float) -> Judgement:
    """Each of the two logits may be off by the tolerance, so a margin of twice the tolerance is a near tie."""
    details: dict[str, Any] = {"index": index, "expected_token": right, "answered_token": given, "limit": limit}
    if not 0 <= given < len(row):
        sentence = f"output token {index} is {given}, which no vocabulary of {len(row)} has; expected {right}"
        return Judgement(Verdict.FAIL, sentence, details)
    margin = float(row[right] - row[given])
    details |= {"expected_logit": float(row[right]), "answered_logit": float(row[given]), "margin": margin}
    sentence = (
        f"first divergence at output token {index}: {given} (reference logit {row[given]:.6g}), expected {right} "
        f"({row[right]:.6g}); margin {margin:.3g} logits, noise {limit:.3g}"
    )
    return Judgement(Verdict.NEAR_TIE if margin <= limit else Verdict.FAIL, sentence, details)


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
