"""RoPE rotations as complex numbers, from the specification's cosines and sines."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reference.model.config import ModelConfig
from reference.model.rope import rotation

Complexes = NDArray[Any]  # complex64 or complex128

ROWS_PER_GROWTH = 256
LENGTH_DEPENDENT = ("dynamic", "longrope")


class Angles:
    """cos + i sin of every position; kept in a table unless they depend on the session's length."""

    def __init__(self, config: ModelConfig, dtype: np.dtype[Any]) -> None:
        self.config = config
        self.dtype = np.result_type(dtype, np.complex64)
        self.table: Complexes = np.empty((0, config.head_dim // 2), dtype=self.dtype)
        self.is_fixed = config.rope.rope_type not in LENGTH_DEPENDENT

    def rows(self, starts: Sequence[int], lengths: Sequence[int]) -> Complexes:  # -> [R, D/2]
        """Positions start .. start + T - 1 of every session, which holds start + T tokens afterwards.

        One row [1, D/2] if all rows are at one position.
        """
        spans = list(zip(starts, lengths, strict=True))
        if not self.is_fixed:
            return np.concatenate([self._compute(start, length) for start, length in spans])
        self._extend(max(start + length for start, length in spans))
        if max(spans) == min(spans):
            once = self.table[starts[0] : starts[0] + lengths[0]]
            return once if len(spans) == 1 or lengths[0] == 1 else np.tile(once, (len(spans), 1))
        return self.table.take([place for start, length in spans for place in range(start, start + length)], axis=0)

    def _extend(self, end: int) -> None:
        known = len(self.table)
        if end > known:
            wanted = min(max(end, known + ROWS_PER_GROWTH), self.config.context_length)
            self.table = np.concatenate((self.table, self._compute(known, wanted - known)))

    def _compute(self, start: int, num_tokens: int) -> Complexes:
        cosine, sine = rotation(self.config, start, num_tokens)
        return (cosine + 1j * sine).astype(self.dtype)
