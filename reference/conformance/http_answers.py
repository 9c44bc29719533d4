"""Where the answers of servers tell token ids, logprobs and why an output ended.

Text is never read: token ids are told in the answer, or they are unsupported.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from reference.conformance.remote import EngineError
from reference.engine import Output
from reference.errors import UnsupportedError

Answer = Mapping[str, Any]


def read_completion(answer: Answer) -> Output:
    """A completion of the OpenAI API. Its tokens are text, but vLLM adds `token_ids`, or names a token
    "token_id:7" among the logprobs, and llama.cpp tells an `id` there.
    """
    (choice,) = answer["choices"]
    told = choice.get("logprobs") or {}
    listed = [step["id"] for step in told["content"]] if told.get("content") else None
    tokens = told_ids(choice.get("token_ids"), _named_ids(told.get("tokens")), listed)
    logprobs = told.get("token_logprobs")
    cached_tokens = ((answer.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens")
    return _output(tokens, choice.get("finish_reason"), logprobs, cached_tokens)


def read_sglang(answer: Answer) -> Output:
    """`output_ids`, and (logprob, id, text) of every output token."""
    meta = answer["meta_info"]
    steps = meta.get("output_token_logprobs")
    listed = None if steps is None else [step[1] for step in steps]
    tokens = told_ids(answer.get("output_ids"), listed)
    logprobs = None if steps is None else [step[0] for step in steps]
    return _output(tokens, meta["finish_reason"]["type"], logprobs, meta.get("cached_tokens"))


def read_llama_server(answer: Answer) -> Output:
    """`tokens` (empty in servers that do not know return_tokens), and id and logprob of each."""
    steps = answer.get("completion_probabilities")
    is_told = bool(answer.get("tokens")) or answer["tokens_predicted"] == 0
    listed = None if steps is None else [step["id"] for step in steps]
    tokens = told_ids(answer.get("tokens") if is_told else None, listed)
    logprobs = None if steps is None else [step["logprob"] for step in steps]
    reason = {"eos": "stop", "limit": "length"}.get(answer["stop_type"], answer["stop_type"])
    return _output(tokens, reason, logprobs, (answer.get("timings") or {}).get("cache_n"))


def told_ids(*places: Sequence[int] | None) -> tuple[int, ...]:
    """The token ids that an answer tells, in every place that tells them.

    Raises: UnsupportedError if no place does; EngineError if two contradict each other, as output_ids and
    logprobs did in SGLang (https://github.com/sgl-project/sglang/issues/17240).
    """
    told = [tuple(place) for place in places if place is not None]
    if not told:
        raise UnsupportedError("token ids in the answer")
    if any(type(token) is not int for place in told for token in place):
        raise TypeError("a token id is no integer")
    if any(place != told[0] for place in told):
        raise EngineError(f"the answer tells the tokens {list(told[0])}, and elsewhere {list(told[-1])}")
    return told[0]


def _named_ids(names: Sequence[str] | None) -> list[int] | None:
    """The ids in "token_id:7"; None where tokens are told as text."""
    prefix = "token_id:"
    if names is None or not all(name.startswith(prefix) for name in names):
        return None
    return [int(name.removeprefix(prefix)) for name in names]


def _output(tokens: tuple[int, ...], reason: Any, logprobs: Sequence[Any] | None, cached_tokens: Any) -> Output:
    """An output of JSON values; a logprob that is null is not a number."""
    told = None if logprobs is None else tuple(math.nan if one is None else float(one) for one in logprobs)
    return Output(
        tokens,
        None if reason is None else str(reason),
        told,
        cached_tokens=None if cached_tokens is None else int(cached_tokens),
    )
