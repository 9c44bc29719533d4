"""One judge a family: ask the engine what the record asks, compare, give a verdict."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reference.conformance import law
from reference.conformance.artifacts import DATA, MODELS, read_json, to_plain, validate
from reference.conformance.compare import (
    PASS,
    Judgement,
    Verdict,
    compare_fields,
    compare_logits,
    compare_tokens,
    fail,
)
from reference.conformance.experiments import reproduce
from reference.engine import Engine
from reference.errors import Refusal, RefusedError, UnsupportedError
from reference.serving.cost_model import ForwardCost
from reference.serving.policies import Limits
from reference.serving.session import Request


@dataclass(frozen=True)
class Record:
    """One golden: a question to an engine and the specification's answer."""

    id: str
    family: str
    input: Mapping[str, Any]
    expected: Mapping[str, Any]


SEED = "seed"
"""Name of the recorded artifact of a family, kept as it was recorded."""


def load_records(family: str) -> list[Record]:
    """The records of a family, each checked against its schema. Raises: NOT_FOUND if there is none."""
    paths = sorted((DATA / family).glob("*.json"))
    if not paths:
        raise RefusedError(Refusal.NOT_FOUND, f"family {family} has no record in {DATA / family}; run tools/regen.py")
    return [load_record(family, path) for path in paths]


def load_record(family: str, path: Path) -> Record:
    """One record. A seed is a whole artifact: its question is the experiment of its family."""
    content = read_json(path)
    if path.stem == SEED:
        validate(content, f"{family}_artifact", str(path))
        return Record(f"{family}/{SEED}", family, {}, content)
    validate(content, family, str(path))
    return Record(content["id"], family, content["input"], content["expected"])


def judge(engine: Engine, record: Record) -> Judgement:
    """The verdict on an engine's answer. An answer is a result, unsupported, refused or an error."""
    try:
        if record.id.endswith(f"/{SEED}"):
            return compare_fields(*reproduce(record.family, engine, record.expected))
        if "model" in record.input:
            engine.load(MODELS / record.input["model"])
        judgement = JUDGES[record.family](engine, record.input, record.expected)
    except UnsupportedError as error:
        return Judgement(Verdict.UNSUPPORTED, f"the engine has no {error.feature}")
    except RefusedError as error:
        if record.expected.get("refusal") == error.reason:
            return PASS
        return fail(f"refused with {error.reason}: {error}")
    except Exception as error:  # an engine's own error is its answer; the run goes on
        return fail(f"the engine raised {type(error).__name__}: {error}")
    if "refusal" in record.expected:
        return fail(f"expected a refusal ({record.expected['refusal']}), got an answer")
    return judgement


def judge_forward(engine: Engine, asked: Mapping[str, Any], expected: Mapping[str, Any]) -> Judgement:
    """Logits at every position."""
    answered = engine.score(asked["prompt"])
    return compare_logits(_logits(expected), answered, engine.describe().precision)


def judge_generate(engine: Engine, asked: Mapping[str, Any], expected: Mapping[str, Any]) -> Judgement:
    """Greedy tokens, then the finish reason."""
    answered = engine.generate(asked["prompt"], asked["max_tokens"], asked["eos_ids"])
    judgement = compare_tokens(expected["tokens"], answered.tokens, expected["margins"], engine.describe().precision)
    if judgement is not PASS or expected["finish_reason"] == answered.finish_reason:
        return judgement
    return fail(f"finish reason {answered.finish_reason!r}, expected {expected['finish_reason']!r}")


def judge_cache(engine: Engine, asked: Mapping[str, Any], expected: Mapping[str, Any]) -> Judgement:
    """A script of session operations; every extend answers logits equal to those of a fresh computation."""
    handles: dict[str, int] = {}
    rows = iter(expected["logits"])
    for number, step in enumerate(asked["steps"]):
        name = step["session"]
        match step["op"]:
            case "open":
                handles[name] = engine.open()
            case "extend":
                answered = engine.extend(handles[name], step["tokens"])
                right = np.array([next(rows) for _ in step["tokens"]])
                judgement = compare_logits(right, answered, engine.describe().precision)
                if judgement is not PASS:
                    return fail(f"step {number} ({step['op']} {name}): {judgement.sentence}")
            case "truncate":
                engine.truncate(handles[name], step["num_tokens"])
            case "fork":
                handles[step["into"]] = engine.fork(handles[name])
            case "close":
                engine.close(handles.pop(name))
    return PASS


def judge_serving(engine: Engine, asked: Mapping[str, Any], expected: Mapping[str, Any]) -> Judgement:
    """The tokens of every request, then the trace row by row."""
    requests = [Request(**{**request, "prompt": tuple(request["prompt"])}) for request in asked["requests"]]
    served = engine.serve(requests, asked["policy"], Limits(**asked["limits"]))
    for request_id, tokens in sorted(expected["tokens"].items()):
        judgement = compare_tokens(tokens, served.tokens.get(request_id, ()), None, engine.describe().precision)
        if judgement is not PASS:
            return fail(f"request {request_id}: {judgement.sentence}")
    answered = {"tokens": served.tokens, "trace": served.trace}
    return compare_fields(dict(expected), to_plain(answered))


def judge_speculation(engine: Engine, asked: Mapping[str, Any], expected: Mapping[str, Any]) -> Judgement:
    """A step with given p, q, drafts and coins; the law of a step; or a whole loop of two models."""
    match asked["kind"]:
        case "verify":
            p, q = np.array(asked["p"]), np.array(asked["q"])
            answered = engine.verify(p, q, asked["drafts"], asked["accept_coins"], asked["final_coin"])
            shown = {"num_accepted": answered.num_accepted, "tokens": list(answered.tokens)}
            return compare_fields({name: expected.get(name) for name in shown}, shown)
        case "law":
            return _judge_law(engine, asked, expected)
    draft_dir = MODELS / asked["draft"]
    loop = engine.speculate(draft_dir, asked["prompt"], asked["gamma"], asked["max_tokens"], asked["eos_ids"])
    judgement = compare_tokens(expected["tokens"], loop.tokens, None, engine.describe().precision)
    if judgement is not PASS:
        return judgement
    return compare_fields(dict(expected), to_plain(loop))


def judge_crossover(engine: Engine, asked: Mapping[str, Any], expected: Mapping[str, Any]) -> Judgement:
    """The cost of plain and speculative decoding at each batch size."""
    target, draft = ForwardCost(**asked["target"]), ForwardCost(**asked["draft"])
    rows = [
        engine.crossover(batch_size, asked["gamma"], asked["alphas"], target, draft)
        for batch_size in asked["batch_sizes"]
    ]
    return compare_fields(expected.get("rows"), to_plain(rows))


def _judge_law(engine: Engine, asked: Mapping[str, Any], expected: Mapping[str, Any]) -> Judgement:
    """The engine's own output law, integrated over its coins, against the target's: their total variation."""
    p, q = np.array(asked["p"]), np.array(asked["q"])
    distance = law.distance_to_target(engine.verify, p, q)
    if abs(distance - expected["tv_distance"]) <= law.ROUNDING:
        return PASS
    return fail(f"the law of the first token is {distance:.6g} from the target's, expected {expected['tv_distance']}")


def _logits(expected: Mapping[str, Any]) -> Any:
    return np.array(expected.get("logits", []), dtype=np.float64)


Judge = Callable[[Engine, Mapping[str, Any], Mapping[str, Any]], Judgement]

JUDGES: Mapping[str, Judge] = {
    "batching": judge_serving,
    "cache": judge_cache,
    "crossover": judge_crossover,
    "forward": judge_forward,
    "generate": judge_generate,
    "speculation": judge_speculation,
    "sweep": judge_serving,
}


def judge_all(engine: Engine, families: Sequence[str]) -> list[tuple[Record, Judgement]]:
    """Every record of the families, in order."""
    return [(record, judge(engine, record)) for family in families for record in load_records(family)]
