"""Why the specification refuses an input, as data.

Every refusal carries one reason of the closed list `Refusal` and one sentence for a person.
Records pin the reason, never the sentence, so an engine in any language can give the same answer.
"""

from enum import Enum

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Refusal(str, Enum):
    """Language-neutral reasons for refusing an input."""

    CAPACITY_NOT_POSITIVE = "capacity_not_positive"
    """A limit on concurrently active sessions is below one."""
    LIMIT_NOT_POSITIVE = "limit_not_positive"
    """A budget or count that must be at least one is below one."""
    LIMIT_UNKNOWN = "limit_unknown"
    """A policy is given a limit that it does not have."""
    CONFIG_INVALID = "config_invalid"
    """A model configuration contradicts itself, lacks a field or asks for what is not specified here."""
    CHECKPOINT_INVALID = "checkpoint_invalid"
    """Tensors are missing, extra, misshapen, truncated or of an unsupported type."""
    TOKEN_OUT_OF_RANGE = "token_out_of_range"
    """A token id is negative or not below vocab_size."""
    PROMPT_EMPTY = "prompt_empty"
    """There is no token to compute logits for."""
    CONTEXT_EXCEEDED = "context_exceeded"
    """The tokens do not fit in the context length."""
    CACHE_RANGE = "cache_range"
    """A cache operation names entries that do not exist or have another shape."""
    NOT_A_DISTRIBUTION = "not_a_distribution"
    """Probabilities are negative, not finite, or do not sum to one."""
    NOT_A_NUMBER = "not_a_number"
    """A NaN stands where an ordering of values is needed."""
    COIN_OUT_OF_RANGE = "coin_out_of_range"
    """A coin is not in [0, 1), or there are too few of them."""
    DRAFT_IMPOSSIBLE = "draft_impossible"
    """A drafted token has draft probability zero, so it was not drawn from that distribution."""
    DUPLICATE_ID = "duplicate_id"
    """Two requests carry the same id."""
    REQUEST_INVALID = "request_invalid"
    """A request has an empty prompt, a negative arrival or no token to produce."""
    PROMPT_EXCEEDS_TOKEN_BUDGET = "prompt_exceeds_token_budget"
    """A prompt is longer than the prefill tokens of any tick."""
    KV_EXCEEDS_BUDGET = "kv_exceeds_budget"
    """A session's KV cache would outgrow the whole KV budget."""
    ARTIFACT_INVALID = "artifact_invalid"
    """A file is not valid JSON or breaks its schema."""
    NOT_FOUND = "not_found"
    """A file, directory, engine or record that was named does not exist."""
    USAGE = "usage"
    """A command line asks for something that does not exist."""

    def __str__(self) -> str:
        return self.value


class RefusedError(ValueError):
    """An input was refused: `reason` for programs, the message for people."""

    def __init__(self, reason: Refusal, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason

    def __reduce__(self) -> tuple[type["RefusedError"], tuple[Refusal, str]]:
        """Makes it travel between processes, whose pickle would call the class with the sentence alone."""
        return type(self), (self.reason, str(self))


class UnsupportedError(Exception):
    """An engine says that it does not have a feature; `feature` is a verb or one of its options."""

    def __init__(self, feature: str) -> None:
        super().__init__(feature)
        self.feature = feature
