from collections.abc import Sequence
from typing import Any

import pytest

from reference.decoding.generate import StopRule, choose_greedily, generate
from reference.serving.loop import serve
from reference.serving.metrics import summarize
from reference.serving.policies import Limits, budgeted, continuous, static
from reference.serving.session import Request, Tick, WaitingQueue
from tests.models import random_model
from tests.serving.workloads import BATCHING, trace_of

SMALL = tuple(Request(request.id, 0, (1, 2), request.max_tokens) for request in BATCHING)


def test_a_small_trace_by_hand() -> None:
    """x: prompt 2, 2 tokens; y: prompt 1, 1 token, arriving at tick 5; ticks 2 to 4 have nothing to do."""
    requests = (Request("x", 0, (1, 2), 2), Request("y", 5, (3,), 1))
    common = {"cache_misses": (), "evicted": (), "refused": {}, "recomputed_tokens": 0, "waiting": 0}
    expected = (
        Tick(tick=0, prefilled=("x",), decoded=(), finished=(), prefill_tokens=2, kv_tokens=2, kv_tokens_high=2,
             running=1, **common),
        Tick(tick=1, prefilled=(), decoded=("x",), finished=("x",), prefill_tokens=0, kv_tokens=0, kv_tokens_high=3,
             running=0, **common),
        Tick(tick=5, prefilled=("y",), decoded=(), finished=("y",), prefill_tokens=1, kv_tokens=0, kv_tokens_high=1,
             running=0, **common),
    )  # fmt: skip

    assert expected == trace_of(requests, continuous, Limits(1))


def test_a_trace_with_eviction_by_hand() -> None:
    """Two sessions with prompts of 2 and outputs of 3 tokens, in 4 entries.

    Tick 0 prefills both (2 + 2). Tick 1: x's decode needs 3, so y (2) goes; y's decode computes its prefix of 2 again
    and needs 3, so x goes. Tick 2: x misses (3 known tokens, 4 entries) and y goes; x has all its tokens now, but
    holds its KV to the end of the tick, so y's miss evicts x once more.
    """
    requests = (Request("x", 0, (1, 2), 3), Request("y", 0, (3, 4), 3))
    trace = trace_of(requests, budgeted, Limits(2, kv_budget_tokens=4, kv_pressure="evict"))

    assert [(), ("y", "x"), ("y", "x")] == [row.evicted for row in trace]
    assert [(), ("y",), ("x", "y")] == [row.cache_misses for row in trace]
    # A hit computes one token. The miss of tick 1 computes 2 known tokens beside it; those of tick 2, 3 each.
    assert [0, 2, 6] == [row.recomputed_tokens for row in trace]
    assert [4, 3, 0] == [row.kv_tokens for row in trace]
    assert max(row.kv_tokens_high for row in trace) <= 4


@pytest.mark.parametrize("policy", [static, continuous, budgeted])
def test_every_policy_gives_the_tokens_of_plain_decoding(policy: Any) -> None:
    model = random_model()
    requests = [Request(f"r{n}", n % 3, tuple(range(1, 3 + n)), 2 + n % 4) for n in range(5)]
    alone = {
        request.id: generate(
            model, request.prompt, StopRule(request.max_tokens, (), model.config.context_length), choose_greedily
        ).tokens
        for request in requests
    }

    assert alone == serve(model, requests, policy, Limits(2)).tokens


def test_serving_stops_after_max_ticks() -> None:
    assert 2 == len(serve(random_model(), SMALL, static, Limits(2), max_ticks=2).trace)


class Counted(Sequence[Request]):
    """Requests that count how often one is read."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests, self.reads = requests, 0

    def __len__(self) -> int:
        return len(self.requests)

    def __getitem__(self, index: Any) -> Any:
        self.reads += 1
        return self.requests[index]


def test_a_tick_reads_what_it_schedules_and_not_the_queue() -> None:
    """A full machine looks at one waiting request of ten thousand."""
    counted = Counted([Request(str(n), 0, (1, 2), 3) for n in range(10_000)])
    queue = WaitingQueue(counted, 0, len(counted))

    plan = budgeted(queue, (), Limits(8, prefill_token_budget=16))

    assert 8 == plan.num_taken
    assert counted.reads <= 10


def test_a_million_requests_are_scheduled() -> None:
    requests = [Request(str(n), 0, (1, 2), 1) for n in range(1_000_000)]

    assert 1_000_000 == summarize(trace_of(requests, budgeted, Limits(4096))).completed
