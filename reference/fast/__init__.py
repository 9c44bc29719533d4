"""The optimised twin of the specification: BLAS, fused weights, preallocated caches, true batches.

It is an engine like any other: it must pass the goldens, and nothing in the specification imports it.
"""

from reference.fast.model import FastModel
from reference.fast.session import FastSession

__all__ = ["FastModel", "FastSession"]
