#!/usr/bin/env python3
"""Run the corpus against every mutant (tests/mutants/) and write golden/kill_matrix.json.

    python tools/mutate.py                        every mutant; results are kept, so an interrupted run goes on
    python tools/mutate.py --only rope-theta-ignored,gqa-tiled     some mutants, printed and not written
    python tools/mutate.py --only norm-* --family forward --family cache

A mutant is an engine like any other: a process behind the protocol whose copy of a correct implementation has a few
edits. Its answers are judged twice, as those of an exact engine and as those of one in float32.
"""

import argparse
import fnmatch
import multiprocessing
import os
import sys
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from reference.conformance.artifacts import ROOT
from reference.conformance.channel import HarnessError
from reference.conformance.compare import BAD
from reference.conformance.engines import WORKER
from reference.conformance.evidence import NUMERIC, Observed, differing, digest, observe, sketch
from reference.conformance.judge import ask, compare
from reference.conformance.records import FAMILIES, Record, find_records
from reference.conformance.remote import RemoteEngine
from reference.engine import ReferenceEngine
from tests.mutants.mutant import Mutant, check
from tests.mutants.table import MUTANTS

KEPT = ROOT / ".mutants"
LIMIT_S = 20.0
"""Time limit of an answer: a mutant that loops for ever is as dead as one that answers wrong."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="ID[,ID]", help="these mutants (patterns with *); nothing is written")
    parser.add_argument("--family", action="append", choices=FAMILIES, help="with --only: records of this family")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="mutants at a time")
    given = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if given.only is None or _is_meant(mutant.id, given.only)]
    if not chosen:
        parser.error(f"no mutant is called {given.only}; see tests/mutants/table/")
    for mutant in chosen:
        check(mutant)
    families = tuple(given.family or FAMILIES)
    tasks = [(mutant, families) for mutant in chosen]
    survivors = 0
    with multiprocessing.get_context("spawn").Pool(min(given.jobs, len(tasks))) as pool:
        for number, (mutant, result) in enumerate(pool.imap(_run, tasks), 1):
            survivors += not result["kills"]
            print(f"[{number}/{len(tasks)}] {_line(mutant, result)}", flush=True)
    if survivors:
        print(f"{survivors} mutants survive")
    return 1 if survivors else 0


def _is_meant(name: str, patterns: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns.split(","))


def _line(mutant: Mutant, result: dict[str, Any]) -> str:
    kills = result["kills"]
    if not kills:
        return f"{mutant.id}: SURVIVES ({result['seconds']:.0f} s)"
    in_f32 = [name for name, kill in kills.items() if kill["f32"]]
    first = next(iter(in_f32 or kills))
    sizes = [size for kill in kills.values() for size in kill["by"].values() if size is not None]
    size = f", largest deviation {max(sizes):.2g}" if sizes else ""
    return (
        f"{mutant.id}: killed by {len(kills)} records, {len(in_f32)} in float32 ({result['seconds']:.0f} s); "
        f"{first} by {', '.join(kills[first]['by']) or 'its judge'}{size}"
    )


def _run(task: tuple[Mutant, tuple[str, ...]]) -> tuple[Mutant, dict[str, Any]]:
    mutant, families = task
    start = time.perf_counter()
    result = measure(mutant, families)
    return mutant, {**result, "seconds": time.perf_counter() - start}


def measure(mutant: Mutant, families: tuple[str, ...]) -> dict[str, Any]:
    """Which records kill a mutant, by which observables; and a fingerprint of every answer that differs."""
    name = f"{ROOT / 'tests' / 'mutants' / 'adapter.py'}:{mutant.id.replace('-', '_')}"
    engine = RemoteEngine([sys.executable, str(WORKER), name], "float64", LIMIT_S)
    kills, prints = {}, {}
    try:
        exact = engine.describe()
        single = replace(exact, precision="f32")
        for record in records(families):
            try:
                answer = ask(engine, record)
            except HarnessError as error:
                kills[record.id] = {"by": {"error": None}, "f32": True}
                prints[record.id] = {"error": digest("timeout" if error.is_timeout else "harness error")}
                continue
            is_killed = compare(record, answer, exact).verdict in BAD
            observed = observe(record, answer, "logits")
            by = differing(right(record.id, families), observed)
            if is_killed:
                kills[record.id] = {"by": by, "f32": compare(record, answer, single).verdict in BAD}
            if by:
                prints[record.id] = fingerprint(observed)
    finally:
        engine.bye()
    return {"kills": kills, "fingerprints": prints}


def fingerprint(observed: Observed) -> dict[str, Any]:
    return {name: sketch(value).tolist() if name in NUMERIC else digest(value) for name, value in observed.items()}


@cache
def records(families: tuple[str, ...]) -> list[Record]:
    return find_records(families)


@cache
def right(record_id: str, families: tuple[str, ...]) -> Observed:
    """What the specification answers."""
    (record,) = [record for record in records(families) if record.id == record_id]
    return observe(record, ask(_specification(), record), "logits")


@cache
def _specification() -> ReferenceEngine:
    return ReferenceEngine()


if __name__ == "__main__":
    sys.exit(main())
