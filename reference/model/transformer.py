"""The forward pass of a dense Llama (Touvron et al. 2023, sec. 2.2; order of operations as in transformers 5).

Axis key: T new tokens, S tokens in context, L layers, H query heads, K key-value heads, G = H / K, D head_dim,
E hidden_size, F intermediate_size, V vocab_size. There is no batch axis: a batch is a list of sessions.
"""

import math
from collections.abc import Sequence

import numpy as np

from reference.errors import Array
from reference.model.cache import KVCache
from reference.model.config import ModelConfig, check_tokens
from reference.model.rope import rotate, rotation
from reference.model.weights import Layer, Model
from reference.numerics import matmul, silu, softmax, sum_last


def forward(model: Model, tokens: Sequence[int], cache: KVCache) -> tuple[Array, KVCache]:
    """[FWD-1] Logits [T, V] after each new token, and the cache [S + T] that holds them.

    `cache` [S] holds the session's earlier tokens; the new ones take positions S .. S + T - 1.
    Raises: PROMPT_EMPTY, TOKEN_OUT_OF_RANGE, CONTEXT_EXCEEDED, CACHE_RANGE for another model's cache.
    """
    config, weights = model.config, model.weights
    check_tokens(config, tokens, len(cache))
    cache.check_fits(config)
    cosine, sine = rotation(config, len(cache), len(tokens))
    x = weights.embedding[list(tokens)]  # [T, E]
    keys, values = [], []
    for index, layer in enumerate(weights.layers):
        normed = rms_norm(x, layer.input_norm, config.rms_norm_eps)
        q, k, v = project(normed, layer, config)
        q, k = rotate(q, cosine, sine), rotate(k, cosine, sine)
        context_keys = np.concatenate((cache.keys[index], k))  # [S + T, K, D]
        context_values = np.concatenate((cache.values[index], v))
        x = x + linear(attention(q, context_keys, context_values), layer.o_proj, layer.o_bias)
        x = x + swiglu(rms_norm(x, layer.post_attention_norm, config.rms_norm_eps), layer)
        keys.append(k)
        values.append(v)
    logits = matmul(rms_norm(x, weights.norm, config.rms_norm_eps), weights.lm_head)  # [T, V]
    return logits, cache.append(np.stack(keys), np.stack(values))


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """[NORM-1] x / sqrt(mean(x*x) + eps) * weight, x [T, E], weight [E] (Zhang and Sennrich 2019, eq. 4)."""
    _, E = x.shape
    mean_square = sum_last(x * x)[:, None] / E
    normed: Array = x / np.sqrt(mean_square + eps) * weight
    return normed


def project(x: Array, layer: Layer, config: ModelConfig) -> tuple[Array, Array, Array]:
    """[ATTN-1] Queries [T, H, D], keys and values [T, K, D] of x [T, E]; head h is columns h*D .. (h+1)*D - 1."""
    T, _ = x.shape
    D = config.head_dim
    q = linear(x, layer.q_proj, layer.q_bias).reshape(T, config.num_attention_heads, D)
    k = linear(x, layer.k_proj, layer.k_bias).reshape(T, config.num_key_value_heads, D)
    v = linear(x, layer.v_proj, layer.v_bias).reshape(T, config.num_key_value_heads, D)
    return q, k, v


def attention(q: Array, keys: Array, values: Array) -> Array:
    """[ATTN-2] softmax(q k / sqrt(D)) v per head; q [T, H, D], keys and values [S, K, D] -> [T, H*D].

    Query head h reads key-value head h // G (Ainslie et al. 2023). The last T of the S context tokens are the
    queries' own, so query t sees context tokens 0 .. S - T + t.
    """
    T, H, D = q.shape
    S, K, _ = keys.shape
    G = H // K
    grouped = q.reshape(T, K, G, D).transpose(1, 2, 0, 3).reshape(K, G * T, D)
    scores = matmul(grouped, keys.transpose(1, 2, 0)) / math.sqrt(D)  # [K, G*T, S]
    scores = np.where(causal(T, S), scores.reshape(K, G, T, S), -np.inf)
    mixed = matmul(softmax(scores).reshape(K, G * T, S), values.transpose(1, 0, 2))  # [K, G*T, D]
    by_token: Array = mixed.reshape(K, G, T, D).transpose(2, 0, 1, 3)
    return by_token.reshape(T, H * D)


def causal(num_queries: int, num_context: int) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """[ATTN-3] Whether query t may see context token s: s <= S - T + t. Booleans [T, S]."""
    positions = np.arange(num_context - num_queries, num_context)
    return np.arange(num_context)[None, :] <= positions[:, None]


def swiglu(x: Array, layer: Layer) -> Array:
    """[MLP-1] (silu(x gate) * (x up)) down, x [T, E] -> [T, E] (Shazeer 2020, eq. 6)."""
    gate = linear(x, layer.gate_proj, layer.gate_bias)
    up = linear(x, layer.up_proj, layer.up_bias)
    return linear(silu(gate) * up, layer.down_proj, layer.down_bias)


def linear(x: Array, weight: Array, bias: Array | None) -> Array:
    """x [T, in], weight [in, out], bias [out] or None -> [T, out]."""
    product = matmul(x, weight)
    return product if bias is None else product + bias
