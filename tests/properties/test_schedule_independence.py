"""The tokens of a request do not depend on policy, limits or evictions: batched equals single."""

from functools import cache
from typing import Any

from hypothesis import given, settings

from reference.decoding.generate import StopRule, choose_greedily, generate
from reference.model.weights import Model
from reference.serving.loop import serve
from reference.serving.policies import Limits, budgeted
from reference.serving.session import Request
from tests.models import random_model
from tests.properties.test_conservation import LIMITS, SHAPES


@cache
def model() -> Model:
    return random_model()


@settings(max_examples=25)
@given(SHAPES, LIMITS)
def test_every_served_request_gets_the_tokens_it_gets_alone(shapes: Any, limits: Limits) -> None:
    requests = [
        Request(f"r{n}", arrival, tuple((3 * n + i) % 11 for i in range(size)), tokens)
        for n, (arrival, size, tokens) in enumerate(shapes[:4])
    ]
    served = serve(model(), requests, budgeted, limits).tokens
    context = model().config.context_length
    alone = {
        request.id: generate(
            model(), request.prompt, StopRule(request.max_tokens, (), context), choose_greedily
        ).tokens
        for request in requests
    }

    assert {name: alone[name] for name in served} == served
