"""Two ways to the same answer: batched and alone, warm and cold, in chunks and whole, with drafts and without."""

from reference.conformance.compare import GOOD, Judgement


def test_metamorphic(answer: Judgement) -> None:
    assert answer.verdict in GOOD, answer.sentence
