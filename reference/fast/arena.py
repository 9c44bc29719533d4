"""One stretch of memory for all matrices of a model."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

CACHE_LINE = 64


class Arena:
    """Room for `num_arrays` arrays of `size` numbers in all, each at the start of a cache line.

    numpy asks for huge pages from 4 MB on, which most matrices of a small model do not have by themselves; from
    huge pages a product with one row is about a tenth faster.
    """

    def __init__(self, size: int, num_arrays: int, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self._line = CACHE_LINE // dtype.itemsize
        room: NDArray[Any] = np.empty(size + (num_arrays + 1) * self._line, dtype)
        self._free = room[-room.ctypes.data % CACHE_LINE // dtype.itemsize :]

    def take(self, *shape: int) -> NDArray[Any]:
        """An array of this shape in C order, with arbitrary content."""
        size = math.prod(shape)
        taken = self._free[:size].reshape(shape)
        self._free = self._free[size + -size % self._line :]
        return taken

    def copy(self, array: NDArray[Any]) -> NDArray[Any]:
        """A copy of the array in the arena's type."""
        taken = self.take(*array.shape)
        taken[...] = array
        return taken
