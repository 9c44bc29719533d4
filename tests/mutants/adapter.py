"""Mutants as engines, for the worker: the class is called like the mutant, with _ for -.

    python -m reference check --engine tests/mutants/adapter.py:rope_interleaved --report DIR

The unbroken shapes are engines too: adapter.py:specification, adapter.py:padded_batch and so on pass what they claim.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.mutants import hook
from tests.mutants.table import MUTANTS

SHAPES = {
    "specification": "reference.engine:ReferenceEngine",
    "prefix-scores": "tests.mutants.shapes.prefix_scores:PrefixScores",
    "prompt-lookup": "tests.mutants.shapes.prompt_lookup:PromptLookup",
}
"""Correct implementations, as module:class of an Engine."""


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    wanted = name.replace("_", "-")
    if wanted in SHAPES:
        return lambda: hosted(wanted)
    found = [mutant for mutant in MUTANTS if mutant.id == wanted]
    if not found:
        raise AttributeError(f"no mutant and no shape is called {wanted}; see tests/mutants/table/")
    (mutant,) = found

    def start() -> Any:
        hook.install(mutant)
        engine = hosted(mutant.shape)
        assert hook.is_applied(mutant, sys.modules), f"{mutant.id}: an edited file was not imported"
        return engine

    return start


def hosted(shape: str) -> Any:
    """The engine behind the worker, exact as the specification claims to be."""
    module, _, class_name = SHAPES[shape].partition(":")
    engine = getattr(importlib.import_module(module), class_name)()
    ours = importlib.import_module("reference.conformance.adapters.golden_llama.adapter")
    return ours.Hosted(engine, {"float64": "exact"})
