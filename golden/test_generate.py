"""Greedy tokens and finish reasons."""

from reference.conformance.compare import GOOD, Judgement


def test_generate(answer: Judgement) -> None:
    assert answer.verdict in GOOD, answer.sentence
