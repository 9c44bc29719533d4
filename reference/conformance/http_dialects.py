"""Completion endpoints of servers: what each is asked, and which rules its answer follows.

Every field that could change a token is sent, so that no default of a server or of a checkpoint's
generation_config.json decides.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from reference.conformance.http_answers import Answer, read_completion, read_llama_server, read_sglang
from reference.engine import Output

Fields = Mapping[str, Any]

GREEDY: Fields = {"temperature": 0.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""What all servers call alike."""

WHOLE: Fields = {"n": 1, "stream": False, "echo": False}
"""One completion, in one piece, without the prompt."""

VLLM: Fields = {
    **GREEDY,
    **WHOLE,
    "top_k": -1,
    "min_p": 0.0,
    "seed": 0,
    "repetition_penalty": 1.0,
    "logit_bias": {},
    "bad_words": [],
    "use_beam_search": False,
    "length_penalty": 1.0,
    "min_tokens": 0,
    "stop": [],
    "ignore_eos": True,
    "include_stop_str_in_output": True,
    "add_special_tokens": False,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "logprobs": 1,
    "return_tokens_as_token_ids": True,
    "return_token_ids": True,
}
"""vllm/entrypoints/openai/completion/protocol.py.

ignore_eos takes the checkpoint's eos ids out of the stop set and leaves stop_token_ids in it
(SamplingParams.update_from_generation_config), so that an output ends at the ids asked for and at no others.
"""

OPENAI: Fields = {**GREEDY, **WHOLE, "best_of": 1, "seed": 0, "logit_bias": {}, "stop": None, "logprobs": 1}
"""CreateCompletionRequest of the OpenAI API, and nothing else: a server may refuse what it does not know."""

SGLANG: Fields = {
    **GREEDY,
    "n": 1,
    "top_k": -1,
    "min_p": 0.0,
    "sampling_seed": 0,
    "repetition_penalty": 1.0,
    "logit_bias": None,
    "min_new_tokens": 0,
    "stop": None,
    "stop_regex": None,
    "no_stop_trim": True,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "json_schema": None,
    "regex": None,
    "ebnf": None,
    "structural_tag": None,
}
"""python/sglang/srt/sampling/sampling_params.py."""

SGLANG_LOGPROBS: Fields = {
    "return_logprob": True,
    "logprob_start_len": -1,
    "top_logprobs_num": 0,
    "return_text_in_logprobs": False,
}

LLAMA_SERVER: Fields = {
    **GREEDY,
    "samplers": ["temperature"],
    "seed": 0,
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "min_keep": 0,
    "typical_p": 1.0,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 1.0,
    "adaptive_target": -1.0,
    "adaptive_decay": 0.0,
    "repeat_last_n": 0,
    "repeat_penalty": 1.0,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": 0,
    "mirostat": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.1,
    "grammar": "",
    "logit_bias": [],
    "lora": [],
    "stop": [],
    "ignore_eos": False,
    "n_keep": 0,
    "n_indent": 0,
    "t_max_predict_ms": 0,
    "id_slot": -1,
    "cache_prompt": True,
    "n_cache_reuse": 0,
    "stream": False,
    "return_tokens": True,
    "n_probs": 1,
    "post_sampling_probs": False,
}
"""POST /completion of tools/server/README.md in llama.cpp, with what the server's generation_settings name beyond it.

ignore_eos is not what its name says: it forbids the eos ids, which changes the distribution.
"""


@dataclass(frozen=True)
class Dialect:
    """How a kind of server is asked for a completion, and how its answer is read."""

    path: str
    question: Callable[[str, Sequence[int], int, Sequence[int]], dict[str, Any]]
    """Name of the checkpoint, prompt, max_tokens and eos ids -> the JSON that is POSTed."""
    output: Callable[[Answer], Output]
    """Raises: UnsupportedError without token ids, EngineError; KeyError, TypeError, ValueError for another form."""
    eos: Literal["asked", "asked and its own", "its own"]
    """The ids that end an output: those asked for, those of the server's checkpoint, or both."""
    features: frozenset[str]
    logprobs: str
    """Which distribution the logprobs are of, at temperature 0; without the feature "logprobs" they are not used."""
    version: tuple[str, str] | None = None
    """Where a GET tells the server's version: path and member."""


def ask_vllm(_name: str, prompt: Sequence[int], max_tokens: int, eos_ids: Sequence[int]) -> dict[str, Any]:
    return {**VLLM, "prompt": list(prompt), "max_tokens": max_tokens, "stop_token_ids": list(eos_ids)}


def ask_openai(name: str, prompt: Sequence[int], max_tokens: int, _eos_ids: Sequence[int]) -> dict[str, Any]:
    return {**OPENAI, "model": name, "prompt": list(prompt), "max_tokens": max_tokens}


def ask_sglang(_name: str, prompt: Sequence[int], max_tokens: int, eos_ids: Sequence[int]) -> dict[str, Any]:
    """ignore_eos also ignores stop_token_ids (Req._check_token_based_finish): only where nothing may end it."""
    ends = {"max_new_tokens": max_tokens, "stop_token_ids": list(eos_ids), "ignore_eos": not eos_ids}
    return {"input_ids": list(prompt), "sampling_params": {**SGLANG, **ends}, "stream": False, **SGLANG_LOGPROBS}


def ask_llama_server(_name: str, prompt: Sequence[int], max_tokens: int, _eos_ids: Sequence[int]) -> dict[str, Any]:
    return {**LLAMA_SERVER, "prompt": list(prompt), "n_predict": max_tokens}


DIALECTS: Mapping[str, Dialect] = {
    "vllm": Dialect(
        "/v1/completions",
        ask_vllm,
        read_completion,
        eos="asked",
        features=frozenset({"finish_reason", "logprobs"}),
        logprobs="log softmax of the logits: raw_logprobs, the default of --logprobs-mode",
        version=("/version", "version"),
    ),
    "sglang": Dialect(
        "/generate",
        ask_sglang,
        read_sglang,
        eos="asked and its own",
        features=frozenset({"finish_reason", "logprobs", "cached_tokens"}),
        logprobs="log softmax of logits / 1: temperature 0 is top_k 1 at temperature 1",
        version=("/get_server_info", "version"),
    ),
    "llama-server": Dialect(
        "/completion",
        ask_llama_server,
        read_llama_server,
        eos="its own",
        features=frozenset({"finish_reason", "logprobs", "cached_tokens"}),
        logprobs="log softmax of the logits before the samplers: post_sampling_probs is false",
        version=("/props", "build_info"),
    ),
    "openai": Dialect(
        "/v1/completions",
        ask_openai,
        read_completion,
        eos="its own",
        features=frozenset({"finish_reason"}),
        logprobs="unknown, not compared",
    ),
}
