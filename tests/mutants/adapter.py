"""Mutants as engines, for the worker: the class is called like the mutant, with _ for -.

    python -m reference check --engine tests/mutants/adapter.py:rope_interleaved --report DIR

The unbroken shapes are engines too: adapter.py:specification, adapter.py:padded_batch and so on pass what they claim.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.mutants import hook, systematic
from tests.mutants.table import MUTANTS

SHAPES = {
    "specification": "reference.engine:ReferenceEngine",
    "padded-batch": "tests.mutants.shapes.padded_batch:PaddedBatchEngine",
    "packed-batch": "tests.mutants.shapes.packed_batch:PackedBatchEngine",
    "tiled-attention": "tests.mutants.shapes.tiled_attention:TiledAttentionEngine",
    "chunked-prefill": "tests.mutants.shapes.chunked_prefill:ChunkedPrefillEngine",
    "prefix-scores": "tests.mutants.shapes.prefix_scores:PrefixScores",
    "prompt-lookup": "tests.mutants.shapes.prompt_lookup:PromptLookup",
}
"""Correct implementations, as module:class of an Engine."""


IN_FLOAT32 = "f32_"
"""Before a name: the same in the arithmetic of float32 with sums in another order, so on another path."""


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    wanted = name.removeprefix(IN_FLOAT32).replace("_", "-")
    is_single = name.startswith(IN_FLOAT32)
    if wanted in SHAPES:
        return lambda: start(wanted, is_single)
    found = [mutant for mutant in MUTANTS if mutant.id == wanted]
    mutant = found[0] if found else systematic.find(wanted)
    if mutant is None:
        raise AttributeError(f"no mutant and no shape is called {wanted}; see tests/mutants/table/")

    def broken() -> Any:
        hook.install(mutant)
        engine = start(mutant.shape, is_single)
        assert hook.is_applied(mutant, sys.modules), f"{mutant.id}: an edited file was not imported"
        return engine

    return broken


def start(shape: str, is_single: bool) -> Any:
    """The engine behind the worker: in float64 as precise as it says, "exact" or "f64", or in float32."""
    if is_single:
        compute_in_float32()
    module, _, class_name = SHAPES[shape].partition(":")
    engine = getattr(importlib.import_module(module), class_name)()
    ours = importlib.import_module("reference.conformance.adapters.golden_llama.adapter")
    return ours.Hosted(engine, {"float32": "f32"} if is_single else {"float64": engine.describe().precision})


def compute_in_float32() -> None:
    """Replaces products and exponentials of numerics, before a module takes them from there."""
    orders = importlib.import_module("reference.conformance.orders")
    numerics = importlib.import_module("reference.numerics")
    exact_exp = numerics.exp
    setattr(numerics, "matmul", orders.product_in(orders.pairwise))  # noqa: B010
    setattr(numerics, "exp", lambda x: orders.to_float32(exact_exp(x)))  # noqa: B010
