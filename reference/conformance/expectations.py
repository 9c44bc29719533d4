"""An engine's known failures, in a file of its own: exact ids, a reason and an address each, and strict.

A record listed there that fails is an xfail; one that passes is an xpass, which counts as a failure: the entry is
out of date.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from reference.conformance.artifacts import read_json, validate
from reference.conformance.compare import GOOD, Judgement, Verdict
from reference.errors import Refusal, RefusedError

FAILURES = frozenset({Verdict.FAIL, Verdict.HARNESS_ERROR, Verdict.TIMEOUT})


@dataclass(frozen=True)
class Expectation:
    """Why a record is known to fail."""

    reason: str
    issue: str | None  # its address


def load_expectations(path: Path, engine: str, known_ids: Collection[str]) -> dict[str, Expectation]:
    """Record id -> expectation, of the entries for this engine. Raises: ARTIFACT_INVALID, NOT_FOUND."""
    content = read_json(path)
    validate(content, "expectations", str(path))
    expected: dict[str, Expectation] = {}
    for entry in content["expected_failures"]:
        if entry["id"] not in known_ids:
            raise RefusedError(Refusal.ARTIFACT_INVALID, f"{path} expects {entry['id']} to fail: no such record")
        if engine not in entry.get("engines", (engine,)):
            continue
        if entry["id"] in expected:
            raise RefusedError(Refusal.ARTIFACT_INVALID, f"{path} has {entry['id']} twice for {engine}")
        expected[entry["id"]] = Expectation(entry["reason"], entry["issue"])
    return expected


def expect(judgement: Judgement, record_id: str, expected: Mapping[str, Expectation]) -> Judgement:
    """The judgement in the light of what is known. Unsupported stays unsupported."""
    known = expected.get(record_id)
    if known is None:
        return judgement
    if judgement.verdict in FAILURES:
        return replace(judgement, verdict=Verdict.XFAIL, sentence=f"{judgement.sentence} (known: {known.reason})")
    if judgement.verdict in GOOD:
        return replace(judgement, verdict=Verdict.XPASS, sentence=f"passes, but is expected to fail: {known.reason}")
    return judgement
