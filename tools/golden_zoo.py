"""The zoo: small checkpoints, each with a property under which a common mistake shows.

No two dimensions of a checkpoint coincide unless that is its point: 6 heads over 2 KV heads make groups of 3, and a
projection is not square. Weights are the integers of golden_models; what differs is named here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reference.errors import Array
from reference.model.checkpoint import StorageType
from reference.model.config import ModelConfig, config_to_dict
from reference.model.rope_parameters import RopeParameters
from reference.model.weights import EMBEDDING, FINAL_NORM, LM_HEAD

Tensors = dict[str, Array]

GROUPED = ModelConfig(
    vocab_size=37, hidden_size=24, intermediate_size=28, num_hidden_layers=3, num_attention_heads=6,
    num_key_value_heads=2, head_dim=16, max_position_embeddings=96, rms_norm_eps=1e-5,
    rope=RopeParameters("default", 300.0),
)  # fmt: skip


@dataclass(frozen=True)
class Animal:
    """A checkpoint of the zoo."""

    config: ModelConfig
    catches: str
    change: Callable[[ModelConfig, Tensors], Tensors] = lambda _config, tensors: tensors
    storage: StorageType = "bfloat16"
    num_shards: int = 1
    fields: Mapping[str, Any] | None = None  # of config.json, instead of all of them


def scaled(factors: Mapping[str, float]) -> Callable[[ModelConfig, Tensors], Tensors]:
    """Multiplies every tensor whose name holds a key; factors are powers of two, so weights stay exact."""

    def change(_config: ModelConfig, tensors: Tensors) -> Tensors:
        for part, factor in factors.items():
            tensors |= {name: tensor * factor for name, tensor in tensors.items() if part in name}
        return tensors

    return change


def outliers(_config: ModelConfig, tensors: Tensors) -> Tensors:
    """Two channels of the residual stream are 64 times the others, as in trained models (Dettmers et al. 2022)."""
    embedding = tensors[EMBEDDING].copy()
    embedding[:, [3, 11]] *= 64.0
    return {**tensors, EMBEDDING: embedding}


def nearly_zero_row(_config: ModelConfig, tensors: Tensors) -> Tensors:
    """The embedding of token 5 is 2**-13 of the others: its norm is the eps."""
    embedding = tensors[EMBEDDING].copy()
    embedding[5] *= 2.0**-13
    return {**tensors, EMBEDDING: embedding}


def large_gates(_config: ModelConfig, tensors: Tensors) -> Tensors:
    """Gates of a thousand, beyond any exp, and a row of the embedding that is exactly zero."""
    embedding = tensors[EMBEDDING].copy()
    embedding[7] = 0.0
    return scaled({"gate_proj": 2.0**10})(_config, {**tensors, EMBEDDING: embedding})


def large_logits(_config: ModelConfig, tensors: Tensors) -> Tensors:
    return {**tensors, LM_HEAD: tensors[LM_HEAD] * 32.0}


def negative_logits(_config: ModelConfig, tensors: Tensors) -> Tensors:
    """All logits below zero: the final norm keeps one channel large and positive, and the head subtracts it."""
    norm, head = np.abs(tensors[FINAL_NORM]), tensors[LM_HEAD] * 4.0
    embedding = tensors[EMBEDDING].copy()
    embedding[:, 0] = 8.0
    norm[0] = 4.0
    head[:, 0] = -4.0
    return {**tensors, EMBEDDING: embedding, FINAL_NORM: norm, LM_HEAD: head}


LLAMA3 = RopeParameters(
    "llama3", 500.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=12
)
YARN = RopeParameters("yarn", 300.0, factor=4.0, original_max_position_embeddings=16, beta_fast=4.0)
NESTED = replace(GROUPED, rope=replace(LLAMA3, rope_theta=700.0, factor=6.0))
OLD_NAMES = replace(GROUPED, rope=replace(YARN, mscale=2.0, mscale_all_dim=0.5))


def nested_fields() -> dict[str, Any]:
    """A config as transformers 5 writes it: RoPE in rope_parameters and nowhere else."""
    fields = config_to_dict(NESTED)
    return {name: fields[name] for name in fields if name not in ("rope_theta", "rope_scaling")}


def old_fields() -> dict[str, Any]:
    """A config as early releases of transformers 4 wrote it: theta at the top, the RoPE type called `type`."""
    fields = config_to_dict(OLD_NAMES)
    scaling = {"type" if name == "rope_type" else name: given for name, given in fields["rope_scaling"].items()}
    return {**{name: fields[name] for name in fields if name != "rope_parameters"}, "rope_scaling": scaling}


DEFAULTS = replace(
    GROUPED, num_key_value_heads=6, num_attention_heads=6, head_dim=4, max_position_embeddings=2048,
    rms_norm_eps=1e-6, rope=RopeParameters("default", 10000.0), eos_token_ids=(2,),
)  # fmt: skip
NEEDED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
NEEDED_FIELDS = {"model_type": "llama", **{name: getattr(DEFAULTS, name) for name in NEEDED}}

ZOO: Mapping[str, Animal] = {
    "zoo-grouped": Animal(GROUPED, "groups of heads taken as interleaved, or head_dim as hidden / heads"),
    "zoo-one-kv-head": Animal(
        replace(GROUPED, num_key_value_heads=1, attention_bias=True, mlp_bias=True, vocab_size=43),
        "one KV head, or a bias left out",
    ),
    "zoo-all-kv-heads": Animal(
        replace(GROUPED, num_key_value_heads=6, head_dim=6, tie_word_embeddings=True, vocab_size=41),
        "head_dim as hidden / heads, or a tied head",
    ),
    "zoo-llama3": Animal(replace(GROUPED, rope=LLAMA3), "a band of the llama3 frequencies"),
    "zoo-far": Animal(
        replace(GROUPED, max_position_embeddings=512, vocab_size=23, num_hidden_layers=2,
                rope=RopeParameters("default", 1e6)),
        "positions of several hundred, where float32 angles and small tables go wrong",
    ),
    "zoo-eps": Animal(
        replace(GROUPED, rms_norm_eps=0.0625),
        "an eps that is ignored, added twice or outside the root",
        nearly_zero_row,
    ),
    "zoo-tiny-activations": Animal(
        replace(GROUPED, rms_norm_eps=1e-6),
        "an eps of another size, where activations are as small as it",
        scaled({EMBEDDING: 2.0**-10, "o_proj": 2.0**-8, "down_proj": 2.0**-8}),
    ),
    "zoo-outliers": Animal(GROUPED, "sums in low precision where two channels outweigh all others", outliers),
    "zoo-peaked": Animal(
        GROUPED, "a softmax without its maximum, which overflows in float32", scaled({"q_proj": 16.0, "k_proj": 16.0})
    ),
    "zoo-large-gates": Animal(
        replace(GROUPED, num_attention_heads=8, hidden_size=48, vocab_size=29),
        "a SiLU that overflows to NaN, a norm that divides by zero, or rows of k permuted by the query heads",
        large_gates,
    ),
    "zoo-large-logits": Animal(GROUPED, "logits that are capped, or rounded to few bits", large_logits),
    "zoo-negative-logits": Animal(
        GROUPED, "an argmax that starts at 0, where all logits are below it", negative_logits
    ),
    "zoo-coincide-vocab": Animal(
        replace(GROUPED, vocab_size=24), "tensors told apart by their shape: vocabulary = hidden"
    ),
    "zoo-coincide-square": Animal(
        replace(GROUPED, hidden_size=64, intermediate_size=64, vocab_size=64, num_attention_heads=4,
                num_key_value_heads=4, head_dim=16),
        "a transpose that hides in square matrices",
    ),
    "zoo-defaults-spelled": Animal(DEFAULTS, "a config that spells every default out"),
    "zoo-defaults-left-out": Animal(
        DEFAULTS,
        "other defaults than those of transformers' LlamaConfig",
        fields=NEEDED_FIELDS,
    ),
    "zoo-rope-nested": Animal(
        NESTED,
        "RoPE parameters that are looked for where transformers 5 no longer writes them",
        fields=nested_fields(),
    ),
    "zoo-rope-old-names": Animal(
        OLD_NAMES,
        "a RoPE type that is only known as rope_type, or a YaRN whose mscale and mscale_all_dim are taken for one",
        fields=old_fields(),
    ),
    "zoo-yarn-attention-factor": Animal(
        replace(GROUPED, rope=replace(YARN, attention_factor=1.75, truncate=False)),
        "an attention_factor that is computed although it is given, or a ramp that is always cut to whole pairs",
    ),
    "zoo-sharded": Animal(GROUPED, "a shard that is not read", num_shards=3),
    "zoo-float16": Animal(replace(GROUPED, tie_word_embeddings=True), "float16 read as bfloat16", storage="float16"),
    "zoo-float32": Animal(GROUPED, "float32 files", storage="float32"),
}  # fmt: skip
