"""The table of defects: one module for each part of the specification. Imports nothing of reference."""

from tests.mutants.table import attention, cache, layers, positions, rope, serving, speculation, stopping, window

MODULES = (rope, positions, layers, attention, cache, window, speculation, stopping, serving)
MUTANTS = tuple(mutant for module in MODULES for mutant in module.MUTANTS)
