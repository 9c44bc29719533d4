"""Files: one object has one text, a write is whole or not at all, and a schema's complaint names file and place."""

import json
import math
import os
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.conformance import artifacts
from reference.conformance.artifacts import (
    LINE_LENGTH,
    canonical_json,
    read_json,
    root_digest,
    sha256,
    to_plain,
    validate,
    write_json,
)
from reference.errors import Refusal, RefusedError

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=30)


class Colour(str, Enum):
    RED = "red"


@dataclass(frozen=True)
class Point:
    x: float
    colours: Counter[Colour]
    inner: tuple["Point", ...] = ()


@given(JSON)
def test_reading_gives_back_what_was_written(content):
    assert content == json.loads(canonical_json(content))


@given(JSON)
def test_equal_content_has_one_text(content):
    def reversed_keys(member):
        if isinstance(member, dict):
            return {key: reversed_keys(member[key]) for key in reversed(member)}
        return [reversed_keys(one) for one in member] if isinstance(member, list) else member

    assert canonical_json(content) == canonical_json(reversed_keys(content))
    assert canonical_json(content) == canonical_json(json.loads(canonical_json(content)))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_is_its_shortest_text_that_reads_back(number):
    assert f"{number!r}\n" == canonical_json(number)
    assert math.copysign(1.0, number) == math.copysign(1.0, json.loads(canonical_json(number)))


@given(st.lists(st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False), max_size=80))
def test_an_array_of_numbers_is_filled_into_lines(numbers):
    lines = canonical_json({"k": [numbers]}).splitlines()

    assert max(map(len, lines)) <= LINE_LENGTH
    # No word of a line would have fitted into the line before.
    filled = [line.strip() for line in lines if line.startswith(" " * 6)]
    for line, after in pairwise(filled):
        assert 6 + len(line) + 1 + len(after.split(", ")[0].rstrip(",")) + 1 > LINE_LENGTH


@pytest.mark.parametrize("num_digits", range(1, 13))
def test_a_line_is_never_too_long(num_digits):
    lines = canonical_json([[10 ** (num_digits - 1)] * 200]).splitlines()

    assert LINE_LENGTH - num_digits - 2 < max(map(len, lines)) <= LINE_LENGTH


def test_the_text_of_an_object():
    content = {"b": [1, 2.5, "c"], "a": {"z": None, "y": [], "x": {}}, "d": [[1], {"e": True}]}
    expected = """{
  "a": {
    "x": {},
    "y": [],
    "z": null
  },
  "b": [1, 2.5, "c"],
  "d": [
    [1],
    {
      "e": true
    }
  ]
}
"""

    assert expected == canonical_json(content)


def test_text_beyond_ascii_is_utf_8_in_keys_and_in_strings():
    assert '{\n  "ключ": "é"\n}\n' == canonical_json({"ключ": "é"})


def test_numbers_that_json_lacks_are_strings():
    expected = '["NaN", "Infinity", "-Infinity"]\n'

    assert expected == canonical_json([math.nan, math.inf, -math.inf])
    assert expected == canonical_json(np.array([np.nan, np.inf, -np.inf]))


def test_dataclasses_enums_tuples_and_numpy_become_plain():
    point = Point(np.float64(0.5), Counter({Colour.RED: 2}), (Point(math.nan, Counter()),))
    expected = {"x": 0.5, "colours": {"red": 2}, "inner": [{"x": "NaN", "colours": {}, "inner": []}]}

    assert expected == to_plain(point)
    assert [[1, 2], [3, 4]] == to_plain(np.array([[1, 2], [3, 4]]))
    assert {"3": True} == to_plain({3: np.bool_(True)})
    assert "red" == to_plain(Colour.RED)


def test_a_write_makes_the_directory_and_leaves_one_file(tmp_path):
    path = tmp_path / "new" / "record.json"
    write_json(path, {"a": 1})

    assert [path] == list(path.parent.iterdir())
    assert {"a": 1} == read_json(path)


@pytest.mark.parametrize("broken", ["replace", "write_text"])
def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch, broken):
    path = tmp_path / "record.json"
    write_json(path, {"a": 1})

    def refuse(*_arguments, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*{"replace": (os, "replace"), "write_text": (Path, "write_text")}[broken], refuse)
    with pytest.raises(RefusedError) as refused:
        write_json(path, {"a": 2})

    assert (Refusal.NOT_FOUND, f"cannot write {path}: No space left on device") == (
        refused.value.reason,
        str(refused.value),
    )
    assert {"a": 1} == read_json(path)


def test_content_that_has_no_text_leaves_the_old_file(tmp_path):
    path = tmp_path / "record.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})

    assert {"a": 1} == read_json(path)
    assert [path] == list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, Refusal.NOT_FOUND), (b"{", Refusal.ARTIFACT_INVALID), (b'"\xff"', Refusal.ARTIFACT_INVALID)],
)
def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path, content, reason):
    path = tmp_path / "record.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RefusedError) as refused:
        read_json(path)

    assert reason is refused.value.reason
    assert str(path) in str(refused.value)


@pytest.fixture
def schemas(tmp_path, monkeypatch):
    """Two schemas, of which one refers to the other."""
    point = {"$id": "https://example.org/point", "type": "object", "required": ["x"], "additionalProperties": False}
    point["properties"] = {"x": {"type": "number", "minimum": 0}}
    points = {"$id": "https://example.org/points", "type": "object"}
    points["properties"] = {"points": {"type": "array", "items": {"$ref": "https://example.org/point"}}}
    for name, schema in (("point", point), ("points", points)):
        (tmp_path / f"{name}.schema.json").write_text(json.dumps(schema))
    monkeypatch.setattr(artifacts, "SCHEMAS", tmp_path)
    artifacts._validator.cache_clear()
    artifacts._registry.cache_clear()
    yield
    artifacts._validator.cache_clear()
    artifacts._registry.cache_clear()


@pytest.mark.usefixtures("schemas")
def test_valid_content_is_accepted_also_through_a_reference():
    validate({"points": [{"x": 0}, {"x": 2.5}]}, "points", "here.json")


@pytest.mark.usefixtures("schemas")
@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"points": [{"x": 1}, {"x": "one"}]}, "here.json, at $.points[1].x: 'one' is not of type 'number'"),
        ({"points": [{"x": -1}]}, "here.json, at $.points[0].x: -1 is less than the minimum of 0"),
        ({"points": [{}]}, "here.json, at $.points[0]: 'x' is a required property"),
        (
            {"points": [{"x": 1, "y": 2}]},
            "here.json, at $.points[0]: Additional properties are not allowed ('y' was unexpected)",
        ),
    ],
)
def test_a_complaint_names_file_and_place(content, sentence):
    with pytest.raises(RefusedError) as refused:
        validate(content, "points", "here.json")

    assert (Refusal.ARTIFACT_INVALID, sentence) == (refused.value.reason, str(refused.value))


@pytest.mark.usefixtures("schemas")
def test_a_complaint_about_much_content_stays_short():
    with pytest.raises(RefusedError) as refused:
        validate({"points": [{"x": list(range(5000))}]}, "points", "here.json")

    assert len(str(refused.value)) < 400


@pytest.mark.usefixtures("schemas")
def test_a_schema_that_does_not_exist_is_refused():
    with pytest.raises(RefusedError) as refused:
        validate({}, "circle", "here.json")

    assert Refusal.NOT_FOUND is refused.value.reason


def test_digests_are_sha256_of_bytes_and_of_sorted_lines(tmp_path):
    path = tmp_path / "abc"
    path.write_bytes(b"abc")
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-4, example 1

    assert digest == sha256(path)
    assert root_digest({"a": "1", "b": "2"}) == root_digest({"b": "2", "a": "1"})
    (tmp_path / "lines").write_bytes(b"1  a\n2  b\n")
    assert sha256(tmp_path / "lines") == root_digest({"b": "2", "a": "1"})
    assert root_digest({"a": "1", "b": "2"}) != root_digest({"a": "2", "b": "1"})
