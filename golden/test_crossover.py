"""When speculation pays: the analytic cost model."""

from reference.conformance.compare import Judgement, Verdict


def test_crossover(answer: Judgement) -> None:
    assert answer.verdict in (Verdict.PASS, Verdict.NEAR_TIE), answer.sentence
