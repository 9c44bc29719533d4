"""Tokens and trace of static and continuous admission; the first recorded artifact."""

from reference.conformance.compare import GOOD, Judgement


def test_batching(answer: Judgement) -> None:
    assert answer.verdict in GOOD, answer.sentence
