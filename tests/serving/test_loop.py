from collections.abc import Sequence
from typing import Any

import pytest

from reference.decoding.generate import StopRule, choose_greedily, generate
from reference.errors import Refusal
from reference.model.weights import Model
from reference.serving import loop
from reference.serving.loop import Outputs, Served, compute, serve
from reference.serving.metrics import lifetimes, summarize
from reference.serving.policies import Limits, Policy, budgeted, continuous, static
from reference.serving.session import Plan, Request, Tick, WaitingQueue
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
    common = {"refused": {}, "waiting": 0}
    expected = (
        Tick(tick=0, prefilled=("x", "y"), decoded=(), cache_misses=(), evicted=(), finished=(), prefill_tokens=4,
             recomputed_tokens=0, kv_tokens=4, kv_tokens_high=4, running=2, **common),
        # A hit computes one token. The miss computes 2 known tokens beside it, those of tick 2 compute 3 each.
        Tick(tick=1, prefilled=(), decoded=("x", "y"), cache_misses=("y",), evicted=("y", "x"), finished=(),
             prefill_tokens=0, recomputed_tokens=2, kv_tokens=3, kv_tokens_high=4, running=2, **common),
        Tick(tick=2, prefilled=(), decoded=("x", "y"), cache_misses=("x", "y"), evicted=("y", "x"),
             finished=("x", "y"), prefill_tokens=0, recomputed_tokens=6, kv_tokens=0, kv_tokens_high=4, running=0,
             **common),
    )  # fmt: skip

    assert expected == trace_of(requests, budgeted, Limits(2, kv_budget_bytes=4, kv_pressure="evict"))


def test_the_loop_remembers_who_was_used_last() -> None:
    """a was admitted before b, but in tick 1 it decodes (3 entries) after b's prefill (2): for c's prompt b must go.

    Budget 6: 3 + 2 + 2 exceed it. a's decode then fills it (2 + 4), and b's miss (3) sends out c, then a.
    """
    requests = (Request("a", 0, (1, 2), 4), Request("b", 1, (1, 2), 4), Request("c", 2, (1, 2), 1))
    trace = trace_of(requests, budgeted, Limits(3, kv_budget_bytes=6, kv_pressure="evict"))

    assert [(), (), ("b", "c", "a")] == [row.evicted for row in trace[:3]]
    assert [(), (), ("b",)] == [row.cache_misses for row in trace[:3]]


def test_idle_ticks_cost_nothing() -> None:
    """Counting them one by one would take hours."""
    trace = trace_of((Request("x", 10**12, (1,), 1),), continuous, Limits(1))

    assert [10**12] == [row.tick for row in trace]


def test_a_tick_may_do_nothing_but_refuse() -> None:
    """A prompt of 3 never fits a budget of 2; the session's one tick is the next."""
    requests = (Request("long", 2, (1, 2, 3), 1), Request("x", 3, (1,), 1))
    common = {"decoded": (), "cache_misses": (), "evicted": (), "recomputed_tokens": 0, "kv_tokens": 0, "running": 0}
    expected = (
        Tick(tick=2, prefilled=(), finished=(), refused={"long": Refusal.PROMPT_EXCEEDS_TOKEN_BUDGET},
             prefill_tokens=0, kv_tokens_high=0, waiting=0, **common),
        Tick(tick=3, prefilled=("x",), finished=("x",), refused={}, prefill_tokens=1, kv_tokens_high=1, waiting=0,
             **common),
    )  # fmt: skip

    assert expected == trace_of(requests, budgeted, Limits(1, prefill_token_budget=2))


def test_a_slot_freed_in_a_tick_is_filled_in_the_next() -> None:
    """x is active in [0, 2), so y, waiting since tick 1, is admitted at tick 2."""
    trace = trace_of((Request("x", 0, (1,), 2), Request("y", 1, (1,), 1)), budgeted, Limits(1))

    assert [(0, ("x",), 0), (1, (), 1), (2, ("y",), 0)] == [(row.tick, row.prefilled, row.waiting) for row in trace]
    assert {"x": (0, 2), "y": (2, 3)} == lifetimes(trace)


def test_no_requests_are_no_ticks() -> None:
    assert Served((), {}) == serve(random_model(), (), budgeted, Limits(1))


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


def test_tokens_survive_the_evictions_of_the_trace_above() -> None:
    model = random_model()
    requests = (Request("x", 0, (1, 2), 3), Request("y", 0, (3, 4), 3))
    squeezed = serve(model, requests, budgeted, Limits(2, kv_budget_bytes=4, kv_pressure="evict"))

    assert 4 == summarize(squeezed.trace).evictions
    assert serve(model, requests, budgeted, Limits(2)).tokens == squeezed.tokens


def test_what_is_refused_has_no_tokens() -> None:
    served = serve(random_model(), SMALL, budgeted, Limits(3, kv_budget_bytes=3))

    assert {"b": Refusal.KV_EXCEEDS_BUDGET} == served.trace[0].refused
    assert ["a", "c"] == list(served.tokens)


def test_a_cache_is_gone_with_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """a (2 tokens) and b (5) start together, c (1) follows a: after each tick only live sessions hold KV."""
    held: list[list[str]] = []

    def observed(model: Model, plan: Plan, outputs: Outputs) -> Outputs:
        held.append(sorted(outputs.caches))
        return compute(model, plan, outputs)

    monkeypatch.setattr(loop, "compute", observed)
    serve(random_model(), SMALL, continuous, Limits(2))

    assert [[], ["a", "b"], ["b"], ["b"], ["b"]] == held


def test_the_counted_entries_are_those_of_the_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trace counts and the model computes: after each tick both hold the same KV, finished sessions aside."""
    held: list[int] = []

    def observed(model: Model, plan: Plan, outputs: Outputs) -> Outputs:
        held.append(sum(len(cache) for cache in outputs.caches.values()))
        return compute(model, plan, outputs)

    monkeypatch.setattr(loop, "compute", observed)
    requests = (Request("x", 0, (1, 2), 3), Request("y", 0, (3, 4), 3), Request("z", 1, (5,), 2))
    trace = serve(random_model(), requests, budgeted, Limits(3, kv_budget_bytes=4, kv_pressure="evict")).trace

    assert summarize(trace).cache_misses > 0
    assert [row.kv_tokens for row in trace[:-1]] == held[1:]


@pytest.mark.parametrize(
    ("max_ticks", "expected"), [(None, [0, 1, 5]), (0, []), (1, [0]), (5, [0, 1]), (6, [0, 1, 5])]
)
def test_serving_stops_before_tick_max_ticks(max_ticks: int | None, expected: list[int]) -> None:
    """Work in ticks 0, 1 and 5; the idle ticks between count."""
    requests = (Request("x", 0, (1, 2), 2), Request("y", 5, (3,), 1))
    served = serve(random_model(), requests, continuous, Limits(1), max_ticks)

    assert expected == [row.tick for row in served.trace]


def test_serving_that_stopped_early_gives_the_tokens_so_far() -> None:
    model = random_model()
    whole = serve(model, SMALL, static, Limits(2)).tokens

    assert {"a": whole["a"], "b": whole["b"][:3]} == serve(model, SMALL, static, Limits(2), max_ticks=3).tokens


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


def test_a_schedule_reads_each_request_a_constant_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """All wait from tick 0 on. Four times as many requests take four times as many reads."""

    def reads(num_requests: int) -> int:
        counted = Counted([Request(str(n), 0, (1, 2), 2) for n in range(num_requests)])
        monkeypatch.setattr(loop, "arrival_order", lambda requests: requests)
        assert num_requests == sum(len(row.finished) for row in trace_of(counted, budgeted, Limits(64, 96)))
        return counted.reads

    few, many = reads(10_000), reads(40_000)

    assert few <= 4 * 10_000
    assert many <= 4.2 * few


@pytest.mark.parametrize("policy", [static, continuous])
def test_the_other_policies_read_no_more_than_they_admit(policy: Policy) -> None:
    counted = Counted([Request(str(n), 0, (1, 2), 3) for n in range(10_000)])

    plan = policy(WaitingQueue(counted, 0, len(counted)), (), Limits(8))

    assert 8 == plan.num_taken
    assert counted.reads <= 10


def test_a_million_requests_are_scheduled() -> None:
    requests = [Request(str(n), 0, (1, 2), 1) for n in range(1_000_000)]

    assert 1_000_000 == summarize(trace_of(requests, budgeted, Limits(4096))).completed
