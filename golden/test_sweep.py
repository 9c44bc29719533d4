"""Tokens, trace and KV of the budgeted scheduler; the second recorded artifact."""

from reference.conformance.compare import Judgement, Verdict


def test_sweep(answer: Judgement) -> None:
    assert answer.verdict in (Verdict.PASS, Verdict.NEAR_TIE), answer.sentence
