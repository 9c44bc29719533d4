"""Every function of numerics against mpmath at 200 bits, a scalar loop, or exact fractions."""

import math
from fractions import Fraction
from itertools import product

import mpmath
import numpy as np
import pytest

from reference import numerics
from reference.errors import Array, Refusal, RefusedError
from reference.numerics import (
    LARGEST_ANGLE,
    argmax,
    cumulative,
    exp,
    log,
    log_softmax,
    matmul,
    power,
    silu,
    sin_cos,
    softmax,
    sum_last,
)

INF, NAN = math.inf, math.nan
LARGEST, SMALLEST_NORMAL, SMALLEST = 1.7976931348623157e308, 2.0**-1022, 2.0**-1074
RANDOM_POINTS = 20_000

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(autouse=True)
def _every_floating_point_flag_raises():
    with np.errstate(all="raise"):
        yield


@pytest.fixture(scope="module", autouse=True)
def _mpmath_at_200_bits():
    with mpmath.workprec(200):
        yield


def largest_ulp_error(got: Array, x: Array, function) -> float:
    """max |got - function(x)| in units of the spacing of doubles at the exact value."""
    largest = mpmath.mpf(0)
    for number, argument in zip(got.tolist(), x.tolist(), strict=True):
        exact = function(mpmath.mpf(argument))
        ulp = mpmath.ldexp(1, max(mpmath.frexp(exact)[1] - 53, -1074)) if exact else mpmath.ldexp(1, -1074)
        largest = max(largest, abs(number - exact) / ulp)
    return float(largest)


def neighbours(x: Array, num_steps: int = 2) -> Array:
    """x and the doubles up to num_steps above and below each."""
    around = [x]
    for direction in (-np.inf, np.inf):
        moved = x
        for _ in range(num_steps):
            moved = np.nextafter(moved, direction)
            around.append(moved)
    return np.concatenate(around)


def exp_points() -> Array:
    random = np.random.default_rng(1)
    halfway = (np.arange(-1074, 1024, 2) + 0.5) * math.log(2)  # the reduction changes k here
    tiny = 2.0 ** random.uniform(-60, 0, 1000) * random.choice([-1.0, 1.0], 1000)
    ranges = ((-745.0, 709.78), (-708.0, -100.0), (-40.0, 40.0))
    points = [random.uniform(*ends, RANDOM_POINTS) for ends in ranges]
    return np.concatenate([*points, tiny, neighbours(halfway, 1), np.arange(-745.0, 710.0), [0.0, 709.78, -745.0]])


def test_exp_is_within_one_ulp_over_its_whole_range():
    """Measured over 85 million points: 0.87 ulp; without `lost` it would be 0.95.

    Subnormal results count in steps of 2**-1074.
    """
    x = exp_points()

    assert largest_ulp_error(exp(x), x, mpmath.exp) <= 0.9


def log_points() -> Array:
    random = np.random.default_rng(2)
    any_double = random.integers(1, 0x7FF0_0000_0000_0000, RANDOM_POINTS).view(np.float64)
    subnormal = random.integers(1, 1 << 52, 500).view(np.float64)
    powers_of_two = np.ldexp(1.0, np.arange(-1074, 1024, 5))
    near_one = np.concatenate([1 + 2.0 ** -np.arange(1.0, 53.0), 1 - 2.0 ** -np.arange(1.0, 54.0)])
    reduction = neighbours(math.sqrt(0.5) * 2.0 ** np.arange(-8.0, 9.0))
    usual = 2.0 ** random.uniform(-3, 3, RANDOM_POINTS)
    largest_series = random.uniform(0.7, 0.72, RANDOM_POINTS)  # around sqrt(1/2) the last terms weigh most
    parts = [any_double, subnormal, powers_of_two, near_one, reduction, usual, largest_series]
    return np.concatenate([*parts, [SMALLEST, SMALLEST_NORMAL, LARGEST]])


def test_log_is_within_one_ulp_over_all_positive_doubles():
    """Measured over 100 million points: 0.86 ulp. log(1) is exactly 0."""
    x = log_points()
    x = x[x != 1.0]

    assert largest_ulp_error(log(x), x, mpmath.log) <= 0.9
    assert log(np.float64(1.0)).tolist() == 0.0


def angles() -> Array:
    random = np.random.default_rng(3)
    quotients = np.concatenate([np.arange(1.0, 400.0), random.integers(1, 667_544, 600)])
    near_axes = np.array([float(mpmath.mpf(k) * mpmath.pi / 2) for k in quotients])
    near_diagonals = np.array([float((mpmath.mpf(k) + 0.5) * mpmath.pi / 2) for k in quotients[:400]])
    positions = np.concatenate([np.arange(0.0, 300.0), random.integers(0, 1 << 20, 1000).astype(np.float64)])
    tiny = 2.0 ** random.uniform(-500, 0, 500)
    anything = random.uniform(0.0, LARGEST_ANGLE, RANDOM_POINTS)
    x = np.concatenate([neighbours(near_axes, 1), neighbours(near_diagonals, 1), positions, tiny, anything])
    x = np.append(x[x <= LARGEST_ANGLE], LARGEST_ANGLE)
    return np.where(np.arange(len(x)) % 3 == 0, -x, x)


def test_sin_and_cos_are_within_one_ulp_up_to_the_largest_angle():
    """Measured over 60 million points, all integers and all multiples of pi/2 among them: 0.80 and 0.81 ulp."""
    x = angles()
    sine, cosine = sin_cos(x)

    assert largest_ulp_error(sine, x, mpmath.sin) <= 0.9
    assert largest_ulp_error(cosine, x, mpmath.cos) <= 0.9


def test_power_keeps_its_stated_bound():
    """|error| <= (2 + |exponent * log(base)|) * 2**-52 of the value, for RoPE's bases and far beyond."""
    random = np.random.default_rng(4)
    for base in (1.0, 1.5, 10000.0, 500000.0, 1e-3, 7.25e200):
        exponents = np.concatenate([random.uniform(-1, 1, 300), np.arange(-1.0, 1.25, 0.25)])
        for got, exponent in zip(power(base, exponents).tolist(), exponents.tolist(), strict=True):
            exact = mpmath.power(base, exponent)
            bound = (2 + abs(exponent * math.log(base))) * 2.0**-52

            assert abs(got - exact) <= bound * exact


def test_exp_at_its_edges():
    """ln(largest double) = 709.7827...; half the smallest double is e**-745.1332..., where rounding gives 0."""
    x = np.array([INF, 1e308, 709.79, 0.0, -0.0, -745.14, -1e308, -INF, NAN])

    np.testing.assert_array_equal(exp(x), [INF, INF, INF, 1.0, 1.0, 0.0, 0.0, 0.0, NAN])


def test_exp_of_minus_745_is_the_smallest_double():
    """e**-745 = 5.0e-324 rounds to 2**-1074 = 4.94e-324."""
    assert exp(np.array([-745.0])).tolist() == [SMALLEST]


def test_log_at_its_edges():
    x = np.array([INF, 1.0, 0.0, -0.0, -1.0, -SMALLEST, -INF, NAN])

    np.testing.assert_array_equal(log(x), [INF, 0.0, -INF, -INF, NAN, NAN, NAN, NAN])


def test_power_overflows_to_infinity_and_underflows_to_zero():
    np.testing.assert_array_equal(power(10.0, np.array([400.0, -400.0, 0.0])), [INF, 0.0, 1.0])


def test_sin_cos_at_zero_and_at_the_smallest_double():
    sine, cosine = sin_cos(np.array([0.0, SMALLEST, -SMALLEST_NORMAL]))

    np.testing.assert_array_equal(sine, [0.0, SMALLEST, -SMALLEST_NORMAL])
    np.testing.assert_array_equal(cosine, [1.0, 1.0, 1.0])


@pytest.mark.parametrize("angle", [NAN, INF, -INF, math.nextafter(2.0**20, INF)])
def test_sin_cos_refuses_what_is_no_angle(angle):
    with pytest.raises(RefusedError, match="angles must be finite and at most 1048576 radians") as refused:
        sin_cos(np.array([0.0, angle]))

    assert refused.value.reason is Refusal.NOT_A_NUMBER


# Products and sums


def product_by_loop(x: Array, w: Array) -> list[list[float]]:
    """Two-dimensional product in Python's own float arithmetic, each sum from +0.0 in index order."""
    rows, columns = x.tolist(), w.T.tolist()
    products = []
    for row in rows:
        products.append([])
        for column in columns:
            total = 0.0
            for a, b in zip(row, column, strict=True):
                total += a * b
            products[-1].append(total)
    return products


def with_any_order(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Numbers of very different magnitudes and signs, so that another order of summation gives other bytes."""
    return random.standard_normal(shape) * 2.0 ** random.integers(-12, 13, shape)


def bytes_of(x: Array) -> bytes:
    return np.ascontiguousarray(x).tobytes()


def test_matmul_is_the_scalar_loop_for_every_small_shape():
    random = np.random.default_rng(5)
    for M, N, P in product((1, 2, 3, 8), (1, 2, 3, 9, 33), (1, 2, 3, 7, 8)):
        x, w = with_any_order(random, (M, N)), with_any_order(random, (N, P))
        expected = bytes_of(np.array(product_by_loop(x, w)))

        assert expected == bytes_of(matmul(x, w)), (M, N, P)


@pytest.mark.parametrize(("M", "N", "P"), [(64, 64, 32), (65, 64, 32), (1, 700, 200), (300, 500, 1), (2, 66000, 1)])
def test_matmul_is_the_scalar_loop_around_the_buffer_size(M, N, P):
    """64 * 64 * 32 is exactly BUFFERED_PRODUCTS; the others need more, and take the other path."""
    assert numerics.BUFFERED_PRODUCTS == 64 * 64 * 32

    random = np.random.default_rng(6)
    x, w = with_any_order(random, (M, N)), with_any_order(random, (N, P))
    expected = bytes_of(np.array(product_by_loop(x, w)))

    assert expected == bytes_of(matmul(x, w))


def test_matmul_reads_any_memory_layout():
    random = np.random.default_rng(7)
    x, w = with_any_order(random, (6, 12)), with_any_order(random, (12, 10))
    layouts = [
        (np.asfortranarray(x), w),
        (x, np.asfortranarray(w)),
        (np.asfortranarray(x), np.asfortranarray(w)),
        (np.repeat(x, 2, axis=0)[::2], np.repeat(w, 3, axis=1)[:, ::3]),
        (x[::-1][::-1], w[::-1][::-1]),
        (np.ascontiguousarray(x.T).T, np.ascontiguousarray(w.T).T),
    ]
    expected = [bytes_of(np.array(product_by_loop(x, w)))] * len(layouts)

    assert expected == [bytes_of(matmul(a, b)) for a, b in layouts]


@pytest.mark.parametrize(
    ("leading_x", "leading_w"), [((3,), (3,)), ((3,), (1,)), ((2, 1), (1, 3)), ((3,), ()), ((), (3,)), ((2, 3), (3,))]
)
@pytest.mark.parametrize("N", [1, 3, 5])
def test_matmul_broadcasts_leading_axes(leading_x, leading_w, N):
    """N = 3 equals a leading axis on purpose: an inner axis that took part in broadcasting would go unnoticed."""
    random = np.random.default_rng(8)
    x, w = with_any_order(random, (*leading_x, 2, N)), with_any_order(random, (*leading_w, N, 4))
    leading = np.broadcast_shapes(leading_x, leading_w)
    expected = np.zeros((*leading, 2, 4))
    for index in np.ndindex(leading):
        one_x = np.broadcast_to(x, (*leading, 2, N))[index]
        one_w = np.broadcast_to(w, (*leading, N, 4))[index]
        expected[index] = product_by_loop(one_x, one_w)

    assert (expected.shape, bytes_of(expected)) == (matmul(x, w).shape, bytes_of(matmul(x, w)))


def test_matmul_does_not_stretch_an_inner_axis_of_one():
    with pytest.raises(AssertionError):
        matmul(np.ones((2, 3)), np.ones((1, 4)))


@pytest.mark.parametrize(("N", "P"), [(1, 1), (5, 1), (5, 7), (4000, 60)])
def test_rows_computed_together_equal_rows_computed_alone(N, P):
    random = np.random.default_rng(9)
    x, w = with_any_order(random, (5, N)), with_any_order(random, (N, P))
    alone = np.concatenate([matmul(x[i : i + 1], w) for i in range(5)])

    assert bytes_of(alone) == bytes_of(matmul(x, w))


def test_the_order_of_a_sum_is_its_index_order():
    """1 + 2**53 rounds to 2**53, so (1 + 2**53) - 2**53 is 0; any other order gives 1."""
    ordered = np.array([[1.0, 2.0**53, -(2.0**53)]])
    ones = np.ones((3, 1))

    assert [[0.0]] == matmul(ordered, ones).tolist()
    assert [0.0] == sum_last(ordered).tolist()
    assert [[1.0, 2.0**53, 0.0]] == cumulative(ordered).tolist()


@pytest.mark.parametrize(("num_rows", "num_columns"), [(1, 1), (2, 3), (2, 20000)])
def test_a_sum_of_negative_zeros_is_positive_zero(num_rows, num_columns):
    """Sums start at +0.0, in the loop (one element; too many products) and in the buffer alike."""
    zeros = np.full((num_rows, 4), -0.0)
    signs = [
        np.signbit(matmul(zeros, np.ones((4, num_columns)))).any(),
        np.signbit(sum_last(zeros)).any(),
        np.signbit(cumulative(zeros)).any(),
    ]

    assert [False, False, False] == signs


def test_sum_last_and_cumulative_are_the_scalar_loop():
    """Lengths beyond 8 and 128 are where numpy's own sum regroups (pairwise summation)."""
    random = np.random.default_rng(10)
    for length in (1, 2, 7, 8, 9, 127, 128, 129, 1000):
        x = with_any_order(random, (3, length))
        partial_sums = []
        for row in x.tolist():
            total = 0.0
            partial_sums.append([total := total + number for number in row])

        assert partial_sums == cumulative(x).tolist()
        assert [row[-1] for row in partial_sums] == sum_last(x).tolist()


def test_sums_of_fractions_are_exact():
    thirds = np.array([[Fraction(1, 3)] * 3, [Fraction(1, 7)] * 3], dtype=object)
    partial_sums = [[Fraction(n, 3) for n in (1, 2, 3)], [Fraction(n, 7) for n in (1, 2, 3)]]

    assert partial_sums == cumulative(thirds).tolist()
    assert [Fraction(1), Fraction(3, 7)] == sum_last(thirds).tolist()


def test_products_and_sums_carry_infinities_and_nan_without_a_warning():
    x = np.array([[LARGEST, LARGEST], [INF, -INF], [NAN, 0.0], [SMALLEST, SMALLEST]])

    np.testing.assert_array_equal(matmul(x, np.ones((2, 2))), [[INF] * 2, [NAN] * 2, [NAN] * 2, [2 * SMALLEST] * 2])
    np.testing.assert_array_equal(sum_last(x), [INF, NAN, NAN, 2 * SMALLEST])
    np.testing.assert_array_equal(matmul(x[1:2, :1], np.zeros((1, 1))), [[NAN]])


# Functions of logits


def test_softmax_is_within_two_roundings_a_term_of_the_exact_value():
    """exp and the division err by an ulp each, the sum of V = 50 positive numbers by at most 50 halves."""
    x = np.random.default_rng(11).uniform(-30, 30, (20, 50))
    for row, got in zip(x.tolist(), softmax(x).tolist(), strict=True):
        weights = [mpmath.exp(number) for number in row]
        exact = [weight / mpmath.fsum(weights) for weight in weights]
        # The argument x - max is rounded too: half an ulp of up to 60 moves exp by 60 * 2**-53.
        bound = (1 + 1 + 25 + 60) * 2.0**-52

        assert max(abs(a - b) / b for a, b in zip(got, exact, strict=True)) < bound


def test_softmax_of_equal_logits_is_uniform_and_of_minus_infinity_zero():
    """exp(0) is exactly 1, so two equal logits give exactly a half each."""
    x = np.array([[1000.0, 1000.0, -INF], [-INF, -INF, -3.0]])

    assert [[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]] == softmax(x).tolist()


ROWS_WITHOUT_A_DISTRIBUTION = [[-INF, -INF], [INF, 0.0], [INF, INF], [NAN, 0.0], [0.0, NAN], [NAN, -INF]]


@pytest.mark.parametrize("row", ROWS_WITHOUT_A_DISTRIBUTION)
def test_a_row_without_a_finite_maximum_gives_nan(row):
    np.testing.assert_array_equal(softmax(np.array(row)), [NAN, NAN])
    np.testing.assert_array_equal(log_softmax(np.array(row)), [NAN, NAN])


def test_a_row_without_a_distribution_does_not_touch_its_neighbours():
    x = np.array([[-INF, -INF], [2.0, 2.0]])

    np.testing.assert_array_equal(softmax(x), [[NAN, NAN], [0.5, 0.5]])


def test_log_softmax_equals_the_exact_value_closely_where_softmax_underflows():
    """log(e**0 + e**-800) is 0 to every double, so the logprobs are 0 and -800."""
    assert [0.0, -800.0] == log_softmax(np.array([400.0, -400.0])).tolist()


def test_log_softmax_keeps_minus_infinity_and_matches_mpmath():
    """The sum 1.075 may err by an ulp (2**-52) and its logarithm 0.07 with it, so the tolerance is absolute."""
    x = np.array([0.25, -1.5, -INF, 3.0])
    total = mpmath.log(mpmath.exp(0.25) + mpmath.exp(-1.5) + mpmath.exp(3))
    expected = [float(0.25 - total), float(-1.5 - total), -INF, float(3 - total)]

    np.testing.assert_allclose(log_softmax(x), expected, rtol=2.0**-52, atol=2.0**-51)


def test_silu_at_its_edges():
    """-1000 / (1 + e**1000) = -1000 / inf = -0.0; -inf / inf is NaN; x above 745 is itself."""
    got = silu(np.array([0.0, 800.0, INF, -1000.0, -INF, NAN]))

    np.testing.assert_array_equal(got, [0.0, 800.0, INF, -0.0, NAN, NAN])
    assert np.signbit(got[3])


def test_silu_matches_mpmath():
    """Three rounded operations after exp: 4 ulp at most."""
    x = np.random.default_rng(12).uniform(-700, 40, 500)

    assert largest_ulp_error(silu(x), x, lambda number: number / (1 + mpmath.exp(-number))) <= 4.0


def test_argmax_of_a_tie_is_the_lowest_index():
    assert argmax(np.array([1.0, 7.0, 3.0, 7.0, 7.0])) == 1
    assert argmax(np.array([-INF, -INF])) == 0
    assert argmax(np.array([-0.0, 0.0])) == 0
    assert argmax(np.array([0.0, INF, INF])) == 1


@pytest.mark.parametrize("logits", [[NAN, 1.0], [1.0, NAN], [INF, NAN]])
def test_argmax_refuses_nan(logits):
    with pytest.raises(RefusedError, match="logits hold a NaN, so no token is the most likely") as refused:
        argmax(np.array(logits))

    assert refused.value.reason is Refusal.NOT_A_NUMBER


def test_zero_dimensional_arguments_are_accepted():
    zero = np.float64(0.0)

    assert [1.0, -INF, 0.0, 1.0] == [float(exp(zero)), float(log(zero)), *(float(y) for y in sin_cos(zero))]
