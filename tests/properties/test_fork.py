"""Law: sessions forked from one past never see each other: each equals the session computed alone, bit for bit."""

from hypothesis import given
from hypothesis import strategies as st

from reference.model.cache import empty_cache
from reference.model.transformer import forward
from tests.models import TINY, random_model

MODEL = random_model()
TOKENS = st.lists(st.integers(0, TINY.vocab_size - 1), min_size=1, max_size=5)


@given(past=TOKENS, futures=st.lists(TOKENS, min_size=2, max_size=3))
def test_forks_equal_sessions_computed_alone(past, futures):
    """The forks take turns, a token at a time, so that each runs between the steps of the others."""
    _, shared = forward(MODEL, past, empty_cache(TINY))
    caches = [shared.fork() for _ in futures]
    last: list[bytes] = [b""] * len(futures)
    for i in range(max(map(len, futures))):
        for fork, future in enumerate(futures):
            if i < len(future):
                logits, caches[fork] = forward(MODEL, future[i : i + 1], caches[fork])
                last[fork] = logits[-1].tobytes()
    alone = [forward(MODEL, past + future, empty_cache(TINY)) for future in futures]

    assert [logits[-1].tobytes() for logits, _ in alone] == last
    assert [cache.keys.tobytes() for _, cache in alone] == [cache.keys.tobytes() for cache in caches]
    assert len(past) == len(shared)
