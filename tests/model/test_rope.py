"""Frequencies of every RoPE type by hand and against transformers; the rotation against complex numbers."""

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest

from reference.model.config import ModelConfig, config_to_dict
from reference.model.rope import base_frequencies, frequencies, rotate, rotation
from reference.model.rope_parameters import RopeParameters
from tests.models import ROPES, TINY, rope_config

# 100**(-i/4): the four frequencies of head_dim 8 and theta 100, wavelengths 6.28, 19.9, 62.8 and 199 tokens.
F0, F1, F2, F3 = 1.0, float(mpmath.mpf(100) ** -0.25), 0.1, float(mpmath.mpf(100) ** -0.75)


def assert_frequencies(expected: tuple[list[float], float], config: ModelConfig, num_tokens: int) -> None:
    frequency, attention_factor = frequencies(config, num_tokens)

    np.testing.assert_allclose(frequency, expected[0], rtol=4e-15)
    assert expected[1] == pytest.approx(attention_factor, rel=1e-15)


def test_base_frequencies_are_powers_of_theta():
    """theta 16, head_dim 4: 16**0 and 16**(-2/4) = 1/4; within the bound of numerics.power."""
    np.testing.assert_allclose(base_frequencies(16.0, 4), [1.0, 0.25], rtol=2.0**-50)


def test_default_keeps_the_frequencies():
    assert_frequencies(([F0, F1, F2, F3], 1.0), rope_config("default"), 64)


def test_linear_divides_every_frequency_by_factor():
    assert_frequencies(([F0 / 4, F1 / 4, F2 / 4, F3 / 4], 1.0), rope_config("linear"), 64)


def test_yarn_interpolates_slow_pairs_and_keeps_fast_ones():
    """Turns over 32 tokens at pair d: 4 at d = 8 ln(32/8pi) / (2 ln 100) = 0.21, 1/2 at d = 2.02: ramp from 0 to 3.

    Pair i mixes f (1 - i/3) + f/4 i/3 = f (1 - i/4); attention factor 0.1 ln 4 + 1.
    """
    expected = [F0, 0.75 * F1, 0.5 * F2, 0.25 * F3]

    assert_frequencies((expected, 0.1 * math.log(4.0) + 1.0), rope_config("yarn"), 64)


def test_yarn_without_truncation_ramps_between_the_exact_dimensions():
    config = rope_config("yarn")
    config = replace(config, rope=replace(config.rope, truncate=False))
    low = 8 * math.log(32 / (4 * 2 * math.pi)) / (2 * math.log(100))
    high = 8 * math.log(32 / (0.5 * 2 * math.pi)) / (2 * math.log(100))
    ramps = [0.0, (1 - low) / (high - low), (2 - low) / (high - low), 1.0]  # low = 0.21, high = 2.02
    expected = [f * (1 - ramp) + f / 4 * ramp for f, ramp in zip((F0, F1, F2, F3), ramps, strict=True)]

    assert 0 < low < 1
    assert 2 < high < 3
    assert_frequencies((expected, 0.1 * math.log(4.0) + 1.0), config, 64)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"attention_factor": 1.5}, 1.5),
        ({"attention_factor": 1.5, "mscale": 2.0, "mscale_all_dim": 1.0}, 1.5),
        ({"mscale": 2.0}, 0.1 * math.log(4.0) + 1.0),
        ({"mscale_all_dim": 2.0}, 0.1 * math.log(4.0) + 1.0),
        ({"mscale": 2.0, "mscale_all_dim": 0.5}, (0.2 * math.log(4.0) + 1.0) / (0.05 * math.log(4.0) + 1.0)),
        ({"factor": 1.0}, 1.0),
    ],
)
def test_yarn_attention_factor(changes, expected):
    config = rope_config("yarn")
    _, attention_factor = frequencies(replace(config, rope=replace(config.rope, **changes)), 1)

    assert expected == pytest.approx(attention_factor, rel=1e-15)


def test_llama3_keeps_short_waves_stretches_long_ones_and_blends_between():
    """Original context 32: waves below 32/4 kept (6.28), above 32/1 divided by 8 (62.8, 199), 19.9 in between."""
    wavelength = 2 * math.pi / F1
    smooth = (32 / wavelength - 1) / (4 - 1)
    expected = [F0, (1 - smooth) * F1 / 8 + smooth * F1, F2 / 8, F3 / 8]

    assert_frequencies((expected, 1.0), rope_config("llama3"), 64)


@pytest.mark.parametrize(("num_tokens", "growth"), [(1, 1), (64, 1), (65, 4 * 65 / 64 - 3), (128, 5), (256, 13)])
def test_dynamic_raises_theta_beyond_the_trained_context(num_tokens, growth):
    """theta' = 100 (4 S/64 - 3)**(8/6): at S = 128 tokens the bracket is 5, at 256 it is 13."""
    theta = 100 * growth ** (8 / 6)
    expected = [theta ** (-i / 4) for i in range(4)]

    assert_frequencies((expected, 1.0), rope_config("dynamic"), num_tokens)


@pytest.mark.parametrize(
    ("num_tokens", "divisors"), [(1, (1.0, 1.5, 2.0, 3.0)), (16, (1.0, 1.5, 2.0, 3.0)), (17, (1.25, 2.0, 4.0, 8.0))]
)
def test_longrope_changes_divisors_beyond_the_original_context(num_tokens, divisors):
    """s = 64/16 = 4, so the factor on cos and sin is sqrt(1 + ln 4 / ln 16) = sqrt(3/2)."""
    expected = [f / divisor for f, divisor in zip((F0, F1, F2, F3), divisors, strict=True)]

    assert_frequencies((expected, math.sqrt(1.5)), rope_config("longrope"), num_tokens)


@pytest.mark.parametrize(
    ("rope_changes", "max_position_embeddings", "expected"),
    [
        ({"attention_factor": 0.75}, 64, 0.75),
        ({"factor": 16.0}, 64, math.sqrt(2.0)),  # the given factor, not 64/16: 1 + ln 16 / ln 16
        ({"factor": 1.0}, 64, 1.0),
        ({}, 16, 1.0),
        ({}, 8, 1.0),
    ],
)
def test_longrope_attention_factor(rope_changes, max_position_embeddings, expected):
    config = rope_config("longrope")
    rope = replace(config.rope, **rope_changes)
    _, attention_factor = frequencies(replace(config, rope=rope, max_position_embeddings=max_position_embeddings), 1)

    assert expected == pytest.approx(attention_factor, rel=1e-15)


# Against transformers, in float32


def yarn(**changes):
    return replace(ROPES["yarn"], **changes)


AGAINST_TRANSFORMERS = {
    "linear": (ROPES["linear"], 8, 2048),
    "linear, Llama sizes": (RopeParameters("linear", 10000.0, factor=2.5), 128, 4096),
    "dynamic": (ROPES["dynamic"], 8, 64),
    "dynamic, Llama sizes": (RopeParameters("dynamic", 10000.0, factor=8.0), 128, 32),
    "yarn": (ROPES["yarn"], 8, 128),
    "yarn, not truncated": (yarn(truncate=False), 8, 128),
    "yarn, low clamped at 0": (yarn(beta_fast=32.0), 8, 128),
    "yarn, high clamped at D - 1": (yarn(beta_slow=1e-4), 8, 128),
    "yarn, one point": (yarn(beta_fast=0.5, beta_slow=0.5, truncate=False), 8, 128),
    "yarn, reversed": (yarn(beta_fast=0.5, beta_slow=4.0), 8, 128),
    "yarn, mscale": (yarn(mscale=0.707, mscale_all_dim=0.9), 8, 128),
    "yarn, Llama sizes": (RopeParameters("yarn", 10000.0, 16.0, 4096), 128, 65536),
    "llama3": (ROPES["llama3"], 8, 64),
    "llama3, as Llama 3.1": (RopeParameters("llama3", 500000.0, 8.0, 8192, 1.0, 4.0), 128, 131072),
    "llama3, as Llama 3.2": (RopeParameters("llama3", 500000.0, 32.0, 8192, 1.0, 4.0), 64, 131072),
    "longrope": (ROPES["longrope"], 8, 64),
    "longrope, factor": (replace(ROPES["longrope"], factor=3.0), 8, 64),
    "longrope, attention factor": (replace(ROPES["longrope"], attention_factor=1.25), 8, 64),
}


@pytest.mark.parametrize("num_tokens", [1, 16, 17, 32, 33, 64, 65, 1000])
@pytest.mark.parametrize("name", AGAINST_TRANSFORMERS)
def test_frequencies_are_those_of_transformers(name, num_tokens):
    """transformers computes in float32: 2**-24 a rounding, and ln(theta) = 13 of them in a power."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    rope_functions = pytest.importorskip("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS
    rope, head_dim, context = AGAINST_TRANSFORMERS[name]
    config = replace(TINY, rope=rope, head_dim=head_dim, max_position_embeddings=context)
    theirs = transformers.LlamaConfig(**{k: v for k, v in config_to_dict(config).items() if k != "rope_scaling"})
    expected, expected_factor = rope_functions[rope.rope_type](theirs, "cpu", seq_len=num_tokens)
    frequency, attention_factor = frequencies(config, num_tokens)

    np.testing.assert_allclose(frequency, expected.double().numpy(), rtol=5e-6)
    assert expected_factor == pytest.approx(attention_factor, rel=1e-12)


# Positions and the rotation


def test_a_position_is_the_number_of_tokens_before_it():
    """Position 3 of frequency 1/10 (pair 2) is the angle 0.3."""
    cosine, sine = rotation(rope_config("default"), start=3, num_tokens=2)

    np.testing.assert_allclose(cosine[:, 2], [math.cos(0.3), math.cos(0.4)], rtol=1e-15)
    np.testing.assert_allclose(sine[:, 2], [math.sin(0.3), math.sin(0.4)], rtol=1e-15)


@pytest.mark.parametrize("rope_type", ROPES)
def test_position_zero_is_not_turned(rope_type):
    _, attention_factor = frequencies(rope_config(rope_type), 1)
    cosine, sine = rotation(rope_config(rope_type), 0, 1)

    assert ([[attention_factor] * 4], [[0.0] * 4]) == (cosine.tolist(), sine.tolist())


@pytest.mark.parametrize("rope_type", ["yarn", "longrope"])
def test_the_attention_factor_multiplies_cosine_and_sine(rope_type):
    config = rope_config(rope_type)
    _, attention_factor = frequencies(config, 16)
    cosine, sine = rotation(config, 0, 16)

    np.testing.assert_allclose(cosine**2 + sine**2, np.full((16, 4), attention_factor**2), rtol=1e-14)


@pytest.mark.parametrize("start", [0, 15, 16])
def test_longrope_takes_its_divisors_from_the_length_after_the_chunk(start):
    """The chunk [start, start + 1] leaves 2, 17 or 18 tokens; pair 0 turns by 1/1 or 1/1.25 a token."""
    frequency = 1.0 if start == 0 else 0.8
    cosine, _ = rotation(rope_config("longrope"), start, 2)

    assert math.sqrt(1.5) * math.cos(frequency * (start + 1)) == pytest.approx(cosine[1, 0], rel=1e-14)


def test_rotate_turns_the_pair_i_and_i_plus_half():
    """A quarter turn of pair 0 takes (1, 3) to (-3, 1); half a turn of pair 1 takes (2, 4) to (-2, -4)."""
    x = np.array([[[1.0, 2.0, 3.0, 4.0]]])
    cosine, sine = np.array([[0.0, -1.0]]), np.array([[1.0, 0.0]])

    assert [[[-3.0, -2.0, 1.0, -4.0]]] == rotate(x, cosine, sine).tolist()


def test_rotate_is_complex_multiplication_of_every_head_by_the_angle_of_its_token():
    random = np.random.default_rng(1)
    x, angle = random.standard_normal((5, 3, 8)), random.uniform(-9, 9, (5, 4))
    turned = (x[..., :4] + 1j * x[..., 4:]) * np.exp(1j * angle)[:, None, :]
    expected = np.concatenate([turned.real, turned.imag], axis=-1)

    np.testing.assert_allclose(rotate(x, np.cos(angle), np.sin(angle)), expected, rtol=1e-13, atol=1e-15)
