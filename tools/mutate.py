#!/usr/bin/env python3
"""Run the corpus against every mutant (tests/mutants/) and write what kills it.

    python tools/mutate.py                 every mutant; results are kept, so an interrupted run goes on where it was
    python tools/mutate.py --check         each mutant by one record that kills it; exit 1 if the matrix is stale
    python tools/mutate.py --only 'norm-*,gqa-tiled' --family forward         some mutants, printed and not written

Writes golden/kill_matrix.json and golden/fingerprints.safetensors. A mutant is an engine like any other: a process
behind the protocol whose copy of a correct implementation has a few edits. Its answers are judged twice, as those of
an exact engine and as those of engines in float32, float16 and bfloat16. Exit status 1 if a mutant survives.
"""

import argparse
import fnmatch
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import safetensors.numpy
from tqdm import tqdm

from reference.conformance.artifacts import GOLDEN, read_json, validate, write_json
from reference.conformance.catalogue import FINGERPRINTS, KILL_MATRIX, extended_sets, stacked
from reference.conformance.records import FAMILIES
from tests.mutants.mutant import ROOT, Mutant, check
from tests.mutants.table import MUTANTS
from tools.mutant_runs import kept, measure, records, specification

REPORTS = ROOT / "tests" / "mutants" / "reports"
Result = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="ID[,ID]", help="these mutants (patterns with *)")
    parser.add_argument("--family", action="append", choices=FAMILIES, help="with --only: records of this family")
    parser.add_argument("--check", action="store_true", help="change nothing; one record a mutant")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="mutants at a time")
    given = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if given.only is None or _is_meant(mutant.id, given.only)]
    if not chosen:
        parser.error(f"no mutant is called {given.only}; see tests/mutants/table/")
    for mutant in chosen:
        check(mutant)
    if given.check:
        return stale(given.jobs)
    families = tuple(given.family or FAMILIES)
    results = []
    progress = tqdm(
        run_all([(mutant, families) for mutant in chosen], given.jobs), total=len(chosen), unit="mutant", disable=None
    )
    for mutant, result in zip(chosen, progress, strict=True):
        results.append(result)
        progress.write(line(mutant, result))
    if given.only is None and given.family is None:
        write(chosen, results)
    survivors = [mutant.id for mutant, result in zip(chosen, results, strict=True) if not result["kills"]]
    if survivors:
        print(f"{len(survivors)} of {len(chosen)} mutants survive: {', '.join(survivors)}")
    return 1 if survivors else 0


def _is_meant(name: str, patterns: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns.split(","))


def run_all(tasks: Sequence[tuple[Mutant, tuple[str, ...]]], jobs: int) -> Iterator[Result]:
    """Results in the order of the tasks."""
    with ProcessPoolExecutor(min(jobs, len(tasks)), multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(_run, tasks)


def _run(task: tuple[Mutant, tuple[str, ...]]) -> Result:
    mutant, families = task
    if families == FAMILIES:
        return kept(mutant)
    return measure(mutant, [record for record in records() if record.family in families])


def line(mutant: Mutant, result: Result) -> str:
    """A mutant's fate for a person."""
    kills = result["kills"]
    if not kills:
        return f"{mutant.id}: SURVIVES"
    in_f32 = [name for name, found in kills.items() if "f32" in found]
    first = next(iter(in_f32 or kills))
    return (
        f"{mutant.id}: killed by {len(kills)} records, {len(in_f32)} in float32; {first}: {', '.join(kills[first])}"
    )


def write(mutants: Sequence[Mutant], results: Sequence[Result]) -> None:
    """The kill matrix and the fingerprints."""
    reports = {report["id"]: report for path in sorted(REPORTS.glob("*.json")) for report in read_json(path)}
    rows = []
    for mutant, result in zip(mutants, results, strict=True):
        told = [{name: reports[one][name] for name in ("id", "project", "url")} for one in mutant.reports]
        row = {"id": mutant.id, "area": mutant.area, "effect": mutant.effect, "shows": mutant.shows}
        rows.append({**row, "shape": mutant.shape, "reports": told, "kills": result["kills"]})
    names = [record.id for record in records()]
    corpus = read_json(GOLDEN / "manifest.json")["root"]
    content = {"schema_version": 1, "corpus": corpus, "records": names, "mutants": rows}
    validate(content, "kill_matrix", str(KILL_MATRIX))
    right = specification()
    answers = stacked([right, *({**right, **result["fingerprints"]} for result in results)], names)
    temporary = FINGERPRINTS.with_name(FINGERPRINTS.name + ".tmp")
    temporary.write_bytes(safetensors.numpy.save(answers))
    os.replace(temporary, FINGERPRINTS)
    write_json(KILL_MATRIX, content)
    manifest = read_json(GOLDEN / "manifest.json")
    write_json(GOLDEN / "manifest.json", {**manifest, "extended": extended_sets(content)})


def stale(jobs: int) -> int:
    """1, and what differs, if the matrix is not that of this table, this corpus and this specification."""
    content = read_json(KILL_MATRIX)
    validate(content, "kill_matrix", str(KILL_MATRIX))
    rows = {row["id"]: row for row in content["mutants"]}
    wrong = [f"{name} is only in the table" for name in {mutant.id for mutant in MUTANTS} - set(rows)]
    wrong += [f"{name} is only in the matrix" for name in set(rows) - {mutant.id for mutant in MUTANTS}]
    if content["corpus"] != read_json(GOLDEN / "manifest.json")["root"]:
        wrong.append("the corpus has changed since")
    mutants = [mutant for mutant in MUTANTS if mutant.id in rows]
    tasks = []
    for mutant in mutants:
        kills = rows[mutant.id]["kills"]
        tasks.append((mutant, next(name for name in sorted(kills, key=lambda name: "f32" not in kills[name]))))
    with ProcessPoolExecutor(min(jobs, len(tasks)), multiprocessing.get_context("spawn")) as pool:
        for (mutant, name), found in zip(
            tasks, tqdm(pool.map(_ask_one, tasks), total=len(tasks), disable=None), strict=True
        ):
            if found != rows[mutant.id]["kills"][name]:
                wrong.append(f"{mutant.id}: {name} finds {found}, not {rows[mutant.id]['kills'][name]}")
    print(*sorted(wrong), sep="\n")
    print(
        f"{len(mutants)} mutants, each asked one record: {len(wrong)} differences; python tools/mutate.py writes both"
    )
    return 1 if wrong else 0


def _ask_one(task: tuple[Mutant, str]) -> list[str] | None:
    mutant, name = task
    result = measure(mutant, [record for record in records() if record.id == name])
    found: list[str] | None = result["kills"].get(name)
    return found


if __name__ == "__main__":
    sys.exit(main())
