"""What the builders of records share: tokens, margins, the parts of a record."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from golden_models import integers
from golden_refused import REFUSED

from reference.decoding.sampling import greedy
from reference.errors import Array
from reference.model.cache import empty_cache
from reference.model.checkpoint import load_model
from reference.model.transformer import forward
from reference.model.weights import Model

Record = dict[str, Any]


# A continuation enters the goldens only if every token leads by this many logits: far above any float32 noise.
LEAST_MARGIN = 0.25


FORWARD_RULES = ["FWD-1", "NORM-1", "ROPE-1", "ROPE-2", "ATTN-1", "ATTN-2", "ATTN-3", "MLP-1", "HEAD-2"]


ROPE_RULES: Mapping[str, list[str]] = {
    "default": ["ROPE-3"],
    "linear": ["ROPE-3"],
    "dynamic": ["ROPE-4"],
    "yarn": ["ROPE-5", "ROPE-6"],
    "llama3": ["ROPE-7"],
    "longrope": ["ROPE-8", "ROPE-9"],
}


def record(
    id: str, rules: Sequence[str], catches: str, asked: Mapping[str, Any], expected: Mapping[str, Any]
) -> Record:
    return {
        "id": id,
        "family": id.partition("/")[0],
        "rules": sorted(rules),
        "catches": catches,
        "input": asked,
        "expected": expected,
        "info": {"origin": "specification"},
    }


def tokens_of(name: str, num_tokens: int, vocab_size: int) -> list[int]:
    """A prompt from the integer generator of the golden checkpoints, one stream a name."""
    return [number % vocab_size for number in integers(name, num_tokens)]


def models_in(directory: Path) -> dict[str, Model]:
    return {path.name: load_model(path) for path in sorted(directory.iterdir()) if path.name not in REFUSED}


def logits_of(model: Model, tokens: Sequence[int]) -> Array:
    """Logits [T, V] of a fresh computation of the whole prefix."""
    return forward(model, tokens, empty_cache(model.config))[0]


def margins(model: Model, prompt: Sequence[int], max_tokens: int) -> Iterator[float]:
    """By how many logits each token of the greedy continuation leads the next best, as it is decoded."""
    tokens, cache = list(prompt), empty_cache(model.config)
    for _ in range(max_tokens):
        logits, cache = forward(model, tokens, cache)
        second, first = np.sort(logits[-1])[-2:]
        yield float(first - second)
        tokens = [greedy(logits[-1])]


def leading_prompt(model: Model, name: str, num_tokens: int, max_tokens: int) -> list[int]:
    """The first prompt of a stream whose greedy continuation leads everywhere by LEAST_MARGIN."""
    for attempt in range(400):
        prompt = tokens_of(f"{name} {attempt}", num_tokens, model.config.vocab_size)
        if all(margin >= LEAST_MARGIN for margin in margins(model, prompt, max_tokens)):
            return prompt
    raise SystemExit(f"no prompt of {name} has a continuation with margins of {LEAST_MARGIN}")
