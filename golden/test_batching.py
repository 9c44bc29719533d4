"""Tokens and trace of static and continuous admission; the first recorded artifact."""

from reference.conformance.compare import Judgement, Verdict


def test_batching(answer: Judgement) -> None:
    assert answer.verdict in (Verdict.PASS, Verdict.NEAR_TIE), answer.sentence
