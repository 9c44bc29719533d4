"""The report names the defect: also when another implementation has it."""

import numpy as np
import pytest

from reference.conformance.adapters.fast import FastEngine
from reference.conformance.catalogue import Catalogue, Defect, load_catalogue, stacked
from reference.conformance.compare import BAD
from reference.conformance.diagnosis import diagnose, explanation
from reference.conformance.judge import judge_all
from reference.conformance.records import FAMILIES, find_records
from reference.engine import ReferenceEngine
from tests.conformance.broken_twin import BROKEN


@pytest.mark.parametrize("mutant", BROKEN)
def test_the_defect_of_a_broken_twin_is_named(mutant, monkeypatch):
    BROKEN[mutant](monkeypatch)
    judged = list(judge_all(FastEngine("float32"), find_records(FAMILIES)))
    assert any(judgement.verdict in BAD for _, judgement in judged)

    found = diagnose({record.id: judgement.evidence for record, judgement in judged}, "f32", load_catalogue())

    assert found.best is not None
    assert mutant in [defect.id for defect in found.best.defects], explanation(found)
    assert found.best.fit > 0.9


def made_up(*rows):
    """A catalogue of two records: the specification gives tokens 1 and scores 0; each row is a defect's answers."""
    right = {"a/one": {"tokens": 1}, "a/two": {"scores": np.zeros(6, np.float32)}}
    defects = tuple(Defect(f"d{number}", "does it wrong", ()) for number in range(len(rows)))
    answers = stacked([right, *({**right, **row} for row in rows)], tuple(right))
    return Catalogue(defects, tuple(right), answers), right


def scores(*numbers):
    return {"scores": np.array(numbers, np.float32)}


def test_right_answers_are_evidence_against_every_defect():
    catalogue, right = made_up({"a/one": {"tokens": 2}}, {"a/two": scores(1, 1, 1, 1, 1, 1)})

    found = diagnose(right, "f32", catalogue)

    assert (None, None) == (found.best, found.runner_up)
    assert explanation(found) == "  behaves like none of the known defects"


def test_the_defect_with_the_same_wrong_tokens_is_best_and_the_other_no_explanation():
    catalogue, right = made_up({"a/one": {"tokens": 2}}, {"a/one": {"tokens": 3}})

    found = diagnose({**right, "a/one": {"tokens": 3}}, "f32", catalogue)

    assert ["d1"] == [defect.id for defect in found.best.defects]
    assert (found.best.fit, found.best.num_fitting, found.best.num_records) == (1.0, 1, 1)
    assert found.runner_up is None


def test_the_nearer_scores_are_best_and_the_farther_ones_next():
    catalogue, right = made_up({"a/two": scores(3, 0, 0, 0, 0, 0)}, {"a/two": scores(4, 0, 0, 0, 0, 0)})

    found = diagnose({**right, "a/two": scores(3.5, 0.5, 0, 0, 0, 0)}, "f32", catalogue)

    # Distances from the engine: sqrt(0.5) to both; its own deviation is the larger of 3.54 and the defect's.
    assert ["d1"] == [defect.id for defect in found.best.defects]
    assert found.best.fit == pytest.approx(1 - 0.5**0.5 / 4, abs=1e-3)
    assert found.runner_up.fit == pytest.approx(1 - 0.5**0.5 / 12.5**0.5, abs=1e-3)


def test_defects_that_answer_alike_are_named_together():
    row = {"a/one": {"tokens": 2}}
    catalogue, right = made_up(row, row)

    found = diagnose({**right, **row}, "f32", catalogue)

    assert ["d0", "d1"] == [defect.id for defect in found.best.defects]
    assert "does it wrong (d0); or does it wrong (d1)" in explanation(found)


def test_what_the_engine_does_not_tell_is_no_evidence():
    catalogue, _ = made_up({"a/one": {"tokens": 2}, "a/two": scores(1, 0, 0, 0, 0, 0)})

    found = diagnose({"a/one": {"tokens": 2}}, "f32", catalogue)

    assert (found.best.num_fitting, found.best.num_records) == (1, 1)


def test_an_error_instead_of_an_answer_is_no_agreement():
    catalogue, right = made_up({"a/one": {"tokens": 2}})

    found = diagnose({**right, "a/one": {"error": 7}}, "f32", catalogue)

    assert found.best is None


def test_noise_within_the_tolerance_is_no_evidence():
    catalogue, right = made_up({"a/one": {"tokens": 2}})

    found = diagnose({**right, "a/one": {"tokens": 2}, "a/two": scores(1e-5, 0, 0, 0, 0, 0)}, "f32", catalogue)

    assert (found.best.fit, found.best.num_records) == (1.0, 1)


def test_the_specification_fits_no_defect_of_the_real_catalogue():
    judged = list(judge_all(ReferenceEngine(), find_records(("forward", "speculation"))))

    found = diagnose({record.id: judgement.evidence for record, judgement in judged}, "exact", load_catalogue())

    assert found.best is None
