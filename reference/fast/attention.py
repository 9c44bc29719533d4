"""Causal attention in two ways: one token of each of several sessions at once, or session by session.

Axis key: R rows, B sessions, T new tokens of a session, S tokens in its context, L layers, H query heads,
K key-value heads, G = H / K, D head_dim.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reference.fast.session import FastSession
from reference.fast.workspace import Workspace

Floats = NDArray[Any]

QUERIES_PER_BLOCK = 128


class GroupedAttention:
    """One new token each of the B sessions of a block [L, 2, B, K, capacity, D]."""

    def __init__(self, block: Floats, starts: Sequence[int], workspace: Workspace) -> None:
        _, _, B, K, _, _ = block.shape
        S = max(starts) + 1
        self.workspace = workspace
        self.is_even = min(starts) == S - 1
        if self.is_even:
            self.places = list(block[..., S - 1, :])  # what is written: L of [2, B, K, D]
        else:
            self.blocks, self.starts, self.slots = list(block), np.array(starts), np.arange(B)
            self.hidden = (np.arange(S) > self.starts[:, None])[:, None, None]  # [B, 1, 1, S]
        # Products with single rows: OpenBLAS is up to twice as fast at G of these as at one product with G rows.
        self.keys = list(block[:, 0, :, :, None, :S])  # L of [B, K, 1, S, D]
        self.values = list(block[:, 1, :, :, None, :S])
        G = workspace.q.shape[2]
        self.scores: Floats = np.empty((B, K, G, S), block.dtype)
        self.score_columns, self.score_rows = self.scores[..., None], self.scores[..., None, :]
        self.largest: Floats = np.empty((B, K, G, 1), block.dtype)  # later the sum of a row
        self.total, self.ones = self.largest[..., 0], np.ones(S, block.dtype)

    def attend(self, layer_index: int) -> None:
        """Appends the workspace's keys and values to the caches, and mixes values into workspace.mixed."""
        workspace, scores, column = self.workspace, self.scores, self.largest
        if self.is_even:
            self.places[layer_index][...] = workspace.kv_first
        else:
            self.blocks[layer_index][:, self.slots, :, self.starts] = workspace.kv
        np.matmul(self.keys[layer_index], workspace.q_columns, self.score_columns)
        if not self.is_even:
            np.copyto(scores, -np.inf, where=self.hidden)
        np.maximum.reduce(scores, axis=-1, out=column, keepdims=True)
        np.subtract(scores, column, scores)
        np.exp(scores, scores)
        np.vecdot(scores, self.ones, self.total)
        np.matmul(self.score_rows, self.values[layer_index], workspace.mixed_rows)
        np.divide(workspace.mixed_heads, column, workspace.mixed_heads)


class SeparateAttention:
    """Any number of new tokens of each session, one session after the other."""

    def __init__(self, sessions: Sequence[FastSession], lengths: Sequence[int], workspace: Workspace) -> None:
        self.sessions, self.lengths = sessions, lengths
        self.kv = workspace.kv.transpose(1, 2, 0, 3)  # [2, K, R, D]
        self.q = workspace.q.transpose(1, 2, 0, 3)  # [K, G, R, D]
        self.mixed = workspace.mixed_heads.transpose(1, 2, 0, 3)
        longest = min(max(lengths), QUERIES_PER_BLOCK)
        self.hidden = np.triu(np.full((longest, longest), -np.inf, workspace.q.dtype), 1)

    def attend(self, layer_index: int) -> None:
        """As in GroupedAttention."""
        end = 0
        for session, length in zip(self.sessions, self.lengths, strict=True):
            start, end = end, end + length
            num_tokens = session.num_tokens + length
            cache = session.storage[layer_index, :, :, :num_tokens]
            cache[:, :, session.num_tokens :] = self.kv[:, :, start:end]
            self._session(cache, start, end)

    def _session(self, cache: Floats, start: int, end: int) -> None:
        """Rows start .. end - 1 in blocks, each over the context that its last query sees: cache [2, K, S, D]."""
        _, _, S, _ = cache.shape
        for first in range(start, end, QUERIES_PER_BLOCK):
            last = min(first + QUERIES_PER_BLOCK, end)
            keys, values = cache[:, :, : S - (end - last)]
            self._block(self.q[:, :, first:last], keys, values, self.mixed[:, :, first:last])

    def _block(self, q: Floats, keys: Floats, values: Floats, mixed: Floats) -> None:
        """softmax(q keys) values; q and mixed [K, G, T, D], keys and values [K, S, D]."""
        _, _, T, _ = q.shape
        _, S, _ = keys.shape
        scores = np.matmul(q, keys.swapaxes(1, 2)[:, None])  # [K, G, T, S]
        if T > 1:
            scores[..., S - T :] += self.hidden[:T, :T]
        scores -= np.maximum.reduce(scores, axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        total = np.add.reduce(scores, axis=-1, keepdims=True)
        np.matmul(scores, values[:, None], out=mixed)
        mixed /= total
