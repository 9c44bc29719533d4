"""Law: a session that is truncated and extended anew is the session that never went the wrong way, bit for bit."""

from hypothesis import given
from hypothesis import strategies as st

from reference.model.cache import empty_cache
from reference.model.transformer import forward
from tests.models import TINY, random_model

MODEL = random_model()
TOKENS = st.lists(st.integers(0, TINY.vocab_size - 1), min_size=1, max_size=8)


@given(kept=TOKENS, wrong=TOKENS, right=TOKENS)
def test_truncate_then_extend_equals_fresh(kept, wrong, right):
    _, cache = forward(MODEL, kept + wrong, empty_cache(TINY))
    logits, cache = forward(MODEL, right, cache.truncate(len(kept)))
    fresh_logits, fresh = forward(MODEL, kept + right, empty_cache(TINY))

    assert fresh_logits[len(kept) :].tobytes() == logits.tobytes()
    assert (fresh.keys.tobytes(), fresh.values.tobytes()) == (cache.keys.tobytes(), cache.values.tobytes())


@given(kept=TOKENS, wrong=TOKENS)
def test_truncate_equals_the_cache_before(kept, wrong):
    _, before = forward(MODEL, kept, empty_cache(TINY))
    _, after = forward(MODEL, wrong, before)
    truncated = after.truncate(len(kept))

    assert (before.keys.tobytes(), before.values.tobytes()) == (truncated.keys.tobytes(), truncated.values.tobytes())
