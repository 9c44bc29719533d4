"""A draft-verify step, its law, and whole speculative loops; the third recorded artifact."""

from reference.conformance.compare import Judgement, Verdict


def test_speculation(answer: Judgement) -> None:
    assert answer.verdict in (Verdict.PASS, Verdict.NEAR_TIE), answer.sentence
