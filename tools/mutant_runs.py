"""One mutant against records: which of them kill it, by what, and the fingerprints of its answers."""

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from typing import Any

from reference.conformance.artifacts import GOLDEN, ROOT, read_json, root_digest, write_text
from reference.conformance.channel import HarnessError
from reference.conformance.compare import BAD
from reference.conformance.engines import WORKER
from reference.conformance.evidence import (
    Answer,
    Fingerprint,
    Observed,
    differing,
    fingerprint,
    observe,
    to_json,
    unanswered,
)
from reference.conformance.judge import ask, compare
from reference.conformance.records import FAMILIES, Record, find_records
from reference.conformance.remote import RemoteEngine
from reference.engine import Description, Precision, ReferenceEngine
from tests.mutants.mutant import Mutant
from tools.mutant_reach import Place, edited, reached

ROUNDED: tuple[Precision, ...] = ("f32", "f16", "bf16")
KEPT = ROOT / ".mutants"
SOURCES = (
    "reference",
    "tests/mutants/shapes",
    "tests/mutants/adapter.py",
    "tools/mutant_reach.py",
    "tools/mutant_runs.py",
)
LIMIT_S = 20.0
"""Time limit of an answer: a mutant that loops for ever is as dead as one that answers wrong."""


def measure(mutant: Mutant, asked: Sequence[Record]) -> dict[str, Any]:
    """Record id -> by what it kills the mutant, and record id -> fingerprint of an answer that differs.

    A kill is a list: the precisions in which an engine with this answer would fail, too; then observables with the
    size of their deviation. Every record is asked of a freshly loaded engine, so that none depends on another.
    """
    results = {record.id: result for record, result in zip(asked, answers(mutant, asked), strict=True)}
    kills = {name: result["kill"] for name, result in results.items() if result["kill"]}
    prints = {name: result["fingerprint"] for name, result in results.items() if result["fingerprint"]}
    return {"kills": kills, "fingerprints": prints}


def answers(mutant: Mutant, asked: Sequence[Record]) -> Iterator[dict[str, Any]]:
    """For each record the kill and the fingerprint, both empty if the mutant answers as the specification does."""
    name = f"{ROOT / 'tests' / 'mutants' / 'adapter.py'}:{mutant.id.replace('-', '_')}"
    engine = RemoteEngine([sys.executable, str(WORKER), name], "float64", LIMIT_S)
    try:
        exact = engine.describe() if asked else None
        for record in asked:
            engine.forget()
            yield _result(engine, record, exact)
    finally:
        engine.bye()


def _result(engine: RemoteEngine, record: Record, exact: Any) -> dict[str, Any]:
    try:
        answer = ask(engine, record)
    except HarnessError as error:
        return {"kill": [*ROUNDED, "error"], "fingerprint": dict(unanswered(error.is_timeout))}
    observed = observe(record, answer, exact)
    found = differing(right(record), observed)
    is_killed = compare(record, answer, exact).verdict in BAD
    return {
        "kill": [*_precisions(record, answer, exact), *_words(found)] if is_killed else [],
        "fingerprint": to_json(fingerprint(observed)) if found else {},
    }


def _precisions(record: Record, answer: Answer, exact: Description) -> list[str]:
    return [name for name in ROUNDED if compare(record, answer, replace(exact, precision=name)).verdict in BAD]


def _words(found: Mapping[str, float | None]) -> list[str]:
    return [name if size is None else f"{name} {size:.2g}" for name, size in found.items()]


def kept(mutant: Mutant) -> dict[str, Any]:
    """What measure finds for the whole corpus. Earlier results are taken where neither record nor code changed."""
    words = json.dumps([asdict(mutant), _sources()], sort_keys=True)
    path = KEPT / f"{mutant.id}-{hashlib.sha256(words.encode()).hexdigest()[:16]}.json"
    known = read_json(path) if path.exists() else {}
    current = {record.id: _digest(record) for record in records()}
    fresh = [record for record in records() if known.get(record.id, {}).get("digest") != current[record.id]]
    asked = [record for record in fresh if _can_tell(mutant, record)]
    for record in fresh:
        known[record.id] = {"digest": current[record.id], "kill": [], "fingerprint": {}}
    for record, result in zip(asked, answers(mutant, asked), strict=True):
        known[record.id] = {"digest": current[record.id], **result}
    if fresh:
        write_text(path, json.dumps(known))
    kills = {name: known[name]["kill"] for name in current if known[name]["kill"]}
    prints = {name: known[name]["fingerprint"] for name in current if known[name]["fingerprint"]}
    return {"kills": kills, "fingerprints": prints}


def _can_tell(mutant: Mutant, record: Record) -> bool:
    """Whether the unbroken shape enters a function that the mutant edits."""
    places = edited(mutant)
    return places is None or bool(places & _reached(mutant.shape)[record.id])


@cache
def _reached(shape: str) -> dict[str, frozenset[Place]]:
    """As reached(), kept in a file."""
    root = read_json_once(GOLDEN / "manifest.json")["root"]
    path = KEPT / f"reached-{shape}-{hashlib.sha256((_sources() + root).encode()).hexdigest()[:16]}.json"
    if not path.exists():
        found = {name: sorted(places) for name, places in reached(shape, records()).items()}
        write_text(path, json.dumps(found))
    return {name: frozenset((file, line) for file, line in places) for name, places in read_json(path).items()}


def _digest(record: Record) -> str:
    """Of the record and of the checkpoints that it names; a seed may name any."""
    files = read_json_once(GOLDEN / "manifest.json")["files"]
    words = json.dumps(record.input)
    names = [name for name in files if name.startswith("models/")]
    used = [name for name in names if record.is_seed or json.dumps(name.split("/")[1]) in words]
    return root_digest({name: files[name] for name in [f"data/{record.id}.json", *used]})


read_json_once = cache(read_json)


@cache
def _sources() -> str:
    """A digest of everything that a mutant's answers depend on."""
    total = hashlib.sha256()
    for name in SOURCES:
        base = ROOT / name
        for path in sorted(base.rglob("*.py")) if base.is_dir() else [base]:
            total.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return total.hexdigest()


@cache
def records() -> list[Record]:
    """The whole corpus."""
    return find_records(FAMILIES)


def specification() -> dict[str, Fingerprint]:
    """The fingerprints of the right answers."""
    return {record.id: fingerprint(right(record)) for record in records()}


RIGHT: dict[str, Observed] = {}


def right(record: Record) -> Observed:
    """What the specification answers."""
    if record.id not in RIGHT:
        RIGHT[record.id] = observe(record, ask(_specification(), record), _specification().describe())
    return RIGHT[record.id]


@cache
def _specification() -> ReferenceEngine:
    return ReferenceEngine()
