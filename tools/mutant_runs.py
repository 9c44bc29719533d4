"""One mutant against records: which of them kill it, by what, and the fingerprints of its answers."""

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from functools import cache
from typing import Any

from reference.conformance.artifacts import GOLDEN, ROOT, read_json, write_text
from reference.conformance.channel import HarnessError
from reference.conformance.compare import BAD
from reference.conformance.engines import WORKER
from reference.conformance.evidence import Answer, Fingerprint, Observed, differing, fingerprint, observe, unanswered
from reference.conformance.judge import ask, compare
from reference.conformance.records import FAMILIES, Record, find_records
from reference.conformance.remote import RemoteEngine
from reference.engine import Description, Precision, ReferenceEngine
from tests.mutants.mutant import Mutant

ROUNDED: tuple[Precision, ...] = ("f32", "f16", "bf16")
KEPT = ROOT / ".mutants"
SOURCES = ("reference", "tests/mutants/shapes", "tests/mutants/adapter.py", "tools/mutant_runs.py")
LIMIT_S = 20.0
"""Time limit of an answer: a mutant that loops for ever is as dead as one that answers wrong."""


def measure(mutant: Mutant, asked: Iterable[Record]) -> dict[str, Any]:
    """Record id -> by what it kills the mutant, and record id -> fingerprint of an answer that differs.

    A kill is a list: the precisions in which an engine with this answer would fail, too; then observables with the
    size of their deviation.
    """
    name = f"{ROOT / 'tests' / 'mutants' / 'adapter.py'}:{mutant.id.replace('-', '_')}"
    engine = RemoteEngine([sys.executable, str(WORKER), name], "float64", LIMIT_S)
    kills: dict[str, list[str]] = {}
    prints: dict[str, Fingerprint] = {}
    try:
        exact = engine.describe()
        for record in asked:
            try:
                answer = ask(engine, record)
            except HarnessError as error:
                kills[record.id], prints[record.id] = [*ROUNDED, "error"], unanswered(error.is_timeout)
                continue
            observed = observe(record, answer, exact)
            found = differing(right(record), observed)
            if compare(record, answer, exact).verdict in BAD:
                kills[record.id] = [*_precisions(record, answer, exact), *_words(found)]
            if found:
                prints[record.id] = fingerprint(observed)
    finally:
        engine.bye()
    plain = {record: {name: _plain(value) for name, value in print_.items()} for record, print_ in prints.items()}
    return {"kills": kills, "fingerprints": plain}


def _precisions(record: Record, answer: Answer, exact: Description) -> list[str]:
    return [name for name in ROUNDED if compare(record, answer, replace(exact, precision=name)).verdict in BAD]


def _words(found: Mapping[str, float | None]) -> list[str]:
    return [name if size is None else f"{name} {size:.2g}" for name, size in found.items()]


def _plain(value: Any) -> Any:
    return value if isinstance(value, int) else value.tolist()


def kept(mutant: Mutant, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of an earlier run with the same sources, corpus and mutant, or a new one, which is kept."""
    words = json.dumps([asdict(mutant), _sources(), read_json(GOLDEN / "manifest.json")["root"]], sort_keys=True)
    path = KEPT / f"{mutant.id}-{hashlib.sha256(words.encode()).hexdigest()[:16]}.json"
    if not path.exists():
        write_text(path, json.dumps(compute()))
    result: dict[str, Any] = read_json(path)
    return result


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
