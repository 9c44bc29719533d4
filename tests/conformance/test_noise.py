"""The noise of types of few bits: what it is made of, that correct engines stay within it and wrong ones do not."""

import math

import ml_dtypes
import numpy as np
import pytest

from reference.conformance.compare import TOLERANCES, Verdict, compare_logits, compare_tokens
from reference.conformance.evidence import Answer
from reference.conformance.exact import golden_model
from reference.conformance.judge import compare
from reference.conformance.noise import measure_of, noise, rounded_forward, rounding
from reference.conformance.orders import blocked, pairwise, product_in, shuffled, to_float32
from reference.conformance.records import find_records
from reference.engine import Description
from reference.model import transformer
from reference.model.cache import empty_cache
from reference.model.transformer import forward

RECORDS = [record for record in find_records(["forward"]) if "positions" not in record.expected]
SOME = [record for record in RECORDS if record.id.endswith("-short")]


@pytest.mark.parametrize("precision", ["f16", "bf16"])
def test_rounding_to_nearest_is_the_conversion_of_the_type(precision):
    dtype = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}[precision]
    x = np.random.default_rng(0).normal(size=1000)

    assert np.array_equal(x.astype(dtype).astype(np.float64), rounding(precision, None)(x))


# Near 1 a bfloat16 has steps of 2**-7 and a float16 of 2**-10.
@pytest.mark.parametrize(("precision", "step"), [("bf16", 2.0**-7), ("f16", 2.0**-10)])
def test_rounding_by_chance_takes_a_neighbour_with_the_probability_that_is_nearer(precision, step):
    x = np.full(10_000, 1.0 + 0.25 * step)
    rounded = rounding(precision, 1)(x)

    assert {1.0, 1.0 + step} == set(rounded)
    assert 0.25 == pytest.approx(np.mean(rounded > 1.0), abs=0.02)


@pytest.mark.parametrize("precision", ["f16", "bf16"])
@pytest.mark.parametrize("number", [0.0, 1.0, -2.5, math.inf, -math.inf])
def test_a_number_of_the_type_stays_what_it_is(precision, number):
    with np.errstate(all="ignore"):
        assert np.array_equal(np.full(50, number), rounding(precision, 1)(np.full(50, number)))


def test_without_rounding_the_forward_is_the_specification_s():
    """Up to the order of operations: a weighed norm, and a division by sqrt(D)."""
    model = golden_model("zoo-grouped")
    tokens = (1, 5, 2, 9, 3, 3, 7)
    exact, _ = forward(model, tokens, empty_cache(model.config))

    np.testing.assert_allclose(rounded_forward(model, tokens, lambda x: x), exact, rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("precision", ["exact", "f64", "int8"])
def test_other_precisions_have_one_tolerance(precision):
    assert measure_of(precision)("sweep", (1, 2, 3)) is None
    assert measure_of(precision, is_late=True)("sweep", (1, 2, 3)) is None


def test_float32_is_measured_only_beyond_its_tolerance():
    assert measure_of("f32")("sweep", (1, 2, 3)) is None
    assert (3,) == measure_of("f32", is_late=True)("sweep", (1, 2, 3)).shape


# Records of the largest noise in float32, in the order of their files.
SUMMED = ("batching-long", "zoo-coincide-vocab-long", "zoo-grouped-long", "zoo-peaked-short", "zoo-sharded-long")


@pytest.mark.parametrize("record", find_records(("forward",), [f"forward/{name}" for name in SUMMED]), ids=SUMMED)
def test_of_a_thousand_orders_of_summation_none_is_accused(record):
    """200 orders for each of five records; some are beyond the one tolerance, all within the measured noise."""
    model, tokens = golden_model(record.input["model"]), tuple(record.input["prompt"])
    engine = Description("summed", "1", "f32")

    verdicts = {
        compare(
            record, Answer(rounded_forward(model, tokens, to_float32, product_in(shuffled(seed)))), engine
        ).verdict
        for seed in range(1000, 1200)
    }

    assert verdicts == {Verdict.PASS}


def test_noise_is_the_same_every_time():
    once = noise("batching", (1, 2, 3), "bf16")
    noise.cache_clear()

    assert np.array_equal(once, noise("batching", (1, 2, 3), "bf16"))


def test_no_position_has_less_than_the_median_and_bf16_has_more_than_f16():
    tokens = tuple(range(1, 30))
    half, brain = noise("batching", tokens, "f16"), noise("batching", tokens, "bf16")

    assert half.min() >= np.median(half) > 0.0
    assert 3.0 < np.median(brain) / np.median(half) < 20.0  # 8 by the bits of their fractions


@pytest.mark.parametrize("precision", ["f16", "bf16"])
@pytest.mark.parametrize("record", SOME, ids=lambda record: record.id)
def test_a_correct_engine_with_other_roundings_is_never_accused(precision, record):
    model, tokens = golden_model(record.input["model"]), tuple(record.input["prompt"])
    right, measured = np.array(record.expected["logits"]), noise(record.input["model"], tokens, precision)
    with np.errstate(all="ignore"):
        for seed in range(100, 110):
            answered = rounded_forward(model, tokens, rounding(precision, seed))
            judgement = compare_logits(right, answered, precision, noise=measured)
            assert judgement.verdict in (Verdict.PASS, Verdict.NOT_APPLICABLE), judgement.sentence


ATTENTION, ROTATE = transformer.attention, transformer.rotate
DEFECTS = {
    "no scale in attention": (
        "attention",
        lambda q, keys, values: ATTENTION(q * math.sqrt(q.shape[-1]), keys, values),
    ),
    "no rotation of keys and queries": ("rotate", lambda x, cosine, sine: x),
    "rotation the other way": ("rotate", lambda x, cosine, sine: ROTATE(x, cosine, -sine)),
    "no causal mask": ("causal", lambda num_queries, num_context: np.ones((num_queries, num_context), dtype=bool)),
}


@pytest.mark.parametrize("precision", ["f16", "bf16"])
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_wrong_engine_is_beyond_the_noise(precision, defect, monkeypatch):
    measured = [noise(one.input["model"], tuple(one.input["prompt"]), precision) for one in SOME]
    monkeypatch.setattr(transformer, *DEFECTS[defect])
    verdicts = []
    for record, allowed in zip(SOME, measured, strict=True):
        model = golden_model(record.input["model"])
        answered, _ = forward(model, record.input["prompt"], empty_cache(model.config))
        right = np.array(record.expected["logits"])
        verdicts.append(compare_logits(right, answered, precision, noise=allowed).verdict)

    assert verdicts.count(Verdict.FAIL) >= len(SOME) / 4


ROW = np.array([[1.0, 2.0, 4.0], [1.0, 2.0, 4.0]])


@pytest.mark.parametrize(
    ("measured", "off", "verdict"),
    [
        ([0.1, 0.1], 0.39, Verdict.PASS),
        ([0.1, 0.1], 0.41, Verdict.FAIL),
        ([1e-9, 1e-9], 0.9 * 4.0 * TOLERANCES["bf16"], Verdict.PASS),
        ([1e-9, 1e-9], 1.1 * 4.0 * TOLERANCES["bf16"], Verdict.FAIL),
        ([0.3, 0.2], 0.41, Verdict.PASS),
        ([0.3, 0.26], 0.41, Verdict.NOT_APPLICABLE),
        ([0.3, 0.26], 2.0, Verdict.FAIL),
        ([math.inf, 0.1], math.inf, Verdict.PASS),
        ([0.1, math.inf], math.nan, Verdict.FAIL),
    ],
)
def test_the_tolerance_of_a_position_is_its_noise(measured, off, verdict):
    """The first position is off; the largest logit is 4."""
    answered = ROW.copy()
    answered[0, 0] += off

    assert verdict is compare_logits(ROW, answered, "bf16", noise=np.array(measured)).verdict


@pytest.mark.parametrize(("measured", "verdict"), [(0.2, Verdict.FAIL), (0.26, Verdict.NEAR_TIE)])
def test_a_margin_within_twice_the_noise_is_a_near_tie(measured, verdict):
    """The margin is 2, the largest logit 4."""
    judgement = compare_tokens([2], [1], "bf16", lambda _: ROW[0], np.array([measured]))

    assert verdict is judgement.verdict


@pytest.mark.parametrize("add", [pairwise, blocked, shuffled(1)])
def test_another_order_of_summation_is_the_same_product(add):
    x, w = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)

    assert np.array_equal(x @ w, product_in(add)(x, w))


def test_pairwise_sums_differ_from_sums_in_order_by_hand():
    """float32 has 24 bits: 2**24 + 1 + 1 + 1 in order stays 2**24, in pairs it is 2**24 + (1 + 1) after the first."""
    terms = np.array([2.0**24, 1.0, 1.0, 1.0], np.float32)

    assert 2.0**24 + 2.0 == pairwise(terms)
    assert 2.0**24 == product_in(blocked)(terms[None].astype(np.float64), np.ones((4, 1)))[0, 0]
