"""Every split of a prefill, truncate, fork and interleaved sessions against fresh computation."""

from reference.conformance.compare import Judgement, Verdict


def test_cache(answer: Judgement) -> None:
    assert answer.verdict in (Verdict.PASS, Verdict.NEAR_TIE), answer.sentence
