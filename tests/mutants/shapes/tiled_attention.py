"""Attention over tiles of keys with a running maximum and sum, and splits of the context merged by log-sum-exp.

(Milakov and Gimelshein 2018 for the running softmax; Dao et al. 2022, alg. 1; Flash-Decoding 2023 for the splits.)
The context is padded to whole tiles; a split without keys has the log-sum-exp -inf and weighs nothing. Sums are in
another order than the specification's, so this engine is right in float64, not in every bit.
"""

import math
from dataclasses import replace

import numpy as np

from reference.engine import Description, ReferenceEngine
from reference.errors import Array
from reference.model import transformer
from reference.model.transformer import causal
from reference.numerics import exp, log, matmul, sum_last
from tests.mutants.shapes.padded_batch import Booleans

TILE = 8
NUM_SPLITS = 3


class TiledAttentionEngine(ReferenceEngine):
    """The specification with the attention of this module, for every verb of the process."""

    def __init__(self) -> None:
        super().__init__()
        transformer.attention = attention

    def describe(self) -> Description:
        return replace(super().describe(), name="tiled attention", precision="f64")


def attention(q: Array, keys: Array, values: Array) -> Array:
    """ATTN-2: q [T, H, D], keys and values [S, K, D] -> [T, H*D]."""
    T, H, D = q.shape
    S, K, _ = keys.shape
    G = H // K
    tiles_per_split = math.ceil(S / TILE / NUM_SPLITS)
    size = tiles_per_split * TILE
    padding = ((0, NUM_SPLITS * size - S), (0, 0), (0, 0))
    seen = np.pad(causal(T, S), ((0, 0), padding[0]))
    keys, values = np.pad(keys, padding).transpose(1, 0, 2), np.pad(values, padding).transpose(1, 0, 2)
    grouped = q.reshape(T, K, G, D).transpose(1, 2, 0, 3) / math.sqrt(D)  # [K, G, T, D]
    splits = [slice(start, start + size) for start in range(0, NUM_SPLITS * size, size)]
    parts = [attention_of_split(grouped, keys[:, part], values[:, part], seen[:, part]) for part in splits]
    by_token: Array = merge(*zip(*parts, strict=True)).transpose(2, 0, 1, 3)
    return by_token.reshape(T, H * D)


def attention_of_split(q: Array, keys: Array, values: Array, seen: Booleans) -> tuple[Array, Array]:
    """The attention to some keys [K, S, D] of q [K, G, T, D], and the log-sum-exp [K, G, T] of the scores."""
    largest, total = np.full(q.shape[:-1], -np.inf), np.zeros(q.shape[:-1])
    mixed = np.zeros(q.shape)
    for start in range(0, keys.shape[1], TILE):
        tile = slice(start, start + TILE)
        scores = matmul(q, keys[:, None, tile].transpose(0, 1, 3, 2))  # [K, G, T, TILE]
        scores = np.where(seen[:, tile], scores, -np.inf)
        grown = np.maximum(largest, scores.max(axis=-1))
        # A query that has seen no key yet has no maximum to subtract.
        origin = np.where(grown == -np.inf, 0.0, grown)
        kept, weights = exp(largest - origin), exp(scores - origin[..., None])
        total = total * kept + sum_last(weights)
        mixed = mixed * kept[..., None] + matmul(weights, values[:, None, tile])
        largest = grown
    divisor = np.where(total > 0.0, total, 1.0)
    return mixed / divisor[..., None], largest + log(divisor)


def merge(mixed: tuple[Array, ...], lse: tuple[Array, ...]) -> Array:
    """The attention to all splits, from each one's attention [K, G, T, D] and log-sum-exp [K, G, T]."""
    largest = np.max(lse, axis=0)
    weights = np.stack([exp(one - largest) for one in lse])[..., None]
    merged: Array = (np.stack(mixed) * weights).sum(axis=0) / weights.sum(axis=0)
    return merged
