"""Arrays for the rows of one pass, and the views of them that the layers use: made once, not once per layer.

Axis key: R rows, E hidden_size, F intermediate_size, H query heads, K key-value heads, G = H / K, D head_dim.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from reference.model.config import ModelConfig

Floats = NDArray[Any]


class Workspace:
    """Intermediate results of a layer for R rows."""

    def __init__(self, config: ModelConfig, dtype: np.dtype[Any], num_rows: int) -> None:
        R, E, F, D = num_rows, config.hidden_size, config.intermediate_size, config.head_dim
        H, K = config.num_attention_heads, config.num_key_value_heads
        G = config.group_size
        self.normed: Floats = np.empty((R, E), dtype)
        self.lengths: Floats = np.empty(R, dtype)  # of the rows as vectors
        self.length_column = self.lengths[:, None]
        # Numbers as arrays [] spare numpy the search for their type; a single length also the broadcasting.
        self.one: Floats = np.array(1, dtype)
        self.scaled_eps: Floats = np.array(E * config.rms_norm_eps, dtype)
        self.length: Floats = np.empty((), dtype)
        self.qkv: Floats = np.empty((R, (H + 2 * K) * D), dtype)
        self.mixed: Floats = np.empty((R, H * D), dtype)
        self.gate_up: Floats = np.empty((R, 2 * F), dtype)
        self.gated: Floats = np.empty((R, F), dtype)
        self.update: Floats = np.empty((R, E), dtype)

        self.minus_gate, self.minus_up = self.gate_up[:, :F], self.gate_up[:, F:]
        pairs = self.qkv.view(np.result_type(dtype, np.complex64)).reshape(R, H + 2 * K, D // 2)
        self.turned: NDArray[Any] = pairs[:, : H + K]  # queries and keys as complex numbers
        self.q = self.qkv[:, : H * D].reshape(R, K, G, D)
        self.kv = self.qkv[:, H * D :].reshape(R, 2, K, D)
        self.kv_first = self.kv.transpose(1, 0, 2, 3)  # [2, R, K, D]
        self.q_columns = self.q[..., None]
        self.mixed_heads = self.mixed.reshape(R, K, G, D)
        self.mixed_rows = self.mixed_heads[..., None, :]
