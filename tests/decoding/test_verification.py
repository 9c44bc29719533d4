"""Verification by hand, at its boundaries, and by exact enumeration of its output law."""

import math
from collections import defaultdict
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from reference.decoding import verification
from reference.decoding.verification import (
    Verdict,
    Verification,
    accept_probability,
    acceptance,
    expected_tokens,
    output_law,
    residual,
    total_variation,
    verify,
    verify_greedy,
)
from reference.errors import Refusal, RefusedError
from tests.decoding.enumeration import (
    HAIR,
    cells,
    context_dependent,
    distance,
    drafts_of,
    exact,
    first_token_law,
    law_of_a_step,
    law_of_prefixes,
    surplus_law,
)

pytestmark = pytest.mark.filterwarnings("error")

# The numbers of the recorded artifact: position 2 of its step, which rejects its draft.
P = np.array([0.1, 0.48, 0.18, 0.24])
Q = np.array([0.05, 0.15, 0.6, 0.2])
JUST_BELOW_ONE = math.nextafter(1.0, 0.0)


def fractions(*numerators: int, over: int) -> list[Fraction]:
    return [Fraction(n, over) for n in numerators]


# Parts


@pytest.mark.parametrize(
    ("p_x", "q_x", "expected"), [(0.7, 0.65, 1.0), (0.68, 0.7, 0.9714), (0.18, 0.6, 0.3), (0.0, 0.5, 0.0)]
)
def test_accept_probabilities_of_the_recorded_step(p_x, q_x, expected):
    assert expected == pytest.approx(accept_probability(p_x, q_x), abs=5e-5)


def test_accept_probability_does_not_overflow():
    """0.5 / 5e-324 is beyond the largest double, and 1 is the answer."""
    assert accept_probability(np.float64(0.5), np.float64(5e-324)) == 1.0


@pytest.mark.parametrize("q_x", [0.0, -0.1])
def test_a_draft_of_draft_probability_zero_is_refused(q_x):
    with pytest.raises(RefusedError, match="a drafted token has draft probability 0") as refused:
        accept_probability(0.5, q_x)

    assert refused.value.reason is Refusal.DRAFT_IMPOSSIBLE


def test_residual_of_the_recorded_position():
    """(.05, .33, 0, .04) / .42."""
    np.testing.assert_allclose(residual(P, Q), [0.119, 0.7857, 0.0, 0.0952], atol=5e-5)


def test_residual_is_exact_for_fractions():
    p, q = exact([fractions(10, 48, 18, 24, over=100)])[0], exact([fractions(5, 15, 60, 20, over=100)])[0]

    assert fractions(5, 33, 0, 4, over=42) == residual(p, q).tolist()


def test_residual_of_zero_mass_is_the_target():
    assert P.tolist() == residual(P, P).tolist()


def test_residual_of_disjoint_laws_is_the_target():
    assert [0.0, 0.0, 0.25, 0.75] == residual(np.array([0, 0, 0.25, 0.75]), np.array([0.5, 0.5, 0, 0])).tolist()


def test_total_variation_of_the_recorded_position():
    """With the residual the output law is p: distance 0. Replaced by draws from p itself: 0.1364."""
    distances = [total_variation(output_law(P, Q, replacement), P) for replacement in (residual(P, Q), P)]

    np.testing.assert_allclose(distances, [0.0, 0.1364], atol=5e-5)
    assert distances[0] < 1e-15


def test_total_variation_and_acceptance_by_hand():
    """|p - q| = .05, .33, .42, .04; minima .05, .15, .18, .2."""
    assert total_variation(P, Q) == pytest.approx(0.42, rel=1e-14)
    assert acceptance(P, Q) == pytest.approx(0.58, rel=1e-14)


@pytest.mark.parametrize(
    ("alpha", "gamma", "expected"), [(0.8, 4, 3.3616), (0.45, 4, 1.7846), (0.0, 4, 1.0), (1.0, 4, 5.0), (0.5, 1, 1.5)]
)
def test_expected_tokens_of_a_step(alpha, gamma, expected):
    """1 + .8 + .64 + .512 + .4096 = 3.3616; the first two are in the recorded artifact."""
    assert expected == pytest.approx(expected_tokens(alpha, gamma), abs=5e-5)


@pytest.mark.parametrize("alpha", [-0.1, 1.1, math.nan])
def test_expected_tokens_refuses_what_is_no_rate(alpha):
    with pytest.raises(RefusedError, match=f"acceptance rate {alpha} is not in") as refused:
        expected_tokens(alpha, 4)

    assert refused.value.reason is Refusal.NOT_A_DISTRIBUTION


def test_expected_tokens_refuses_no_drafts():
    with pytest.raises(RefusedError, match="gamma is 0; at least one draft is needed") as refused:
        expected_tokens(0.5, 0)

    assert refused.value.reason is Refusal.LIMIT_NOT_POSITIVE


# Whole steps in floats


def test_a_rejection_in_the_middle_ends_the_step():
    """Draft 0 accepted for sure, draft 1 with .5/.8 = .625 > .6, draft 2 with .18/.6 = .3 < .74.

    The residual of position 2 is (.119, .786, 0, .095): coin .9 is its token 1 (up to .905).
    """
    p = np.array([[0.7, 0.1, 0.1, 0.1], [0.2, 0.5, 0.2, 0.1], P, P])
    q = np.array([[0.65, 0.15, 0.1, 0.1], [0.1, 0.8, 0.05, 0.05], Q])
    verdicts = (
        Verdict(0, 0, 0.7, 0.65, 1, 0.42, "accepted", 0),
        Verdict(1, 1, 0.5, 0.8, 0.625, 0.6, "accepted", 1),
        Verdict(2, 2, 0.18, 0.6, 0.18 / 0.6, 0.74, "rejected_and_resampled", 1),
    )
    expected = Verification(num_accepted=2, tokens=(0, 1, 1), verdicts=verdicts)

    assert expected == verify(p, q, (0, 1, 2), (0.42, 0.6, 0.74), final_coin=0.9)


HALVES = np.array([0.5, 0.5])
SURE = np.array([0.0, 1.0])


def test_a_rejection_at_the_first_position_emits_one_token():
    """p(0) = 0 of q(0) = 1/2; the residual is token 1 for sure."""
    verdicts = (Verdict(0, 0, 0.0, 0.5, 0.0, 0.1, "rejected_and_resampled", 1),)
    step = verify(np.array([SURE, HALVES, HALVES]), np.array([HALVES, HALVES]), (0, 1), (0.1, 0.0), 0.0)

    assert Verification(0, (1,), verdicts) == step


def test_a_rejection_at_the_last_position_emits_gamma_tokens():
    verdicts = (
        Verdict(0, 0, 0.5, 0.5, 1.0, 0.9, "accepted", 0),
        Verdict(1, 0, 0.0, 0.5, 0.0, 0.9, "rejected_and_resampled", 1),
    )
    step = verify(np.array([HALVES, SURE, HALVES]), np.array([HALVES, HALVES]), (0, 0), (0.9, 0.9), 0.9)

    assert Verification(1, (0, 1), verdicts) == step


def test_the_bonus_token_comes_from_the_row_after_the_last_draft():
    """Rows 0 and 1 of p can only be token 0; row 2 is (0, 1/2, 1/2): coin 0.5 is its token 2."""
    p = np.array([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.5, 0.5]])
    verdicts = tuple(Verdict(i, 0, 1.0, 1.0, 1.0, JUST_BELOW_ONE, "accepted", 0) for i in range(2))

    assert Verification(2, (0, 0, 2), verdicts) == verify(p, p[:2], (0, 0), (JUST_BELOW_ONE,) * 2, 0.5)


@pytest.mark.parametrize("coin", [0.0, 0.5, JUST_BELOW_ONE])
def test_equal_laws_accept_every_draft_at_every_coin(coin):
    assert (2, 0, 3) == verify(np.array([P, P, P]), np.array([P, P]), (2, 0), (coin, coin), 0.9).tokens


@pytest.mark.parametrize("coin", [0.0, 0.5, JUST_BELOW_ONE])
def test_a_draft_the_target_cannot_emit_is_never_accepted(coin):
    assert (1,) == verify(np.array([SURE, HALVES]), np.array([HALVES]), (0,), (coin,), 0.0).tokens


def test_a_coin_exactly_on_the_boundary_accepts():
    """p/q = .25/.5 is exactly a half."""
    p, q = np.array([[0.25, 0.75], [1.0, 0.0]]), np.array([HALVES])
    accepted = [verify(p, q, (0,), (coin,), 0.0).num_accepted for coin in (0.5, math.nextafter(0.5, 1.0))]

    assert [1, 0] == accepted


def test_final_coin_boundaries_belong_to_the_next_token():
    """The residual of (1/4, 1/2, 1/4) and (3/4, 0, 1/4) is (0, 1, 0); the bonus row is (1/4, 1/2, 1/4)."""
    p = np.array([[0.25, 0.5, 0.25]] * 2)
    q = np.array([[0.75, 0.0, 0.25]])
    rejected = [verify(p, q, (0,), (0.9,), coin).tokens for coin in (0.0, JUST_BELOW_ONE)]
    bonus = [verify(p, q, (0,), (0.1,), coin).tokens for coin in (0.0, 0.25, 0.75)]

    assert ([(1,), (1,)], [(0, 0), (0, 1), (0, 2)]) == (rejected, bonus)


def test_the_draft_may_give_tokens_the_target_cannot_emit_without_drafting_them():
    """q(0) = 1/2 and p(0) = 0, but the draft is token 1: accepted."""
    assert (1, 1) == verify(np.array([SURE, SURE]), np.array([HALVES]), (1,), (0.99,), 0.0).tokens


def test_rejection_where_no_surplus_is_left_by_rounding_draws_from_the_target():
    """q exceeds p at token 0 and nowhere falls below it: sums differ by 5e-10, within the tolerance for sums.

    The coin 0.5 is token 1 by p and would be token 0 by q.
    """
    p, q = np.array([[0.5, 0.5], [0.5, 0.5]]), np.array([[0.5 + 5e-10, 0.5]])

    assert [(0,), (1,)] == [verify(p, q, (0,), (JUST_BELOW_ONE,), coin).tokens for coin in (0.4, 0.5)]


GOOD: dict[str, Any] = {
    "p": np.array([P, P, P]),
    "q": np.array([Q, Q]),
    "drafts": (2, 1),
    "accept_coins": (0.1, 0.2),
    "final_coin": 0.5,
}


@pytest.mark.parametrize(
    ("changes", "reason", "sentence"),
    [
        ({"drafts": (), "accept_coins": ()}, Refusal.LIMIT_NOT_POSITIVE, "at least one draft is needed"),
        (
            {"p": np.array([P, P])},
            Refusal.NOT_A_DISTRIBUTION,
            "2 drafts need p [3, V] and q [2, V]; got (2, 4) and (2, 4)",
        ),
        (
            {"q": np.array([Q])},
            Refusal.NOT_A_DISTRIBUTION,
            "2 drafts need p [3, V] and q [2, V]; got (3, 4) and (1, 4)",
        ),
        (
            {"q": np.array([HALVES, HALVES])},
            Refusal.NOT_A_DISTRIBUTION,
            "2 drafts need p [3, V] and q [2, V]; got (3, 4) and (2, 2)",
        ),
        ({"p": P}, Refusal.NOT_A_DISTRIBUTION, "2 drafts need p [3, V] and q [2, V]; got (4,) and (2, 4)"),
        ({"p": np.array([P, P, 2 * P])}, Refusal.NOT_A_DISTRIBUTION, "p sums to [1. 1. 2.], not to 1"),
        ({"q": np.array([Q, -Q])}, Refusal.NOT_A_DISTRIBUTION, "q holds a negative probability or a NaN"),
        ({"accept_coins": (0.1,)}, Refusal.COIN_OUT_OF_RANGE, "2 drafts need 2 accept coins; got 1"),
        ({"accept_coins": (0.1, 0.2, 0.3)}, Refusal.COIN_OUT_OF_RANGE, "2 drafts need 2 accept coins; got 3"),
        ({"accept_coins": (0.1, 1.0)}, Refusal.COIN_OUT_OF_RANGE, "coin 1.0 is not in [0, 1)"),
        ({"accept_coins": (-0.1, 0.2)}, Refusal.COIN_OUT_OF_RANGE, "coin -0.1 is not in [0, 1)"),
        ({"final_coin": math.nan}, Refusal.COIN_OUT_OF_RANGE, "coin nan is not in [0, 1)"),
        ({"drafts": (2, 4)}, Refusal.TOKEN_OUT_OF_RANGE, "draft 4 is not in 0 .. 3"),
        ({"drafts": (-1, 2)}, Refusal.TOKEN_OUT_OF_RANGE, "draft -1 is not in 0 .. 3"),
        (
            {"q": np.array([[0.5, 0.5, 0.0, 0.0], Q])},
            Refusal.DRAFT_IMPOSSIBLE,
            "a drafted token has draft probability 0",
        ),
    ],
)
def test_a_step_that_is_not_whole_is_refused(changes, reason, sentence):
    with pytest.raises(RefusedError) as refused:
        verify(**{**GOOD, **changes})

    assert (reason, sentence) == (refused.value.reason, str(refused.value))


# Greedy verification


@pytest.mark.parametrize(
    ("drafts", "expected"), [((2, 0), (2, 0, 1)), ((2, 1), (2, 0)), ((1, 0), (2,)), ((1, 1), (2,)), ((), (2,))]
)
def test_greedy_keeps_drafts_while_they_are_the_targets_own(drafts, expected):
    """The rows' most likely tokens are 2, 0, 1."""
    logits = np.array([[0.0, 1.0, 2.0], [5.0, 1.0, 2.0], [0.0, 3.0, 2.0]])

    assert expected == verify_greedy(logits[: len(drafts) + 1], drafts)


def test_greedy_ties_go_to_the_lowest_token():
    assert (0, 0) == verify_greedy(np.zeros((2, 3)), (0,))
    assert (0,) == verify_greedy(np.zeros((2, 3)), (1,))


# The law of the output, exactly

SIZES = [(num_tokens, gamma) for num_tokens in (3, 4, 5) for gamma in (1, 2, 3)]


@pytest.mark.parametrize("pair", range(3))
@pytest.mark.parametrize(("num_tokens", "gamma"), SIZES)
def test_emitted_tokens_have_exactly_the_target_law(num_tokens, gamma, pair):
    """The step's tokens, continued by plain sampling, against plain sampling alone: all prefixes of gamma + 1."""
    p_of, q_of = context_dependent(f"target {pair}", num_tokens), context_dependent(f"draft {pair}", num_tokens)
    step = law_of_a_step(p_of, q_of, num_tokens, gamma)

    assert sum(step.values()) == 1
    assert law_of_prefixes(p_of, gamma + 1, num_tokens) == law_of_prefixes(p_of, gamma + 1, num_tokens, step)
    assert list(p_of(())) == first_token_law(step, num_tokens)


def test_the_enumeration_covers_zero_probabilities_on_both_sides():
    """Else the test above would prove less than it says."""
    targets, drafts = (
        [context_dependent(f"{name} {pair}", 4)(prefix) for pair in range(3) for prefix in ((), (1,), (2, 3))]
        for name in ("target", "draft")
    )

    assert any(0 in law for law in targets)
    assert any(0 in law for law in drafts)
    assert any(
        p == 0 < q for target, draft in zip(targets, drafts, strict=True) for p, q in zip(target, draft, strict=True)
    )


@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_a_draft_equal_to_the_target_is_never_rejected(gamma):
    p_of = context_dependent("target", 3)
    step = law_of_a_step(p_of, p_of, 3, gamma)

    assert {gamma + 1} == {len(tokens) for tokens in step}
    assert law_of_prefixes(p_of, gamma + 1, 3) == step


@pytest.mark.parametrize("gamma", [1, 2])
def test_drawing_the_replacement_from_the_target_gives_another_law(gamma, monkeypatch):
    """Negative control: p instead of the residual. At gamma 1 the distance is TV of the formula in SPEC-7."""
    p_of, q_of = context_dependent("target", 3), context_dependent("draft", 3)
    monkeypatch.setattr(verification, "residual", lambda p, q: p)
    step = law_of_a_step(p_of, q_of, 3, gamma)
    off = distance(law_of_prefixes(p_of, gamma + 1, 3), law_of_prefixes(p_of, gamma + 1, 3, step))
    p, q = p_of(()), q_of(())
    beta = sum(map(min, p, q))
    expected = sum(abs(min(a, b) + (1 - beta) * a - a) for a, b in zip(p, q, strict=True)) / 2
    first = sum(abs(a - b) for a, b in zip(first_token_law(step, 3), p, strict=True)) / 2

    assert expected > 0
    assert expected == first
    assert off >= first


def test_using_the_accept_coin_again_as_final_coin_gives_another_law():
    """Negative control: a coin that is known to have rejected is not uniform any more.

    p uniform, q = (4, 1, 1) / 6. Draft 0 is rejected by coins above 1/2; the residual (0, 1/2, 1/2) then gives its
    token 2 always: law (1/3, 1/6, 1/6 + 1/3).
    """
    p, q = fractions(2, 2, 2, over=6), fractions(4, 1, 1, over=6)
    step: dict[tuple[int, ...], Fraction] = defaultdict(Fraction)
    for drafts, weight in drafts_of(lambda _: q, 3, 1):
        accept = min(Fraction(1), p[drafts[0]] / q[drafts[0]])
        for low, width in cells([accept, 1 - accept], surplus_law(p, q), p):
            coin = low + width / 2
            step[verify(exact([p, p]), exact([q]), drafts, (coin,), coin).tokens] += weight * width

    assert fractions(2, 1, 3, over=6) == first_token_law(step, 3)
    assert distance(law_of_prefixes(lambda _: p, 2, 3), law_of_prefixes(lambda _: p, 2, 3, step)) >= Fraction(1, 6)


@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_expected_tokens_is_the_mean_over_the_exact_law(gamma):
    """With the same p and q at every position: beta = 1/6 + 2/6 + 1/6 = 2/3."""
    p, q = fractions(1, 2, 3, over=6), fractions(3, 2, 1, over=6)
    step = law_of_a_step(lambda _: p, lambda _: q, 3, gamma)
    mean = sum(len(tokens) * weight for tokens, weight in step.items())

    assert mean == sum(Fraction(2, 3) ** i for i in range(gamma + 1))
    assert mean == expected_tokens(Fraction(2, 3), gamma)
    assert acceptance(exact([p])[0], exact([q])[0]) == Fraction(2, 3)


def test_a_hair_is_narrower_than_every_cell():
    """Weights are at most 4 of 20, so accept probabilities are fractions over at most 4 * 20."""
    assert Fraction(1, 80) > HAIR
