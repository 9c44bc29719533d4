"""What of an answer can be seen from outside, in a form in which answers of two engines can be compared.

An observable is a part of an answer: scores (of every position, as logprobs), logits (where the engine tells them),
tokens, finish_reason, detail (a trace, the steps of a speculation, bytes of a cache, costs, a law) and error.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reference.conformance.artifacts import canonical_json, to_plain
from reference.conformance.records import Record
from reference.engine import Description, Output, Verified
from reference.errors import Array, RefusedError, UnsupportedError
from reference.numerics import log_softmax, sum_last
from reference.serving.loop import Served


@dataclass(frozen=True)
class Answer:
    """What an engine gave for a record: a value in the family's form, or what it raised instead."""

    value: Any = None
    error: Exception | None = None


Observed = Mapping[str, Any]
"""Observable -> an array of numbers (scores, logits) or a JSON value. What the engine does not tell is absent."""

Fingerprint = Mapping[str, Any]
"""Observable -> a sketch of an array [SKETCH], or the digest of a JSON value."""

NUMERIC = ("scores", "logits")
DISCRETE = ("tokens", "finish_reason", "detail", "error")
SKETCH = 6
LARGEST = 1e6
"""Numbers of a sketch are clipped here, so that an infinity has a distance."""


def observe(record: Record, answer: Answer, engine: Description) -> Observed:
    """The observables of an answer; none of an answer that is no result and no error."""
    if isinstance(answer.error, UnsupportedError):
        return {}
    if isinstance(answer.error, RefusedError):
        return {"error": str(answer.error.reason)}
    if answer.error is not None:
        return {"error": type(answer.error).__name__}
    if record.is_seed:
        return {"detail": to_plain(answer.value[1])}
    return _merged([_seen(part, engine, record.family) for part in _parts(answer.value)])


def _parts(value: Any) -> Sequence[Any]:
    """The answers of an answer: of every step of a script, of both ways of a metamorphic record."""
    is_compound = isinstance(value, list | tuple) and any(
        isinstance(part, np.ndarray | Output | Exception | tuple) for part in value
    )
    return [inner for part in value for inner in _parts(part)] if is_compound else [value]


def _seen(value: Any, engine: Description, family: str) -> Observed:
    match value:
        case None:
            return {}
        case Exception():
            return {"error": type(value).__name__}
        case np.ndarray():
            if value.ndim != 2 or value.shape[1] == 1 or engine.scores == "logprobs":
                return {"scores": value.ravel()}
            return {"scores": log_softmax(value).ravel(), "logits": value.ravel()}
        case int() if family == "cache":  # bytes: engines store numbers of different sizes
            return {} if engine.kv_itemsize is None else {"detail": value / engine.kv_itemsize}
        case Output():
            seen: dict[str, Any] = {"tokens": list(value.tokens)}
            if value.finish_reason is not None:
                seen["finish_reason"] = value.finish_reason
            if value.logprobs is not None:
                seen["scores"] = np.array(value.logprobs)
            if value.steps is not None:
                seen["detail"] = to_plain(value.steps)
            return seen
        case Verified():
            return {"tokens": list(value.tokens), "detail": value.num_accepted}
        case Served():
            return {"tokens": to_plain(value.tokens), "detail": to_plain(value.trace)}
    return {"detail": to_plain(value)}


def _merged(parts: Sequence[Observed]) -> Observed:
    """Arrays one after the other, JSON values in a list."""
    merged: dict[str, Any] = {}
    for name in (*NUMERIC, *DISCRETE):
        values = [part[name] for part in parts if name in part]
        if values:
            merged[name] = np.concatenate(values) if name in NUMERIC else values
    return merged


def differing(right: Observed, given: Observed) -> dict[str, float | None]:
    """The observables in which an answer differs from the right one, of those that it tells, with the size.

    The size is the largest difference of a number relative to max(1, the largest |number|); None where there is none.
    """
    found: dict[str, float | None] = {}
    for name in given:
        if name not in right:
            found[name] = None
        elif name not in NUMERIC:
            if right[name] != given[name]:
                found[name] = None
        elif right[name].shape != given[name].shape:
            found[name] = None
        else:
            scale = max(1.0, float(np.abs(right[name]).max(initial=0.0)))
            off = float(np.abs(_finite(given[name]) - _finite(right[name])).max(initial=0.0)) / scale
            if off > 0.0:
                found[name] = off
    return found


def fingerprint(observed: Observed) -> Fingerprint:
    """The observables of an answer in a few bytes."""
    return {name: sketch(value) if name in NUMERIC else digest(value) for name, value in observed.items()}


def unanswered(is_timeout: bool = False) -> Fingerprint:
    """The fingerprint of no answer at all."""
    return {"error": digest("timeout" if is_timeout else "harness error")}


def digest(value: object) -> int:
    """32 bits of a JSON value; never 0, which stands for what is not told."""
    return int.from_bytes(hashlib.sha256(canonical_json(value).encode()).digest()[:4], "little") or 1


def sketch(numbers: Array) -> Array:  # [n] -> [SKETCH], float32
    """Sums of the numbers with signs by a fixed pattern, over sqrt(n): distances of arrays become distances of these.

    (Johnson and Lindenstrauss 1984; Achlioptas 2003 for the signs.) Deterministic, in index order.
    """
    finite = _finite(numbers)
    signs = np.where(_bits(len(finite)), 1.0, -1.0)  # [SKETCH, n]
    sums: Array = sum_last(signs * finite) / np.sqrt(max(1, len(finite)))
    return sums.astype(np.float32)


def _finite(numbers: Array) -> Array:
    return np.clip(np.nan_to_num(numbers, nan=LARGEST, posinf=LARGEST, neginf=-LARGEST), -LARGEST, LARGEST)


def _bits(count: int) -> np.ndarray[Any, np.dtype[np.bool_]]:  # -> [SKETCH, count]
    """The lowest bit of splitmix64 (Steele, Lea and Flood 2014) of each place."""
    with np.errstate(over="ignore"):
        z = np.arange(1, SKETCH * count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits: np.ndarray[Any, np.dtype[np.bool_]] = ((z >> np.uint64(31)) & np.uint64(1)).astype(bool)
    return bits.reshape(SKETCH, count)
