"""Plain decoding of one session, with the KV cache or by recomputing the whole prefix: the same tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from reference.decoding.sampling import distribution, draw, greedy
from reference.errors import Array, Refusal, RefusedError
from reference.model.cache import empty_cache
from reference.model.config import ModelConfig
from reference.model.transformer import forward
from reference.model.weights import Model

FinishReason = Literal["stop", "length"]

Choose = Callable[[Array, int], int]
"""(logits [V], index of the output token) -> token."""


@dataclass(frozen=True)
class Generation:
    """The output of one session. The tokens include the eos that ended it."""

    tokens: tuple[int, ...]
    finish_reason: FinishReason


@dataclass(frozen=True)
class StopRule:
    """When an output ends; `context_length` bounds prompt and output together."""

    max_tokens: int
    eos_ids: tuple[int, ...]
    context_length: int


def generate(model: Model, prompt: Sequence[int], stop: StopRule, choose: Choose) -> Generation:
    """[GEN-1] Decodes with a KV cache: the prompt in one forward, then one token per forward.

    The last token's keys and values are never computed.
    Raises: PROMPT_EMPTY, TOKEN_OUT_OF_RANGE, CONTEXT_EXCEEDED, LIMIT_NOT_POSITIVE.
    """
    check_prompt(model.config, prompt, stop)
    logits, cache = forward(model, prompt, empty_cache(model.config))
    output = [choose(logits[-1], 0)]
    while (reason := finish_reason(len(prompt), output, stop)) is None:
        logits, cache = forward(model, output[-1:], cache)
        output.append(choose(logits[-1], len(output)))
    return Generation(tuple(output), reason)


def generate_by_recomputation(model: Model, prompt: Sequence[int], stop: StopRule, choose: Choose) -> Generation:
    """[GEN-2] Decodes without a KV cache: every token from a forward over the whole prefix. Raises: as generate."""
    check_prompt(model.config, prompt, stop)
    output: list[int] = []
    reason = None
    while reason is None:
        logits, _ = forward(model, [*prompt, *output], empty_cache(model.config))
        output.append(choose(logits[-1], len(output)))
        reason = finish_reason(len(prompt), output, stop)
    return Generation(tuple(output), reason)


def finish_reason(num_prompt: int, output: Sequence[int], stop: StopRule) -> FinishReason | None:
    """[GEN-3] Why the output ends with its last token, or None.

    An eos counts before the limits (vLLM, llama.cpp; SGLang and TGI look at the limits first): a token that is both
    eos and the max_tokens-th ends with "stop". "length" stands for max_tokens and for a full context.
    """
    if output[-1] in stop.eos_ids:
        return "stop"
    if len(output) >= stop.max_tokens or num_prompt + len(output) >= stop.context_length:
        return "length"
    return None


def check_prompt(config: ModelConfig, prompt: Sequence[int], stop: StopRule) -> None:
    """Raises: LIMIT_NOT_POSITIVE, CONTEXT_EXCEEDED (the prompt leaves no room for one token)."""
    if stop.max_tokens < 1:
        raise RefusedError(Refusal.LIMIT_NOT_POSITIVE, f"max_tokens is {stop.max_tokens}; at least 1 is needed")
    if stop.context_length > config.context_length:
        sentence = f"a context of {stop.context_length} exceeds the model's {config.context_length}"
        raise RefusedError(Refusal.CONTEXT_EXCEEDED, sentence)
    if len(prompt) >= stop.context_length:
        sentence = f"a prompt of {len(prompt)} tokens leaves no room in a context of {stop.context_length}"
        raise RefusedError(Refusal.CONTEXT_EXCEEDED, sentence)


def choose_greedily(logits: Array, _index: int) -> int:
    """The most likely token, whatever its index."""
    return greedy(logits)


def choose_by_coins(coins: Sequence[float], temperature: float) -> Choose:
    """Draws output token i with coins[i]. Raises when called: COIN_OUT_OF_RANGE once there is no coin left."""

    def choose(logits: Array, index: int) -> int:
        if index >= len(coins):
            raise RefusedError(
                Refusal.COIN_OUT_OF_RANGE, f"output token {index} needs a coin; {len(coins)} were given"
            )
        return draw(distribution(logits, temperature), coins[index])

    return choose
