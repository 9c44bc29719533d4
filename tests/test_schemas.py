"""Schemas refuse every single damage of a valid file, at every place in it."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from reference.conformance.artifacts import DATA, GOLDEN, MODELS, SCHEMAS, _registry, read_json, validate
from reference.conformance.judge import JUDGES
from reference.errors import RefusedError

SCHEMA_FILES = sorted(SCHEMAS.glob("*.schema.json"))
ARTIFACTS = {f"{family}_artifact": DATA / family / "seed.json" for family in ("batching", "sweep", "speculation")}

# Fields whose absence is meaningful, so that deleting one is no damage.
OPTIONAL = {
    "model_config": "absent fields take transformers' defaults",
    "model_config.rope_parameters": "only the fields of the RoPE type are required",
    "model_config.rope_scaling": "only the fields of the RoPE type are required",
}
# Objects keyed by names of the user's: request ids, files. Deleting or adding one is another valid file.
OPEN = {"tokens", "files", "sources", "reference_outputs", "refused", "rejected_by_reason"}
# Limits: null means unlimited.
NULLABLE = {"prefill_token_budget", "scratch_units", "kv_budget_tokens"}
# Fields of a config without effect on logits may hold anything; null means absent.
REQUIRED_OF_CONFIG = {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}


def valid_files() -> Iterator[tuple[str, Any]]:
    """(schema, valid content): the seeds, one record a kind, the manifest and every config."""
    for schema, path in ARTIFACTS.items():
        yield schema, read_json(path)
    seen = set()
    for family in sorted(JUDGES):
        for path in sorted((DATA / family).glob("*.json")):
            record = read_json(path)
            kind = (family, record.get("input", {}).get("kind"), "refusal" in record.get("expected", {}))
            if path.stem != "seed" and kind not in seen:
                seen.add(kind)
                yield family, record
    yield "trace", read_json(DATA / "sweep" / "evict-24.json")["expected"]["trace"]
    yield "manifest", read_json(GOLDEN / "manifest.json")
    for directory in sorted(MODELS.iterdir()):
        yield "model_config", read_json(directory / "config.json")


VALID = list(valid_files())
IDS = [f"{schema}-{number}" for number, (schema, _) in enumerate(VALID)]


@pytest.mark.parametrize("path", SCHEMA_FILES, ids=lambda path: path.stem)
def test_a_schema_is_valid_and_describes_every_field(path: Any) -> None:
    schema = read_json(path)

    Draft202012Validator.check_schema(schema)
    assert schema["$id"].endswith(f"/v1/{path.name}")
    assert [] == [place for place, field in fields(schema, path.stem) if "description" not in field]
    assert [] == [
        place for place, node in objects(schema, path.stem) if node.get("additionalProperties") is not False
    ]


@pytest.mark.parametrize(("schema", "content"), VALID, ids=IDS)
def test_a_valid_file_passes(schema: str, content: Any) -> None:
    validate(content, schema, "file")


@pytest.mark.parametrize(("schema", "content"), VALID, ids=IDS)
def test_every_single_damage_is_refused(schema: str, content: Any) -> None:
    validator = Draft202012Validator(read_json(SCHEMAS / f"{schema}.schema.json"), registry=_registry())

    accepted = [place for place, damaged in damages(schema, content) if validator.is_valid(damaged)]

    assert [] == accepted


def test_every_record_and_config_is_valid() -> None:
    for family in JUDGES:
        for path in sorted((DATA / family).glob("*.json")):
            validate(read_json(path), f"{family}_artifact" if path.stem == "seed" else family, str(path))


def damages(schema: str, content: Any) -> Iterator[tuple[str, Any]]:
    """(what was done and where, the damaged copy). Of an array the first and the last member are damaged."""
    for path, value in places(content):
        name = ".".join([schema, *(str(key) for key in path if not isinstance(key, int))])
        shown = json.dumps(list(path))
        is_config_note = schema == "model_config" and path and path[-1] not in REQUIRED_OF_CONFIG
        if isinstance(value, dict) and not (path and path[-1] in OPEN):
            yield f"extra field at {shown}", edited(content, path, {**value, "surplus_field": 1})
            for key in value:
                is_optional = name in OPTIONAL and not (schema == name and key in REQUIRED_OF_CONFIG)
                if not is_optional:
                    yield (
                        f"missing {key} at {shown}",
                        edited(content, path, {k: v for k, v in value.items() if k != key}),
                    )
        for wrong in wrong_values(value):
            is_nullable = bool(path) and path[-1] in NULLABLE and (wrong is None or wrong == 1)
            is_legal = is_nullable or (wrong is None and is_config_note)
            is_legal = is_legal or (path and path[-1] == "eos_token_id" and isinstance(wrong, int | list))
            is_legal = is_legal or (isinstance(wrong, float) and "expected_tokens" in path)
            if not is_legal:
                yield f"{wrong!r} at {shown}", edited(content, path, wrong)


def wrong_values(value: Any) -> Iterator[Any]:
    """Values of another type or out of any range."""
    yield None
    if isinstance(value, bool):
        yield from (1, "true")
    elif isinstance(value, int | float):
        yield from ("1", True, [value])
        if isinstance(value, int):
            yield value + 0.5
    elif isinstance(value, str):
        yield from (1, "", [value])
    else:
        yield from (1, "x")


def places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    yield path, content
    if isinstance(content, dict):
        for key in content:
            yield from places(content[key], (*path, key))
    elif isinstance(content, list):
        for index in sorted({0, len(content) - 1} & set(range(len(content)))):
            yield from places(content[index], (*path, index))


def edited(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copied = copy.deepcopy(content)
    node = copied
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return copied


def fields(node: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        for name, field in node.get("properties", {}).items():
            yield f"{place}.{name}", field
        for key, member in node.items():
            yield from fields(member, f"{place}.{key}")
    elif isinstance(node, list):
        for index, member in enumerate(node):
            yield from fields(member, f"{place}[{index}]")


def objects(node: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        if node.get("type") == "object":
            yield place, node
        for key, member in node.items():
            yield from objects(member, f"{place}.{key}")
    elif isinstance(node, list):
        for index, member in enumerate(node):
            yield from objects(member, f"{place}[{index}]")


# (schema, place, value): numbers just outside the range that their schema states.
OUT_OF_RANGE = (
    ("speculation_artifact", ("verification_step", "trace", 0, "p_target"), 1.0001),
    ("speculation_artifact", ("verification_step", "trace", 0, "u_draw"), 1.0),
    ("speculation_artifact", ("verification_step", "gamma"), 0),
    ("speculation_artifact", ("distribution_check_pos2", "target_p", 0), -0.0001),
    ("speculation_artifact", ("distribution_check_pos2", "tv_distance_with_residual"), 1.5),
    ("speculation_artifact", ("batch_crossover", 0, "alpha_80_expected_tokens"), 0.99),
    ("batching_artifact", ("exit_status",), 256),
    ("batching_artifact", ("fixed", "capacity"), 0),
    ("batching_artifact", ("fixed", "jobs", 0, "generated", 0), -1),
    ("sweep_artifact", ("mid_run_telemetry_concurrency_4", "kv_pressure"), 1.1),
    ("sweep_artifact", ("mid_run_telemetry_concurrency_4", "ticks"), 0),
    ("sweep_artifact", ("concurrency_sweep", "results", 0, "peak_kv_bytes"), -1),
    ("sweep_artifact", ("schema_version",), 2),
)


@pytest.mark.parametrize(("schema", "path", "value"), OUT_OF_RANGE, ids=lambda part: str(part)[:40])
def test_a_number_out_of_range_is_refused(schema: str, path: tuple[Any, ...], value: Any) -> None:
    damaged = edited(read_json(ARTIFACTS[schema]), path, value)

    with pytest.raises(RefusedError, match="file, at"):
        validate(damaged, schema, "file")


@pytest.mark.parametrize("field", ["command", "exit_status", "environment", "sources"])
def test_provenance_comes_whole_or_not_at_all(field: str) -> None:
    seed = read_json(ARTIFACTS["sweep_artifact"])
    provenance = {name: read_json(ARTIFACTS["batching_artifact"])[name] for name in
                  ("command", "exit_status", "environment", "sources")}  # fmt: skip
    validate({**seed, **provenance}, "sweep_artifact", "file")
    del provenance[field]

    with pytest.raises(RefusedError, match="file, at"):
        validate({**seed, **provenance}, "sweep_artifact", "file")
