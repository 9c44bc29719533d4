"""Batched equals single: whoever else is served, under whatever policy and limits, a request's tokens are its own."""

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.decoding.generate import StopRule, choose_greedily, generate_by_recomputation
from reference.model.weights import Model
from reference.serving.loop import serve
from reference.serving.metrics import summarize
from reference.serving.policies import Limits, budgeted, continuous, static
from reference.serving.session import Request
from tests.models import random_model

PROMPTS = st.lists(st.integers(0, 16), min_size=1, max_size=5).map(tuple)
CROWDS = st.lists(st.tuples(st.integers(0, 3), PROMPTS, st.integers(1, 5)), min_size=1, max_size=4)


@cache
def model() -> Model:
    return random_model()


@cache
def alone(prompt: tuple[int, ...], max_tokens: int) -> tuple[int, ...]:
    """The tokens of a request that has the machine, and no KV cache, to itself."""
    stop = StopRule(max_tokens, (), model().config.context_length)
    return generate_by_recomputation(model(), prompt, stop, choose_greedily).tokens


def requests_of(crowd: list[tuple[int, tuple[int, ...], int]]) -> list[Request]:
    return [Request(f"r{n}", arrival, prompt, tokens) for n, (arrival, prompt, tokens) in enumerate(crowd)]


@pytest.mark.parametrize("policy", [static, continuous, budgeted])
@settings(max_examples=20)
@given(crowd=CROWDS, capacity=st.integers(1, 4))
def test_in_a_batch_a_request_gets_the_tokens_it_gets_alone(policy: Any, crowd: Any, capacity: int) -> None:
    requests = requests_of(crowd)
    expected = {request.id: alone(request.prompt, request.max_tokens) for request in requests}

    assert expected == serve(model(), requests, policy, Limits(capacity)).tokens


@settings(max_examples=40)
@given(crowd=CROWDS, spare=st.integers(0, 3))
def test_under_the_smallest_kv_budgets_too(crowd: Any, spare: int) -> None:
    """The budget holds the largest request and hardly more, so most decodes of a crowd are misses."""
    requests = requests_of(crowd)
    budget = max(request.max_cached for request in requests) + spare
    expected = {request.id: alone(request.prompt, request.max_tokens) for request in requests}
    for limits in (Limits(4, kv_budget_bytes=budget), Limits(4, kv_budget_bytes=budget, kv_pressure="evict")):
        assert expected == serve(model(), requests, budgeted, limits).tokens


def test_the_smallest_budgets_do_evict() -> None:
    """Without evictions the law above would say nothing: two sessions of 3 + 4 tokens in 6 entries miss."""
    requests = requests_of([(0, (1, 2, 3), 4), (0, (4, 5, 6), 4)])
    served = serve(model(), requests, budgeted, Limits(2, kv_budget_bytes=6, kv_pressure="evict"))

    assert 0 < summarize(served.trace).cache_misses
