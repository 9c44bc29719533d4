"""When speculation pays: an analytic cost of a forward by its number of tokens. Times are in milliseconds.

The coefficients are assumptions, not measurements; the rules that combine them are Leviathan et al. 2023, sec. 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from reference.decoding.verification import expected_tokens
from reference.errors import Refusal, RefusedError


@dataclass(frozen=True)
class ForwardCost:
    """Time of a forward over n tokens: base_ms up to `free_tokens`, then per_token_ms more for each token."""

    base_ms: float
    per_token_ms: float
    free_tokens: int

    def ms(self, num_tokens: int) -> float:
        """[COST-1] base + slope * max(0, n - free): flat while weights dominate the traffic, then linear."""
        return self.base_ms + self.per_token_ms * max(0, num_tokens - self.free_tokens)


@dataclass(frozen=True)
class Crossover:
    """Plain and speculative decoding of a batch, per session and token."""

    batch_size: int
    verify_tokens: int  # tokens in the verifying forward
    standard_ms: float  # per token
    cycle_ms: float  # one draft-verify step of the whole batch
    expected_tokens: tuple[float, ...]  # per step, one for each alpha
    speculative_ms: tuple[float, ...]  # per token
    speedup: tuple[float, ...]  # standard_ms / speculative_ms


def crossover(
    batch_size: int, gamma: int, alphas: Sequence[float], target: ForwardCost, draft: ForwardCost
) -> Crossover:
    """[COST-2] cycle = gamma draft(b) + target(b (gamma + 1)); time per token = cycle / expected tokens.

    Raises: CAPACITY_NOT_POSITIVE, and what expected_tokens raises.
    """
    if batch_size < 1:
        raise RefusedError(Refusal.CAPACITY_NOT_POSITIVE, f"batch size {batch_size} must be at least 1")
    expected = tuple(expected_tokens(alpha, gamma) for alpha in alphas)
    verify_tokens = batch_size * (gamma + 1)
    cycle_ms = gamma * draft.ms(batch_size) + target.ms(verify_tokens)
    standard_ms = target.ms(batch_size)
    speculative_ms = tuple(cycle_ms / tokens for tokens in expected)
    speedup = tuple(standard_ms / ms for ms in speculative_ms)
    return Crossover(batch_size, verify_tokens, standard_ms, cycle_ms, expected, speculative_ms, speedup)
