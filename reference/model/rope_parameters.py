"""The RoPE parameters of a config.json, in either spelling, checked against the type that uses them."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from reference.model.checks import check_number, refuse_field

RopeType = Literal["default", "linear", "dynamic", "yarn", "llama3", "longrope"]

REQUIRED_ROPE_FIELDS: Mapping[RopeType, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor", "original_max_position_embeddings"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "longrope": ("short_factor", "long_factor", "original_max_position_embeddings"),
}
OPTIONAL_ROPE_FIELDS: Mapping[RopeType, tuple[str, ...]] = {
    "default": (),
    "linear": (),
    "dynamic": (),
    "yarn": ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"),
    "llama3": (),
    "longrope": ("factor", "attention_factor"),
}


@dataclass(frozen=True)
class RopeParameters:
    """How positions become angles; only the fields of `rope_type` are set (see REQUIRED_ROPE_FIELDS)."""

    rope_type: RopeType = "default"
    rope_theta: float = 10000.0
    factor: float | None = None  # how many times longer the context becomes
    original_max_position_embeddings: int | None = None  # tokens the model was trained on
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_fast: float = 32.0  # rotations over the original context
    beta_slow: float = 1.0  # rotations over the original context
    attention_factor: float | None = None  # multiplies cos and sin
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factor: tuple[float, ...] | None = None  # [D/2] divisors up to the original context
    long_factor: tuple[float, ...] | None = None  # [D/2] divisors beyond it


DEFAULT_ROPE = RopeParameters()


def rope_from_dict(present: Mapping[str, Any]) -> RopeParameters:
    """The RoPE parameters of either spelling; where both are given they must agree."""
    spellings = [_rope_spelling(present, name) for name in ("rope_parameters", "rope_scaling") if name in present]
    if not spellings:
        return _rope_spelling({**present, "rope_scaling": {}}, "rope_scaling")
    if any(spelling != spellings[0] for spelling in spellings):
        refuse_field("rope_scaling", present["rope_scaling"], "equal to rope_parameters, or absent")
    return spellings[0]


def _rope_spelling(present: Mapping[str, Any], field: str) -> RopeParameters:
    raw = present[field]
    if not isinstance(raw, Mapping):
        refuse_field(field, raw, "an object")
    given = {name: number for name, number in raw.items() if number is not None}
    theta = given.pop("rope_theta", present.get("rope_theta", 10000.0))
    if theta != present.get("rope_theta", theta):
        refuse_field("rope_theta", present["rope_theta"], f"equal to {field}.rope_theta ({theta}), or absent")
    check_number("rope_theta", theta, minimum=0.0, is_open=True)
    old_name = given.pop("type", given.get("rope_type", "default"))
    rope_type: Any = given.pop("rope_type", old_name)
    if rope_type != old_name:
        refuse_field(f"{field}.type", old_name, f"equal to rope_type ({rope_type!r}), or absent")
    if rope_type not in get_args(RopeType):
        refuse_field(f"{field}.rope_type", rope_type, f"one of {', '.join(get_args(RopeType))}")
    if given.get("partial_rotary_factor", 1) == 1:
        given.pop("partial_rotary_factor", None)
    for name in given:
        if name not in REQUIRED_ROPE_FIELDS[rope_type] + OPTIONAL_ROPE_FIELDS[rope_type]:
            refuse_field(f"{field}.{name}", given[name], f"absent: rope type {rope_type} does not use it")
    lists = {name: tuple(given[name]) for name in given if isinstance(given[name], list)}
    return RopeParameters(rope_type=rope_type, rope_theta=theta, **{**given, **lists})


def rope_to_dict(rope: RopeParameters) -> dict[str, Any]:
    """The parameters that the type uses, without rope_theta, as transformers 4 writes `rope_scaling`."""
    used = ("rope_type", *REQUIRED_ROPE_FIELDS[rope.rope_type], *OPTIONAL_ROPE_FIELDS[rope.rope_type])
    given = {name: getattr(rope, name) for name in used if getattr(rope, name) is not None}
    return {name: list(given) if isinstance(given, tuple) else given for name, given in given.items()}


def check_rope(rope: RopeParameters, head_dim: int) -> None:
    """Refuses parameters for which the formula of the type is undefined."""
    for name in REQUIRED_ROPE_FIELDS[rope.rope_type]:
        if getattr(rope, name) is None:
            refuse_field(name, None, f"given: rope type {rope.rope_type} needs it")
    check_number("rope_theta", rope.rope_theta, minimum=0.0, is_open=True)
    for field in fields(rope):
        given = getattr(rope, field.name)
        if field.name in ("rope_type", "rope_theta") or given is None:
            continue
        if field.name in ("short_factor", "long_factor"):
            if not isinstance(given, tuple) or len(given) != head_dim // 2:
                refuse_field(field.name, given, f"a list of head_dim / 2 = {head_dim // 2} numbers")
            for divisor in given:
                check_number(field.name, divisor, minimum=0.0, is_open=True)
        elif field.name == "truncate":
            if not isinstance(given, bool):
                refuse_field(field.name, given, "true or false")
        else:
            whole = field.name == "original_max_position_embeddings"
            check_number(field.name, given, minimum=0.0, whole=whole, is_open=True)
    if rope.factor is not None and rope.factor < 1.0:
        refuse_field("factor", rope.factor, "at least 1")
    if rope.rope_type == "dynamic" and head_dim <= 2:
        refuse_field("head_dim", head_dim, "more than 2 for dynamic RoPE, whose exponent is D / (D - 2)")
    if rope.rope_type in ("yarn", "dynamic") and rope.rope_theta == 1.0:
        refuse_field(
            "rope_theta",
            rope.rope_theta,
            f"other than 1 for {rope.rope_type} RoPE, which divides by its logarithm",
        )
    if rope.rope_type == "llama3":
        assert rope.low_freq_factor is not None
        assert rope.high_freq_factor is not None
        if rope.low_freq_factor >= rope.high_freq_factor:
            refuse_field("low_freq_factor", rope.low_freq_factor, f"below high_freq_factor ({rope.high_freq_factor})")
    if rope.rope_type == "longrope" and rope.original_max_position_embeddings == 1:
        refuse_field("original_max_position_embeddings", 1, "above 1 for longrope, which divides by its logarithm")
