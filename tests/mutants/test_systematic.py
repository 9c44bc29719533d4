"""The systematic mutants: every change has a name of its own, and what is said of them is of one that exists."""

import fnmatch
import json

from tests.mutants import systematic
from tests.mutants.mutant import ROOT, Edit, check

EVERY = [mutant for module in systematic.MODULES for mutant in systematic.mutants(module)]


def test_every_change_fits_and_compiles():
    for mutant in EVERY:
        check(mutant)


def test_ids_are_unique_and_found():
    assert len(EVERY) == len({mutant.id for mutant in EVERY})
    assert EVERY[100] == systematic.find(EVERY[100].id)
    assert None is systematic.find("sys-rope-no-such-function-01-lt-le")


def test_the_changes_of_a_function_by_name():
    told = {mutant.id: mutant.edits for mutant in systematic.mutants("transformer")}
    line = "    return np.arange(num_context)[None, :] <= positions[:, None]"
    strict = Edit("reference/model/transformer.py", line, line.replace("<=", "<"))
    down = "    positions = np.arange(num_context - num_queries, num_context)"
    wider = Edit("reference/model/transformer.py", down, down.replace(" - ", " + "))

    assert (wider,) == told["sys-transformer-causal-01-sub-add"]
    assert (strict,) == told["sys-transformer-causal-02-le-lt"]


def test_explanations_are_of_mutants_that_exist():
    explained = json.loads((ROOT / "tests" / "mutants" / "equivalent.json").read_text(encoding="utf-8"))
    ids = [mutant.id for mutant in EVERY]

    assert [] == [pattern for pattern in explained if not fnmatch.filter(ids, pattern)]
    assert [] == [pattern for pattern, reason in explained.items() if not reason.strip()]
