"""What a config.json means, and what of it is refused."""

import json
from dataclasses import replace
from typing import Any

import pytest

from reference.errors import Refusal, RefusedError
from reference.model.config import ModelConfig, config_from_dict, config_to_dict
from reference.model.rope_parameters import RopeParameters
from tests.models import ROPES, TINY, rope_config

SIZES = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.0, 2.0, 2.0],
    "long_factor": [1.0, 2.0, 4.0, 8.0],
    "original_max_position_embeddings": 512,
}


def refusal_of(raw: dict[str, Any]) -> str:
    with pytest.raises(RefusedError) as refused:
        config_from_dict(raw)

    assert refused.value.reason is Refusal.CONFIG_INVALID
    return str(refused.value)


def test_the_sizes_alone_give_the_defaults_of_transformers():
    """LlamaConfig of transformers 5: all heads have their own keys, head_dim = 32 / 4, eos 2, theta 10000."""
    expected = ModelConfig(
        vocab_size=48,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=8,
        max_position_embeddings=2048,
        rms_norm_eps=1e-6,
        rope=RopeParameters(rope_type="default", rope_theta=10000.0),
        tie_word_embeddings=False,
        attention_bias=False,
        mlp_bias=False,
        eos_token_ids=(2,),
    )

    assert expected == config_from_dict(SIZES)


def test_null_counts_as_absent():
    nulls = dict.fromkeys(("num_key_value_heads", "head_dim", "rope_scaling", "rope_theta", "rms_norm_eps"))

    assert config_from_dict(SIZES) == config_from_dict({**SIZES, **nulls})


def test_a_null_eos_means_that_nothing_stops_the_output():
    """Unlike an absent one, as in transformers' LlamaConfig."""
    assert config_from_dict({**SIZES, "eos_token_id": None}).eos_token_ids == ()


@pytest.mark.parametrize(("given", "expected"), [(7, (7,)), ([7, 5], (7, 5)), ([], ())])
def test_eos_is_one_id_or_a_list(given, expected):
    assert expected == config_from_dict({**SIZES, "eos_token_id": given}).eos_token_ids


def test_every_optional_field_is_read():
    given = {
        "num_key_value_heads": 2,
        "head_dim": 6,
        "max_position_embeddings": 99,
        "rms_norm_eps": 0.5,
        "tie_word_embeddings": True,
        "attention_bias": True,
        "mlp_bias": True,
        "eos_token_id": 4,
        "rope_theta": 500.0,
    }
    expected = ModelConfig(48, 32, 64, 2, 4, 2, 6, 99, 0.5, RopeParameters(rope_theta=500.0), True, True, True, (4,))

    assert expected == config_from_dict({**SIZES, **given})


def test_fields_without_effect_are_ignored():
    ignored = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "dtype": "float32",
        "transformers_version": "5.24.0",
        "_name_or_path": "somewhere",
        "use_cache": False,
        "attention_dropout": 0.5,
        "initializer_range": 0.02,
        "bos_token_id": 1,
        "pad_token_id": None,
        "pretraining_tp": 1,
    }

    assert config_from_dict(SIZES) == config_from_dict({**SIZES, **ignored})


# The two spellings of the RoPE parameters


@pytest.mark.parametrize("scaling", [{"rope_type": "linear", "factor": 4.0}, {"type": "linear", "factor": 4.0}])
def test_both_spellings_give_the_same_parameters(scaling):
    old = {**SIZES, "rope_theta": 500.0, "rope_scaling": scaling}
    new = {**SIZES, "rope_parameters": {**scaling, "rope_theta": 500.0}}
    both = {**old, **new}
    expected = replace(config_from_dict(SIZES), rope=RopeParameters("linear", 500.0, factor=4.0))

    assert [expected] * 3 == [config_from_dict(raw) for raw in (old, new, both)]


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({}, RopeParameters()),
        ({"rope_type": "default"}, RopeParameters()),
        ({"rope_type": "default", "partial_rotary_factor": 1.0}, RopeParameters()),
        ({"type": "dynamic", "rope_type": "dynamic", "factor": 2}, RopeParameters("dynamic", factor=2)),
        (
            {**YARN, "beta_fast": 16, "beta_slow": 2, "truncate": False, "mscale": 0.7, "mscale_all_dim": 0.9},
            RopeParameters(
                "yarn",
                factor=4.0,
                original_max_position_embeddings=512,
                beta_fast=16,
                beta_slow=2,
                truncate=False,
                mscale=0.7,
                mscale_all_dim=0.9,
            ),
        ),
        (
            {**YARN, "attention_factor": None},
            RopeParameters("yarn", factor=4.0, original_max_position_embeddings=512),
        ),
        (
            LLAMA3,
            RopeParameters(
                "llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=512,
            ),
        ),
        (
            {**LONGROPE, "factor": 4, "attention_factor": 1.2},
            RopeParameters(
                "longrope",
                factor=4,
                attention_factor=1.2,
                original_max_position_embeddings=512,
                short_factor=(1.0, 1.0, 2.0, 2.0),
                long_factor=(1.0, 2.0, 4.0, 8.0),
            ),
        ),
    ],
)
def test_every_rope_type_is_read(scaling, expected):
    assert expected == config_from_dict({**SIZES, "rope_scaling": scaling}).rope


REFUSED_ROPES = [
    ({"rope_type": "linear"}, "factor is None; it must be given: rope type linear needs it"),
    ({"rope_type": "dynamic"}, "factor is None; it must be given: rope type dynamic needs it"),
    *(
        ({k: v for k, v in full.items() if k != name}, f"{name} is None; it must be given: rope type")
        for full in (YARN, LLAMA3, LONGROPE)
        for name in full
        if name != "rope_type"
    ),
    (
        {"rope_type": "default", "factor": 2.0},
        "rope_scaling.factor is 2.0; it must be absent: rope type default does",
    ),
    ({"factor": 2.0}, "rope_scaling.factor is 2.0; it must be absent: rope type default does not use it"),
    (
        {"rope_type": "linear", "factor": 2.0, "beta_fast": 32},
        "rope_scaling.beta_fast is 32; it must be absent: rope type linear does not use it",
    ),
    ({**LLAMA3, "mscale": 1.0}, "rope_scaling.mscale is 1.0; it must be absent: rope type llama3 does not use it"),
    ({**YARN, "low_freq_factor": 1.0}, "rope_scaling.low_freq_factor is 1.0; it must be absent: rope type yarn"),
    (
        {"rope_type": "mrope", "mrope_section": [1, 1]},
        "rope_scaling.rope_type is 'mrope'; it must be one of default, linear, dynamic, yarn, llama3, longrope",
    ),
    (
        {"rope_type": ["linear"], "factor": 2.0},
        "rope_scaling.rope_type is ['linear']; it must be one of default, linear, dynamic, yarn, llama3, longrope",
    ),
    (
        {"type": "linear", "rope_type": "dynamic", "factor": 2.0},
        "rope_scaling.type is 'linear'; it must be equal to rope_type ('dynamic'), or absent",
    ),
    (
        {"rope_type": "default", "partial_rotary_factor": 0.5},
        "rope_scaling.partial_rotary_factor is 0.5; it must be absent: rope type default does not use it",
    ),
    ([1, 2], "rope_scaling is [1, 2]; it must be an object"),
    ({"rope_type": "linear", "factor": 0.5}, "factor is 0.5; it must be at least 1"),
    ({"rope_type": "linear", "factor": 0}, "factor is 0; it must be a finite number above 0"),
    ({"rope_type": "linear", "factor": "4"}, "factor is '4'; it must be a finite number above 0"),
    ({"rope_type": "linear", "factor": True}, "factor is True; it must be a finite number above 0"),
    ({"rope_type": "linear", "factor": [4.0]}, "factor is (4.0,); it must be a finite number above 0"),
    (
        {"rope_type": "linear", "factor": 2.0, "rope_theta": 7.0},
        "rope_theta is 500.0; it must be equal to rope_scaling.rope_theta (7.0), or absent",
    ),
    ({**YARN, "beta_fast": 0}, "beta_fast is 0; it must be a finite number above 0"),
    ({**YARN, "attention_factor": -1.0}, "attention_factor is -1.0; it must be a finite number above 0"),
    ({**YARN, "truncate": 1}, "truncate is 1; it must be true or false"),
    (
        {**YARN, "original_max_position_embeddings": 512.5},
        "original_max_position_embeddings is 512.5; it must be a whole number above 0",
    ),
    (
        {**LLAMA3, "low_freq_factor": 4.0},
        "low_freq_factor is 4.0; it must be below high_freq_factor (4.0)",
    ),
    ({**LLAMA3, "low_freq_factor": 0.0}, "low_freq_factor is 0.0; it must be a finite number above 0"),
    (
        {**LONGROPE, "short_factor": [1.0, 1.0, 1.0]},
        "short_factor is (1.0, 1.0, 1.0); it must be a list of head_dim / 2 = 4 numbers",
    ),
    ({**LONGROPE, "long_factor": 3.0}, "long_factor is 3.0; it must be a list of head_dim / 2 = 4 numbers"),
    ({**LONGROPE, "long_factor": [1.0, 0.0, 1.0, 1.0]}, "long_factor is 0.0; it must be a finite number above 0"),
    ({**LONGROPE, "long_factor": [1.0, None, 1.0, 1.0]}, "long_factor is None; it must be a finite number above 0"),
    (
        {**LONGROPE, "original_max_position_embeddings": 1},
        "original_max_position_embeddings is 1; it must be above 1 for longrope, which divides by its logarithm",
    ),
]


@pytest.mark.parametrize(("scaling", "sentence"), REFUSED_ROPES)
def test_rope_parameters_are_refused_with_field_value_and_remedy(scaling, sentence):
    assert f"config field {sentence}" in refusal_of({**SIZES, "rope_theta": 500.0, "rope_scaling": scaling})


def test_two_spellings_that_disagree_are_refused():
    raw = {**SIZES, "rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_parameters": {"rope_theta": 1e4}}

    assert "rope_scaling is {'rope_type': 'linear', 'factor': 2.0}; it must be equal to" in refusal_of(raw)


@pytest.mark.parametrize("scaling", [YARN, {"rope_type": "dynamic", "factor": 2.0}])
def test_a_theta_of_one_is_refused_where_its_logarithm_divides(scaling):
    message = refusal_of({**SIZES, "rope_theta": 1.0, "rope_scaling": scaling})

    assert "config field rope_theta is 1.0; it must be other than 1 for" in message


def test_dynamic_needs_more_than_two_dimensions():
    raw = {**SIZES, "head_dim": 2, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}

    assert "config field head_dim is 2; it must be more than 2 for dynamic RoPE" in refusal_of(raw)


@pytest.mark.parametrize("rope_type", ["linear", "dynamic", "yarn", "llama3", "longrope"])
def test_a_config_built_in_python_needs_the_same_rope_parameters(rope_type):
    with pytest.raises(RefusedError, match=f"it must be given: rope type {rope_type} needs it") as refused:
        replace(TINY, rope=RopeParameters(rope_type))

    assert refused.value.reason is Refusal.CONFIG_INVALID


# Fields that contradict each other, are missing or unknown

REFUSED_FIELDS = [
    *(
        ({name: None}, f"{name} is None; it must be a whole number of at least 1; the field is missing")
        for name in SIZES
    ),
    *(({name: 0}, f"{name} is 0; it must be a whole number of at least 1") for name in SIZES),
    ({"vocab_size": 48.0}, "vocab_size is 48.0; it must be a whole number of at least 1"),
    ({"vocab_size": "48"}, "vocab_size is '48'; it must be a whole number of at least 1"),
    ({"vocab_size": True}, "vocab_size is True; it must be a whole number of at least 1"),
    ({"hidden_size": 33}, "hidden_size is 33; it must be a multiple of 4 heads, or head_dim must be given"),
    ({"num_key_value_heads": 3}, "num_key_value_heads is 3; it must be a divisor of 4 heads"),
    ({"num_key_value_heads": 8}, "num_key_value_heads is 8; it must be a divisor of 4 heads"),
    ({"num_key_value_heads": 0}, "num_key_value_heads is 0; it must be a whole number of at least 1"),
    ({"head_dim": 7}, "head_dim is 7; it must be an even number, since RoPE rotates pairs"),
    ({"head_dim": -8}, "head_dim is -8; it must be a whole number of at least 1"),
    ({"max_position_embeddings": 0}, "max_position_embeddings is 0; it must be a whole number of at least 1"),
    ({"rms_norm_eps": -1e-6}, "rms_norm_eps is -1e-06; it must be a finite number of at least 0"),
    ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan; it must be a finite number of at least 0"),
    ({"rms_norm_eps": float("inf")}, "rms_norm_eps is inf; it must be a finite number of at least 0"),
    ({"rope_theta": 0}, "rope_theta is 0; it must be a finite number above 0"),
    ({"rope_theta": "10000"}, "rope_theta is '10000'; it must be a finite number above 0"),
    ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1; it must be true or false"),
    ({"attention_bias": "yes"}, "attention_bias is 'yes'; it must be true or false"),
    ({"mlp_bias": 0}, "mlp_bias is 0; it must be true or false"),
    ({"eos_token_id": "2"}, "eos_token_id is '2'; it must be a token id or a list of token ids"),
    ({"eos_token_id": -1}, "eos_token_id is -1; it must be a whole number of at least 0"),
    ({"eos_token_id": [2, 2.5]}, "eos_token_id is 2.5; it must be a whole number of at least 0"),
    ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; it must be 'silu' for a dense Llama"),
    ({"model_type": "mistral"}, "model_type is 'mistral'; it must be 'llama' for a dense Llama"),
    ({"architectures": ["LlamaForTokenClassification"]}, "architectures is ['LlamaForTokenClassification']; it must"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; it must be 1 for a dense Llama"),
    ({"sliding_window": 4096}, "sliding_window is 4096; it must be None for a dense Llama"),
    ({"quantization_config": {"bits": 4}}, "quantization_config is {'bits': 4}; it must be None for a dense Llama"),
    ({"rope_interleaved": True}, "rope_interleaved is True; it must be False for a dense Llama"),
    (
        {"num_experts": 8},
        "num_experts is 8; it must be removed if it has no effect on logits; the field is not part of a dense Llama",
    ),
]


@pytest.mark.parametrize(("changes", "sentence"), REFUSED_FIELDS)
def test_a_config_is_refused_with_field_value_and_remedy(changes, sentence):
    assert f"config field {sentence}" in refusal_of({**SIZES, **changes})


def test_a_missing_size_is_refused():
    raw = {name: number for name, number in SIZES.items() if name != "num_hidden_layers"}

    assert "config field num_hidden_layers is None; it must be a whole number" in refusal_of(raw)


# Derived numbers, and the way back


def test_group_size_is_query_heads_per_key_value_head():
    assert [1, 2, 4] == [replace(TINY, num_key_value_heads=heads).group_size for heads in (4, 2, 1)]


def test_kv_bytes_per_token():
    """TINY: 2 layers, keys and values, 2 heads of 4 numbers: 32 numbers of 4 or 2 bytes."""
    assert [128, 64] == [TINY.kv_bytes_per_token(), TINY.kv_bytes_per_token(element_size=2)]


def test_a_session_may_hold_max_position_embeddings_and_factor_times_as_many_with_dynamic_rope():
    """max_position_embeddings is what a dynamic model was trained on; beyond it theta grows."""
    lengths = {rope_type: rope_config(rope_type).context_length for rope_type in ROPES}

    assert {rope_type: 256 if rope_type == "dynamic" else 64 for rope_type in ROPES} == lengths


@pytest.mark.parametrize(
    "config",
    [
        *(rope_config(rope_type) for rope_type in ROPES),
        replace(TINY, eos_token_ids=(1, 2), tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
        replace(TINY, eos_token_ids=(3,)),
        replace(
            TINY,
            rope=RopeParameters(
                "yarn", 50.0, 2.0, 16, attention_factor=1.5, mscale=1.0, mscale_all_dim=2.0, truncate=False
            ),
        ),
    ],
)
def test_a_config_survives_the_way_to_json_and_back(config):
    assert config == config_from_dict(json.loads(json.dumps(config_to_dict(config))))


@pytest.mark.parametrize("spelling", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("rope_type", ROPES)
def test_each_spelling_that_is_written_suffices(rope_type, spelling):
    raw = config_to_dict(rope_config(rope_type))
    if spelling == "rope_parameters":
        del raw["rope_scaling"], raw["rope_theta"]
    else:
        del raw["rope_parameters"]

    assert rope_config(rope_type) == config_from_dict(raw)


# The same file read by transformers

FILES = {
    "sizes alone": {},
    "eos null": {"eos_token_id": None},
    "eos list": {"eos_token_id": [3, 5]},
    "key-value heads null": {"num_key_value_heads": None, "head_dim": None},
    "everything": {
        "num_key_value_heads": 2,
        "head_dim": 6,
        "max_position_embeddings": 99,
        "rms_norm_eps": 0.5,
        "tie_word_embeddings": True,
        "attention_bias": True,
        "mlp_bias": True,
        "eos_token_id": 4,
        "rope_theta": 500.0,
    },
    "old linear": {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 4.0}},
    "new dynamic": {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 500.0}},
    "new llama3": {"rope_parameters": {**LLAMA3, "rope_theta": 500.0}},
    "old yarn": {"rope_theta": 500.0, "rope_scaling": {**YARN, "beta_fast": 16}},
    "old longrope": {"rope_scaling": LONGROPE},
}


def as_transformers_reads(directory) -> dict[str, Any]:
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.from_pretrained(directory)
    eos = config.eos_token_id
    names = (*SIZES, "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps")
    names = (*names, "tie_word_embeddings", "attention_bias", "mlp_bias")
    return {
        **{name: getattr(config, name) for name in names},
        "eos_token_ids": () if eos is None else tuple(eos) if isinstance(eos, list) else (eos,),
        "rope": {name: value for name, value in config.rope_parameters.items() if name != "type"},
    }


@pytest.mark.parametrize("name", FILES)
def test_transformers_reads_the_same_from_the_same_file(name, tmp_path):
    raw = {"model_type": "llama", **SIZES, **FILES[name]}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    config = config_from_dict(raw)
    expected = as_transformers_reads(tmp_path)

    # Only the fields that the file or transformers names; the others have the type's own defaults.
    rope = {
        field: list(value) if isinstance(value, tuple) else value
        for field, value in vars(config.rope).items()
        if field in expected["rope"]
    }
    assert expected == {**{field: getattr(config, field) for field in expected}, "rope": rope}


@pytest.mark.parametrize("rope_type", ROPES)
def test_transformers_reads_what_we_write(rope_type, tmp_path):
    config = rope_config(rope_type)
    (tmp_path / "config.json").write_text(json.dumps(config_to_dict(config)))
    read_back = as_transformers_reads(tmp_path)

    assert config == config_from_dict(
        {**{k: v for k, v in read_back.items() if k != "eos_token_ids" and k != "rope"}, "eos_token_id": []}
        | {"rope_parameters": read_back["rope"]}
    )
