"""Weights fused and scaled at load time, so that a step makes few and large products.

Axis key: E hidden_size, F intermediate_size, V vocab_size, H query heads, K key-value heads, D head_dim.

A matrix [in, out] is in C order. OpenBLAS streams a matrix for one row, and packs it for several, the faster the
longer its contiguous runs are, so a `down` that comes from memory is in Fortran order (in a cache C is faster).
What is constant in front of a product is part of the matrix:
- the RMSNorm weight, and sqrt(E) of the mean in front of it, into qkv, gate_up and head;
- 1/sqrt(D) of the attention scores into the queries;
- the sign of the gate and of what it gates, since silu(g) u = (-g) (-u) / (1 + exp(-g));
- q and k have their pairs (i, i + D/2) side by side, so that RoPE is one product with complex numbers. Scores
  do not depend on an order that queries and keys share.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reference.fast.arena import Arena
from reference.model.config import ModelConfig
from reference.model.weights import EMBEDDING, FINAL_NORM, LM_HEAD, layer_shapes, tensor_name

Floats = NDArray[Any]  # float32 or float64, the model's dtype
Tensors = Mapping[str, NDArray[Any]]

# A matrix of this size comes from memory at every step, a smaller one from a cache.
STREAMED_BYTES = 1 << 20


@dataclass(frozen=True)
class FastLayer:
    """One decoder layer. Biases are None where the config has none."""

    qkv: Floats  # [E, (H + 2K) * D]
    o: Floats  # [H*D, E]
    gate_up: Floats  # [E, 2F]
    down: Floats  # [F, E], in Fortran order from STREAMED_BYTES on
    qkv_bias: Floats | None  # [(H + 2K) * D]
    o_bias: Floats | None  # [E]
    gate_up_bias: Floats | None  # [2F]
    down_bias: Floats | None  # [E]


@dataclass(frozen=True)
class FastWeights:
    """All weights. The embedding stays in the checkpoint's type: a step reads one row of it per token."""

    embedding: NDArray[Any]  # [V, E]
    layers: tuple[FastLayer, ...]
    head: Floats  # [E, V]


def fuse(config: ModelConfig, tensors: Tensors, dtype: np.dtype[Any]) -> FastWeights:
    """Fused weights of a checkpoint's tensors, converted one tensor at a time."""
    head = tensors[EMBEDDING if config.tie_word_embeddings else LM_HEAD]
    num_weights = config.num_hidden_layers * sum(math.prod(shape) for shape in layer_shapes(config).values())
    arena = Arena(head.size + num_weights, 1 + len(fields(FastLayer)) * config.num_hidden_layers, dtype)
    layers = tuple(_fuse_layer(config, tensors, index, arena) for index in range(config.num_hidden_layers))
    scale = _norm_scale(tensors[FINAL_NORM], dtype)
    return FastWeights(tensors[EMBEDDING], layers, _joined([head], [1.0], scale, arena))


def _fuse_layer(config: ModelConfig, tensors: Tensors, index: int, arena: Arena) -> FastLayer:
    def tensor(field: str) -> NDArray[Any]:
        return tensors[tensor_name(index, field)]

    D, dtype = config.head_dim, arena.dtype
    q_scale = 1.0 / math.sqrt(D)
    before_attention = _norm_scale(tensor("input_norm"), dtype)
    before_mlp = _norm_scale(tensor("post_attention_norm"), dtype)
    qkv = [paired(tensor("q_proj"), D), paired(tensor("k_proj"), D), tensor("v_proj")]
    gate_up = [tensor("gate_proj"), tensor("up_proj")]
    qkv_bias = o_bias = gate_up_bias = down_bias = None
    if config.attention_bias:
        biases = [paired(tensor("q_bias"), D), paired(tensor("k_bias"), D), tensor("v_bias")]
        qkv_bias = _joined(biases, [q_scale, 1.0, 1.0], None, arena)
        o_bias = arena.copy(tensor("o_bias"))
    if config.mlp_bias:
        gate_up_bias = _joined([tensor("gate_bias"), tensor("up_bias")], [-1.0, -1.0], None, arena)
        down_bias = arena.copy(tensor("down_bias"))
    return FastLayer(
        qkv=_joined(qkv, [q_scale, 1.0, 1.0], before_attention, arena),
        o=_joined([tensor("o_proj")], [1.0], None, arena),
        gate_up=_joined(gate_up, [-1.0, -1.0], before_mlp, arena),
        down=_down(tensor("down_proj"), arena),
        qkv_bias=qkv_bias,
        o_bias=o_bias,
        gate_up_bias=gate_up_bias,
        down_bias=down_bias,
    )


def _down(tensor: NDArray[Any], arena: Arena) -> Floats:  # [E, F] -> [F, E]
    is_streamed = tensor.size * arena.dtype.itemsize >= STREAMED_BYTES
    down: Floats = arena.copy(tensor).T if is_streamed else arena.copy(tensor.T)
    return down


def paired(tensor: NDArray[Any], head_dim: int) -> NDArray[Any]:
    """Rows 0, 1, .. D-1 of every head in the order 0, D/2, 1, D/2 + 1, ...; [heads * D, ...] -> the same shape."""
    heads = tensor.reshape(-1, 2, head_dim // 2, *tensor.shape[1:])
    side_by_side: NDArray[Any] = heads.swapaxes(1, 2).reshape(tensor.shape)
    return side_by_side


def _joined(
    tensors: Sequence[NDArray[Any]], factors: Sequence[float], in_scale: Floats | None, arena: Arena
) -> Floats:
    """Tensors [out_i, in] (or biases [out_i]) times their factors, side by side: [in, sum of out_i]."""
    num_columns = sum(len(tensor) for tensor in tensors)
    joined = arena.take(*tensors[0].shape[1:], num_columns)
    end = 0
    for tensor, factor in zip(tensors, factors, strict=True):
        start, end = end, end + len(tensor)
        np.multiply(tensor.astype(arena.dtype).T, arena.dtype.type(factor), out=joined[..., start:end])
    if in_scale is not None:
        joined *= in_scale[:, None]
    return joined


def _norm_scale(weight: NDArray[Any], dtype: np.dtype[Any]) -> Floats:
    """weight * sqrt(E): x / sqrt(sum(x*x)/E + eps) * weight = x / sqrt(sum(x*x) + E*eps) * (weight * sqrt(E))."""
    scaled: Floats = (weight.astype(np.float64) * math.sqrt(len(weight))).astype(dtype)
    return scaled
