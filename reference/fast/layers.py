"""The decoder layers over the rows of a pass. Every call here is paid once per layer and step, so calls are few.

Axis key: R rows, E hidden_size, F intermediate_size.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reference.fast.attention import GroupedAttention, SeparateAttention
from reference.fast.weights import FastLayer, Floats
from reference.fast.workspace import Workspace


def run_layers(
    layers: Sequence[FastLayer],
    x: Floats,
    turns: NDArray[Any],
    attention: GroupedAttention | SeparateAttention,
    workspace: Workspace,
) -> None:
    """Turns the embeddings x [R, E] into the rows before the final norm, in place; turns [R, D/2] are rotations."""
    turns = turns[:, None]
    normed, update, turned = workspace.normed, workspace.update, workspace.turned
    for index, layer in enumerate(layers):
        normalise(x, workspace)
        linear(normed, layer.qkv, layer.qkv_bias, workspace.qkv)
        np.multiply(turned, turns, turned)
        attention.attend(index)
        linear(workspace.mixed, layer.o, layer.o_bias, update)
        np.add(x, update, x)

        normalise(x, workspace)
        linear(normed, layer.gate_up, layer.gate_up_bias, workspace.gate_up)
        gate(workspace)
        linear(workspace.gated, layer.down, layer.down_bias, update)
        np.add(x, update, x)


def normalise(x: Floats, workspace: Workspace) -> None:
    """workspace.normed = x / sqrt(sum(x*x) + E*eps), x [R, E]; the weight is in the following matrix."""
    if len(x) == 1:
        row = x[0]
        workspace.length[...] = math.sqrt(row.dot(row) + workspace.scaled_eps)
        np.divide(x, workspace.length, workspace.normed)
        return
    lengths = workspace.lengths
    np.vecdot(x, x, lengths)
    np.add(lengths, workspace.scaled_eps, lengths)
    np.sqrt(lengths, lengths)
    np.divide(x, workspace.length_column, workspace.normed)


def gate(workspace: Workspace) -> None:
    """workspace.gated [R, F] = silu(g) * up = (-g) * (-up) / (1 + exp(-g)); the matrix holds both negated."""
    minus_gate, gated = workspace.minus_gate, workspace.gated
    np.exp(minus_gate, gated)
    np.add(gated, workspace.one, gated)
    np.multiply(minus_gate, workspace.minus_up, minus_gate)
    np.divide(minus_gate, gated, gated)


def linear(x: Floats, weight: Floats, bias: Floats | None, out: Floats) -> None:
    """out = x weight + bias; x [R, in], weight [in, out], bias [out] or None."""
    np.dot(x, weight, out)
    if bias is not None:
        np.add(out, bias, out)
