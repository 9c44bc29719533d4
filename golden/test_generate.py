"""Greedy tokens and finish reasons."""

from reference.conformance.compare import Judgement, Verdict


def test_generate(answer: Judgement) -> None:
    assert answer.verdict in (Verdict.PASS, Verdict.NEAR_TIE), answer.sentence
