"""What each family asks, and the specification's answers: the content of golden/data."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from golden_models import BATCHING_PROMPTS, SWEEP_PROMPTS, integers
from golden_zoo import ZOO

from reference.conformance.experiments import (
    BATCHING_REQUESTS,
    CROSSOVER_ALPHAS,
    CROSSOVER_BATCHES,
    CROSSOVER_GAMMA,
    DRAFT_COST,
    FINAL_COIN,
    PREFILL_BUDGET,
    TARGET_COST,
    VERIFY_COINS,
    VERIFY_DRAFTS,
    VERIFY_P,
    VERIFY_Q,
)
from reference.conformance.law import distance_to_target
from reference.decoding.generate import StopRule, choose_greedily, generate
from reference.decoding.sampling import distribution, draw, greedy
from reference.decoding.speculation import generate_speculatively
from reference.decoding.verification import verify
from reference.engine import POLICIES
from reference.errors import Array, RefusedError
from reference.model.cache import empty_cache
from reference.model.checkpoint import load_config, load_model
from reference.model.transformer import forward
from reference.model.weights import Model
from reference.serving.cost_model import ForwardCost, crossover
from reference.serving.loop import serve
from reference.serving.policies import Limits
from reference.serving.session import Request

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
    return {path.name: load_model(path) for path in sorted(directory.iterdir())}


def logits_of(model: Model, tokens: Sequence[int]) -> Array:
    """Logits [T, V] of a fresh computation of the whole prefix."""
    return forward(model, tokens, empty_cache(model.config))[0]


def forward_records(models: Path) -> Iterator[Record]:
    lengths = {
        "one-token": (1, "a model that skips RoPE's identity at position 0, or a wrong norm, MLP or head"),
        "short": (5, "a wrong score scale, rotation, mask or head mapping"),
        "long": (33, "positions, frequencies or sums that drift with length"),
    }
    for name, model in models_in(models).items():
        rules = FORWARD_RULES + ROPE_RULES[model.config.rope.rope_type]
        rules = [*rules, "HEAD-1"] if model.config.tie_word_embeddings else rules
        for label, (num_tokens, catches) in lengths.items():
            prompt = tokens_of(f"forward {name} {label}", num_tokens, model.config.vocab_size)
            asked = {"model": name, "prompt": prompt}
            yield record(f"forward/{name}-{label}", rules, catches, asked, {"logits": logits_of(model, prompt)})
        if name == "zoo-far":
            yield distant(name, model, rules)
        if name in ZOO:
            continue
        prompt = [7] * 9
        catches = "attention weights that do not sum to 1: values are equal, so all positions have the same logits"
        asked = {"model": name, "prompt": prompt}
        yield record(f"forward/{name}-repeated", rules, catches, asked, {"logits": logits_of(model, prompt)})


def distant(name: str, model: Model, rules: Sequence[str]) -> Record:
    """A long prompt, compared at some of its positions only."""
    prompt = tokens_of(f"forward {name} distant", 300, model.config.vocab_size)
    positions = [0, 1, *range(15, 300, 32), 254, 255, 256, 299]
    expected = {"positions": sorted(positions), "logits": logits_of(model, prompt)[sorted(positions)]}
    catches = "angles in low precision, or a table of cosines that is too short"
    return record(f"forward/{name}-distant", rules, catches, {"model": name, "prompt": prompt}, expected)


def generate_records(models: Path) -> Iterator[Record]:
    loaded = models_in(models)
    rules = ["GEN-1", "GEN-2", "GEN-3", "DEC-1"]
    for session, prompt in SWEEP_PROMPTS.items():
        catches = "a decode step that is not the prefill of the longer prefix"
        yield generation(f"sweep-{session}", loaded, "sweep", prompt, 8, (), rules, catches)
    catches = "a stop at the first repeated token, or a prompt counted as output"
    yield generation("batching-b", loaded, "batching", BATCHING_PROMPTS["b"], 5, (), rules, catches)
    for suffix, name, prompt, recorded in (
        ("", "batching", BATCHING_PROMPTS["b"], (33, 89, 79, 4, 67)),
        ("-sweep", "sweep", SWEEP_PROMPTS["s4"], (23, 11, 44, 29)),
        ("-grouped", "zoo-grouped", leading_prompt(loaded["zoo-grouped"], "edge 16", 16, 4), (26, 29, 23, 4)),
    ):
        for label, eos_ids, catches in (
            ("eos-ends", (recorded[2],), "an eos that is dropped from the output, or does not end it"),
            (
                "eos-is-last",
                (recorded[-1],),
                "'length' reported for a token that is both eos and the last one allowed",
            ),
            ("eos-second-of-two", (1, recorded[-2]), "a list of eos ids of which only the first is looked at"),
            ("eos-in-prompt", (prompt[-1],), "an eos in the prompt that ends the output"),
        ):
            yield generation(f"{label}{suffix}", loaded, name, prompt, len(recorded), eos_ids, rules, catches)
    for name in ("sweep", "batching"):
        limit = loaded[name].config.max_position_embeddings
        prompt = leading_prompt(loaded[name], f"context {name}", limit - 4, 4)
        catches = "a context length off by one: prompt and output together fill it exactly"
        yield generation(f"{name}-fills-context", loaded, name, prompt, 9, (), [*rules, "FWD-2"], catches)
    for num_tokens in (1, 15, 16, 17, 31, 32, 33):
        prompt = leading_prompt(loaded["zoo-grouped"], f"edge {num_tokens}", num_tokens, 4)
        catches = "a block of the cache that is filled exactly, or one token more or less"
        yield generation(f"zoo-grouped-edge-{num_tokens}", loaded, "zoo-grouped", prompt, 4, (), rules, catches)
    prompt = leading_prompt(loaded["zoo-far"], "distant", 300, 6)
    catches = "decoding at positions of several hundred"
    yield generation("zoo-far-distant", loaded, "zoo-far", prompt, 6, (), rules, catches)
    for name, model in loaded.items():
        prompt = leading_prompt(model, f"generate {name}", 6, 12)
        catches = "cached keys rotated by the wrong position, or a cache entry lost"
        yield generation(f"{name}-twelve", loaded, name, prompt, 12, (), rules, catches)


def generation(
    label: str,
    models: Mapping[str, Model],
    name: str,
    prompt: Sequence[int],
    max_tokens: int,
    eos_ids: Sequence[int],
    rules: Sequence[str],
    catches: str,
) -> Record:
    model = models[name]
    stop = StopRule(max_tokens, tuple(eos_ids), model.config.context_length)
    output = generate(model, prompt, stop, choose_greedily)
    leads = list(margins(model, prompt, len(output.tokens)))
    assert min(leads) >= LEAST_MARGIN, f"{label}: margin {min(leads)}"
    asked = {"model": name, "prompt": list(prompt), "max_tokens": max_tokens, "eos_ids": list(eos_ids)}
    expected = {"tokens": output.tokens, "finish_reason": output.finish_reason, "margins": leads}
    return record(f"generate/{label}", rules, catches, asked, expected)


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


CACHE_ZOO = ("zoo-grouped", "zoo-one-kv-head")


def cache_records(models: Path) -> Iterator[Record]:
    rules = ["KV-1", "KV-2", "FWD-1", "ROPE-2"]
    for name, model in models_in(models).items():
        if name in ZOO and name not in CACHE_ZOO:
            continue
        is_path_dependent = model.config.rope.rope_type in ("dynamic", "longrope")
        num_tokens = 4 if is_path_dependent else 5
        prompt = tokens_of(f"cache {name}", 12, model.config.vocab_size)
        splits = [
            [("open", f"split{number}"), *(("extend", f"split{number}", chunk) for chunk in chunks)]
            for number, chunks in enumerate(chunkings(prompt[:num_tokens]))
        ]
        catches = "a chunk whose mask or positions start at 0, or that does not see the chunks before it"
        yield script(f"{name}-every-split", model, name, [step for split in splits for step in split], rules, catches)
        if is_path_dependent:
            continue
        truncated = [("open", "a"), ("extend", "a", prompt[:7]), ("truncate", "a", 3), ("extend", "a", prompt[8:11])]
        truncated += [("truncate", "a", 0), ("extend", "a", prompt[2:6]), ("truncate", "a", 4), ("extend", "a", [1])]
        catches = "rolled-back entries that are still seen, or positions that do not roll back"
        yield script(f"{name}-truncate", model, name, truncated, [*rules, "KV-3"], catches)
        forked = [("open", "a"), ("extend", "a", prompt[:4]), ("fork", "a", "b"), ("extend", "a", prompt[4:6])]
        forked += [("extend", "b", prompt[6:9]), ("extend", "a", prompt[9:10]), ("fork", "b", "c")]
        forked += [("truncate", "b", 2), ("extend", "c", prompt[10:12]), ("extend", "b", prompt[5:7]), ("close", "a")]
        catches = "sessions that share storage after a fork"
        yield script(f"{name}-fork", model, name, forked, [*rules, "KV-3", "KV-4"], catches)
        mixed = [("open", "a"), ("open", "b"), ("extend", "a", prompt[:5]), ("extend", "b", prompt[5:7])]
        mixed += [("extend", "a", prompt[7:8]), ("extend", "b", prompt[8:9]), ("close", "a"), ("open", "c")]
        mixed += [("extend", "c", prompt[9:11]), ("extend", "b", prompt[11:12])]
        catches = "positions or entries of one session that leak into another, or into a reused slot"
        yield script(f"{name}-interleaved", model, name, mixed, rules, catches)
        sized = [("open", "a"), ("kv_bytes", "a"), ("extend", "a", prompt[:5]), ("kv_bytes", "a"), ("fork", "a", "b")]
        sized += [("extend", "b", prompt[5:7]), ("kv_bytes", "b"), ("truncate", "a", 2), ("kv_bytes", "a")]
        catches = "KV heads counted as query heads, keys without values, or entries that outlive a rollback"
        yield script(f"{name}-kv-bytes", model, name, sized, [*rules, "KV-3", "KV-4", "KV-5"], catches)


def chunkings(tokens: Sequence[int]) -> list[list[list[int]]]:
    """Every way to cut tokens into consecutive chunks."""
    inner = range(1, len(tokens))
    cuts = [(0, *cut, len(tokens)) for size in range(len(tokens)) for cut in combinations(inner, size)]
    return [[list(tokens[start:end]) for start, end in pairwise(cut)] for cut in cuts]


def script(
    label: str, model: Model, name: str, steps: Sequence[tuple[Any, ...]], rules: Sequence[str], catches: str
) -> Record:
    """A script of session operations; the expected logits are those of fresh computations, without any cache."""
    sessions: dict[str, list[int]] = {}
    written: list[dict[str, Any]] = []
    rows: list[Array] = []
    sizes: list[int] = []
    for op, session, *operands in steps:
        step: dict[str, Any] = {"op": op, "session": session}
        if op == "open":
            sessions[session] = []
        elif op == "extend":
            (step["tokens"],) = operands
            sessions[session] = sessions[session] + operands[0]
            rows.extend(logits_of(model, sessions[session])[-len(operands[0]) :])
        elif op == "truncate":
            (step["num_tokens"],) = operands
            sessions[session] = sessions[session][: operands[0]]
        elif op == "fork":
            (step["into"],) = operands
            sessions[operands[0]] = sessions[session]
        elif op == "kv_bytes":
            sizes.append(len(sessions[session]) * model.config.kv_bytes_per_token(1))
        written.append(step)
    expected = {"logits": rows, "kv_numbers": sizes} if sizes else {"logits": rows}
    return record(f"cache/{label}", rules, catches, {"model": name, "steps": written}, expected)


NO_LIMITS: Mapping[str, Any] = {
    "prefill_token_budget": None,
    "scratch_units": None,
    "kv_budget_bytes": None,
    "kv_bytes_per_token": 1,
    "kv_pressure": "queue",
}


def serving(
    id: str,
    models: Path,
    policy: str,
    requests: Sequence[Request],
    limits: Mapping[str, Any],
    rules: Sequence[str],
    catches: str,
) -> Record:
    """A served workload: tokens and trace, or the refusal of its limits."""
    name = id.partition("/")[0]
    asked = {"model": name, "policy": policy, "requests": requests, "limits": {**NO_LIMITS, **limits}}
    try:
        served = serve(load_model(models / name), requests, POLICIES[policy], Limits(**limits))
        expected: dict[str, Any] = {"tokens": served.tokens, "trace": served.trace}
    except RefusedError as error:
        expected = {"refusal": error.reason}
    common = ["SERVE-1", "SERVE-2", "SERVE-3", "METRIC-1", "METRIC-3"]
    return record(id, [*common, *rules], catches, asked, expected)


def batching_records(models: Path) -> Iterator[Record]:
    limits = {"capacity": 2}
    catches = "admission into a free slot before the whole batch has finished"
    yield serving("batching/static", models, "static", BATCHING_REQUESTS, limits, ["SCHED-1"], catches)
    catches = "a slot that stays empty after its session has finished"
    yield serving("batching/continuous", models, "continuous", BATCHING_REQUESTS, limits, ["SCHED-2"], catches)
    late = tuple(
        replace(request, arrival=arrival) for request, arrival in zip(BATCHING_REQUESTS, (3, 9, 4), strict=True)
    )
    for policy, rule in (("static", "SCHED-1"), ("continuous", "SCHED-2")):
        catches = "admission before arrival, or requests served in the order given instead of by arrival"
        yield serving(f"batching/{policy}-late", models, policy, late, limits, [rule], catches)
        catches = "more sessions at once than slots"
        yield serving(
            f"batching/{policy}-one-slot", models, policy, BATCHING_REQUESTS, {"capacity": 1}, [rule], catches
        )
    catches = "no slot at all, and a run that never ends instead of a refusal"
    yield serving("batching/no-slot", models, "static", BATCHING_REQUESTS, {"capacity": 0}, ["SCHED-1"], catches)
    catches = "a budget that a policy without budgets takes in silence"
    limits = {"capacity": 2, "prefill_token_budget": 4}
    yield serving("batching/budget", models, "continuous", BATCHING_REQUESTS, limits, ["SCHED-2"], catches)


def sweep_records(models: Path) -> Iterator[Record]:
    requests = tuple(Request(name, 0, prompt, 8) for name, prompt in SWEEP_PROMPTS.items())
    rules = ["SCHED-3", "METRIC-2", "METRIC-4", "KV-5"]
    for concurrency in (1, 2, 4, 8):
        catches = "a session that decodes in its prefill's tick, or a prefill beyond the tick's token budget"
        limits: dict[str, Any] = {"capacity": concurrency, "prefill_token_budget": PREFILL_BUDGET}
        yield serving(f"sweep/concurrency-{concurrency}", models, "budgeted", requests, limits, rules, catches)
    catches = "scratch units not counted, or sessions beyond them refused instead of queued"
    limits = {"capacity": 8, "prefill_token_budget": 16, "scratch_units": 4}
    yield serving("sweep/scratch", models, "budgeted", requests, limits, rules, catches)
    per_token = load_config(models / "sweep").kv_bytes_per_token()
    for budget in (24, 40):
        limits = {"capacity": 4, "prefill_token_budget": 8, "kv_bytes_per_token": per_token}
        # Two bytes more than so many entries need: a part of an entry is none.
        limits |= {"kv_budget_bytes": budget * per_token + 2}
        catches = "admission that does not reserve the whole session's KV"
        yield serving(f"sweep/queue-{budget}", models, "budgeted", requests, limits, rules, catches)
        catches = "another victim than the least recently used, a miss not counted, or tokens changed by eviction"
        limits = {**limits, "kv_pressure": "evict"}
        yield serving(f"sweep/evict-{budget}", models, "budgeted", requests, limits, [*rules, "SCHED-5"], catches)
    uneven = [
        Request("long", 0, (1, 2, 3, 4, 5, 6, 7), 2),
        Request("fits", 0, (5, 6, 7), 3),
        Request("outgrows", 1, (9, 8), 12),
        Request("late", 4, (11, 12, 13, 14), 4),
    ]
    catches = "a request that can never fit blocks the queue instead of being refused with its reason"
    limits = {"capacity": 2, "prefill_token_budget": 5, "kv_bytes_per_token": per_token}
    limits |= {"kv_budget_bytes": 12 * per_token}
    yield serving("sweep/refused", models, "budgeted", uneven, limits, [*rules, "SCHED-4"], catches)


def speculation_records(models: Path) -> Iterator[Record]:
    yield from verify_records()
    yield from law_records()
    target, draft = load_model(models / "sweep"), load_model(models / "draft")
    rules = ["SPEC-4", "SPEC-9", "SPEC-10", "SPEC-11", "KV-3"]
    loops = [(f"{session}-gamma-4", session, 4, 8, ()) for session in SWEEP_PROMPTS]
    loops += [(f"s0-gamma-{gamma}", "s0", gamma, 8, ()) for gamma in (1, 2, 3, 5, 6, 7, 8)]
    loops += [("eos-in-accepted-run", "s0", 4, 8, (8,)), ("max-tokens-in-run", "s2", 4, 3, ())]
    for label, session, gamma, max_tokens, eos_ids in loops:
        prompt = SWEEP_PROMPTS[session]
        stop = StopRule(max_tokens, eos_ids, target.config.context_length)
        loop = generate_speculatively(target, draft, prompt, stop, gamma)
        asked = {"kind": "loop", "model": "sweep", "draft": "draft", "prompt": prompt, "gamma": gamma}
        asked |= {"max_tokens": max_tokens, "eos_ids": eos_ids}
        catches = "a rejected draft's keys left in a cache, or an output that differs from plain greedy decoding"
        yield record(f"speculation/loop-{label}", rules, catches, asked, {**vars(loop)})


def verify_records() -> Iterator[Record]:
    p, q, drafts, coins = VERIFY_P, VERIFY_Q, VERIFY_DRAFTS, VERIFY_COINS
    half, flat = (0.5, 0.5, 0.0, 0.0), (0.25, 0.25, 0.25, 0.25)
    cases: list[tuple[str, str, Any]] = [
        ("recorded-step", "the accept coin reused to draw the replacement", (p, q, drafts, coins, FINAL_COIN)),
        ("reject-first", "later drafts looked at after a rejection", (p, q, drafts, (0.42, 0.98, 0.1, 0.1), 0.0)),
        (
            "all-accepted",
            "the bonus taken from the row of the last draft",
            (p, q, drafts, (0.4, 0.5, 0.3, 0.2), 0.75),
        ),
        ("reject-last", "the last draft accepted unseen", (p, q, drafts, (0.4, 0.5, 0.2, 0.9), 0.99)),
        ("boundary", "u < p/q where the rule is u <= p/q", ((half, flat), (flat,), (0,), (0.999,), 0.25)),
        ("coin-on-boundary", "u < p/q where the rule is u <= p/q", ((flat, flat), (half,), (1,), (0.5,), 0.6)),
        (
            "p-zero",
            "a token the target cannot emit, accepted by the coin 0",
            ((half, flat), (flat,), (2,), (0.0,), 0.1),
        ),
        ("p-equals-q", "a residual divided by zero mass", ((flat, flat), (flat,), (3,), (0.999,), 0.0)),
        ("q-zero", "a draft that its own law cannot give", ((flat, flat), (half,), (2,), (0.1,), 0.1)),
    ]
    for label, catches, (p, q, drafts, accept_coins, final_coin) in cases:
        asked = {"kind": "verify", "p": p, "q": q, "drafts": drafts, "accept_coins": accept_coins}
        asked |= {"final_coin": final_coin}
        try:
            step = verify(np.array(p), np.array(q), drafts, accept_coins, final_coin)
            expected: dict[str, Any] = {"num_accepted": step.num_accepted, "tokens": step.tokens}
        except RefusedError as error:
            expected = {"refusal": error.reason}
        yield record(f"speculation/verify-{label}", ["SPEC-1", "SPEC-2", "SPEC-3", "DEC-3"], catches, asked, expected)


def law_records() -> Iterator[Record]:
    cases = {
        "recorded": (VERIFY_P[2], VERIFY_Q[2]),
        "disjoint": ((0.5, 0.5, 0.0, 0.0), (0.0, 0.0, 0.25, 0.75)),
        "equal": ((0.1, 0.2, 0.3, 0.4), (0.1, 0.2, 0.3, 0.4)),
        "one-hot-draft": ((0.1, 0.2, 0.3, 0.4), (0.0, 1.0, 0.0, 0.0)),
    }
    rules = ["SPEC-2", "SPEC-3", "SPEC-5", "SPEC-6", "SPEC-7"]
    for label, (p, q) in cases.items():
        assert distance_to_target(verify, np.array(p), np.array(q)) < 1e-12
        asked = {"kind": "law", "p": p, "q": q}
        catches = "an output whose law is not the target's: a lossy residual, or coins used twice"
        yield record(f"speculation/law-{label}", rules, catches, asked, {"tv_distance": 0.0})


def sampling_records(_models: Path) -> Iterator[Record]:
    """Draws whose token is far from a boundary of the distribution, unless that is the point."""
    ramp, twins = (0.0, 1.0, 2.0, 3.0), (2.0, -1.0, 2.0, -50.0)
    cases: list[tuple[str, str, Any, float, float]] = [
        ("plain", "a draw from logits instead of probabilities", ramp, 1.0, 0.3),
        ("first", "a coin of 0 that gives anything but the first likely token", ramp, 1.0, 0.0),
        ("cold", "a temperature that multiplies", ramp, 0.25, 0.05),
        ("hot", "a temperature that is ignored", ramp, 8.0, 0.05),
        ("twins", "a draw that breaks ties instead of drawing", twins, 1.0, 0.75),
        ("last", "a coin just below 1 that runs off the end", ramp, 1.0, 0.9999999),
        ("no-temperature", "a division by the temperature 0", ramp, 0.0, 0.5),
        ("negative-temperature", "a temperature below 0 that turns the order round", ramp, -1.0, 0.5),
        ("coin-of-one", "a coin outside [0, 1)", ramp, 1.0, 1.0),
    ]
    for label, catches, logits, temperature, coin in cases:
        asked = {"logits": logits, "temperature": temperature, "coin": coin}
        try:
            expected: dict[str, Any] = {"token": draw(distribution(np.array(logits), temperature), coin)}
        except RefusedError as error:
            expected = {"refusal": error.reason}
        yield record(f"sampling/{label}", ["DEC-2", "DEC-3"], catches, asked, expected)


def metamorphic_records(models: Path) -> Iterator[Record]:
    loaded = models_in(models)
    limits = {"max_tokens": 8, "eos_ids": []}
    tokens, scores = {"agreement": "tokens"}, {"agreement": "scores"}
    for name in ("sweep", "batching"):
        lengths = (3, 9, 1, 17)
        prompts = [leading_prompt(loaded[name], f"batched {name} {length}", length, 8) for length in lengths]
        asked: dict[str, Any] = {"kind": "batched", "model": name, "prompts": prompts, **limits}
        catches = "padding that is seen, positions counted from the padding, or a row that leaks into another"
        yield record(f"metamorphic/batched-{name}", ["GEN-1", "FWD-1"], catches, asked, tokens)
        prompt = prompts[-1]
        for label, chunks in (("single", [1] * 17), ("uneven", [5, 1, 8, 3])):
            asked = {"kind": "chunked", "model": name, "prompt": prompt, "chunks": chunks}
            catches = "a chunk that does not see the ones before it, or a decode kernel that differs from prefill"
            yield record(f"metamorphic/chunked-{label}-{name}", ["FWD-1", "KV-2"], catches, asked, scores)
        for kind, catches, agreement in (
            ("warm", "a cached prefix of another prompt, or one token too many of it", tokens),
            (
                "decoded",
                "logprobs after a temperature or of another position, or a decode that is no prefill",
                scores,
            ),
            ("repeated", "state that one request leaves to the next", tokens),
        ):
            asked = {"kind": kind, "model": name, "prompt": prompt, **limits}
            yield record(f"metamorphic/{kind}-{name}", ["GEN-1", "GEN-2"], catches, asked, agreement)
    for session, gamma in (("s5", 4), ("s6", 4)):
        asked = {"kind": "speculation", "model": "sweep", "draft": "draft", "prompt": SWEEP_PROMPTS[session]}
        catches = "drafts that change the output: a rollback forgotten, or a rejected draft emitted"
        yield record(
            f"metamorphic/speculation-{session}", ["SPEC-9"], catches, {**asked, "gamma": gamma, **limits}, tokens
        )
    questions = [{"model": name, "prompt": SWEEP_PROMPTS["s1"]} for name in ("sweep", "draft", "rope-linear")]
    asked = {"kind": "order", "questions": questions, "order": [2, 0, 1], "max_tokens": 8}
    catches = "answers that depend on what was asked before: weights, caches or settings of an earlier checkpoint"
    yield record("metamorphic/order", ["GEN-1"], catches, asked, tokens)


def crossover_records(_models: Path) -> Iterator[Record]:
    flat = ForwardCost(10.0, 0.0, 0)
    cases = {
        "recorded": (CROSSOVER_BATCHES, CROSSOVER_GAMMA, CROSSOVER_ALPHAS, TARGET_COST, DRAFT_COST),
        "edges": ((31, 32, 33), 1, (0.0, 0.5, 1.0), TARGET_COST, DRAFT_COST),
        "free-draft": ((1, 7), 3, (0.5,), flat, ForwardCost(0.0, 0.0, 1)),
    }
    for label, (batch_sizes, gamma, alphas, target, draft) in cases.items():
        rows = [crossover(batch_size, gamma, alphas, target, draft) for batch_size in batch_sizes]
        asked = {"batch_sizes": batch_sizes, "gamma": gamma, "alphas": alphas, "target": target, "draft": draft}
        catches = "expected tokens without the bonus, or a verification priced as one token a session"
        rules = ["COST-1", "COST-2", "SPEC-8"]
        yield record(f"crossover/{label}", rules, catches, asked, {"rows": rows})


FAMILIES: Mapping[str, Callable[[Path], Iterator[Record]]] = {
    "batching": batching_records,
    "sweep": sweep_records,
    "speculation": speculation_records,
    "crossover": crossover_records,
    "forward": forward_records,
    "generate": generate_records,
    "cache": cache_records,
    "sampling": sampling_records,
    "metamorphic": metamorphic_records,
}
