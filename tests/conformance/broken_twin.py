"""The fast twin with defects of the table, each made in its own code: another path to the same wrong answers."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from reference.conformance.adapters import fast as adapter
from reference.decoding.generate import finish_reason
from reference.fast import layers, model, weights
from reference.fast.angles import Angles
from reference.fast.model import FastModel
from reference.fast.session import FastSession
from reference.model.checkpoint import load_tensors
from reference.model.rope import frequencies
from reference.model.rope_parameters import RopeParameters
from reference.numerics import sin_cos

Patch = Callable[[pytest.MonkeyPatch], None]


def pairs_stay(patch):
    """Pairs (2i, 2i + 1) are turned."""
    patch.setattr(weights, "paired", lambda tensor, head_dim: tensor)


def positions_stretched(patch):
    def compute(self, start, num_tokens):
        frequency, factor = frequencies(self.config, start + num_tokens)
        sine, cosine = sin_cos(1.01 * np.arange(start, start + num_tokens)[:, None] * frequency)
        return (factor * (cosine + 1j * sine)).astype(self.dtype)

    patch.setattr(Angles, "_compute", compute)


def theta_ignored(patch):
    change_config(patch, lambda config: replace(config, rope=replace(config.rope, rope_theta=10000.0)))


def llama3_ignored(patch):
    plain = lambda rope: RopeParameters(rope_theta=rope.rope_theta) if rope.rope_type == "llama3" else rope  # noqa: E731
    change_config(patch, lambda config: replace(config, rope=plain(config.rope)))


def eps_outside(patch):
    def normalise(x, workspace):
        eps = float(workspace.scaled_eps) / x.shape[1]
        length = np.sqrt(np.sum(x * x, axis=-1, keepdims=True)) + math.sqrt(x.shape[1]) * eps
        np.divide(x, length, workspace.normed)

    patch.setattr(layers, "normalise", normalise)
    patch.setattr(model, "normalise", normalise)


def norm_plus_one(patch):
    change_tensors(patch, lambda name, tensor: 1.0 + tensor if "norm" in name else tensor)


def query_bias_dropped(patch):
    change_tensors(patch, lambda name, tensor: 0.0 * tensor if name.endswith("q_proj.bias") else tensor)


def scale_by_all_heads(patch):
    def change(config, layer):
        num_queries = config.num_attention_heads * config.head_dim
        for array in (layer.qkv, layer.qkv_bias):
            if array is not None:
                array[..., :num_queries] /= math.sqrt(config.num_attention_heads)

    change_layers(patch, change)


def up_is_gated(patch):
    def change(config, layer):
        half = config.intermediate_size
        for array in (layer.gate_up, layer.gate_up_bias):
            if array is not None:
                array[...] = np.concatenate((array[..., half:], array[..., :half]), axis=-1)

    change_layers(patch, change)


def gelu_gate(patch):
    def gate(workspace):
        minus_gate = workspace.minus_gate
        workspace.gated[...] = minus_gate * workspace.minus_up / (1.0 + np.exp(1.702 * minus_gate))

    patch.setattr(layers, "gate", gate)


def truncate_keeps_one(patch):
    right = FastSession.truncate
    patch.setattr(FastSession, "truncate", lambda self, n: right(self, min(n + 1, len(self))))


def length_first(patch):
    def reason(num_context, output, stop):
        return "length" if len(output) >= stop.max_tokens else finish_reason(num_context, output, stop)

    patch.setattr(adapter, "finish_reason", reason)


def change_config(patch, change):
    right = model.load_config
    patch.setattr(model, "load_config", lambda directory: change(right(directory)))


def change_tensors(patch, change):
    def load(directory, config):
        return {name: change(name, np.asarray(t, np.float64)) for name, t in load_tensors(directory, config).items()}

    patch.setattr(model, "load_tensors", load)


def change_layers(patch, change):
    """Changes the arrays of every layer once they are loaded."""
    right = FastModel.load.__func__

    def load(cls, directory, dtype):
        loaded = right(cls, directory, dtype)
        for layer in loaded.weights.layers:
            change(loaded.config, layer)
        return loaded

    patch.setattr(FastModel, "load", classmethod(load))


BROKEN: Mapping[str, Patch] = {
    "rope-interleaved": pairs_stay,
    "rope-positions-stretched": positions_stretched,
    "rope-theta-ignored": theta_ignored,
    "llama3-scaling-ignored": llama3_ignored,
    "eps-outside-root": eps_outside,
    "norm-one-plus-weight": norm_plus_one,
    "attention-bias-dropped": query_bias_dropped,
    "scale-by-hidden": scale_by_all_heads,
    "gate-and-up-swapped": up_is_gated,
    "gelu-like-gate": gelu_gate,
    "truncate-keeps-one-more": truncate_keeps_one,
    "length-before-eos": length_first,
}
"""Mutant -> the same defect in the fast twin."""
