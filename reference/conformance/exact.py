"""The specification's own logits, computed when a verdict needs them."""

from functools import cache
from pathlib import Path
from typing import Any

from reference.conformance.artifacts import MODELS
from reference.conformance.compare import Logits
from reference.errors import Array
from reference.model.cache import empty_cache
from reference.model.checkpoint import load_model
from reference.model.transformer import forward
from reference.model.weights import Model


def golden_model(name: str) -> Model:
    """A golden checkpoint, read once."""
    return _read(MODELS / name)


@cache
def _read(model_dir: Path) -> Model:
    return load_model(model_dir)


def reference_logits(model_name: str, prompt: Any, output: Any) -> Logits:
    """The specification's logits [V] where output token i is chosen, computed when they are asked for.

    The output is decoded token by token: under dynamic and longrope RoPE a prefill of it has other logits.
    """

    @cache
    def rows() -> list[Array]:
        model = golden_model(model_name)
        logits, kv = forward(model, prompt, empty_cache(model.config))
        chosen = [logits[-1]]
        for token in output[:-1]:
            logits, kv = forward(model, [token], kv)
            chosen.append(logits[-1])
        return chosen

    return lambda index: rows()[index]
