"""Each verdict, from answers made by hand."""

import math

import numpy as np
import pytest

from reference.conformance.compare import (
    PASS,
    TOLERANCES,
    Judgement,
    Verdict,
    compare_fields,
    compare_logits,
    compare_tokens,
    difference,
)
from reference.numerics import log_softmax

LOGITS = np.array([[0.5, -1.0, 2.0], [4.0, 0.0, -3.0], [0.25, 0.5, 0.75], [1.0, 1.0, 1.0]])


def moved(position: int, token: int, by: float) -> np.ndarray:
    answered = LOGITS.copy()
    answered[position, token] += by
    return answered


@pytest.mark.parametrize("precision", ["exact", "f64", "f32"])
def test_equal_logits_pass_at_every_precision(precision):
    assert PASS == compare_logits(LOGITS, LOGITS.copy(), precision)


@pytest.mark.parametrize(
    ("precision", "by", "verdict"),
    [
        ("exact", 2.0**-52, Verdict.FAIL),
        ("f64", 0.9 * TOLERANCES["f64"], Verdict.PASS),
        ("f64", 1.1 * TOLERANCES["f64"], Verdict.FAIL),
        ("f32", 0.9 * TOLERANCES["f32"], Verdict.PASS),
        ("f32", 1.1 * TOLERANCES["f32"], Verdict.FAIL),
        ("f32", 1e-3, Verdict.FAIL),
    ],
)
def test_a_moved_logit_fails_beyond_the_precision(precision, by, verdict):
    assert verdict is compare_logits(LOGITS, moved(2, 1, by), precision).verdict


def test_the_tolerance_grows_with_the_row_and_not_with_others():
    large = LOGITS * [[1000.0], [1.0], [1.0], [1.0]]
    off = np.zeros_like(large)
    off[0, 1] = 1e-3

    assert PASS == compare_logits(large, large + off, "f32")
    assert Verdict.FAIL is compare_logits(large, large + np.roll(off, 1, axis=0), "f32").verdict


def test_a_failure_names_the_first_position_and_the_token_that_is_furthest_off():
    answered = moved(1, 2, 0.5)
    answered[1, 0] += 0.001
    answered[3] = 7.0
    judgement = compare_logits(LOGITS, answered, "f32")

    assert Verdict.FAIL is judgement.verdict
    assert judgement.sentence == (
        "first divergence at position 1: logit of token 2 is -2.5, expected -3 "
        "(largest difference 0.5, tolerance 0.0004)"
    )
    assert (1, 2) == (judgement.details["position"], judgement.details["token"])
    assert 0.5 == judgement.details["differences"][1]


def test_a_constant_added_to_all_logits_fails():
    """Logprobs are the same; logits are not."""
    assert Verdict.FAIL is compare_logits(LOGITS, LOGITS + 0.25, "f32").verdict


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("precision", ["exact", "f64", "f32"])
def test_an_answer_that_is_no_number_fails(precision, number):
    answered = LOGITS.copy()
    answered[2, 0] = number
    judgement = compare_logits(LOGITS, answered, precision)

    assert Verdict.FAIL is judgement.verdict
    assert "first divergence at position 2" in judgement.sentence


def test_an_answer_of_nan_everywhere_fails():
    assert Verdict.FAIL is compare_logits(LOGITS, np.full_like(LOGITS, np.nan), "f32").verdict


@pytest.mark.parametrize(
    ("answered", "shape"),
    [(LOGITS[:3], "[3, 3]"), (LOGITS[:, :2], "[4, 2]"), (LOGITS[0], "[3]"), (LOGITS[None], "[1, 4, 3]")],
)
def test_another_shape_fails_with_both_shapes(answered, shape):
    assert Judgement(Verdict.FAIL, f"expected logits [4, 3], got {shape}") == compare_logits(LOGITS, answered, "f32")


def test_a_float32_answer_is_compared_in_float64():
    assert PASS == compare_logits(LOGITS + 1e-9, LOGITS.astype(np.float32), "f32")


def test_the_difference_is_the_larger_of_logit_and_logprob():
    """All three logprobs move when one logit does."""
    off = difference(np.zeros(3), np.array([0.0, 0.0, 0.3]))

    assert 0.3 == pytest.approx(off[2], abs=1e-12)
    assert math.log((2 + math.exp(0.3)) / 3) == pytest.approx(off[0], abs=1e-12)


def row(margin, largest=4.0):
    """Logits of ten tokens: token 2 leads token 9 by a margin, and one is the largest in magnitude."""
    return np.array([-largest, 0.0, 1.0 + margin, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0])


@pytest.mark.parametrize("precision", ["exact", "f64", "f32"])
def test_equal_tokens_pass(precision):
    assert PASS is compare_tokens([1, 2, 3], (1, 2, 3), precision, lambda _: row(0.0))


@pytest.mark.parametrize(
    ("margin", "largest", "precision", "verdict"),
    [
        (0.5, 4.0, "f32", Verdict.FAIL),
        (8.1e-4, 4.0, "f32", Verdict.FAIL),
        (7.9e-4, 4.0, "f32", Verdict.NEAR_TIE),
        (7.9e-4, 2.0, "f32", Verdict.FAIL),
        (1e-9, 4.0, "f64", Verdict.FAIL),
        (7e-10, 4.0, "f64", Verdict.NEAR_TIE),
        (1e-12, 4.0, "exact", Verdict.FAIL),
    ],
)
def test_a_divergence_within_the_noise_of_a_tie_is_a_near_tie(margin, largest, precision, verdict):
    """Both logits may be off by tolerance * largest: f32 2 * 1e-4 * 4 = 8e-4, f64 2 * 1e-10 * 4 = 8e-10."""
    judgement = compare_tokens(
        [1, 2, 3], [1, 9, 3], precision, lambda index: row(margin if index == 1 else 9.0, largest)
    )

    assert verdict is judgement.verdict
    assert "first divergence at output token 1: 9 (reference logit 1), expected 2" in judgement.sentence


@pytest.mark.parametrize("token", [10, -1])
def test_a_token_outside_of_the_vocabulary_fails(token):
    judgement = compare_tokens([2], [token], "int8", lambda _: row(0.0))

    assert Verdict.FAIL is judgement.verdict
    assert f"output token 0 is {token}, which no vocabulary of 10 has; expected 2" == judgement.sentence


@pytest.mark.parametrize("answered", [[], [1], [1, 2], [1, 2, 3, 4]])
def test_another_number_of_tokens_fails(answered):
    judgement = compare_tokens([1, 2, 3], answered, "f32", lambda _: row(0.0))

    assert Verdict.FAIL is judgement.verdict
    first = f"first divergence at output token {min(3, len(answered))}: "
    end = "4, expected the output to end" if len(answered) == 4 else f"the output ends, expected {len(answered) + 1}"
    assert f"{first}{end}; expected 3 tokens, got {len(answered)}" == judgement.sentence


def test_logprobs_are_compared_where_an_engine_gives_no_logits():
    """A constant that all logits share is no fault of logprobs."""
    answered = log_softmax(LOGITS + 0.25)

    assert PASS is compare_logits(LOGITS, answered, "f64", "logprobs")
    answered[1, 2] += 1e-3
    assert "logprob of token 2" in compare_logits(LOGITS, answered, "f32", "logprobs").sentence


FIELDS = {"a": 1, "b": [{"c": 2.5, "d": "x"}, None], "e": True}


def test_equal_fields_pass_in_any_order():
    assert PASS == compare_fields(FIELDS, dict(reversed(FIELDS.items())))


@pytest.mark.parametrize(
    ("answered", "sentence"),
    [
        ({**FIELDS, "a": 2}, "$.a is 2, expected 1"),
        ({**FIELDS, "b": [{"c": 2.5, "d": "y"}, None]}, "$.b[0].d is 'y', expected 'x'"),
        ({**FIELDS, "b": [{"c": 2.5}, None]}, "field $.b[0].d is missing"),
        ({**FIELDS, "f": 0}, "field $.f is not expected"),
        ({**FIELDS, "b": []}, "$.b has 0 entries, expected 2"),
        ({**FIELDS, "b": {}}, f"$.b is {{}}, expected {FIELDS['b']!r}"),
        ({**FIELDS, "b": [{"c": "NaN", "d": "x"}, None]}, "$.b[0].c is 'NaN', expected 2.5"),
        ({**FIELDS, "e": 1}, "$.e is 1, expected True"),
        ({**FIELDS, "a": True}, "$.a is True, expected 1"),
        ({**FIELDS, "a": math.nan}, "$.a is nan, expected 1"),
    ],
)
def test_the_first_differing_field_is_named(answered, sentence):
    assert Judgement(Verdict.FAIL, sentence) == compare_fields(FIELDS, answered)


def test_verdicts_print_as_their_wire_names():
    expected = [
        "pass",
        "fail",
        "near_tie",
        "xfail",
        "xpass",
        "unsupported",
        "not_applicable",
        "harness_error",
        "timeout",
    ]

    assert expected == [str(verdict) for verdict in Verdict]
