"""Several prompts as one left-padded batch with static arrays of keys and values, as plain tensor programs have them.

Axis key of reference.model.transformer, B rows of the batch, and S slots: a row's tokens end at the same slot as all
others' and its pads come first. Where a slot holds no token of the row, its weight is 0 and its entry finite, so that
sums keep their bits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from reference.decoding.generate import FinishReason, StopRule, check_prompt, finish_reason
from reference.decoding.sampling import greedy
from reference.engine import Description, Output, ReferenceEngine
from reference.errors import Array
from reference.model.config import ModelConfig, check_tokens
from reference.model.rope import frequencies, rotate
from reference.model.transformer import linear, project, rms_norm, swiglu
from reference.model.weights import Model
from reference.numerics import log_softmax, matmul, sin_cos, softmax

PAD = 0
Booleans = np.ndarray[Any, np.dtype[np.bool_]]
Integers = np.ndarray[Any, np.dtype[np.int64]]


class PaddedBatchEngine(ReferenceEngine):
    """Decodes the prompts of a generate together; the other verbs are the specification's."""

    def describe(self) -> Description:
        return replace(super().describe(), name="padded batch")

    def generate(
        self, prompts: Sequence[Sequence[int]], max_tokens: int, eos_ids: Sequence[int], logprobs: bool = False
    ) -> list[Output]:
        """A row that has ended stays in the batch and is fed pads until the last one ends."""
        stop = self._stop(max_tokens, eos_ids)
        for prompt in prompts:
            check_prompt(self.model.config, prompt, stop)
            check_tokens(self.model.config, prompt, 0)
        rows = [Row(len(prompt)) for prompt in prompts]
        tokens, is_token = left_padded(prompts)
        num_slots = tokens.shape[1] + max_tokens_of(prompts, stop)
        cache = empty_cache(self.model.config, len(rows), num_slots)
        held = np.zeros((len(rows), num_slots), dtype=bool)  # whether a slot holds a token of the row
        while True:
            logits = step(self.model, tokens, is_token, held, cache)
            for row, row_logits in zip(rows, logits[:, -1], strict=True):
                row.append(row_logits, stop)
            is_token = np.array([[row.reason is None] for row in rows])
            if not is_token.any():
                return [row.output(logprobs, len(rows)) for row in rows]
            tokens = np.where(is_token, [row.tokens[-1:] for row in rows], PAD)


@dataclass
class Row:
    """A prompt being decoded."""

    num_prompt: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reason: FinishReason | None = None

    def append(self, logits: Array, stop: StopRule) -> None:
        """The most likely token of logits [V], unless the row has ended."""
        if self.reason is not None:
            return
        self.tokens.append(greedy(logits))
        self.logprobs.append(float(log_softmax(logits)[self.tokens[-1]]))
        self.reason = finish_reason(self.num_prompt, self.tokens, stop)

    def output(self, logprobs: bool, batch_size: int) -> Output:
        told = tuple(self.logprobs) if logprobs else None
        return Output(tuple(self.tokens), self.reason, told, batch_size)


@dataclass
class BatchCache:
    """Keys and values of the whole batch. Slots from `num_used` on hold nothing yet."""

    keys: Array  # [L, B, S, K, D], after RoPE
    values: Array  # [L, B, S, K, D]
    num_used: int = 0


def empty_cache(config: ModelConfig, num_rows: int, num_slots: int) -> BatchCache:
    """A cache with room for `num_slots` slots."""
    shape = (config.num_hidden_layers, num_rows, num_slots, config.num_key_value_heads, config.head_dim)
    return BatchCache(np.zeros(shape), np.zeros(shape))


def max_tokens_of(prompts: Sequence[Sequence[int]], stop: StopRule) -> int:
    """The most tokens that a row can be given."""
    return min(stop.max_tokens, stop.context_length - min(len(prompt) for prompt in prompts))


def left_padded(prompts: Sequence[Sequence[int]]) -> tuple[Integers, Booleans]:
    """Token ids [B, T], and whether they are the prompt's; T is the length of the longest prompt."""
    T = max(len(prompt) for prompt in prompts)
    tokens = np.array([[*[PAD] * (T - len(prompt)), *prompt] for prompt in prompts])
    is_token = np.array([np.arange(T) >= T - len(prompt) for prompt in prompts])
    return tokens, is_token


def step(model: Model, tokens: Integers, is_token: Booleans, held: Booleans, cache: BatchCache) -> Array:
    """Logits [B, T, V] after each new token; notes in `held` [B, S] which of the new slots hold one."""
    _, T = tokens.shape
    old, new = cache.num_used, cache.num_used + T
    held[:, old:new] = is_token
    tables = rotation(model.config, position_ids(held)[:, old:new])
    return forward(model, tokens, tables, may_see(held, old, T), cache)


def forward(
    model: Model, tokens: Integers, tables: tuple[Array, Array], visible: Booleans, cache: BatchCache
) -> Array:
    """FWD-1 for every row: logits [B, T, V] of tokens [B, T], whose keys and values the cache takes.

    tables [B*T, D/2] are cosines and sines, visible [B, T, S] is the mask over all slots, used or not.
    """
    config, weights = model.config, model.weights
    B, T = tokens.shape
    old, new = cache.num_used, cache.num_used + T
    x = weights.embedding[tokens].reshape(B * T, -1)  # [B*T, E]
    for layer, keys, values in zip(weights.layers, cache.keys, cache.values, strict=True):
        q, k, v = project(rms_norm(x, layer.input_norm, config.rms_norm_eps), layer, config)
        q, k = rotate(q, *tables), rotate(k, *tables)
        keys[:, old:new] = k.reshape(B, T, *k.shape[1:])
        values[:, old:new] = v.reshape(B, T, *v.shape[1:])
        mixed = attention(q.reshape(B, T, *q.shape[1:]), keys, values, visible)
        x = x + linear(mixed, layer.o_proj, layer.o_bias)
        x = x + swiglu(rms_norm(x, layer.post_attention_norm, config.rms_norm_eps), layer)
    cache.num_used = new
    return matmul(rms_norm(x, weights.norm, config.rms_norm_eps), weights.lm_head).reshape(B, T, -1)


def position_ids(held: Booleans) -> Integers:  # [B, S] -> [B, S]
    """Tokens of the row before each slot. Pads come before position 0 and take it, too."""
    positions: Integers = np.maximum(np.cumsum(held, axis=1) - 1, 0)
    return positions


def rotation(config: ModelConfig, positions: Integers) -> tuple[Array, Array]:
    """Cosines and sines [B*T, D/2] of positions [B, T]; frequencies are those of each row's own length."""
    tables = []
    for row in positions:
        frequency, attention_factor = frequencies(config, int(row[-1]) + 1)
        sine, cosine = sin_cos(row[:, None] * frequency)
        tables.append((cosine * attention_factor, sine * attention_factor))
    cosines, sines = zip(*tables, strict=True)
    return np.concatenate(cosines), np.concatenate(sines)


def may_see(held: Booleans, old: int, num_new: int) -> Booleans:  # [B, S] -> [B, T, S]
    """Whether the query of a new slot sees a slot: a token of its own row that is not after it.

    A pad sees itself, too, since a row of scores without any key would have no softmax but NaN.
    """
    slots = np.arange(held.shape[1])
    queries = slots[old : old + num_new, None]
    visible: Booleans = (slots <= queries) & (held[:, None, :] | (slots == queries))
    return visible


def attention(q: Array, keys: Array, values: Array, visible: Booleans) -> Array:
    """ATTN-2 for every row: q [B, T, H, D], keys and values [B, S, K, D], visible [B, T, S] -> [B*T, H*D]."""
    B, T, H, D = q.shape
    _, S, K, _ = keys.shape
    G = H // K
    grouped = q.reshape(B, T, K, G, D).transpose(0, 2, 3, 1, 4).reshape(B, K, G * T, D)
    scores = matmul(grouped, keys.transpose(0, 2, 3, 1)) / math.sqrt(D)  # [B, K, G*T, S]
    scores = np.where(visible[:, None, None], scores.reshape(B, K, G, T, S), -np.inf)
    mixed = matmul(softmax(scores).reshape(B, K, G * T, S), values.transpose(0, 2, 1, 3))  # [B, K, G*T, D]
    by_token: Array = mixed.reshape(B, K, G, T, D).transpose(0, 3, 1, 2, 4)
    return by_token.reshape(B * T, H * D)
