"""The KV cache is a value: its operations make new caches."""

import numpy as np
import pytest

from reference.errors import Array, Refusal, RefusedError
from reference.model.cache import KVCache, empty_cache
from tests.models import TINY


def entries(first: int, num_tokens: int) -> Array:
    """[L, T, K, D] = [2, T, 3, 4], every number says which token it belongs to."""
    return np.broadcast_to(np.arange(first, first + num_tokens)[None, :, None, None], (2, num_tokens, 3, 4)) * 1.0


def cache_of(num_tokens: int) -> KVCache:
    return KVCache(entries(0, num_tokens), -entries(0, num_tokens))


def content(cache: KVCache) -> tuple[list, list]:
    return cache.keys.tolist(), cache.values.tolist()


def test_an_empty_cache_has_the_shape_of_its_config():
    cache = empty_cache(TINY)

    assert ((2, 0, 2, 4), (2, 0, 2, 4), 0, 0) == (cache.keys.shape, cache.values.shape, len(cache), cache.nbytes())


def test_append_adds_tokens_at_the_end():
    longer = cache_of(2).append(entries(2, 3), -entries(2, 3))

    assert 5 == len(longer)
    assert content(cache_of(5)) == content(longer)


def test_append_of_nothing_is_the_same_content():
    assert content(cache_of(2)) == content(cache_of(2).append(entries(2, 0), entries(2, 0)))


@pytest.mark.parametrize("num_tokens", [0, 1, 4, 5])
def test_truncate_keeps_the_first_tokens(num_tokens):
    assert content(cache_of(num_tokens)) == content(cache_of(5).truncate(num_tokens))


def test_operations_leave_the_cache_as_it_was():
    cache = cache_of(3)
    cache.append(entries(3, 2), entries(3, 2))
    cache.truncate(1)
    cache.fork()

    assert content(cache_of(3)) == content(cache)


def test_forks_grow_apart():
    one = cache_of(3)
    other = one.fork()
    one = one.append(entries(3, 1), -entries(3, 1))
    other = other.append(entries(9, 1), -entries(9, 1))

    assert content(cache_of(4)) == content(one)
    assert [0.0, 1.0, 2.0, 9.0] == other.keys[0, :, 0, 0].tolist()


@pytest.mark.parametrize(
    "cache",
    [cache_of(3), cache_of(3).append(entries(3, 1), entries(3, 1)), cache_of(3).truncate(2), cache_of(3).fork()],
)
def test_writing_to_a_cache_raises(cache):
    for array in (cache.keys, cache.values):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0, 0, 0] = 7.0
    with pytest.raises(AttributeError):
        cache.keys = cache.values


def test_nbytes_counts_keys_and_values():
    """2 layers * 5 tokens * 3 heads * 4 numbers = 120 keys and 120 values; 4 or 2 bytes each."""
    assert [960, 480] == [cache_of(5).nbytes(), cache_of(5).nbytes(element_size=2)]


def test_a_cache_takes_as_many_bytes_as_its_config_says():
    shape = (2, 7, 2, 4)

    assert 7 * TINY.kv_bytes_per_token() == KVCache(np.zeros(shape), np.zeros(shape)).nbytes()


@pytest.mark.parametrize("num_tokens", [-1, 6])
def test_truncating_to_entries_that_do_not_exist_is_refused(num_tokens):
    with pytest.raises(RefusedError) as refused:
        cache_of(5).truncate(num_tokens)

    expected = (Refusal.CACHE_RANGE, f"cannot truncate a cache of 5 tokens to {num_tokens}")
    assert expected == (refused.value.reason, str(refused.value))


@pytest.mark.parametrize("shape", [(1, 1, 3, 4), (2, 1, 2, 4), (2, 1, 3, 5), (2, 3, 4)])
def test_appending_entries_of_another_model_is_refused(shape):
    right, wrong = entries(5, 1), np.zeros(shape)
    for keys, values in ((wrong, right), (right, wrong)):
        with pytest.raises(RefusedError) as refused:
            cache_of(5).append(keys, values)

        expected = (Refusal.CACHE_RANGE, f"entries {shape} do not fit a cache of 2 layers, 3 heads of size 4")
        assert expected == (refused.value.reason, str(refused.value))


def test_keys_without_their_values_are_refused():
    with pytest.raises(RefusedError, match=r"must have one shape \[L, S, K, D\]") as refused:
        cache_of(5).append(entries(5, 2), entries(5, 1))

    assert refused.value.reason is Refusal.CACHE_RANGE


def test_a_cache_needs_four_axes():
    with pytest.raises(RefusedError, match=r"keys \(2, 3\) and values \(2, 3\) must have one shape \[L, S, K, D\]"):
        KVCache(np.zeros((2, 3)), np.zeros((2, 3)))
