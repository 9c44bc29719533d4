"""The table a person reads: every record counted once, every record that did not pass named."""

import pytest

from reference.conformance.compare import PASS, Judgement, Verdict, fail
from reference.conformance.judge import Record
from reference.conformance.table import failures, is_good, verdict_table
from reference.engine import Description


def judged(*verdicts: tuple[str, Judgement]) -> list[tuple[Record, Judgement]]:
    return [(Record(id_, id_.partition("/")[0], {}, {}), judgement) for id_, judgement in verdicts]


NO_FORK = Judgement(Verdict.UNSUPPORTED, "the engine has no fork")
NO_SERVE = Judgement(Verdict.UNSUPPORTED, "the engine has no serve")
NEAR = Judgement(Verdict.NEAR_TIE, "first divergence at output token 3")
BROKEN = Judgement(Verdict.HARNESS_ERROR, "no answer")


def test_the_table_has_a_row_a_family_and_their_sum():
    run = judged(("forward/a", PASS), ("cache/a", NO_FORK), ("forward/b", fail("wrong")), ("cache/b", NEAR))
    expected = """mine 1.2 (compared as f32)
  family                 pass           fail       near_tie    unsupported  harness_error  records
  cache                     -              -              1              1              -        2
  forward                   1              1              -              -              -        2
  all                       1              1              1              1              -        4"""

    assert expected == verdict_table(Description("mine", "1.2", "f32"), run)


def test_every_record_that_did_not_pass_is_named():
    run = judged(
        ("cache/fork", NO_FORK),
        ("forward/a", PASS),
        ("forward/b", fail("wrong")),
        ("generate/a", NEAR),
        ("sweep/a", NO_SERVE),
        ("cache/more", NO_FORK),
        ("forward/c", BROKEN),
    )
    expected = """  fail: forward/b: wrong
  near_tie: generate/a: first divergence at output token 3
  harness_error: forward/c: no answer
  unsupported (the engine has no fork): cache/fork, cache/more
  unsupported (the engine has no serve): sweep/a"""

    assert expected == failures(run)


def test_a_run_without_failures_has_none_to_name():
    assert "" == failures(judged(("forward/a", PASS)))


@pytest.mark.parametrize(
    ("judgements", "expected"),
    [
        ([PASS], True),
        ([PASS, NO_FORK, NEAR], True),
        ([PASS, fail("wrong")], False),
        ([PASS, BROKEN], False),
        ([NO_FORK, NO_SERVE], False),
        ([NEAR], True),
        ([], False),
    ],
)
def test_a_run_is_good_when_something_passed_and_nothing_failed(judgements, expected):
    run = judged(*((f"forward/{index}", judgement) for index, judgement in enumerate(judgements)))

    assert expected is is_good(run, "f32")
