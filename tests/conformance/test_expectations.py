"""Known failures: strict, by exact ids, each with a reason."""

import json

import pytest

from reference.conformance.compare import PASS, Judgement, Verdict, fail
from reference.conformance.engines import HOSTED, expectations_file
from reference.conformance.expectations import Expectation, expect, load_expectations
from reference.conformance.records import FAMILIES, find_records
from reference.errors import Refusal, RefusedError

ENTRY = {"id": "forward/a", "reason": "off by 0.5", "issue": "https://example.org/1"}
KNOWN = {"forward/a": Expectation("off by 0.5", "https://example.org/1")}


def load(tmp_path, *entries, engine="mlx"):
    path = tmp_path / "expectations.json"
    path.write_text(json.dumps({"expected_failures": entries}))
    return load_expectations(path, engine, {"forward/a", "forward/b"})


def test_an_entry_is_read_for_every_engine_or_for_those_it_names(tmp_path):
    assert KNOWN == load(tmp_path, ENTRY)
    assert KNOWN == load(tmp_path, {**ENTRY, "engines": ["mlx", "mlx-f16"]})
    assert {} == load(tmp_path, {**ENTRY, "engines": ["mlx-f16"]})


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        ([{**ENTRY, "id": "forward/c"}], "expects forward/c to fail: no such record"),
        ([{**ENTRY, "id": "forward/*"}], "expectations.json, at "),
        ([ENTRY, ENTRY], "has forward/a twice for mlx"),
        ([{**ENTRY, "issue": "see our tracker"}], "expectations.json, at "),
        ([{**ENTRY, "reason": ""}], "expectations.json, at "),
        ([{"id": "forward/a"}], "expectations.json, at "),
        ([{**ENTRY, "engines": []}], "expectations.json, at "),
        ([{**ENTRY, "engine": "mlx"}], "expectations.json, at "),
    ],
)
def test_what_is_not_exact_is_refused(tmp_path, entries, sentence):
    with pytest.raises(RefusedError) as refused:
        load(tmp_path, *entries)

    assert Refusal.ARTIFACT_INVALID is refused.value.reason
    assert sentence in str(refused.value)


@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.HARNESS_ERROR, Verdict.TIMEOUT])
def test_a_known_failure_is_expected(verdict):
    judgement = expect(Judgement(verdict, "wrong", crashes=1), "forward/a", KNOWN)

    assert Judgement(Verdict.XFAIL, "wrong (known: off by 0.5)", crashes=1) == judgement


@pytest.mark.parametrize("verdict", [Verdict.PASS, Verdict.NEAR_TIE])
def test_one_that_passes_again_is_out_of_date(verdict):
    judgement = expect(Judgement(verdict), "forward/a", KNOWN)

    assert Judgement(Verdict.XPASS, "passes, but is expected to fail: off by 0.5") == judgement


@pytest.mark.parametrize("verdict", [Verdict.UNSUPPORTED, Verdict.NOT_APPLICABLE])
def test_what_was_not_judged_stays_what_it_is(verdict):
    assert Judgement(verdict, "no") == expect(Judgement(verdict, "no"), "forward/a", KNOWN)


def test_other_records_are_not_touched():
    assert PASS is expect(PASS, "forward/b", KNOWN)
    assert fail("wrong") == expect(fail("wrong"), "forward/b", KNOWN)


@pytest.mark.parametrize("name", HOSTED)
def test_our_own_files_are_valid(name):
    path = expectations_file(name)
    if path is not None and path.exists():
        load_expectations(path, name, {record.id for record in find_records(FAMILIES)})
