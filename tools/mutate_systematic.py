#!/usr/bin/env python3
"""Change every operator, boundary, sign, constant and axis of the rule modules, one at a time, and run the corpus.

    python tools/mutate_systematic.py                    all; results are kept, so an interrupted run goes on
    python tools/mutate_systematic.py --only 'sys-rope-*'

A mutant (tests/mutants/systematic.py) is asked the records that call its function, cheapest first, up to the first
that kills it. One that survives them all must be explained in tests/mutants/equivalent.json: id -> why no record can
tell it from the specification; a pattern with * stands for survivors that have one reason. Exit status 1 for a
survivor without explanation, and for an explanation without a survivor. mutmut and cosmic-ray have no slice bounds,
axes or minima, and more than half of their changes are no plausible arithmetic.
"""

import argparse
import fnmatch
import hashlib
import json
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tqdm import tqdm

from reference.conformance.artifacts import DATA, ROOT, read_json, sha256, write_json
from reference.conformance.channel import HarnessError
from reference.conformance.compare import BAD
from reference.conformance.judge import ask, compare
from reference.conformance.records import Record
from reference.engine import ReferenceEngine, verbs_of
from tests.mutants import systematic
from tests.mutants.mutant import Mutant, check
from tools.mutant_fork import ForkedEngine
from tools.mutant_runs import KEPT, records

EXPLAINED = ROOT / "tests" / "mutants" / "equivalent.json"
SURVIVORS = KEPT / "survivors.json"

Function = tuple[str, str]
"""Name of a module, of a function in it as in a mutant's id."""


@dataclass(frozen=True)
class Fate:
    """A mutant's result: the record that killed it, and those that it survived."""

    id: str
    code: str  # digest of the specification and the mutant
    killed_by: str | None
    how: str
    records: tuple[str, ...]  # digests of the records asked


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="mutants, as in the shell")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="mutants at a time")
    given = parser.parse_args()
    every = [mutant for module in systematic.MODULES for mutant in systematic.mutants(module)]
    chosen = [mutant for mutant in every if fnmatch.fnmatchcase(mutant.id, given.only)]
    for mutant in chosen:
        check(mutant)
    fates = measure_all(chosen, given.jobs)
    survivors = sorted(name for name, fate in fates.items() if fate.killed_by is None)
    write_json(SURVIVORS, survivors)
    complaints = unexplained(survivors, read_json(EXPLAINED), [mutant.id for mutant in chosen])
    print(*complaints, sep="\n")
    print(f"{len(chosen)} mutants, {len(survivors)} survive ({SURVIVORS.relative_to(ROOT)}), {len(complaints)} to do")
    return 1 if complaints else 0


def unexplained(survivors: Sequence[str], explained: Mapping[str, str], asked: Sequence[str]) -> list[str]:
    """What is to do: survivors without an explanation, explanations of what is killed or does not exist."""
    todo = [name for name in survivors if not any(fnmatch.fnmatchcase(name, pattern) for pattern in explained)]
    complaints = [f"{name} survives" for name in todo]
    every = [mutant.id for module in systematic.MODULES for mutant in systematic.mutants(module)]
    for pattern in explained:
        if not fnmatch.filter(every, pattern):
            complaints.append(f"{pattern} is explained and does not exist")
        killed = set(fnmatch.filter(asked, pattern)) - set(survivors)
        complaints += [f"{name} is explained and killed" for name in sorted(killed)]
    return complaints


def measure_all(mutants: Sequence[Mutant], jobs: int) -> dict[str, Fate]:
    """The fate of each mutant, from an earlier run as far as its records are the same."""
    calls, seconds = reached()
    digests = {record.id: sha256(DATA / f"{record.id}.json") for record in records()}
    code = code_digest()
    old = {fate.id: fate for fate in load_fates() if fate.code == code}
    fates: dict[str, Fate] = {}
    tasks: list[tuple[Mutant, list[Record], Fate]] = []
    for mutant in mutants:
        before = old.get(mutant.id, Fate(mutant.id, code, None, "", ()))
        if before.killed_by is not None and digests.get(before.killed_by) in before.records:
            fates[mutant.id] = before
            continue
        seen = set(before.records) if before.killed_by is None else set()
        asked = [record for record in records() if is_called(mutant, calls[record.id])]
        asked = sorted((r for r in asked if digests[r.id] not in seen), key=lambda r: seconds[r.id])
        current = tuple(digests[r.id] for r in records() if digests[r.id] in seen)
        tasks.append((mutant, asked, Fate(mutant.id, code, None, "", current)))
    # Workers that are no daemons, since each forks its mutants.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, spawn) as pool, KEPT.joinpath("systematic.jsonl").open("a") as kept:
        waiting = [pool.submit(_measure, task, digests) for task in tasks]
        progress = tqdm(as_completed(waiting), total=len(waiting), disable=None)
        for fate in (done.result() for done in progress):
            kept.write(json.dumps(vars(fate)) + "\n")
            kept.flush()
            fates[fate.id] = fate
            if fate.killed_by is None:
                progress.write(f"{fate.id} survives {len(fate.records)} records")
    return fates


def _measure(task: tuple[Mutant, list[Record], Fate], digests: Mapping[str, str]) -> Fate:
    mutant, asked, before = task
    survived: list[str] = []
    for record, how in answers(mutant, asked):
        if how is not None:
            return Fate(mutant.id, before.code, record.id, how, (digests[record.id],))
        survived.append(digests[record.id])
    return Fate(mutant.id, before.code, None, "", (*before.records, *survived))


def answers(mutant: Mutant, asked: Sequence[Record]) -> Iterator[tuple[Record, str | None]]:
    """Each record, and how it kills the mutant."""
    if not asked:
        return
    engine = ForkedEngine(mutant)
    try:
        for record in asked:
            try:
                judgement = compare(record, ask(engine, record), engine.describe())
                yield record, judgement.sentence if judgement.verdict in BAD else None
            except HarnessError as error:
                yield record, str(error)
    finally:
        engine.bye()


def load_fates() -> Iterator[Fate]:
    """Earlier results, oldest first."""
    KEPT.mkdir(exist_ok=True)
    path = KEPT / "systematic.jsonl"
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        fields = json.loads(line)
        yield Fate(**{**fields, "records": tuple(fields["records"])})


def code_digest() -> str:
    """Of every source that an answer or its judgement depends on, and of the mutants."""
    paths = sorted((ROOT / "reference").rglob("*.py"))
    total = hashlib.sha256((ROOT / "tests" / "mutants" / "systematic.py").read_bytes())
    for path in paths:
        total.update(path.read_bytes())
    return total.hexdigest()[:16]


def is_called(mutant: Mutant, called: frozenset[Function]) -> bool:
    found = re.fullmatch(r"sys-([a-z]+)-(.+?)-\d+-.+", mutant.id)
    assert found is not None
    module, function = found.groups()
    # A method is called by its own name, without that of its class.
    return function == "module" or any(
        module == name and (function == called_name or function.endswith(f"-{called_name}"))
        for name, called_name in called
    )


def reached() -> tuple[dict[str, frozenset[Function]], dict[str, float]]:
    """Record id -> functions of the rule modules that its answer calls, and the seconds it takes."""
    names = {str(ROOT / file): name for name, file in systematic.MODULES.items()}
    called: set[Function] = set()

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename in names:
            called.add((names[frame.f_code.co_filename], systematic.kebab(frame.f_code.co_name)))

    engine = ReferenceEngine()
    for verb in verbs_of(ReferenceEngine) - {"describe"}:
        setattr(engine, verb, profiled(getattr(engine, verb), note))
    calls, seconds = {}, {}
    for record in tqdm(records(), desc="functions that a record calls", disable=None):
        called.clear()
        start = time.perf_counter()
        ask(engine, record)
        seconds[record.id] = time.perf_counter() - start
        calls[record.id] = frozenset(called)
    return calls, seconds


def profiled(verb: Callable[..., Any], note: Callable[[Any, str, Any], None]) -> Callable[..., Any]:
    """A verb during which calls are noted: what the judge calls on its own is none of the engine's."""

    def call(*args: Any, **options: Any) -> Any:
        sys.setprofile(note)
        try:
            return verb(*args, **options)
        finally:
            sys.setprofile(None)

    return call


if __name__ == "__main__":
    sys.exit(main())
