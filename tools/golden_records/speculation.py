"""Draft-verify steps, their law, and loops of two checkpoints."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from golden_models import SWEEP_PROMPTS

from golden_records.common import LEAST_MARGIN, Record, margins, record
from reference.conformance.experiments import (
    FINAL_COIN,
    VERIFY_COINS,
    VERIFY_DRAFTS,
    VERIFY_P,
    VERIFY_Q,
)
from reference.conformance.law import distance_to_target
from reference.decoding.generate import StopRule
from reference.decoding.speculation import generate_speculatively
from reference.decoding.verification import verify
from reference.errors import RefusedError
from reference.model.checkpoint import load_model

HALF, FLAT = (0.5, 0.5, 0.0, 0.0), (0.25, 0.25, 0.25, 0.25)
# Laws within the rounding that a law may have, and a coin between two numbers just below 1.
BELOW_HALF, JUST_OVER_HALF = (0.5, 0.5 - 2e-10, 0.0, 0.0), (0.5 + 1e-9, 0.5 - 1e-9, 0.0, 0.0)
NEARLY_ONE = 1.0 - 1e-10

EDGES: list[tuple[str, str, Any]] = [
    (
        "residual-without-mass",
        "a residual of no mass that is divided by it",
        ((BELOW_HALF, FLAT), (HALF,), (1,), (NEARLY_ONE,), 0.25),
    ),
    (
        "tiny-surplus",
        "a residual computed in fewer digits than float64",
        ((JUST_OVER_HALF, FLAT), (HALF,), (1,), (1.0 - 1e-9,), 0.75),
    ),
    (
        "draft-beyond-vocabulary",
        "padding of a shorter row of drafts, judged",
        ((HALF, FLAT), (FLAT,), (4,), (0.1,), 0.1),
    ),
]


def speculation_records(models: Path) -> Iterator[Record]:
    yield from verify_records()
    yield from law_records()
    yield from other_pairs(models)
    target, draft = load_model(models / "sweep"), load_model(models / "draft")
    rules = ["SPEC-4", "SPEC-9", "SPEC-10", "SPEC-11", "KV-3"]
    loops = [(f"{session}-gamma-4", session, 4, 8, ()) for session in SWEEP_PROMPTS]
    loops += [(f"s0-gamma-{gamma}", "s0", gamma, 8, ()) for gamma in (1, 2, 3, 5, 6, 7, 8)]
    loops += [("eos-in-accepted-run", "s0", 4, 8, (8,)), ("max-tokens-in-run", "s2", 4, 3, ())]
    loops += [("eos-before-limit-in-run", "s0", 4, 5, (8,)), ("one-token", "s0", 4, 1, ())]
    for label, session, gamma, max_tokens, eos_ids in loops:
        prompt = SWEEP_PROMPTS[session]
        stop = StopRule(max_tokens, eos_ids, target.config.context_length)
        loop = generate_speculatively(target, draft, prompt, stop, gamma)
        asked = {"kind": "loop", "model": "sweep", "draft": "draft", "prompt": prompt, "gamma": gamma}
        asked |= {"max_tokens": max_tokens, "eos_ids": eos_ids}
        catches = "a rejected draft's keys left in a cache, or an output that differs from plain greedy decoding"
        yield record(f"speculation/loop-{label}", rules, catches, asked, {**vars(loop)})


def other_pairs(models: Path) -> Iterator[Record]:
    """A draft whose wrong tokens the target finds likely, and one whose ids mean other tokens."""
    rules = ["SPEC-4", "SPEC-9"]
    peaked = {"model": "zoo-peaked", "draft": "zoo-rope-nested", "prompt": [1, 5, 9], "gamma": 3, "max_tokens": 10}
    narrow = {"model": "sweep", "draft": "zoo-grouped", "prompt": [1, 5, 9], "gamma": 3, "max_tokens": 4}
    for label, asked, catches in (
        ("likely-drafts", peaked, "a draft that is accepted for being likely, not for being the most likely"),
        ("vocabularies-differ", narrow, "ids of a draft with another vocabulary, taken for the target's"),
    ):
        target, draft = load_model(models / asked["model"]), load_model(models / asked["draft"])
        stop = StopRule(asked["max_tokens"], (), target.config.context_length)
        asked = {"kind": "loop", **asked, "eos_ids": ()}
        try:
            assert min(margins(target, asked["prompt"], asked["max_tokens"])) > LEAST_MARGIN
            loop = generate_speculatively(target, draft, asked["prompt"], stop, asked["gamma"])
            expected = {**vars(loop)}
        except RefusedError as error:
            expected = {"refusal": error.reason}
        yield record(f"speculation/loop-{label}", rules, catches, asked, expected)


def verify_records() -> Iterator[Record]:
    p, q, drafts, coins = VERIFY_P, VERIFY_Q, VERIFY_DRAFTS, VERIFY_COINS
    cases: list[tuple[str, str, Any]] = [
        ("recorded-step", "the accept coin reused to draw the replacement", (p, q, drafts, coins, FINAL_COIN)),
        ("reject-first", "later drafts looked at after a rejection", (p, q, drafts, (0.42, 0.98, 0.1, 0.1), 0.0)),
        (
            "all-accepted",
            "the bonus taken from the row of the last draft",
            (p, q, drafts, (0.4, 0.5, 0.3, 0.2), 0.75),
        ),
        ("reject-last", "the last draft accepted unseen", (p, q, drafts, (0.4, 0.5, 0.2, 0.9), 0.99)),
        ("boundary", "u < p/q where the rule is u <= p/q", ((HALF, FLAT), (FLAT,), (0,), (0.999,), 0.25)),
        ("coin-on-boundary", "u < p/q where the rule is u <= p/q", ((FLAT, FLAT), (HALF,), (1,), (0.5,), 0.6)),
        (
            "p-zero",
            "a token the target cannot emit, accepted by the coin 0",
            ((HALF, FLAT), (FLAT,), (2,), (0.0,), 0.1),
        ),
        ("p-equals-q", "a residual divided by zero mass", ((FLAT, FLAT), (FLAT,), (3,), (0.999,), 0.0)),
        ("q-zero", "a draft that its own law cannot give", ((FLAT, FLAT), (HALF,), (2,), (0.1,), 0.1)),
    ]
    for label, catches, (p, q, drafts, accept_coins, final_coin) in [*cases, *EDGES]:
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
