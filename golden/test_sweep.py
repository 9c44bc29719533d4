"""Tokens, trace and KV of the budgeted scheduler; the second recorded artifact."""

from reference.conformance.compare import GOOD, Judgement


def test_sweep(answer: Judgement) -> None:
    assert answer.verdict in GOOD, answer.sentence
