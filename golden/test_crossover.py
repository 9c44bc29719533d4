"""When speculation pays: the analytic cost model."""

from reference.conformance.compare import GOOD, Judgement


def test_crossover(answer: Judgement) -> None:
    assert answer.verdict in GOOD, answer.sentence
