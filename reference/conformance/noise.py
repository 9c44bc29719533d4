"""How far a correct engine may be from the specification when it computes in a type of few bits.

The forward pass of the specification, with the result of every operation rounded as an engine in that type stores it:
once to nearest, and several times up or down by chance, which is what another order of operations amounts to. In
float32 the sums themselves run in other orders. How far these are from the exact logits is the noise of a position:
where attention is torn between two tokens it is large.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from reference.conformance.compare import difference
from reference.conformance.exact import golden_model
from reference.conformance.orders import ORDERS, Product, product_in, shuffled, to_float32
from reference.engine import Precision
from reference.errors import Array
from reference.model.cache import empty_cache
from reference.model.config import ModelConfig
from reference.model.rope import rotate, rotation
from reference.model.transformer import causal, forward, rms_norm
from reference.model.weights import Layer, Model
from reference.numerics import matmul, silu, softmax

Rounding = Callable[[Array], Array]

Measure = Callable[[str, tuple[int, ...]], Array | None]
"""Checkpoint and tokens -> how far a correct engine may be at each position [T], or None; see noise()."""

STORED: Mapping[Precision, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
"""Types whose every result is rounded."""

MEASURED_LATE: tuple[Precision, ...] = ("f32",)
"""Precisions with a tolerance that suffices nearly everywhere: noise is measured where an answer is beyond it."""

SEEDS = (None, *range(1, 8))
"""None rounds to nearest. In float32 the same number of computations, with sums in different orders."""

HEADROOM = 6.0
"""A correct engine may be this many times as far off as the furthest of our computations."""


def measure_of(precision: Precision, is_late: bool = False) -> Measure:
    """How the noise of a precision is found; a measure that is None everywhere leaves one tolerance for all."""
    if precision in STORED or (is_late and precision in MEASURED_LATE):
        return lambda model_name, tokens: noise(model_name, tokens, precision)
    return lambda _model_name, _tokens: None


@cache
def noise(model_name: str, tokens: tuple[int, ...], precision: Precision) -> Array:
    """How far a correct engine may be at each position, [T], in f32, f16 or bf16.

    The largest difference of a logit or logprob, relative to max(1, the row's largest |logit|), but at least that of
    the median position, times HEADROOM. Infinite where the type overflows.
    """
    model = golden_model(model_name)
    exact, _ = forward(model, tokens, empty_cache(model.config))
    scale = np.maximum(1.0, np.abs(exact).max(axis=-1))
    with np.errstate(all="ignore"):
        computed = computations(model, tokens, precision)
        off = [[difference(*rows).max() for rows in zip(exact, rounded, strict=True)] for rounded in computed]
    largest = np.max(off, axis=0) / scale
    largest = np.where(np.isfinite(largest), largest, np.inf)
    floored: Array = HEADROOM * np.maximum(largest, np.median(largest))
    return floored


def computations(model: Model, tokens: Sequence[int], precision: Precision) -> Iterator[Array]:
    """Logits [T, V] of correct engines of a precision."""
    if precision in STORED:
        yield from (rounded_forward(model, tokens, rounding(precision, seed)) for seed in SEEDS)
        return
    orders = [*ORDERS, *(shuffled(seed) for seed in range(len(SEEDS) - len(ORDERS)))]
    yield from (rounded_forward(model, tokens, to_float32, product_in(order)) for order in orders)


def rounding(precision: Precision, seed: int | None) -> Rounding:
    """To the nearest number of the type, or up or down with the probability that is nearer."""
    dtype = STORED[precision]

    def nearest(x: Array) -> Array:
        stored: Array = x.astype(dtype).astype(np.float64)
        return stored

    if seed is None:
        return nearest
    random = np.random.Generator(np.random.PCG64(seed))

    def by_chance(x: Array) -> Array:
        stored = nearest(x)
        other = np.nextafter(stored.astype(dtype), np.where(stored < x, np.inf, -np.inf).astype(dtype))
        gap = np.abs(other.astype(np.float64) - stored)
        share = np.abs(x - stored) / np.where(gap > 0.0, gap, 1.0)
        chosen: Array = np.where(random.random(x.shape) < share, other.astype(np.float64), stored)
        return chosen

    return by_chance


def rounded_forward(model: Model, tokens: Sequence[int], r: Rounding, product: Product = matmul) -> Array:
    """Logits [T, V] of model.transformer.forward without a past, each operation's result rounded by r.

    `product` sums the products of matrices in an order of its own.
    """
    config, weights = model.config, model.weights
    cosine, sine = (r(table) for table in rotation(config, 0, len(tokens)))
    x = r(weights.embedding[list(tokens)])
    for exact_layer in weights.layers:
        layer = _rounded_layer(exact_layer, r)
        q, k, v = _project(_norm(x, layer.input_norm, model, r), layer, config, r, product)
        mixed = _attention(r(rotate(q, cosine, sine)), r(rotate(k, cosine, sine)), v, r, product)
        x = r(x + _linear(mixed, layer.o_proj, layer.o_bias, r, product))
        x = r(x + _swiglu(_norm(x, layer.post_attention_norm, model, r), layer, r, product))
    return r(product(_norm(x, r(weights.norm), model, r), r(weights.lm_head)))


def _norm(x: Array, weight: Array, model: Model, r: Rounding) -> Array:
    """Normalised, rounded, then weighed: the order of transformers."""
    return r(r(rms_norm(x, np.ones_like(weight), model.config.rms_norm_eps)) * weight)


def _project(
    x: Array, layer: Layer, config: ModelConfig, r: Rounding, product: Product
) -> tuple[Array, Array, Array]:
    T, D = len(x), config.head_dim
    q = _linear(x, layer.q_proj, layer.q_bias, r, product).reshape(T, config.num_attention_heads, D)
    k = _linear(x, layer.k_proj, layer.k_bias, r, product).reshape(T, config.num_key_value_heads, D)
    v = _linear(x, layer.v_proj, layer.v_bias, r, product).reshape(T, config.num_key_value_heads, D)
    return q, k, v


def _attention(q: Array, keys: Array, values: Array, r: Rounding, product: Product) -> Array:
    T, H, D = q.shape
    K = keys.shape[1]
    q = q.reshape(T, K, H // K, D).transpose(1, 2, 0, 3)  # [K, G, T, D]
    scores = r(r(product(q, keys.transpose(1, 2, 0)[:, None])) / math.sqrt(D))  # [K, G, T, T]
    weights = r(softmax(np.where(causal(T, T), scores, -np.inf)))
    mixed: Array = r(product(weights, values.transpose(1, 0, 2)[:, None])).transpose(2, 0, 1, 3)
    return mixed.reshape(T, H * D)


def _swiglu(x: Array, layer: Layer, r: Rounding, product: Product) -> Array:
    gate = _linear(x, layer.gate_proj, layer.gate_bias, r, product)
    up = _linear(x, layer.up_proj, layer.up_bias, r, product)
    return _linear(r(r(silu(gate)) * up), layer.down_proj, layer.down_bias, r, product)


def _linear(x: Array, weight: Array, bias: Array | None, r: Rounding, product: Product) -> Array:
    summed = product(x, weight)
    return r(summed if bias is None else summed + bias)


def _rounded_layer(layer: Layer, r: Rounding) -> Layer:
    held = {name: array for name, array in vars(layer).items() if array is not None}
    return Layer(**{name: r(array) for name, array in held.items()})
