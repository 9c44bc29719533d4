"""Every split of a prefill, truncate, fork and interleaved sessions against fresh computation."""

from reference.conformance.compare import GOOD, Judgement


def test_cache(answer: Judgement) -> None:
    assert answer.verdict in GOOD, answer.sentence
