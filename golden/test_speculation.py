"""A draft-verify step, its law, and whole speculative loops; the third recorded artifact."""

from reference.conformance.compare import GOOD, Judgement


def test_speculation(answer: Judgement) -> None:
    assert answer.verdict in GOOD, answer.sentence
