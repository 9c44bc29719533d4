"""The fast twin: linear layers over all rows of a batch, attention grouped or per session.

Axis key: R rows (new tokens of all sessions), T new tokens of one session, E hidden_size, V vocab_size.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from reference.errors import Refusal, RefusedError
from reference.fast.angles import Angles
from reference.fast.attention import GroupedAttention, SeparateAttention
from reference.fast.layers import normalise, run_layers
from reference.fast.session import FastSession, common_block, gather
from reference.fast.weights import FastWeights, Floats, fuse
from reference.fast.workspace import Workspace
from reference.model.checkpoint import load_config, load_tensors
from reference.model.config import ModelConfig, check_tokens

Batch = Sequence[tuple[FastSession, Sequence[int]]]

# Workspaces of up to this many rows are kept for the next pass.
KEPT_ROWS = 16
# Sessions that are decoded together are moved into one block while it is so small that calls, not bytes, take time.
MAX_BLOCK_BYTES = 1 << 25


class FastModel:
    """A model in float32 or float64, with room to compute in: a model serves one call at a time."""

    def __init__(self, config: ModelConfig, weights: FastWeights, dtype: np.dtype[Any]) -> None:
        self.config = config
        self.weights = weights
        self.dtype = dtype
        self._angles = Angles(config, dtype)
        self._workspaces: dict[int, Workspace] = {}
        self._previous: list[int] = []  # ids of the last batch's sessions

    @classmethod
    def load(cls, directory: Path, dtype: Literal["float32", "float64"]) -> "FastModel":
        """A model from a checkpoint directory. Raises: CONFIG_INVALID, CHECKPOINT_INVALID, NOT_FOUND."""
        config = load_config(directory)
        return cls(config, fuse(config, load_tensors(directory, config), np.dtype(dtype)), np.dtype(dtype))

    def open(self) -> FastSession:
        """A session without tokens."""
        return FastSession(self.config, self.dtype)

    def forward(self, batch: Batch, logits: Literal["all", "last"] = "all") -> list[NDArray[Any]]:
        """Extends every session with its tokens; a list of logits, [T, V] per session, or [1, V] for "last".

        Prompts, chunks and single tokens may be mixed. A refused batch leaves every session as it was.
        Raises: PROMPT_EMPTY, TOKEN_OUT_OF_RANGE, CONTEXT_EXCEEDED; DUPLICATE_ID for a session given twice;
        CACHE_RANGE for a session of another model.
        """
        if len(batch) == 0:
            return []
        check_batch(self.config, batch)
        sessions = [session for session, _ in batch]
        lengths = [len(tokens) for _, tokens in batch]
        with np.errstate(all="ignore"):
            turns = self._angles.rows([session.num_tokens for session in sessions], lengths)
            x = self.weights.embedding.take([token for _, tokens in batch for token in tokens], axis=0)
            x = x.astype(self.dtype)  # [R, E]
            workspace = self._workspace(len(x))
            attention = self._attention(sessions, lengths, workspace)
            run_layers(self.weights.layers, x, turns, attention, workspace)
            if logits == "last" and len(x) > len(batch):
                x = x[np.cumsum(lengths) - 1]
                lengths = [1] * len(batch)
            scores = self._head(x)
        for session, tokens in batch:
            session.num_tokens += len(tokens)
        return _split(scores, lengths)

    def _workspace(self, num_rows: int) -> Workspace:
        workspace = self._workspaces.get(num_rows)
        if workspace is None:
            workspace = Workspace(self.config, self.dtype, num_rows)
            if num_rows <= KEPT_ROWS:
                self._workspaces[num_rows] = workspace
        return workspace

    def _attention(
        self, sessions: list[FastSession], lengths: list[int], workspace: Workspace
    ) -> GroupedAttention | SeparateAttention:
        """Grouped for single tokens of sessions that share a block; sessions met twice in a row get one."""
        for session, length in zip(sessions, lengths, strict=True):
            session.reserve(session.num_tokens + length)
        previous, self._previous = self._previous, [id(session) for session in sessions]
        if max(lengths) > 1:
            return SeparateAttention(sessions, lengths, workspace)
        block = common_block(sessions)
        if block is None and previous == self._previous and self._is_worth_a_block(sessions):
            gather(sessions, max(session.num_tokens for session in sessions) + 1)
            block = common_block(sessions)
        if block is None:
            return SeparateAttention(sessions, lengths, workspace)
        return GroupedAttention(block, [session.num_tokens for session in sessions], workspace)

    def _is_worth_a_block(self, sessions: list[FastSession]) -> bool:
        """Whether the block is small and much of it is used: a short session costs as much as the longest."""
        used = sum(session.num_tokens + 1 for session in sessions)
        padded = len(sessions) * max(session.num_tokens + 1 for session in sessions)
        num_bytes = padded * self.config.kv_bytes_per_token(self.dtype.itemsize)
        return num_bytes <= MAX_BLOCK_BYTES and padded <= 2 * used + len(sessions) * 64

    def _head(self, x: Floats) -> Floats:  # [R, E] -> [R, V]
        scores: Floats = np.empty((len(x), self.config.vocab_size), self.dtype)
        workspace = self._workspace(len(x))
        normalise(x, workspace)
        np.dot(workspace.normed, self.weights.head, scores)
        return scores


def check_batch(config: ModelConfig, batch: Batch) -> None:
    """Refuses the whole batch if one session's tokens have no logits: the specification's FWD-2."""
    if len({id(session) for session, _ in batch}) < len(batch):
        raise RefusedError(Refusal.DUPLICATE_ID, "a session is in the batch twice; its tokens would have no order")
    for session, tokens in batch:
        if session.config is not config:
            raise RefusedError(Refusal.CACHE_RANGE, "a session was opened by another model; its entries mean nothing")
        check_tokens(config, tokens, len(session))


def _split(rows: Floats, lengths: Sequence[int]) -> list[Floats]:
    parts, end = [], 0
    for length in lengths:
        start, end = end, end + length
        parts.append(rows[start:end])
    return parts
