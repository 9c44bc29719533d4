"""The kill matrix and the fingerprints: whole, of this corpus, and refused where they are damaged."""

import json
import shutil

import numpy as np
import pytest
import safetensors.numpy

from reference.conformance.artifacts import canonical_json, read_json, validate
from reference.conformance.catalogue import FINGERPRINTS, KILL_MATRIX, load_catalogue
from reference.conformance.evidence import SKETCH, differing, digest, sketch
from reference.conformance.records import FAMILIES, find_records
from reference.errors import Refusal, RefusedError

MATRIX = read_json(KILL_MATRIX)
SHORT = {**MATRIX, "mutants": MATRIX["mutants"][:1], "records": MATRIX["records"][:2]}
ROW = {**SHORT["mutants"][0], "kills": dict([*SHORT["mutants"][0]["kills"].items()][:1])}
ROW["reports"] = [{"id": "a", "project": "b", "url": "https://c"}]


def test_every_mutant_is_killed_and_every_record_is_there():
    assert [] == [row["id"] for row in MATRIX["mutants"] if not row["kills"]]
    assert [record.id for record in find_records(FAMILIES)] == MATRIX["records"]


def test_the_catalogue_loads():
    catalogue = load_catalogue()

    assert [row["id"] for row in MATRIX["mutants"]] == [defect.id for defect in catalogue.defects]


@pytest.mark.parametrize("name", [*SHORT])
def test_a_matrix_without_a_field_is_refused(name):
    refused({key: value for key, value in SHORT.items() if key != name})


@pytest.mark.parametrize("name", [*ROW])
def test_a_mutant_without_a_field_or_with_one_of_another_type_is_refused(name):
    validate({**SHORT, "mutants": [ROW]}, "kill_matrix", "here")

    refused({**SHORT, "mutants": [{key: value for key, value in ROW.items() if key != name}]})
    refused({**SHORT, "mutants": [{**ROW, name: 1}]})


@pytest.mark.parametrize(
    "row",
    [
        {**ROW, "more": 1},
        {**ROW, "id": "Upper"},
        {**ROW, "effect": ""},
        {**ROW, "kills": {"forward/x": ["colour"]}},
        {**ROW, "kills": {"forward/x": ["scores much"]}},
        {**ROW, "reports": [{"id": "a", "project": "b", "url": "ftp://c"}]},
        {**ROW, "reports": [{"id": "a", "project": "b"}]},
    ],
)
def test_a_damaged_mutant_is_refused(row):
    refused({**SHORT, "mutants": [row]})


def refused(content):
    with pytest.raises(RefusedError) as caught:
        validate(content, "kill_matrix", "here")
    assert caught.value.reason is Refusal.ARTIFACT_INVALID


def test_a_matrix_of_another_corpus_is_refused(tmp_path):
    path = tmp_path / "matrix.json"
    path.write_text(canonical_json({**MATRIX, "corpus": "0" * 64}))

    with pytest.raises(RefusedError, match=r"another corpus; run python tools/mutate\.py"):
        load_catalogue(path)


def test_fingerprints_that_are_cut_or_lack_an_observable_are_refused(tmp_path):
    path = tmp_path / "prints.safetensors"
    path.write_bytes(FINGERPRINTS.read_bytes()[:-1])
    with pytest.raises(RefusedError, match=r"prints\.safetensors"):
        load_catalogue(fingerprints=path)

    answers = safetensors.numpy.load_file(FINGERPRINTS)
    del answers["tokens"]
    safetensors.numpy.save_file(answers, path)
    with pytest.raises(RefusedError, match="lacks tokens"):
        load_catalogue(fingerprints=path)


def test_fingerprints_that_are_missing_are_refused(tmp_path):
    shutil.rmtree(tmp_path)
    with pytest.raises(RefusedError, match="prints"):
        load_catalogue(fingerprints=tmp_path / "prints.safetensors")


def test_a_sketch_keeps_distances():
    """E|sketch(x)|^2 / SKETCH = mean(x^2): within a factor of 2.5 for 6 sums, 200 times."""
    random = np.random.default_rng(3)
    for _ in range(200):
        x = random.normal(size=random.integers(50, 500))
        ratio = float(np.mean(sketch(x) ** 2) / np.mean(x**2))
        assert 1 / 20 < ratio < 5

    assert (SKETCH,) == sketch(np.ones(3)).shape


def test_a_sketch_is_linear_and_finite():
    x, y = np.arange(7.0), np.ones(7)

    np.testing.assert_allclose(sketch(2 * x + y), 2 * sketch(x) + sketch(y), rtol=1e-6)
    assert np.isfinite(sketch(np.array([np.nan, np.inf, -np.inf]))).all()


def test_differing_tells_sizes_by_hand():
    right = {"scores": np.array([0.0, -4.0]), "tokens": [[1, 2]]}

    assert {"scores": 0.25} == differing(right, {"scores": np.array([0.0, -3.0]), "tokens": [[1, 2]]})
    assert {"tokens": None} == differing(right, {"scores": np.array([0.0, -4.0]), "tokens": [[1, 3]]})
    assert {"scores": None} == differing(right, {"scores": np.zeros(3)})
    assert {"error": None} == differing(right, {"error": "ValueError"})


def test_digests_are_of_content_and_never_zero():
    assert digest([1, 2]) == digest([1, 2]) != digest([2, 1])
    assert json.loads(str(digest("x"))) > 0
