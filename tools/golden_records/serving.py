"""Requests under a policy: the families batching and sweep."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from golden_models import SWEEP_PROMPTS

from golden_records.common import Record, record
from reference.conformance.experiments import (
    BATCHING_REQUESTS,
    PREFILL_BUDGET,
)
from reference.engine import POLICIES
from reference.errors import RefusedError
from reference.model.checkpoint import load_config, load_model
from reference.serving.loop import serve
from reference.serving.policies import Limits
from reference.serving.session import Request

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
