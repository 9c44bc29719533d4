"""The KV cache of one session, as a value: operations return a new cache and never change the old one."""

from dataclasses import dataclass

import numpy as np

from reference.errors import Array, Refusal, RefusedError
from reference.model.config import ModelConfig


@dataclass(frozen=True)
class KVCache:
    """[KV-1] Rotated keys and values of a session's tokens; entry i belongs to position i. Never changed."""

    keys: Array  # [L, S, K, D], after RoPE
    values: Array  # [L, S, K, D]

    def __post_init__(self) -> None:
        if self.keys.ndim != 4 or self.keys.shape != self.values.shape:
            _refuse(f"keys {self.keys.shape} and values {self.values.shape} must have one shape [L, S, K, D]")
        for array in (self.keys, self.values):
            array.setflags(write=False)

    def __len__(self) -> int:
        """Number of tokens in the cache."""
        return int(self.keys.shape[1])

    def check_fits(self, config: ModelConfig) -> None:
        """Raises: CACHE_RANGE if the entries are those of another shape of model."""
        L, _, K, D = self.keys.shape
        wanted = (config.num_hidden_layers, config.num_key_value_heads, config.head_dim)
        if wanted != (L, K, D):
            _refuse(f"a cache of {L} layers, {K} heads of size {D} does not fit a model of {wanted}")

    def append(self, keys: Array, values: Array) -> "KVCache":
        """[KV-2] The cache with T more tokens, keys and values [L, T, K, D]. Raises: CACHE_RANGE."""
        L, _, K, D = self.keys.shape
        for given in (keys, values):
            if given.ndim != 4 or (given.shape[0], *given.shape[2:]) != (L, K, D):
                _refuse(f"entries {given.shape} do not fit a cache of {L} layers, {K} heads of size {D}")
        return KVCache(np.concatenate((self.keys, keys), axis=1), np.concatenate((self.values, values), axis=1))

    def truncate(self, num_tokens: int) -> "KVCache":
        """[KV-3] The cache as it was when it held `num_tokens` tokens. Raises: CACHE_RANGE."""
        if not 0 <= num_tokens <= len(self):
            _refuse(f"cannot truncate a cache of {len(self)} tokens to {num_tokens}")
        return KVCache(self.keys[:, :num_tokens].copy(), self.values[:, :num_tokens].copy())

    def fork(self) -> "KVCache":
        """[KV-4] A cache for a second session with the same past. A value needs no copy to be independent."""
        return self

    def nbytes(self, element_size: int = 4) -> int:
        """[KV-5] Bytes an engine needs to store the cache in elements of `element_size` bytes (float32: 4)."""
        return int(self.keys.size + self.values.size) * element_size


def empty_cache(config: ModelConfig) -> KVCache:
    """The cache of a session without tokens."""
    shape = (config.num_hidden_layers, 0, config.num_key_value_heads, config.head_dim)
    return KVCache(np.zeros(shape), np.zeros(shape))


def _refuse(sentence: str) -> None:
    raise RefusedError(Refusal.CACHE_RANGE, sentence)
