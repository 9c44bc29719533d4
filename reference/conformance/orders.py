"""Matrix products in float32 whose sums run in other orders than the specification's: what correct engines do."""

from collections.abc import Callable

import numpy as np

from reference.errors import Array
from reference.numerics import sum_last

BLOCK = 8

Product = Callable[[Array, Array], Array]
"""A matrix product, as numerics.matmul."""


def to_float32(x: Array) -> Array:
    """Each number rounded to the nearest float32, kept as float64."""
    rounded: Array = x.astype(np.float32).astype(np.float64)
    return rounded


def product_in(add: Callable[[Array], Array]) -> Product:
    """A product of float32 matrices whose terms [..., N] are added by `add`, in float32."""

    def product(x: Array, w: Array) -> Array:
        terms = x.astype(np.float32)[..., :, None, :] * w.astype(np.float32).swapaxes(-1, -2)[..., None, :, :]
        summed: Array = add(terms).astype(np.float64)
        return summed

    return product


def pairwise(terms: Array) -> Array:
    """Halves, each summed in the same way."""
    while terms.shape[-1] > 1:
        if terms.shape[-1] % 2:
            terms = np.concatenate((terms, np.zeros_like(terms[..., :1])), axis=-1)
        terms = terms[..., ::2] + terms[..., 1::2]
    return terms[..., 0]


def blocked(terms: Array) -> Array:
    """Blocks of BLOCK terms, then their sums, both in order."""
    missing = -terms.shape[-1] % BLOCK
    padded = np.concatenate((terms, np.zeros_like(terms[..., :1]).repeat(missing, axis=-1)), axis=-1)
    return sum_last(sum_last(padded.reshape(*padded.shape[:-1], -1, BLOCK)))


def shuffled(seed: int) -> Callable[[Array], Array]:
    """One after the other in an order by chance, another one for each product."""
    random = np.random.Generator(np.random.PCG64(seed))
    return lambda terms: sum_last(terms[..., random.permutation(terms.shape[-1])])


ORDERS: tuple[Callable[[Array], Array], ...] = (sum_last, pairwise, blocked)
