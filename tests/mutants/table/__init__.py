"""The table of defects: one module for each part of the specification. Imports nothing of reference."""

from tests.mutants.table import (
    attention,
    cache,
    drafts,
    heads,
    layers,
    mask,
    positions,
    rope,
    serving,
    speculation,
    stopping,
    weights,
    window,
)

MODULES = (
    rope,
    positions,
    layers,
    heads,
    weights,
    attention,
    mask,
    cache,
    window,
    speculation,
    drafts,
    stopping,
    serving,
)
MUTANTS = tuple(mutant for module in MODULES for mutant in module.MUTANTS)
