"""Memory of the fast twin's matrices."""

import numpy as np
import pytest

from reference.fast.arena import CACHE_LINE, Arena


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_arrays_start_at_cache_lines_and_do_not_overlap(dtype):
    """Sizes 15, 7 and 1 are no multiples of a line; the arena has room for exactly these."""
    arena = Arena(23, 3, np.dtype(dtype))
    shapes = [(3, 5), (7,), (1, 1)]

    arrays = [arena.take(*shape) for shape in shapes]
    for number, array in enumerate(arrays):
        array[...] = number

    assert shapes == [array.shape for array in arrays]
    assert [0, 0, 0] == [array.ctypes.data % CACHE_LINE for array in arrays]
    assert [{0.0}, {1.0}, {2.0}] == [set(array.ravel().tolist()) for array in arrays]


def test_a_copy_has_the_arenas_type_and_the_arrays_numbers():
    numbers = np.arange(6, dtype=np.float16).reshape(2, 3).T

    copied = Arena(6, 1, np.dtype("float32")).copy(numbers)

    assert copied.dtype == np.float32
    assert copied.flags.c_contiguous
    assert numbers.tolist() == copied.tolist()
