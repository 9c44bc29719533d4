"""Checkpoints that an engine must refuse: each a good one with another config.json.

Loaded in silence they give fluent, wrong answers: a tensor that no layer reads, a parameter that no tensor fills, or
an option that the engine does not know.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from golden_zoo import GROUPED

from reference.errors import Refusal
from reference.model.config import ModelConfig

SMALL = replace(GROUPED, num_hidden_layers=1)
UNKNOWN = {"rope_type": "twisted", "factor": 4.0}


@dataclass(frozen=True)
class Refused:
    """A checkpoint of a good config, with other fields of config.json (None: left out) than that config."""

    config: ModelConfig
    fields: Mapping[str, Any]
    rules: tuple[str, ...]
    catches: str
    reason: Refusal = Refusal.CHECKPOINT_INVALID


REFUSED: Mapping[str, Refused] = {
    "refused-tied-head-differs": Refused(
        SMALL,
        {"tie_word_embeddings": True},
        ("HEAD-1",),
        "a tied config by which the head in the file is dropped without a look at it",
    ),
    "refused-head-missing": Refused(
        replace(SMALL, tie_word_embeddings=True),
        {"tie_word_embeddings": False},
        ("HEAD-1",),
        "a head that the file does not hold and that keeps the numbers it was initialised with",
    ),
    "refused-biases-unannounced": Refused(
        replace(SMALL, attention_bias=True),
        {"attention_bias": None},
        ("ATTN-1",),
        "biases in the file that are ignored because config.json does not announce them",
    ),
    "refused-rope-type": Refused(
        SMALL,
        {"rope_scaling": UNKNOWN, "rope_parameters": {**UNKNOWN, "rope_theta": 300.0}},
        ("ROPE-3",),
        "a RoPE type that the engine does not know and takes for none",
        Refusal.CONFIG_INVALID,
    ),
}
