"""Logits at every position of a prompt."""

from reference.conformance.compare import GOOD, Judgement


def test_forward(answer: Judgement) -> None:
    assert answer.verdict in GOOD, answer.sentence
