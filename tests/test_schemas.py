"""Schemas refuse every single damage of a valid file, at every place in it."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from reference.conformance.artifacts import DATA, GOLDEN, MODELS, SCHEMAS, _registry, read_json, validate
from reference.conformance.judge import JUDGES
from reference.errors import Refusal, RefusedError
from reference.model.config import config_from_dict

SCHEMA_FILES = sorted(SCHEMAS.glob("*.schema.json"))
ARTIFACTS = {f"{family}_artifact": DATA / family / "seed.json" for family in ("batching", "sweep", "speculation")}
RECORDS = [(family, path) for family in sorted(JUDGES) for path in sorted((DATA / family).glob("*.json"))]
REFUSED_CONFIG = MODELS / "refused-rope-type" / "config.json"
CONFIGS = sorted(path for path in MODELS.glob("*/config.json") if path != REFUSED_CONFIG)
# Schemas of files and messages that are no goldens: tests/conformance.
CHECKED_ELSEWHERE = ("errata", "expectations", "kill_matrix", "protocol", "report")
OTHER_TYPES = (None, True, 1, "x", [], {})

# Fields that may be left out, with the reason. Deleting any other field is a damage.
OPTIONAL = {"final_coin": "the recorded seeds do not state the coin of the replacement"}
# Limits for which null means unlimited.
NULLABLE = {"prefill_token_budget", "scratch_units", "kv_budget_bytes"}
# Arrays and objects that may be empty: nothing happened, or nothing ends the output.
MAY_BE_EMPTY = {"eos_ids", "drafts", "prefilled", "decoded", "cache_misses", "evicted", "finished"}
MAY_BE_EMPTY |= {"exact", "f32", "f16", "bf16"}  # records of the manifest that are no core records
MAY_BE_EMPTY |= {"refused", "rejected_by_reason", "tokens of requests"}
# Objects keyed by names of the user's, with keys that they must not have. Deleting or adding a good key is no damage.
BAD_KEYS = {
    "files": ("", "/data/a.json", "data/../a.json", "data/a.json/..", "data", "data//a.json", "seeds/a.json"),
    "sources": ("", "/a.py", "../a.py", "a/./b.py", "a//b.py", "a b.py"),
    "reference_outputs": ("",),
    "tokens": ("",),
    "refused": ("",),
    "rejected_by_reason": ("", "no_such_reason"),
}
# Strings that may be anything but empty: names and sentences.
FREE_TEXT = {"catches", "mode", "scope", "execution_mode", "reference", "command", "refusal of the run"}
FREE_TEXT |= {"python", "torch", "numpy", "platform", "session", "into", "active", "request id"}
FREE_TEXT |= {"prefilled", "decoded", "cache_misses", "evicted", "finished"}
# Numbers whose least value is above 0, and numbers of at most 1, by the name of their field.
AT_LEAST_ONE = {"max_tokens", "gamma", "batch_size", "batch_sizes", "verify_tokens", "concurrency"}
AT_LEAST_ONE |= {"logical_ticks", "batch_forward_calls", "ticks", "hidden", "n_heads", "n_layers", "vocab"}
AT_LEAST_ONE |= {"max_new_tokens", "prompt_len", "sessions", "saturation_concurrency", "total_emitted"}
AT_LEAST_ONE |= {"kv_budget_bytes", "scratch_budget_bytes", "verify_batched_tokens", "expected_tokens"}
AT_LEAST_ONE |= {"alpha_80_expected_tokens", "alpha_45_expected_tokens", "schema_version", "q_draft"} | NULLABLE
# Numbers of either sign: logits, and questions that may be ones to refuse.
ANY_NUMBER = {"logits", "temperature", "coin"}
COINS = {"accept_coins", "final_coin", "u_draw"}
AT_MOST_ONE = COINS | {"p", "q", "alphas", "p_target", "q_draft", "accept_prob", "target_p", "draft_q", "tv_distance"}
AT_MOST_ONE |= {"residual_p_minus_q_norm", "tv_distance_with_residual", "tv_distance_without_residual"}
AT_MOST_ONE |= {"kv_pressure", "scratch_pressure"}
# Words one of which tells the unit of a number.
UNITS = (
    *("tick", "token", "session", "byte", "ms", "1/s", "probability", "logit", "number", "index", "slots"),
    *("request", "version", "status", "unit", "coin", "draft", "rate", "rotations", "times", "distance"),
    *("variation", "factor", "ratio", "multiplier", "divisor", "wavelength", "base of", "decode", "heads"),
    *("layers", "prompt", "speculative", "seconds", "length"),
)


def valid_files() -> Iterator[tuple[str, Any]]:
    """(schema, valid content): artifacts, a record of each kind, traces and the manifest, with long arrays cut."""
    for schema, path in ARTIFACTS.items():
        yield schema, cut(read_json(path))
        yield schema, cut(own_run(read_json(path)))
    seen = set()
    for family, path in RECORDS:
        record = read_json(path)
        asked, expected = record.get("input", {}), record.get("expected", {})
        operations = frozenset(step["op"] for step in asked.get("steps", ()))
        kind = (family, asked.get("kind"), "refusal" in expected, operations)
        if path.stem != "seed" and kind not in seen:
            seen.add(kind)
            yield family, cut(record)
            yield family, cut({**record, "expected": {"refusal": "context_exceeded"}})
    for name in ("evict-24", "refused"):
        yield "trace", cut(read_json(DATA / "sweep" / f"{name}.json")["expected"]["trace"])
    yield "manifest", cut(read_json(GOLDEN / "manifest.json"))


def own_run(seed: Any) -> Any:
    """An artifact as our commands write it: with provenance, and with what the seeds have no example of."""
    environment = {"python": "3.12.1", "numpy": "2.1.0", "platform": "Linux"}
    run = {**seed, "command": ["python", "-m", "reference"], "exit_status": 0, "environment": environment}
    run["sources"] = {"reference/cli.py": "0" * 64}
    if "verification_step" in run:
        run = edited(run, ("verification_step", "trace", -1, "final_coin"), 0.5)
    if "mid_run_telemetry_concurrency_4" in run:
        place = ("mid_run_telemetry_concurrency_4", "rejected_by_reason")
        run = edited(run, place, {"kv_exceeds_budget": 1})
    return run


def cut(content: Any) -> Any:
    """Content whose arrays keep their first and last member, and one of each shape of the objects between."""
    if isinstance(content, dict):
        keys = list(content) if len(content) <= 20 else [*content][:1] + [*content][-1:]
        return {key: cut(content[key]) for key in keys}
    if not isinstance(content, list) or not content:
        return content
    if not isinstance(content[0], dict):
        return [cut(member) for member in ([content[0], content[-1]] if len(content) > 1 else content)]
    shapes = {shape(member): member for member in reversed(content)}
    kept = [content[0], *shapes.values(), content[-1]]
    return [cut(member) for member in content if any(member is one for one in kept)]


def shape(member: dict[str, Any]) -> tuple[Any, ...]:
    """What kind of row it is: its fields, its operation or outcome, and which of its parts are empty."""
    empty = frozenset(key for key, part in member.items() if part in ([], {}))
    return frozenset(member), member.get("op"), member.get("outcome"), empty


def damages(schema: str, content: Any) -> Iterator[tuple[str, Any]]:
    """(what was done and where, the damaged copy)."""
    for path, value in places(content):
        where = json.dumps(list(path))
        for done, damaged in damages_of(meaning(schema, path, value), value):
            yield f"{done} at {where}", edited(content, path, damaged)


def damages_of(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """(what was done, the damaged value) for a value in a field of this name."""
    for other in OTHER_TYPES:
        if json_type(other) != json_type(value) and not (name in NULLABLE and other in (None, 1)):
            yield f"{other!r} for a {json_type(value)}", other
    if isinstance(value, dict):
        yield from damaged_objects(name, value)
    elif isinstance(value, list) and value and name not in MAY_BE_EMPTY:
        yield "an empty array", []
    elif isinstance(value, str):
        yield "an empty string", ""
        if name not in FREE_TEXT:
            yield "another word", "no such word!"
    elif json_type(value) == "number":
        yield from damaged_numbers(name, value)


def damaged_objects(name: str, value: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    base = name.partition(" ")[0]
    if base in BAD_KEYS:
        for key in BAD_KEYS[base] if value else ():
            yield f"the key {key!r}", {key: next(iter(value.values()))}
        if value and name not in MAY_BE_EMPTY:
            yield "an empty object", {}
        return
    yield "a surplus field", {**value, "surplus_field": 1}
    for key in value:
        if key not in OPTIONAL:
            yield f"no {key}", {other: value[other] for other in value if other != key}


def damaged_numbers(name: str, value: float) -> Iterator[tuple[str, Any]]:
    yield from (("too low", -1e39), ("too high", 1e39)) if name in ANY_NUMBER else (("below 0", -1),)
    if name in AT_LEAST_ONE:
        yield "below 1", 0
    if name in AT_MOST_ONE:
        yield "above 1", 2
    if name in COINS:
        yield "a coin of 1", 1.0
    if name == "exit_status":
        yield "above 255", 256
    if isinstance(value, int) and name != "expected_tokens":
        yield "a fraction", value + 0.5


def meaning(schema: str, path: tuple[Any, ...], value: Any) -> str:
    """The field a value belongs to; where one name means two things, told apart."""
    name = next((key for key in reversed(path) if isinstance(key, str)), "")
    if name == "tokens" and isinstance(value, dict):
        return "tokens of requests"
    if name == "tokens" and schema == "batching_artifact":
        return "max_tokens"
    if name == "drafts" and path[0] == "input":
        return "drafts of a question"
    if name == "refusal" and schema == "batching_artifact":
        return "refusal of the run"
    if name == "id" and (len(path) > 1 or schema == "trace"):
        return "request id"
    return name


def json_type(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "boolean" if isinstance(value, bool) else "null"
    return {int: "number", float: "number", str: "string", list: "array", dict: "object"}[type(value)]


def places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    yield path, content
    if isinstance(content, dict | list):
        for key in content if isinstance(content, dict) else range(len(content)):
            yield from places(content[key], (*path, key))


def edited(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy with another value at a place; what is not on the way to it is shared."""
    if not path:
        return value
    copied = content.copy()
    copied[path[0]] = edited(content[path[0]], path[1:], value) if len(path) > 1 else value
    return copied


@cache
def validator(schema: str) -> Any:
    return Draft202012Validator(read_json(SCHEMAS / f"{schema}.schema.json"), registry=_registry())


def nodes(node: Any, place: str, *, narrowing: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema in a schema, but those below if, then and not, which only narrow what is described elsewhere."""
    if isinstance(node, dict):
        yield place, node
        for key, member in node.items():
            if narrowing or key not in ("if", "then", "not"):
                yield from nodes(member, f"{place}.{key}")
    elif isinstance(node, list):
        for index, member in enumerate(node):
            yield from nodes(member, f"{place}[{index}]")


VALID = list(valid_files())
IDS = [f"{schema}-{number}" for number, (schema, _) in enumerate(VALID)]


def test_there_is_something_to_check() -> None:
    assert len(RECORDS) > 50
    assert len(CONFIGS) > 5
    checked = {schema for schema, _ in VALID} | {"model_config", "record", *CHECKED_ELSEWHERE}
    assert checked == {path.name.partition(".")[0] for path in SCHEMA_FILES}


@pytest.mark.parametrize("path", SCHEMA_FILES, ids=lambda path: path.stem)
def test_a_schema_is_valid_and_describes_every_field(path: Path) -> None:
    schema = read_json(path)

    Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"https://golden-llama.dev/schemas/v1/{path.name}"
    for place, node in nodes(schema, path.stem):
        for name, field in node.get("properties", {}).items() if "additionalProperties" in node else ():
            assert len(field.get("description", "")) > 0, f"{place}.{name} has no description"
        if node.get("type") == "object":
            is_narrowed = place.endswith(
                ("request.properties.args", "answer.oneOf[0].properties.result")
            )  # by the verb
            assert is_narrowed or node.get("additionalProperties", True) is not True, f"{place} allows any field"
        kinds = node["type"] if isinstance(node.get("type"), list) else [node.get("type")]
        if ("number" in kinds or "integer" in kinds) and "description" in node:
            assert any(unit in node["description"] for unit in UNITS) or " id" in f" {node['description']}", place
        if "number" in kinds or "integer" in kinds:
            is_bounded = "minimum" in node or "exclusiveMinimum" in node
            assert is_bounded or path.stem == "protocol.schema", f"{place} has no least value"


def test_the_reasons_are_those_of_the_specification() -> None:
    reasons = read_json(SCHEMAS / "record.schema.json")["$defs"]["reason"]["enum"]

    assert [reason.value for reason in Refusal] == reasons


@pytest.mark.parametrize(("family", "path"), RECORDS, ids=lambda part: getattr(part, "stem", part))
def test_every_record_is_valid(family: str, path: Path) -> None:
    validate(read_json(path), f"{family}_artifact" if path.stem == "seed" else family, str(path))


@pytest.mark.parametrize(("schema", "content"), VALID, ids=IDS)
def test_every_single_damage_is_refused(schema: str, content: Any) -> None:
    validate(content, schema, "undamaged")

    damaged = list(damages(schema, content))

    assert len(damaged) > 0
    assert [] == [done for done, copy in damaged if validator(schema).is_valid(copy)]


def test_the_manifest_is_valid() -> None:
    validate(read_json(GOLDEN / "manifest.json"), "manifest", "manifest")


# What a schema cannot say, because it relates two fields: the reference alone refuses these.
RELATED = {"head_dim", "hidden_size", "num_attention_heads", "num_key_value_heads", "rope_theta", "rope_scaling"}
RELATED |= {"rope_parameters", "low_freq_factor", "high_freq_factor", "short_factor", "long_factor", "rope_type"}
# Storage types that a checkpoint can have: the schema alone refuses others.
STORED = {"dtype", "torch_dtype"}


def config_damages() -> Iterator[tuple[str, str, Any]]:
    """(field, what was done, damaged config), each config in both spellings of RoPE and in either one."""
    for path in CONFIGS:
        both = read_json(path)
        for left_out in ("rope_scaling", "rope_parameters"):
            config = {name: field for name, field in both.items() if name != left_out}
            for place, value in places(config):
                name = meaning("model_config", place, value)
                for done, damaged in damages_of(name, value):
                    yield name, f"{done} at {path.parent.name}: {list(place)}", edited(config, place, damaged)
                if place and json_type(value) == "number":
                    yield name, f"0 at {path.parent.name}: {list(place)}", edited(config, place, 0)


def is_accepted(config: Any) -> bool:
    try:
        config_from_dict(config)
    except RefusedError:
        return False
    return True


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.parent.name)
def test_every_config_is_valid(path: Path) -> None:
    validate(read_json(path), "model_config", str(path))


def test_a_config_to_refuse_is_not_valid() -> None:
    assert not validator("model_config").is_valid(read_json(REFUSED_CONFIG))


def test_a_config_is_valid_exactly_if_the_reference_accepts_it() -> None:
    compared = 0
    for name, done, config in config_damages():
        if not isinstance(config, dict):
            assert not validator("model_config").is_valid(config), done
            continue
        is_valid, is_right = validator("model_config").is_valid(config), is_accepted(config)
        compared += 1
        if is_valid and not is_right:
            assert name in RELATED, f"only the reference refuses {done}"
        if is_right and not is_valid:
            assert name in STORED, f"only the schema refuses {done}"
    assert compared > 1000


ROPE = {
    "default": {},
    "linear": {"factor": 2},
    "dynamic": {"factor": 2},
    "yarn": {"factor": 2, "original_max_position_embeddings": 64},
    "llama3": {"factor": 2, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 64},
    "longrope": {"short_factor": [1] * 4, "long_factor": [2] * 4, "original_max_position_embeddings": 64},
}
ROPE_VALUES = {
    "factor": (0.5, 1, None),
    "original_max_position_embeddings": (0, 1, 2, 1.5, None),
    "low_freq_factor": (0, 0.5, None),
    "high_freq_factor": (0, 8, None),
    "beta_fast": (0, 16, None),
    "beta_slow": (0, 2, None),
    "attention_factor": (0, 1.5, None),
    "mscale": (0, 1, None),
    "mscale_all_dim": (0, 1, None),
    "truncate": (True, False, 1, None),
    "short_factor": ([0] * 4, [1, 2, 3, 4], "x", None),
    "long_factor": ([0] * 4, [1, 2, 3, 4], [None] * 4, None),
    "rope_theta": (0, 1, 500.5, None),
    "partial_rotary_factor": (1, 0.5, None),
    "rope_type": ("longer", None),
    "type": (*ROPE, "longer", None),
    "surplus_field": (1, None),
}


CONFIG_VALUES = {
    "head_dim": (8, 7, 0, None),
    "num_key_value_heads": (1, 2, 0, "1", None),
    "eos_token_id": (0, -1, 1.5, "2", [], [1, 2], [-1], ["2"], [1.5], None),
    "partial_rotary_factor": (1, 0.5, None),
    "rope_interleaved": (False, True, None),
    "sliding_window": (None, 4096),
    "quantization_config": (None, {}, {"bits": 4}),
    "hidden_act": ("silu", "swish", "gelu", None),
    "architectures": (["LlamaForCausalLM"], ["MistralForCausalLM"], [], None),
    "model_type": ("llama", "mistral", None),
    "attention_dropout": (0.1, None),
    "_name_or_path": ("x", None),
    "surplus_field": (1,),
}


def test_every_value_of_a_field_is_valid_exactly_if_the_reference_accepts_it() -> None:
    sizes = {"vocab_size": 8, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 1}

    for name, values in CONFIG_VALUES.items():
        for value in values:
            config = {**sizes, "num_attention_heads": 2, name: value}
            assert validator("model_config").is_valid(config) == is_accepted(config), (name, value)


@pytest.mark.parametrize("field", ["dtype", "torch_dtype"])
def test_a_config_names_a_storage_type_that_a_checkpoint_can_have(field: str) -> None:
    for value, is_right in (("bfloat16", True), (None, True), ("float64", False), ("", False), (1, False)):
        config = {**read_json(CONFIGS[0]), field: value}
        assert validator("model_config").is_valid(config) == is_right


@pytest.mark.parametrize("spelling", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("rope_type", ROPE)
def test_rope_parameters_are_valid_exactly_if_the_reference_accepts_them(rope_type: str, spelling: str) -> None:
    sizes = {"vocab_size": 8, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "head_dim": 8}
    right = {"rope_type": rope_type, **ROPE[rope_type]}
    old = {"type": rope_type, "rope_type": None, **ROPE[rope_type]}
    changed = [{**right, name: value} for name, values in ROPE_VALUES.items() for value in values]
    fewer = [{name: right[name] for name in right if name != left_out} for left_out in right]

    for rope in (right, old, *changed, *fewer):
        config = {**sizes, spelling: rope}
        if rope.get("surplus_field", 1) is None:
            continue  # the reference reads null as absent, whatever the name; the schema wants known names
        is_valid, is_right = validator("model_config").is_valid(config), is_accepted(config)
        assert is_valid == is_right, rope


@pytest.mark.parametrize("name", ["sweep_artifact", "speculation_artifact"])
@pytest.mark.parametrize("field", ["command", "exit_status", "environment", "sources"])
def test_provenance_comes_whole_or_not_at_all(name: str, field: str) -> None:
    run = own_run(read_json(ARTIFACTS[name]))
    validate(run, name, "file")

    for damaged in (
        {key: part for key, part in run.items() if key != field},
        {**read_json(ARTIFACTS[name]), field: run[field]},
    ):
        with pytest.raises(RefusedError, match="file, at"):
            validate(damaged, name, "file")


@pytest.mark.parametrize("name", ARTIFACTS)
def test_an_environment_is_of_one_kind(name: str) -> None:
    run = own_run(read_json(ARTIFACTS[name]))
    environment = run["environment"]
    torch = {"python": "3", "torch": "2", "platform": "x"}
    validate({**run, "environment": torch}, name, "file")

    for damaged in ({**environment, "torch": "2"}, {"python": "3", "platform": "x"}):
        with pytest.raises(RefusedError, match="file, at"):
            validate({**run, "environment": damaged}, name, "file")


def test_only_a_rejected_draft_has_a_final_coin() -> None:
    run = own_run(read_json(ARTIFACTS["speculation_artifact"]))
    damaged = edited(run, ("verification_step", "trace", 0, "final_coin"), 0.5)

    with pytest.raises(RefusedError, match="file, at"):
        validate(damaged, "speculation_artifact", "file")


@pytest.mark.parametrize("field", ["prefilled", "decoded", "cache_misses", "finished"])
def test_a_session_is_named_once_in_a_tick(field: str) -> None:
    trace = read_json(DATA / "sweep" / "concurrency-8.json")["expected"]["trace"]

    with pytest.raises(RefusedError, match="file, at"):
        validate(edited(trace, (0, field), ["s0", "s0"]), "trace", "file")


@pytest.mark.parametrize("policy", ["fixed", "continuous"])
def test_a_session_is_active_once_in_a_tick(policy: str) -> None:
    seed = read_json(ARTIFACTS["batching_artifact"])

    with pytest.raises(RefusedError, match="file, at"):
        validate(edited(seed, (policy, "trace", 0, "active"), ["a", "a"]), "batching_artifact", "file")


def test_an_answer_is_of_the_kind_of_its_question() -> None:
    records = {record["input"]["kind"]: record for schema, record in VALID if schema == "speculation"
               and "refusal" not in record["expected"]}  # fmt: skip
    assert set(records) == {"verify", "law", "loop"}

    for asked in records:
        for answered in records:
            mixed = {**records[asked], "expected": records[answered]["expected"]}
            assert validator("speculation").is_valid(mixed) == (asked == answered)
