#!/usr/bin/env python3
"""Is each mutant named when it is computed on another path: in float32, with sums in another order?

    python tools/diagnose_mutants.py [--every 3] [--only 'rope-*']

Asks every third record (--every), judges in float32 and diagnoses by golden/fingerprints.safetensors. Prints the
mutants that are not named first and the share that is. Mutants that nothing tells apart from the one named first are
one class with it. Exit status 1 below nine in ten.
"""

import argparse
import fnmatch
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tqdm import tqdm

from reference.conformance.catalogue import load_catalogue
from reference.conformance.compare import BAD
from reference.conformance.diagnosis import Diagnosis, diagnose, sentence
from reference.conformance.engines import WORKER
from reference.conformance.judge import judge_all
from reference.conformance.remote import RemoteEngine
from tests.mutants.mutant import ROOT
from tests.mutants.table import MUTANTS
from tools.mutant_runs import LIMIT_S, records

WANTED = 0.9


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=3, metavar="N", help="ask each Nth record (default 3)")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="mutants of this name")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="mutants at a time")
    given = parser.parse_args()
    tasks = [(mutant.id, given.every) for mutant in MUTANTS if fnmatch.fnmatchcase(mutant.id, given.only)]
    num_named = num_failed = 0
    with ProcessPoolExecutor(min(given.jobs, len(tasks)), multiprocessing.get_context("spawn")) as pool:
        progress = tqdm(pool.map(_run, tasks), total=len(tasks), unit="mutant", disable=None)
        for (name, _), found in zip(tasks, progress, strict=True):
            if found is None:
                progress.write(f"{name}: passes in float32")
                continue
            num_failed += 1
            if found.best is not None and name in [defect.id for defect in found.best.defects]:
                num_named += 1
            else:
                progress.write(f"{name}: {sentence(found.best) if found.best else 'none known'}")
    print(f"{num_named} of {num_failed} mutants that fail in float32 are named first")
    return 0 if num_named >= WANTED * num_failed else 1


def _run(task: tuple[str, int]) -> Diagnosis | None:
    """The diagnosis of a mutant in float32; None if no record fails."""
    mutant, every = task
    name = f"{ROOT / 'tests' / 'mutants' / 'adapter.py'}:f32_{mutant.replace('-', '_')}"
    engine = RemoteEngine([sys.executable, str(WORKER), name], "float32", LIMIT_S)
    try:
        judged = list(judge_all(engine, records()[::every]))
    finally:
        engine.bye()
    if not any(judgement.verdict in BAD for _, judgement in judged):
        return None
    evidence = {record.id: judgement.evidence for record, judgement in judged}
    return diagnose(evidence, "f32", load_catalogue())


if __name__ == "__main__":
    sys.exit(main())
