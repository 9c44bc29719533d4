"""From logits to a token: ties, temperatures, and coins that fall exactly on a boundary."""

import math
from fractions import Fraction

import numpy as np
import pytest

from reference.decoding.sampling import check_coin, check_distribution, distribution, draw, greedy
from reference.errors import Refusal, RefusedError

LARGEST_COIN = math.nextafter(1.0, 0.0)
QUARTERS = np.array([0.25, 0.5, 0.25])


def test_greedy_ties_go_to_the_lowest_token():
    assert [1, 0] == [greedy(np.array([0.0, 2.0, 2.0])), greedy(np.array([-math.inf, -math.inf]))]


def test_greedy_refuses_nan():
    with pytest.raises(RefusedError) as refused:
        greedy(np.array([0.0, math.nan]))

    assert refused.value.reason is Refusal.NOT_A_NUMBER


def test_distribution_is_softmax_of_logits_over_temperature():
    """Logits ln 4 apart: at temperature 1 weights 1 and 4, at 2 weights 1 and 2, at 1/2 weights 1 and 16."""
    logits = np.array([0.0, math.log(4)])
    expected = [[1 / 5, 4 / 5], [1 / 3, 2 / 3], [1 / 17, 16 / 17]]

    np.testing.assert_allclose([distribution(logits, t) for t in (1.0, 2.0, 0.5)], expected, rtol=1e-15)


def test_rows_have_their_own_distributions():
    rows = np.array([[0.0, 0.0], [0.0, -math.inf]])

    assert [[0.5, 0.5], [1.0, 0.0]] == distribution(rows).tolist()


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, math.nan])
def test_a_temperature_that_is_not_above_zero_and_finite_is_refused(temperature):
    with pytest.raises(RefusedError, match=f"temperature {temperature} must be above 0 and finite") as refused:
        distribution(np.zeros(2), temperature)

    assert refused.value.reason is Refusal.LIMIT_NOT_POSITIVE


@pytest.mark.parametrize(
    ("coin", "token"),
    [
        (0.0, 0),
        (math.nextafter(0.25, 0.0), 0),
        (0.25, 1),  # a coin on the boundary belongs to the next token
        (0.5, 1),
        (math.nextafter(0.75, 0.0), 1),
        (0.75, 2),
        (LARGEST_COIN, 2),
    ],
)
def test_token_x_answers_the_coins_from_below_x_up_to_x(coin, token):
    assert token == draw(QUARTERS, coin)


@pytest.mark.parametrize(
    ("p", "coin", "token"),
    [
        ([0.0, 1.0], 0.0, 1),
        ([0.0, 0.0, 0.5, 0.5], 0.0, 2),
        ([0.5, 0.0, 0.5], 0.5, 2),
        ([0.5, 0.5, 0.0], LARGEST_COIN, 1),
        ([1.0, 0.0], LARGEST_COIN, 0),
    ],
)
def test_no_coin_selects_a_token_of_probability_zero(p, coin, token):
    assert token == draw(np.array(p), coin)


def test_a_coin_above_the_rounded_sum_takes_the_last_token_of_positive_probability():
    """Ten times 0.1 sums in index order to 1 - 2**-53, the largest coin; the last token has probability 0."""
    p = np.array([0.1] * 10 + [0.0])

    assert sum([0.1] * 10) == LARGEST_COIN
    assert draw(p, LARGEST_COIN) == 9


def test_draw_is_exact_for_fractions():
    """1/3 is a boundary that no float hits."""
    thirds = np.array([Fraction(1, 3)] * 3, dtype=object)
    coins = [Fraction(0), Fraction(1, 3) - Fraction(1, 10**30), Fraction(1, 3), Fraction(2, 3)]

    assert [0, 0, 1, 2] == [draw(thirds, coin) for coin in coins]


@pytest.mark.parametrize("coin", [-1e-300, 1.0, math.inf, math.nan, -0.5])
def test_a_coin_outside_zero_to_one_is_refused(coin):
    for refuse in (lambda: draw(QUARTERS, coin), lambda: check_coin(coin)):
        with pytest.raises(RefusedError) as refused:
            refuse()

        assert (Refusal.COIN_OUT_OF_RANGE, f"coin {coin} is not in [0, 1)") == (
            refused.value.reason,
            str(refused.value),
        )


@pytest.mark.parametrize(
    ("p", "sentence"),
    [
        ([0.5, 0.6], "p sums to 1.1, not to 1"),
        ([0.5, 0.499], "p sums to 0.999, not to 1"),
        ([0.0, 0.0], "p sums to 0.0, not to 1"),
        ([-0.1, 1.1], "p holds a negative probability or a NaN"),
        ([math.nan, 1.0], "p holds a negative probability or a NaN"),
        ([math.inf, 0.0], "p sums to inf, not to 1"),
    ],
)
def test_what_is_no_distribution_is_refused(p, sentence):
    for refuse in (lambda: draw(np.array(p), 0.0), lambda: check_distribution(np.array(p), "p")):
        with pytest.raises(RefusedError) as refused:
            refuse()

        assert (Refusal.NOT_A_DISTRIBUTION, sentence) == (refused.value.reason, str(refused.value))


def test_one_bad_row_is_refused():
    with pytest.raises(RefusedError, match="q holds a negative probability or a NaN"):
        check_distribution(np.array([[0.5, 0.5], [1.5, -0.5]]), "q")
    with pytest.raises(RefusedError, match="q sums to"):
        check_distribution(np.array([[0.5, 0.5], [0.5, 0.4]]), "q")


def test_a_sum_within_a_billionth_of_one_is_a_distribution():
    check_distribution(np.array([0.5, 0.5 + 0.9e-9]), "p")
    with pytest.raises(RefusedError):
        check_distribution(np.array([0.5, 0.5 + 1.1e-9]), "p")
