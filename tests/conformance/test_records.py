"""The corpus as a whole: versions, errata, core and extended records."""

import json

import pytest

from reference import cli
from reference.conformance import records
from reference.conformance.artifacts import GOLDEN, read_json, validate
from reference.conformance.records import check_corpus, errata, extended, find_records, load_records
from reference.errors import Refusal, RefusedError

MANIFEST = read_json(GOLDEN / "manifest.json")
WRONG = {
    "id": "generate/batching-b",
    "since": "9.9.9",
    "reason": "its prompt was cut",
    "successor": "generate/batching-c",
}


@pytest.fixture
def superseding(tmp_path, monkeypatch):
    """A corpus in which one record is superseded; its files are the real ones."""
    (tmp_path / "errata.json").write_text(json.dumps({"schema_version": 1, "superseded": [WRONG]}))
    monkeypatch.setattr(records, "GOLDEN", tmp_path)
    errata.cache_clear()
    yield
    errata.cache_clear()


@pytest.mark.parametrize("wanted", [MANIFEST["corpus_version"], MANIFEST["root"], MANIFEST["root"][:8]])
def test_the_corpus_that_is_wanted_is_accepted(wanted):
    check_corpus(wanted)


@pytest.mark.parametrize("wanted", ["0.0.1", MANIFEST["root"][:7], "f" * 64, ""])
def test_another_corpus_is_refused(wanted):
    with pytest.raises(RefusedError, match=f"this is corpus {MANIFEST['corpus_version']}, digest {MANIFEST['root']}"):
        check_corpus(wanted)


def test_check_refuses_another_corpus_before_it_asks(capsys):
    assert 2 == cli.main(["check", "--corpus", "0.0.1"])
    assert "not 0.0.1; docs/versions.md" in capsys.readouterr().err


def test_a_superseded_record_is_asked_no_more(superseding):
    assert "generate/batching-b" not in [record.id for record in load_records("generate")]
    with pytest.raises(RefusedError, match="is superseded: its prompt was cut; see generate/batching-c"):
        find_records(("generate",), ["generate/batching-b"])


@pytest.mark.parametrize("name", [*WRONG])
def test_an_erratum_without_a_field_or_with_a_bad_one_is_refused(name):
    validate({"schema_version": 1, "superseded": [WRONG]}, "errata", "here")

    for entry in ({key: value for key, value in WRONG.items() if key != name}, {**WRONG, name: ""}):
        with pytest.raises(RefusedError) as caught:
            validate({"schema_version": 1, "superseded": [entry]}, "errata", "here")
        assert caught.value.reason is Refusal.ARTIFACT_INVALID


def test_core_records_are_those_that_catch_a_defect_in_the_precision(monkeypatch):
    (record,) = find_records(("forward",), ["forward/sweep-long"])
    (metamorphic,) = find_records(("metamorphic",), ["metamorphic/order"])
    monkeypatch.setattr(records, "extended", lambda: {"bf16": frozenset({record.id})})

    assert [True, True, True, False, False] == [
        record.is_core(precision) for precision in ("exact", "f64", "f32", "bf16", "int8")
    ]
    assert not metamorphic.is_core("exact")


def test_most_records_are_core():
    ids = {record.id for record in find_records(records.FAMILIES)}

    assert all(listed < ids and len(listed) < len(ids) / 3 for listed in extended().values())
