"""Logits at every position of a prompt."""

from reference.conformance.compare import Judgement, Verdict


def test_forward(answer: Judgement) -> None:
    assert answer.verdict in (Verdict.PASS, Verdict.NEAR_TIE), answer.sentence
