"""Tiny models for tests: random weights that are integers / 64, exact in bfloat16, and one config a RoPE type."""

from dataclasses import replace

import numpy as np

from reference.errors import Array
from reference.model.config import ModelConfig
from reference.model.rope_parameters import RopeParameters
from reference.model.weights import Model, tensor_shapes, weights_from_tensors

TINY = ModelConfig(
    vocab_size=17,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=4,
    max_position_embeddings=64,
    rms_norm_eps=1e-5,
)

# Chosen so that with head_dim 8 the four pairs fall into different bands (see test_rope.py).
ROPES = {
    "default": RopeParameters(rope_theta=100.0),
    "linear": RopeParameters("linear", 100.0, factor=4.0),
    "dynamic": RopeParameters("dynamic", 100.0, factor=4.0),
    "yarn": RopeParameters(
        "yarn", 100.0, factor=4.0, original_max_position_embeddings=32, beta_fast=4.0, beta_slow=0.5
    ),
    "llama3": RopeParameters(
        "llama3",
        100.0,
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=32,
    ),
    "longrope": RopeParameters(
        "longrope",
        100.0,
        original_max_position_embeddings=16,
        short_factor=(1.0, 1.5, 2.0, 3.0),
        long_factor=(1.25, 2.0, 4.0, 8.0),
    ),
}


def rope_config(rope_type: str) -> ModelConfig:
    """TINY with head_dim 8 and the parameters of that RoPE type."""
    return replace(TINY, head_dim=8, rope=ROPES[rope_type])


def random_tensors(config: ModelConfig, seed: int) -> dict[str, Array]:
    """Checkpoint tensors: projections in [-1/2, 1/2], norms in [3/4, 5/4], all integers / 64."""
    random = np.random.default_rng(seed)
    tensors = {}
    for name, shape in tensor_shapes(config).items():
        low, high = (48, 81) if name.endswith("norm.weight") else (-32, 33)
        tensors[name] = random.integers(low, high, shape) / 64
    return tensors


def model_of(config: ModelConfig, tensors: dict[str, Array]) -> Model:
    return Model(config, weights_from_tensors(config, tensors))


def random_model(config: ModelConfig = TINY, seed: int = 1) -> Model:
    return model_of(config, random_tensors(config, seed))


def perturbed_model(config: ModelConfig = TINY, seed: int = 1) -> Model:
    """random_model with one weight in ten moved by 1/64: a draft that agrees with it often, not always."""
    random = np.random.default_rng(seed + 1000)
    tensors = random_tensors(config, seed)
    moved = {name: tensor + (random.random(tensor.shape) < 0.1) / 64 for name, tensor in tensors.items()}
    return model_of(config, moved)


def random_tokens(num_tokens: int, config: ModelConfig = TINY, seed: int = 1) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, config.vocab_size, num_tokens).tolist())
