"""The KV cache of one session of the fast twin: one array, grown by doubling."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reference.errors import Refusal, RefusedError
from reference.model.config import ModelConfig

FIRST_CAPACITY = 64


class FastSession:
    """Keys (after RoPE, pairs side by side) and values of a session's tokens. Changed by FastModel.forward.

    `storage` is [L, 2, K, capacity, D]: layer, keys or values, key-value head, position, dimension; its own, or
    one slot of a `block` [L, 2, B, K, capacity, D] that it shares with the sessions it is decoded with.
    """

    def __init__(self, config: ModelConfig, dtype: np.dtype[Any], capacity: int = FIRST_CAPACITY) -> None:
        self.config = config
        self.num_tokens = 0
        L, K, D = config.num_hidden_layers, config.num_key_value_heads, config.head_dim
        self.storage: NDArray[Any] = np.empty((L, 2, K, capacity, D), dtype=dtype)
        self.block: NDArray[Any] | None = None
        self.slot = 0

    def __len__(self) -> int:
        """Number of tokens in the cache."""
        return self.num_tokens

    @property
    def nbytes(self) -> int:
        """Bytes of the cached tokens' keys and values in the model's dtype, without what is reserved for more."""
        return self.num_tokens * self.config.kv_bytes_per_token(self.storage.itemsize)

    def truncate(self, num_tokens: int) -> None:
        """Forgets all but the first `num_tokens` tokens. Raises: CACHE_RANGE."""
        if not 0 <= num_tokens <= self.num_tokens:
            sentence = f"cannot truncate a cache of {self.num_tokens} tokens to {num_tokens}"
            raise RefusedError(Refusal.CACHE_RANGE, sentence)
        # In a block, longer neighbours give a forgotten token the weight 0, and 0 * inf would be NaN.
        self.storage[:, :, :, num_tokens : self.num_tokens] = 0
        self.num_tokens = num_tokens

    def fork(self) -> "FastSession":
        """A second session with the same past, in memory of its own."""
        other = FastSession(self.config, self.storage.dtype, self.storage.shape[3])
        other.storage[:, :, :, : self.num_tokens] = self.storage[:, :, :, : self.num_tokens]
        other.num_tokens = self.num_tokens
        return other

    def reserve(self, num_tokens: int) -> None:
        """Room for `num_tokens` tokens in all; the capacity at least doubles when it grows."""
        capacity = self.storage.shape[3]
        if num_tokens <= capacity:
            return
        grown = FastSession(self.config, self.storage.dtype, max(num_tokens, 2 * capacity)).storage
        grown[:, :, :, : self.num_tokens] = self.storage[:, :, :, : self.num_tokens]
        self.storage, self.block = grown, None


def common_block(sessions: Sequence[FastSession]) -> NDArray[Any] | None:
    """The block [L, 2, B, K, capacity, D] whose slots are exactly these sessions in this order, if there is one."""
    if len(sessions) == 1:
        return sessions[0].storage[:, :, None]
    block = sessions[0].block
    if block is None or block.shape[2] != len(sessions):
        return None
    for slot, session in enumerate(sessions):
        if session.block is not block or session.slot != slot:
            return None
    return block


def gather(sessions: Sequence[FastSession], num_tokens: int) -> None:
    """Moves the sessions into one new block with room for `num_tokens` tokens each, and as many again."""
    L, _, K, _, D = sessions[0].storage.shape
    capacity = max(FIRST_CAPACITY, 2 * num_tokens)
    block = np.zeros((L, 2, len(sessions), K, capacity, D), dtype=sessions[0].storage.dtype)
    for slot, session in enumerate(sessions):
        length = session.num_tokens
        block[:, :, slot, :, :length] = session.storage[:, :, :, :length]
        session.storage, session.block, session.slot = block[:, :, slot], block, slot
