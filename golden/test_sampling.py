"""The token that a coin draws from logits at a temperature."""

from reference.conformance.compare import GOOD, Judgement


def test_sampling(answer: Judgement) -> None:
    assert answer.verdict in GOOD, answer.sentence
