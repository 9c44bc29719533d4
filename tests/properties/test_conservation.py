"""Whatever the workload: every request finishes or is refused, and no budget is ever exceeded."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from reference.serving.policies import Limits, budgeted, continuous, static
from reference.serving.session import Request
from tests.serving.workloads import trace_of

BUDGETS = st.none() | st.integers(1, 20)
LIMITS = st.builds(
    Limits, st.integers(1, 4), BUDGETS, st.none() | st.integers(1, 4), BUDGETS, st.sampled_from(["queue", "evict"])
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
    if limits.kv_budget_tokens is not None:
        assert all(row.kv_tokens_high <= limits.kv_budget_tokens for row in trace)


@given(SHAPES, st.integers(1, 4), st.sampled_from([static, continuous, budgeted]))
def test_requests_are_admitted_in_arrival_order(shapes: Any, capacity: int, policy: Any) -> None:
    requests = workload(shapes)
    admitted = [name for row in trace_of(requests, policy, Limits(capacity)) for name in row.prefilled]

    assert [request.id for request in sorted(requests, key=lambda request: request.arrival)] == admitted
