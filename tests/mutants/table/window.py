"""Mutants of sliding windows and the ring cache."""

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = ()
