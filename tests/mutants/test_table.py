"""The table of mutants is in order, and every report has a mutant or a reason."""

import json
from collections import Counter
from typing import Any

import pytest

from tests.mutants.mutant import ROOT, Edit, Mutant, StaleError, check
from tests.mutants.table import MUTANTS

REPORTS: list[dict[str, Any]] = [
    report
    for path in sorted((ROOT / "tests" / "mutants" / "reports").glob("*.json"))
    for report in json.loads(path.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.id for mutant in MUTANTS])
def test_the_edits_fit_the_code(mutant):
    check(mutant)


def test_an_edit_that_no_longer_fits_is_an_error():
    stale = Mutant("stale", "rope", (Edit("reference/numerics.py", "no such line", ""),), "", "")

    with pytest.raises(StaleError, match="stands 0 times"):
        check(stale)


def test_ids_are_unique():
    assert [] == [name for name, count in Counter(mutant.id for mutant in MUTANTS).items() if count > 1]
    assert [] == [name for name, count in Counter(report["id"] for report in REPORTS).items() if count > 1]


def test_every_report_has_mutants_or_a_reason_and_both_tables_agree():
    by_mutant = {(name, mutant.id) for mutant in MUTANTS for name in mutant.reports}
    by_report = {(report["id"], name) for report in REPORTS for name in report.get("mutants", ())}

    assert by_mutant == by_report
    assert [] == [report["id"] for report in REPORTS if bool(report.get("mutants")) == bool(report.get("left"))]
