"""All arithmetic whose bytes could differ between machines, in float64 and in one fixed order.

Only IEEE 754 + - * / sqrt, comparisons, rounding to an integer and scaling by powers of two are used, each a
correctly rounded or exact operation. Sums start at +0.0 and add in index order. So the result of every function
here is a property of IEEE 754: not of the CPU, of numpy's version, or of how many rows are computed together.
BLAS, np.exp and their kin have none of these properties.

Overflow gives infinities, invalid operations give NaN, NaN in gives NaN out; no warning is raised.
Where another behaviour is meant, the docstring says so.
"""

from functools import reduce

import numpy as np

from reference.errors import Array, Refusal, RefusedError

LARGEST_ANGLE = 2.0**20
"""Largest magnitude `sin_cos` accepts, in radians: a RoPE angle is at most the position itself."""

# ln 2 and pi/2 as sums of parts. All but the last end in zero bits, so that k * part is exact for every
# quotient k that occurs.
LN2_PARTS = (float.fromhex("0x1.62e42fee00000p-1"), float.fromhex("0x1.a39ef35793c76p-33"))
HALF_PI_PARTS = (
    float.fromhex("0x1.921fb54400000p+0"),
    float.fromhex("0x1.0b4611a600000p-34"),
    float.fromhex("0x1.3198a2e000000p-69"),
    float.fromhex("0x1.b839a252049c1p-104"),
)
LOG2_E = float.fromhex("0x1.71547652b82fep+0")
TWO_OVER_PI = float.fromhex("0x1.45f306dc9c883p-1")

# Taylor coefficients, highest power first. On the reduced ranges the first term left out is below 2**-57 of the
# result.
EXP_TAIL = tuple(1.0 / factor for factor in (87178291200.0, 6227020800.0, 479001600.0, 39916800.0, 3628800.0,
                                             362880.0, 40320.0, 5040.0, 720.0, 120.0, 24.0, 6.0))  # fmt: skip
ATANH_TAIL = tuple(2.0 / odd for odd in (25.0, 23.0, 21.0, 19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0))
SIN_TAIL = tuple(sign / factor for sign, factor in (
    (1.0, 355687428096000.0), (-1.0, 1307674368000.0), (1.0, 6227020800.0), (-1.0, 39916800.0),
    (1.0, 362880.0), (-1.0, 5040.0), (1.0, 120.0), (-1.0, 6.0)))  # fmt: skip
COS_TAIL = tuple(sign / factor for sign, factor in (
    (-1.0, 6402373705728000.0), (1.0, 20922789888000.0), (-1.0, 87178291200.0), (1.0, 479001600.0),
    (-1.0, 3628800.0), (1.0, 40320.0), (-1.0, 720.0), (1.0, 24.0)))  # fmt: skip

# Above this many products they are added one index at a time, since a buffer would no longer fit in a CPU's cache.
BUFFERED_PRODUCTS = 1 << 17


def matmul(x: Array, w: Array) -> Array:
    """Matrix product, each element summed over the inner axis in index order.

    x [..., M, N], w [..., N, P] -> [..., M, P]; leading axes broadcast.
    """
    assert x.shape[-1] == w.shape[-2]
    num_axes = max(x.ndim, w.ndim)
    rows = np.moveaxis(x[(None,) * (num_axes - x.ndim)], -1, 0)[..., :, None]  # [N, ..., M, 1]
    columns = np.moveaxis(w[(None,) * (num_axes - w.ndim)], -2, 0)[..., None, :]  # [N, ..., 1, P]
    with np.errstate(all="ignore"):
        first = rows[0] * columns[0]
        # numpy adds rows one after the other only where a row has at least two numbers.
        if 1 < first.size <= BUFFERED_PRODUCTS // len(rows):
            products = np.multiply(rows, columns, order="C")
            in_order: Array = np.add.reduce(products, axis=0) + 0.0
            return in_order
        total: Array = first + 0.0
        for row, column in zip(rows[1:], columns[1:], strict=True):
            total += row * column
        return total


def sum_last(x: Array) -> Array:
    """Sum over the last axis in index order, x [..., N] -> [...]. Exact types (Fraction) stay exact."""
    with np.errstate(all="ignore"):
        total: Array = np.add.accumulate(x, axis=-1)[..., -1] + 0
    return total


def cumulative(x: Array) -> Array:
    """Partial sums along the last axis in index order, x [..., N] -> [..., N]. Exact types stay exact."""
    with np.errstate(all="ignore"):
        sums: Array = np.add.accumulate(x, axis=-1) + 0
    return sums


def exp(x: Array) -> Array:
    """e**x, at most 1 ulp from the real value for normal results; +inf above 709.78, +0.0 below -745.13.

    x = k ln 2 + r with |r| <= ln(2)/2, and e**r by its Taylor series.
    """
    x = np.asarray(x, dtype=np.float64)
    with np.errstate(all="ignore"):
        k = np.rint(np.clip(x, -800.0, 800.0) * LOG2_E)
        high = np.clip(x, -800.0, 800.0) - k * LN2_PARTS[0]
        low = k * LN2_PARTS[1]
        r = high - low
        lost = (high - r) - low  # what rounding took from r
        e_r = 1.0 + (r + (lost + r * r * (0.5 + r * _polynomial(r, EXP_TAIL))))
        scaled: Array = np.ldexp(e_r, np.where(np.isnan(x), 0.0, k).astype(np.int64))
    return scaled


def log(x: Array) -> Array:
    """Natural logarithm, at most 1 ulp from the real value; log(0) = -inf, NaN below 0.

    x = 2**k m with m in [sqrt(1/2), sqrt(2)), and log(m) = 2 atanh((m - 1)/(m + 1)) by its series.
    """
    x = np.asarray(x, dtype=np.float64)
    with np.errstate(all="ignore"):
        mantissa, exponent = np.frexp(x)
        is_small = mantissa < 0.7071067811865476
        f = np.where(is_small, 2.0 * mantissa, mantissa) - 1.0
        k = np.where(is_small, exponent - 1, exponent).astype(np.float64)
        s = f / (2.0 + f)
        z = s * s
        # log(1 + f) = f - (f*f/2 - s*(f*f/2 + z*tail)): f is exact, so only small terms are rounded.
        half_square = 0.5 * f * f
        correction = half_square - (s * (half_square + z * _polynomial(z, ATANH_TAIL)) + k * LN2_PARTS[1])
        finite = k * LN2_PARTS[0] + (f - correction)
        special = np.where(x == 0.0, -np.inf, np.where(x == np.inf, np.inf, np.nan))
        is_special = ~((x > 0.0) & (x < np.inf))
    return np.where(is_special, special, finite)


def power(base: float, exponents: Array) -> Array:
    """base**exponents for base > 0, as exp(exponents * log(base)).

    The relative error is at most (2 + |exponents * log(base)|) * 2**-52.
    """
    with np.errstate(all="ignore"):
        return exp(exponents * log(np.float64(base)))


@np.errstate(all="ignore")
def sin_cos(x: Array) -> tuple[Array, Array]:
    """Sine and cosine, each at most 1 ulp from the real value, for |x| <= LARGEST_ANGLE.

    x = k pi/2 + r with |r| <= pi/4; r is kept as a sum of two numbers.
    Raises: NOT_A_NUMBER for NaN, infinities and larger angles.
    """
    x = np.asarray(x, dtype=np.float64)
    if not np.all(np.abs(x) <= LARGEST_ANGLE):
        raise RefusedError(Refusal.NOT_A_NUMBER, f"angles must be finite and at most {LARGEST_ANGLE:.0f} radians")
    k = np.rint(x * TWO_OVER_PI)
    r, low = x - k * HALF_PI_PARTS[0], np.zeros_like(x)
    for part in HALF_PI_PARTS[1:]:
        r, lost = _two_sum(r, -k * part)
        low = low + lost
    r, low = _two_sum(r, low)

    z = r * r
    sine = r + (low * (1.0 - 0.5 * z) + r * z * _polynomial(z, SIN_TAIL))
    half = 0.5 * z
    top = 1.0 - half
    cosine = top + (((1.0 - top) - half) + (z * z * _polynomial(z, COS_TAIL) - r * low))

    quadrant = k - 4.0 * np.floor(k / 4.0)
    is_odd = (quadrant == 1.0) | (quadrant == 3.0)
    sine_sign = np.where(quadrant >= 2.0, -1.0, 1.0)
    cosine_sign = np.where((quadrant == 1.0) | (quadrant == 2.0), -1.0, 1.0)
    return np.where(is_odd, cosine, sine) * sine_sign, np.where(is_odd, sine, cosine) * cosine_sign


def softmax(x: Array) -> Array:
    """exp(x - max) / sum over the last axis, x [..., V] -> [..., V].

    -inf has probability 0. A row whose maximum is NaN or infinite has no distribution and gives NaN.
    """
    with np.errstate(all="ignore"):
        weights = exp(x - np.max(x, axis=-1, keepdims=True))
        return weights / sum_last(weights)[..., None]


def log_softmax(x: Array) -> Array:
    """x - max - log(sum(exp(x - max))) over the last axis, x [..., V] -> [..., V]; -inf stays -inf.

    A row whose maximum is NaN or infinite gives NaN.
    """
    with np.errstate(all="ignore"):
        shifted = x - np.max(x, axis=-1, keepdims=True)
        logprobs: Array = shifted - log(sum_last(exp(shifted)))[..., None]
    return logprobs


def silu(x: Array) -> Array:
    """x / (1 + exp(-x)); -0.0 for large negative x, NaN at -inf (as the formula gives)."""
    with np.errstate(all="ignore"):
        gated: Array = x / (1.0 + exp(-x))
    return gated


def argmax(x: Array) -> int:
    """Index of the largest number of x [V]; ties go to the lowest index.

    Raises: NOT_A_NUMBER if x holds a NaN, which has no place in an ordering.
    """
    if np.isnan(x).any():
        raise RefusedError(Refusal.NOT_A_NUMBER, "logits hold a NaN, so no token is the most likely")
    return int(np.argmax(x))


def _polynomial(x: Array, coefficients: tuple[float, ...]) -> Array:
    """Horner's rule, highest power first."""
    return reduce(
        lambda total, coefficient: total * x + coefficient, coefficients[1:], np.full_like(x, coefficients[0])
    )


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b rounded, and what the rounding lost (Knuth, TAOCP vol. 2, sec. 4.2.2, theorem B)."""
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)
