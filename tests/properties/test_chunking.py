"""Law: a prompt computed in chunks, whatever the split, gives the logits and cache of one forward, bit for bit."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.errors import Array
from reference.model.cache import KVCache, empty_cache
from reference.model.transformer import forward
from reference.model.weights import Model
from tests.models import ROPES, random_model, random_tokens, rope_config

# Beyond its original context longrope's result depends on the split (see model/rope.py); 14 tokens are within.
MODELS = {rope_type: random_model(rope_config(rope_type)) for rope_type in ROPES}
TOKENS = random_tokens(14)


def chunked(model: Model, tokens: tuple[int, ...], cuts: list[int]) -> tuple[Array, KVCache]:
    """Logits of every token, and the cache, from one forward per chunk."""
    cache, rows = empty_cache(model.config), []
    for start, end in pairwise([0, *cuts, len(tokens)]):
        logits, cache = forward(model, tokens[start:end], cache)
        rows.append(logits)
    return np.concatenate(rows), cache


def content(logits: Array, cache: KVCache) -> tuple[bytes, bytes, bytes]:
    return logits.tobytes(), cache.keys.tobytes(), cache.values.tobytes()


def cuts_of(mask: int, num_tokens: int) -> list[int]:
    return [i for i in range(1, num_tokens) if mask >> (i - 1) & 1]


def test_every_split_of_eight_tokens():
    model, tokens = MODELS["default"], TOKENS[:8]
    whole = content(*chunked(model, tokens, []))

    assert all(whole == content(*chunked(model, tokens, cuts_of(mask, 8))) for mask in range(2**7))


@pytest.mark.parametrize("rope_type", ROPES)
@given(mask=st.integers(0, 2**13 - 1))
def test_any_split_with_every_rope_type(rope_type, mask):
    model = MODELS[rope_type]

    assert content(*chunked(model, TOKENS, [])) == content(*chunked(model, TOKENS, cuts_of(mask, 14)))


def test_beyond_its_original_context_the_split_is_part_of_longropes_result():
    """20 tokens of 16: in one forward all keys take the long divisors, token by token the first 16 the short ones."""
    model, tokens = MODELS["longrope"], random_tokens(20)
    whole, singly = chunked(model, tokens, []), chunked(model, tokens, list(range(1, 20)))

    assert content(*whole) != content(*singly)
