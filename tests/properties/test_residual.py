"""Laws of acceptance, residual and total variation, exact in fractions (Leviathan et al. 2023, sec. 3, app. A)."""

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from reference.decoding.verification import (
    acceptance,
    expected_tokens,
    output_law,
    residual,
    total_variation,
)

WEIGHTS = st.integers(0, 9)


@st.composite
def laws(draw, count: int) -> list[np.ndarray]:
    """Distributions over the same 1 to 6 tokens, as arrays of Fraction; zeros are common."""
    size = draw(st.integers(1, 6))
    rows = [draw(st.lists(WEIGHTS, min_size=size, max_size=size).filter(any)) for _ in range(count)]
    return [np.array([Fraction(weight, sum(row)) for weight in row], dtype=object) for row in rows]


@given(pair=laws(2))
def test_acceptance_is_one_minus_total_variation(pair):
    assert 1 - total_variation(*pair) == acceptance(*pair)


@given(pair=laws(2))
def test_total_variation_is_the_largest_difference_of_any_event(pair):
    """The event 'tokens where p exceeds q' attains it: its definition as a supremum."""
    p, q = pair

    assert sum((a - b for a, b in zip(p, q, strict=True) if a > b), Fraction(0)) == total_variation(p, q)


@given(triple=laws(3))
def test_total_variation_is_a_metric(triple):
    p, q, r = triple

    assert total_variation(p, p) == 0
    assert total_variation(p, q) == total_variation(q, p)
    assert total_variation(p, r) <= total_variation(p, q) + total_variation(q, r)
    assert (total_variation(p, q) == 0) == (p.tolist() == q.tolist())


@given(pair=laws(2))
def test_residual_is_a_distribution_on_the_tokens_the_target_prefers(pair):
    p, q = pair
    replacement = residual(p, q)

    assert sum(replacement) == 1
    if p.tolist() != q.tolist():
        assert [a > b for a, b in zip(p, q, strict=True)] == [r > 0 for r in replacement]


@given(pair=laws(2))
def test_with_the_residual_the_output_law_is_the_target(pair):
    p, q = pair

    assert p.tolist() == output_law(p, q, residual(p, q)).tolist()


@given(pair=laws(2))
def test_another_replacement_moves_the_output_law_by_the_rejected_part_of_its_distance(pair):
    """TV(law, p) = (1 - beta) TV(replacement, residual): only the residual gives the target."""
    p, q = pair
    law = output_law(p, q, p)

    assert total_variation(law, p) == (1 - acceptance(p, q)) * total_variation(p, residual(p, q))


@given(beta=st.fractions(0, 1, max_denominator=50), gamma=st.integers(1, 8))
def test_expected_tokens_is_the_geometric_sum(beta, gamma):
    assert sum(beta**i for i in range(gamma + 1)) == expected_tokens(beta, gamma)


@given(pair=laws(2))
def test_floats_agree_with_fractions(pair):
    p, q = pair
    floats = residual(p.astype(np.float64), q.astype(np.float64))

    # Where p and q agree but for rounding the float residual is all rounding, so only clear differences count.
    if total_variation(p, q) > 0:
        np.testing.assert_allclose(floats, residual(p, q).astype(np.float64), rtol=1e-12, atol=1e-13)
