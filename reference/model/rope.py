"""Rotary position embedding: the frequencies of each RoPE type, and the rotation.

Angles are position * frequency, in radians. Pairs are (i, i + D/2), as in Hugging Face checkpoints.
f_i = theta**(-2i/D) for i = 0 .. D/2 - 1 throughout.
"""

import math

import numpy as np

from reference.errors import Array
from reference.model.config import ModelConfig
from reference.model.rope_parameters import RopeParameters
from reference.numerics import log, power, sin_cos

PI = float.fromhex("0x1.921fb54442d18p+1")


def frequencies(config: ModelConfig, num_tokens: int) -> tuple[Array, float]:  # -> [D/2], scalar
    """Radians per position, and the factor on cos and sin, once a session holds `num_tokens` tokens.

    Only dynamic and longrope depend on `num_tokens`. For these two, keys that were cached before the session outgrew
    its original context keep their old angles, so beyond it the split into chunks is part of the result
    (transformers 5, `dynamic_rope_update`).
    """
    rope, size = config.rope, config.head_dim
    match rope.rope_type:
        case "default":
            return base_frequencies(rope.rope_theta, size), 1.0
        case "linear":
            return base_frequencies(rope.rope_theta, size) / _given(rope.factor), 1.0
        case "dynamic":
            return dynamic(rope, size, config.max_position_embeddings, num_tokens), 1.0
        case "yarn":
            return yarn(rope, size), yarn_attention_factor(rope)
        case "llama3":
            return llama3(rope, size), 1.0
        case "longrope":
            return longrope(rope, size, num_tokens), longrope_attention_factor(rope, config.max_position_embeddings)


def rotate(x: Array, cosine: Array, sine: Array) -> Array:
    """[ROPE-1] Rotates the pair (i, i + D/2) of every head by its angle. x [T, H, D], cosine and sine [T, D/2].

    "neox" layout: transformers' rotate_half; llama.cpp permutes the weights instead (Su et al. 2021, eq. 34).
    """
    _, _, D = x.shape
    first, second = x[..., : D // 2], x[..., D // 2 :]
    c, s = cosine[:, None, :], sine[:, None, :]
    return np.concatenate((first * c - second * s, second * c + first * s), axis=-1)


def rotation(config: ModelConfig, start: int, num_tokens: int) -> tuple[Array, Array]:
    """[ROPE-2] Cosines and sines [T, D/2] for positions start .. start + T - 1 of a session.

    A token's position is the number of tokens before it in its own session.
    """
    frequency, attention_factor = frequencies(config, start + num_tokens)
    positions = np.arange(start, start + num_tokens, dtype=np.float64)
    sine, cosine = sin_cos(positions[:, None] * frequency)
    return cosine * attention_factor, sine * attention_factor


def base_frequencies(theta: float, head_dim: int) -> Array:  # -> [D/2]
    """[ROPE-3] theta**(-2i/D) (Su et al. 2021, sec. 3.2.2)."""
    return power(theta, -(2.0 * np.arange(head_dim // 2)) / head_dim)


def dynamic(rope: RopeParameters, head_dim: int, trained: int, num_tokens: int) -> Array:  # -> [D/2]
    """[ROPE-4] Dynamic NTK: theta grows with the session's length beyond the `trained` context.

    theta' = theta * (factor * S / M - (factor - 1))**(D / (D - 2)), S = max(num_tokens, M).
    """
    length = max(num_tokens, trained)
    growth = _given(rope.factor) * length / trained - (_given(rope.factor) - 1.0)
    exponent = np.float64(head_dim / (head_dim - 2))
    return base_frequencies(rope.rope_theta * float(power(growth, exponent)), head_dim)


def yarn(rope: RopeParameters, head_dim: int) -> Array:  # -> [D/2]
    """[ROPE-5] YaRN: slow pairs are interpolated, fast ones kept, a ramp between (Peng et al. 2023, sec. 3.2)."""
    kept = base_frequencies(rope.rope_theta, head_dim)
    low = _yarn_dimension(rope, head_dim, rope.beta_fast)
    high = _yarn_dimension(rope, head_dim, rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high = high + 0.001
    ramp = np.clip((np.arange(head_dim // 2) - low) / (high - low), 0.0, 1.0)
    mixed: Array = kept / _given(rope.factor) * ramp + kept * (1.0 - ramp)
    return mixed


def yarn_attention_factor(rope: RopeParameters) -> float:
    """[ROPE-6] The factor on cos and sin, 0.1 ln(s) + 1 unless given (Peng et al. 2023, eq. 22)."""
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale is not None and rope.mscale_all_dim is not None:
        return _mscale(rope, rope.mscale) / _mscale(rope, rope.mscale_all_dim)
    return _mscale(rope, 1.0)


def llama3(rope: RopeParameters, head_dim: int) -> Array:  # -> [D/2]
    """[ROPE-7] Llama 3.1: wavelengths beyond the original context are stretched, short ones kept, a ramp between.

    wavelength = 2 pi / f; kept below M0 / high_freq_factor, divided by factor above M0 / low_freq_factor.
    """
    kept = base_frequencies(rope.rope_theta, head_dim)
    wavelength = 2.0 * PI / kept
    trained = float(_given(rope.original_max_position_embeddings))
    low, high = _given(rope.low_freq_factor), _given(rope.high_freq_factor)
    smooth = (trained / wavelength - low) / (high - low)
    blended = (1.0 - smooth) * kept / _given(rope.factor) + smooth * kept
    stretched = np.where(wavelength > trained / low, kept / _given(rope.factor), blended)
    return np.where(wavelength < trained / high, kept, stretched)


def longrope(rope: RopeParameters, head_dim: int, num_tokens: int) -> Array:  # -> [D/2]
    """[ROPE-8] LongRoPE: one divisor per pair, another set beyond the original context (Ding et al. 2024, sec. 3)."""
    is_long = num_tokens > _given(rope.original_max_position_embeddings)
    divisors = rope.long_factor if is_long else rope.short_factor
    assert divisors is not None
    scaled: Array = base_frequencies(rope.rope_theta, head_dim) / np.array(divisors, dtype=np.float64)
    return scaled


def longrope_attention_factor(rope: RopeParameters, max_position_embeddings: int) -> float:
    """[ROPE-9] sqrt(1 + ln(s) / ln(M0)) unless given, s = factor or max_position_embeddings / M0 (transformers 5)."""
    if rope.attention_factor is not None:
        return rope.attention_factor
    trained = float(_given(rope.original_max_position_embeddings))
    scale = max_position_embeddings / trained if rope.factor is None else rope.factor
    if scale <= 1.0:
        return 1.0
    return math.sqrt(1.0 + _log(scale) / _log(trained))


def _yarn_dimension(rope: RopeParameters, head_dim: int, num_rotations: float) -> float:
    """The pair (as a real number) that turns `num_rotations` times over the original context."""
    trained = float(_given(rope.original_max_position_embeddings))
    return head_dim * _log(trained / (num_rotations * 2.0 * PI)) / (2.0 * _log(rope.rope_theta))


def _mscale(rope: RopeParameters, multiplier: float) -> float:
    return 0.1 * multiplier * _log(_given(rope.factor)) + 1.0


def _log(x: float) -> float:
    return float(log(np.float64(x)))


def _given(number: float | None) -> float:
    """A parameter that ModelConfig has made sure is there."""
    assert number is not None
    return number
