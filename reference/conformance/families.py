"""One question and one comparison a family: what its records ask an engine, and what makes the answer right."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reference.conformance import law
from reference.conformance.artifacts import MODELS, to_plain
from reference.conformance.channel import HarnessError
from reference.conformance.compare import (
    PASS,
    Judgement,
    Logits,
    Verdict,
    compare_fields,
    compare_logits,
    compare_tokens,
    fail,
    tolerances,
)
from reference.conformance.exact import reference_logits
from reference.conformance.noise import Measure
from reference.engine import Description, Engine, Output
from reference.errors import Array, UnsupportedError
from reference.numerics import log_softmax
from reference.serving.cost_model import ForwardCost
from reference.serving.session import Request

Asked = Mapping[str, Any]
Expected = Mapping[str, Any]


@dataclass(frozen=True)
class Family:
    """How a family's records are asked and compared."""

    ask: Callable[[Engine, Asked], Any]
    compare: Callable[[Any, Asked, Expected, Description, Measure], Judgement]


def ask_forward(engine: Engine, asked: Asked) -> Array:
    return engine.score(asked["prompt"])


def compare_forward(
    answered: Array, asked: Asked, expected: Expected, engine: Description, measure: Measure
) -> Judgement:
    """Logits at every position, or at those that the record holds."""
    right = np.array(expected["logits"])
    positions = expected.get("positions")
    measured = measure(asked["model"], tuple(asked["prompt"]))
    if positions is not None and len(answered) == len(asked["prompt"]):
        measured = None if measured is None else measured[positions]
        judgement = compare_logits(right, answered[positions], engine.precision, engine.scores, measured)
        return replace(judgement, details={**judgement.details, "positions": positions})
    return compare_logits(right, answered, engine.precision, engine.scores, measured)


def ask_generate(engine: Engine, asked: Asked) -> Output:
    wants_logprobs = "logprobs" in engine.describe().claims
    (output,) = engine.generate([asked["prompt"]], asked["max_tokens"], asked["eos_ids"], wants_logprobs)
    return output


def compare_generate(
    answered: Output, asked: Asked, expected: Expected, engine: Description, measure: Measure
) -> Judgement:
    """Greedy tokens, their logprobs where the engine tells them, then the finish reason."""
    row = reference_logits(asked["model"], asked["prompt"], expected["tokens"])
    measured = output_noise(asked["model"], asked["prompt"], expected["tokens"], measure)
    judgement = compare_tokens(expected["tokens"], answered.tokens, engine.precision, row, measured)
    if judgement is not PASS:
        return judgement
    if answered.logprobs is not None:
        judgement = compare_logprobs(answered, engine, row, measured)
    elif "logprobs" in engine.claims:
        judgement = fail("the engine claims logprobs and answers none")
    if judgement is not PASS or answered.finish_reason == expected["finish_reason"]:
        return judgement
    if answered.finish_reason is None and "finish_reason" not in engine.claims:
        return Judgement(Verdict.UNSUPPORTED, "the tokens agree, but the engine tells no finish_reason")
    return fail(f"finish reason {answered.finish_reason!r}, expected {expected['finish_reason']!r}")


def output_noise(model_name: str, prompt: Sequence[int], output: Sequence[int], measure: Measure) -> Array | None:
    """The measured noise where each output token is chosen, [n]."""
    measured = measure(model_name, (*prompt, *output[:-1]))
    return None if measured is None else measured[len(prompt) - 1 :]


def compare_logprobs(answered: Output, engine: Description, row: Logits, measured: Array | None) -> Judgement:
    """The logprob of every output token."""
    told = answered.logprobs or ()
    if len(told) != len(answered.tokens):
        return fail(f"{len(told)} logprobs for {len(answered.tokens)} tokens")
    for index, (token, given) in enumerate(zip(answered.tokens, told, strict=True)):
        logits = row(index)
        right = float(log_softmax(logits)[token])
        limit = float(tolerances(logits, engine.precision, None if measured is None else measured[index]))
        if not abs(given - right) <= limit:
            sentence = f"logprob of output token {index} is {given:.9g}, expected {right:.9g} (tolerance {limit:.3g})"
            return fail(sentence)
    return PASS


def ask_cache(engine: Engine, asked: Asked) -> list[Any]:
    """A script of session operations: the answer of every step, up to one that fails, whose error is the last."""
    handles: dict[str, int] = {}
    answers: list[Any] = []
    for step in _whole(asked["steps"]):
        try:
            answers.append(_do(engine, step, handles))
        except (UnsupportedError, HarnessError):
            raise
        except Exception as error:  # an earlier answer may be wrong, which explains more
            return [*answers, error]
    return answers


def _whole(steps: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The steps, and a close of every session that they leave open."""
    opened = [step.get("into", step["session"]) for step in steps if step["op"] in ("open", "fork")]
    closed = {step["session"] for step in steps if step["op"] == "close"}
    return [*steps, *({"op": "close", "session": name} for name in opened if name not in closed)]


def _do(engine: Engine, step: Mapping[str, Any], handles: dict[str, int]) -> Any:
    """The scores [T, V] of an extend, the bytes of a kv_bytes; nothing of the others."""
    name = step["session"]
    match step["op"]:
        case "open":
            handles[name] = engine.open()
        case "extend":
            return engine.extend(handles[name], step["tokens"])
        case "truncate":
            engine.truncate(handles[name], step["num_tokens"])
        case "fork":
            handles[step["into"]] = engine.fork(handles[name])
        case "kv_bytes":
            return engine.kv_bytes(handles[name])
        case "close":
            engine.close(handles.pop(name))
    return None


def compare_cache(
    answered: list[Any], asked: Asked, expected: Expected, engine: Description, measure: Measure
) -> Judgement:
    """Every extend answers the scores of a fresh computation; every kv_bytes the numbers that the tokens need."""
    rows, sizes = iter(expected["logits"]), iter(expected.get("kv_numbers", ()))
    pasts = _pasts(asked["steps"])
    for number, (step, answer) in enumerate(zip(_whole(asked["steps"]), answered, strict=False)):
        judgement = PASS
        if isinstance(answer, Exception):
            judgement = fail(f"{type(answer).__name__}: {answer}")
        elif step["op"] == "extend":
            right = np.array([next(rows) for _ in step["tokens"]])
            measured = measure(asked["model"], pasts[number])
            measured = None if measured is None else measured[-len(step["tokens"]) :]
            judgement = compare_logits(right, answer, engine.precision, engine.scores, measured)
        elif step["op"] == "kv_bytes":
            judgement = _compare_bytes(next(sizes), answer, engine)
        if judgement is not PASS:
            sentence = f"step {number} ({step['op']} {step['session']}): {judgement.sentence}"
            return Judgement(judgement.verdict, sentence, judgement.details)
    return PASS


def _pasts(steps: Sequence[Mapping[str, Any]]) -> list[tuple[int, ...]]:
    """The tokens of a step's session after it."""
    held: dict[str, tuple[int, ...]] = {}
    pasts = []
    for step in steps:
        name = step["session"]
        match step["op"]:
            case "open":
                held[name] = ()
            case "extend":
                held[name] += tuple(step["tokens"])
            case "truncate":
                held[name] = held[name][: step["num_tokens"]]
            case "fork":
                held[step["into"]] = held[name]
        pasts.append(held[name])
    return pasts


def _compare_bytes(numbers: int, answered: int, engine: Description) -> Judgement:
    if engine.kv_itemsize is None:
        return Judgement(Verdict.UNSUPPORTED, "the engine does not tell its kv_dtype")
    right = numbers * engine.kv_itemsize
    return PASS if answered == right else fail(f"{answered} bytes of keys and values, expected {right}")


def ask_serving(engine: Engine, asked: Asked) -> Any:
    requests = [Request(**{**request, "prompt": tuple(request["prompt"])}) for request in asked["requests"]]
    return engine.serve(requests, asked["policy"], asked["limits"])


def compare_serving(
    answered: Any, asked: Asked, expected: Expected, engine: Description, measure: Measure
) -> Judgement:
    """The tokens of every request, then the trace row by row."""
    traces = {"expected_trace": expected["trace"], "answered_trace": to_plain(answered.trace)}
    prompts = {request["id"]: request["prompt"] for request in asked["requests"]}
    for request_id, tokens in sorted(expected["tokens"].items()):
        row = reference_logits(asked["model"], prompts[request_id], tokens)
        measured = output_noise(asked["model"], prompts[request_id], tokens, measure)
        judgement = compare_tokens(tokens, answered.tokens.get(request_id, ()), engine.precision, row, measured)
        if judgement is not PASS:
            sentence = f"request {request_id}: {judgement.sentence}"
            return Judgement(judgement.verdict, sentence, {**judgement.details, **traces})
    judgement = compare_fields(dict(expected), to_plain({"tokens": answered.tokens, "trace": answered.trace}))
    return judgement if judgement is PASS else Judgement(judgement.verdict, judgement.sentence, traces)


def ask_speculation(engine: Engine, asked: Asked) -> Any:
    """A step with given p, q, drafts and coins; the law of a step; or a whole loop of two models."""
    match asked["kind"]:
        case "verify":
            p, q = np.array(asked["p"]), np.array(asked["q"])
            return engine.verify(p, q, asked["drafts"], asked["accept_coins"], asked["final_coin"])
        case "law":
            return law.distance_to_target(engine.verify, np.array(asked["p"]), np.array(asked["q"]))
    draft_dir = MODELS / asked["draft"]
    return engine.speculate(draft_dir, asked["prompt"], asked["gamma"], asked["max_tokens"], asked["eos_ids"])


def compare_speculation(
    answered: Any, asked: Asked, expected: Expected, engine: Description, measure: Measure
) -> Judgement:
    match asked["kind"]:
        case "verify":
            return compare_fields(dict(expected), to_plain(answered))
        case "law":
            right = expected["tv_distance"]
            if abs(answered - right) <= law.ROUNDING:
                return PASS
            return fail(f"the law of the first token is {answered:.6g} from the target's, expected {right}")
    row = reference_logits(asked["model"], asked["prompt"], expected["tokens"])
    measured = output_noise(asked["model"], asked["prompt"], expected["tokens"], measure)
    judgement = compare_tokens(expected["tokens"], answered.tokens, engine.precision, row, measured)
    if judgement is not PASS:
        return judgement
    told = to_plain(answered)
    names = [name for name in expected if name != "steps" or answered.steps is not None]
    judgement = compare_fields({name: expected[name] for name in names}, {name: told[name] for name in names})
    if judgement is PASS and answered.steps is None:
        return Judgement(Verdict.PASS, "tokens only: the engine does not tell its steps")
    return judgement


def ask_sampling(engine: Engine, asked: Asked) -> int:
    return engine.sample(np.array(asked["logits"]), asked["temperature"], asked["coin"])


def compare_sampling(
    answered: int, _asked: Asked, expected: Expected, _engine: Description, _measure: Measure
) -> Judgement:
    return compare_fields(expected["token"], answered)


def ask_crossover(engine: Engine, asked: Asked) -> list[Any]:
    target, draft = ForwardCost(**asked["target"]), ForwardCost(**asked["draft"])
    sizes = asked["batch_sizes"]
    return [engine.crossover(size, asked["gamma"], asked["alphas"], target, draft) for size in sizes]


def compare_crossover(
    answered: list[Any], _asked: Asked, expected: Expected, _engine: Description, _measure: Measure
) -> Judgement:
    """The cost of plain and speculative decoding at each batch size."""
    return compare_fields(expected["rows"], to_plain(answered))


FAMILIES: Mapping[str, Family] = {
    "batching": Family(ask_serving, compare_serving),
    "cache": Family(ask_cache, compare_cache),
    "crossover": Family(ask_crossover, compare_crossover),
    "forward": Family(ask_forward, compare_forward),
    "generate": Family(ask_generate, compare_generate),
    "sampling": Family(ask_sampling, compare_sampling),
    "speculation": Family(ask_speculation, compare_speculation),
    "sweep": Family(ask_serving, compare_serving),
}
