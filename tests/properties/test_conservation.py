"""Whatever the workload: every request finishes or is refused, and no budget is ever exceeded."""

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from reference.serving.metrics import summarize
from reference.serving.policies import Limits, budgeted, continuous, static
from reference.serving.session import Request, arrival_order
from tests.serving.workloads import trace_of

BUDGETS = st.none() | st.integers(1, 20)
LIMITS = st.builds(
    Limits,
    st.integers(1, 4),
    BUDGETS,
    st.none() | st.integers(1, 4),
    BUDGETS,
    kv_pressure=st.sampled_from(["queue", "evict"]),
)
SHAPES = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 6), st.integers(1, 6)), max_size=8)


def workload(shapes: list[tuple[int, int, int]]) -> list[Request]:
    return [Request(f"r{n}", arrival, (1,) * size, tokens) for n, (arrival, size, tokens) in enumerate(shapes)]


@given(SHAPES, LIMITS)
def test_the_budgeted_policy_conserves_requests_tokens_and_memory(shapes: Any, limits: Limits) -> None:
    requests = workload(shapes)
    trace = trace_of(requests, budgeted, limits)
    finished = [name for row in trace for name in row.finished]
    refused = [name for row in trace for name in row.refused]
    served = dict.fromkeys(finished, 0)
    for row in trace:
        for name in (*row.prefilled, *row.decoded):
            served[name] += 1

    assert sorted(request.id for request in requests) == sorted(finished + refused)
    assert {request.id: request.max_tokens for request in requests if request.id in served} == served
    assert all(row.running <= limits.max_running for row in trace)
    if limits.prefill_token_budget is not None:
        assert all(row.prefill_tokens <= limits.prefill_token_budget for row in trace)
    if limits.kv_budget_bytes is not None:
        assert all(row.kv_tokens_high <= limits.kv_budget_bytes for row in trace)


@given(SHAPES, st.integers(1, 4), st.sampled_from([static, continuous]))
def test_the_other_policies_finish_every_request_within_capacity(shapes: Any, capacity: int, policy: Any) -> None:
    requests = workload(shapes)
    trace = trace_of(requests, policy, Limits(capacity))
    served = Counter(name for row in trace for name in (*row.prefilled, *row.decoded))

    assert sorted(request.id for request in requests) == sorted(name for row in trace for name in row.finished)
    assert {request.id: request.max_tokens for request in requests} == served
    assert all(len(row.prefilled) + len(row.decoded) <= capacity for row in trace)


@given(SHAPES, LIMITS)
def test_kv_is_that_of_the_live_sessions_and_a_miss_follows_an_eviction(shapes: Any, limits: Limits) -> None:
    trace = trace_of(workload(shapes), budgeted, limits)
    summary = summarize(trace)

    assert summary.cache_misses <= summary.evictions
    assert all(row.kv_tokens <= row.kv_tokens_high for row in trace)
    assert all(row.kv_tokens == 0 for row in trace if row.running == 0)
    if limits.kv_budget_bytes is None or limits.kv_pressure == "queue":
        assert (0, 0, 0) == (summary.evictions, summary.cache_misses, summary.recomputed_tokens)


@given(SHAPES, LIMITS)
def test_requests_leave_the_queue_first_come_first_served(shapes: Any, limits: Limits) -> None:
    requests = workload(shapes)
    trace = trace_of(requests, budgeted, limits)
    order = [request.id for request in arrival_order(requests)]
    admitted = [name for row in trace for name in row.prefilled]
    left = [(row.tick, order.index(name)) for row in trace for name in (*row.prefilled, *row.refused)]

    assert sorted(admitted, key=order.index) == admitted
    # Within a tick admissions are listed before refusals; from tick to tick nobody overtakes.
    assert [position for _, position in sorted(left)] == list(range(len(order)))
    assert all(
        tick >= request.arrival for (tick, _), request in zip(sorted(left), arrival_order(requests), strict=True)
    )


@given(SHAPES, st.integers(1, 4), st.sampled_from([static, continuous, budgeted]))
def test_requests_are_admitted_in_arrival_order(shapes: Any, capacity: int, policy: Any) -> None:
    requests = workload(shapes)
    admitted = [name for row in trace_of(requests, policy, Limits(capacity)) for name in row.prefilled]

    assert [request.id for request in sorted(requests, key=lambda request: request.arrival)] == admitted
