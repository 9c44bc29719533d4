"""The weights of a Llama as float64 arrays, and their names and shapes in a Hugging Face checkpoint.

Checkpoints store a projection as [out, in]; here it is [in, out], so that y = matmul(x, w).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from reference.errors import Array
from reference.model.config import ModelConfig


@dataclass(frozen=True)
class Layer:
    """One decoder layer. Biases are None where the config has none."""

    input_norm: Array  # [E]
    q_proj: Array  # [E, H*D]
    k_proj: Array  # [E, K*D]
    v_proj: Array  # [E, K*D]
    o_proj: Array  # [H*D, E]
    post_attention_norm: Array  # [E]
    gate_proj: Array  # [E, F]
    up_proj: Array  # [E, F]
    down_proj: Array  # [F, E]
    q_bias: Array | None = None  # [H*D]
    k_bias: Array | None = None  # [K*D]
    v_bias: Array | None = None  # [K*D]
    o_bias: Array | None = None  # [E]
    gate_bias: Array | None = None  # [F]
    up_bias: Array | None = None  # [F]
    down_bias: Array | None = None  # [E]


@dataclass(frozen=True)
class Weights:
    """All weights; `lm_head` is the embedding's transpose where the config ties them."""

    embedding: Array  # [V, E]
    layers: tuple[Layer, ...]
    norm: Array  # [E]
    lm_head: Array  # [E, V]


@dataclass(frozen=True)
class Model:
    """A config and the weights that fit it: what a forward pass needs and never changes."""

    config: ModelConfig
    weights: Weights


EMBEDDING, FINAL_NORM, LM_HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"

# Layer field -> name inside model.layers.<n> of a checkpoint.
LAYER_TENSORS: Mapping[str, str] = {
    "input_norm": "input_layernorm.weight",
    "post_attention_norm": "post_attention_layernorm.weight",
    **{f"{name}_proj": f"self_attn.{name}_proj.weight" for name in "qkvo"},
    **{f"{name}_bias": f"self_attn.{name}_proj.bias" for name in "qkvo"},
    **{f"{name}_proj": f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")},
    **{f"{name}_bias": f"mlp.{name}_proj.bias" for name in ("gate", "up", "down")},
}


def layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Layer field -> its shape in a checkpoint, [out, in] for projections; only the fields the config has."""
    E, F, D = config.hidden_size, config.intermediate_size, config.head_dim
    HD, KD = config.num_attention_heads * D, config.num_key_value_heads * D
    shapes: dict[str, tuple[int, ...]] = {"input_norm": (E,), "post_attention_norm": (E,)}
    shapes |= {"q_proj": (HD, E), "k_proj": (KD, E), "v_proj": (KD, E), "o_proj": (E, HD)}
    shapes |= {"gate_proj": (F, E), "up_proj": (F, E), "down_proj": (E, F)}
    if config.attention_bias:
        shapes |= {"q_bias": (HD,), "k_bias": (KD,), "v_bias": (KD,), "o_bias": (E,)}
    if config.mlp_bias:
        shapes |= {"gate_bias": (F,), "up_bias": (F,), "down_bias": (E,)}
    return shapes


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Tensor name -> shape for every tensor a checkpoint of this config must hold."""
    V, E = config.vocab_size, config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (V, E), FINAL_NORM: (E,)}
    if not config.tie_word_embeddings:
        shapes[LM_HEAD] = (V, E)
    for index in range(config.num_hidden_layers):
        shapes |= {tensor_name(index, field): shape for field, shape in layer_shapes(config).items()}
    return shapes


def tensor_name(layer_index: int, field: str) -> str:
    """A Layer field's name in a checkpoint."""
    return f"model.layers.{layer_index}.{LAYER_TENSORS[field]}"


def weights_from_tensors(config: ModelConfig, tensors: Mapping[str, Array]) -> Weights:
    """Weights from tensors whose names and shapes are those of `tensor_shapes`."""
    layers = tuple(
        Layer(**{field: _as_weight(tensors[tensor_name(index, field)]) for field in layer_shapes(config)})
        for index in range(config.num_hidden_layers)
    )
    head = tensors[EMBEDDING if config.tie_word_embeddings else LM_HEAD]
    embedding = _as_weight(tensors[EMBEDDING].T)
    return Weights(embedding, layers, _as_weight(tensors[FINAL_NORM]), _as_weight(head))


def _as_weight(tensor: Array) -> Array:
    """[HEAD-2] Float64; a projection [out, in] becomes [in, out]. Every supported storage type converts exactly."""
    weight: Array = np.array(tensor.T, dtype=np.float64, order="C")
    weight.setflags(write=False)
    return weight
