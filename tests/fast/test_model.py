"""The fast twin against the specification: every option of a config, batches, sessions and refusals."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reference.errors import Array, Refusal, RefusedError
from reference.fast import FastModel
from reference.fast.weights import STREAMED_BYTES
from reference.model.cache import empty_cache
from reference.model.checkpoint import save_model
from reference.model.config import ModelConfig
from reference.model.transformer import forward
from tests.models import ROPES, TINY, model_of, random_tensors, random_tokens, rope_config

CONFIGS = {
    **{name: rope_config(name) for name in ROPES},
    "mha": replace(TINY, num_key_value_heads=4),
    "mqa": replace(TINY, num_key_value_heads=1),
    "biases": replace(TINY, attention_bias=True, mlp_bias=True),
    "tied": replace(TINY, tie_word_embeddings=True),
    "one head": replace(TINY, num_attention_heads=1, num_key_value_heads=1, head_dim=2),
    "wide head": replace(TINY, head_dim=12, rms_norm_eps=0.0, hidden_size=10),
}
# Largest difference from the specification, as a part of the largest logit. Measured over five seeds of all configs:
# 3e-15 and 2e-6.
BOUNDS = {"float64": 1e-12, "float32": 1e-5}


def load(directory: Path, config: ModelConfig = TINY, dtype: str = "float64", seed: int = 1) -> FastModel:
    save_model(directory, config, random_tensors(config, seed))
    return FastModel.load(directory, dtype)  # type: ignore[arg-type]


def specified(config: ModelConfig, chunks: list[tuple[int, ...]], seed: int = 1) -> Array:
    """The specification's logits [T, V] of a session extended chunk by chunk."""
    model, cache = model_of(config, random_tensors(config, seed)), empty_cache(config)
    rows = []
    for chunk in chunks:
        logits, cache = forward(model, chunk, cache)
        rows.append(logits)
    return np.concatenate(rows)


def distance(expected: Array, actual: Array) -> float:
    assert expected.shape == actual.shape
    return float(np.max(np.abs(expected - actual)) / np.max(np.abs(expected)))


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("seed", [1, 2])
def test_logits_are_the_specifications(tmp_path, name, dtype, seed):
    """40 tokens as a prompt, single steps and a chunk, across the original context of dynamic and longrope."""
    config = replace(CONFIGS[name], max_position_embeddings=32 if name == "dynamic" else 64)
    model = load(tmp_path, config, dtype, seed)
    tokens = random_tokens(40, config, seed)
    chunks = [tokens[:14], *((token,) for token in tokens[14:20]), tokens[20:]]
    session = model.open()

    actual = np.concatenate([model.forward([(session, chunk)])[0] for chunk in chunks])

    assert actual.dtype == model.dtype == np.dtype(dtype)
    assert distance(specified(config, chunks, seed), actual) < BOUNDS[dtype]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_ragged_batch_equals_its_sessions(tmp_path, name):
    """Prompts, chunks and single tokens in one pass; the sessions have different lengths."""
    config = CONFIGS[name]
    model = load(tmp_path, config)
    plans = [[(1,), (2, 3, 4)], [random_tokens(30, config), (5,)], [random_tokens(9, config, 2), (6,)]]
    sessions = [model.open() for _ in plans]

    first = model.forward([(session, plan[0]) for session, plan in zip(sessions, plans, strict=True)])
    second = model.forward([(session, plan[1]) for session, plan in zip(sessions, plans, strict=True)])

    for plan, *logits in zip(plans, first, second, strict=True):
        assert distance(specified(config, plan), np.concatenate(logits)) < BOUNDS["float64"]


@pytest.mark.parametrize("num_sessions", [1, 2, 8])
def test_single_tokens_of_many_sessions(tmp_path, num_sessions):
    """Decoding in a batch equals the specification's sessions, token for token."""
    model = load(tmp_path)
    prompts = [random_tokens(1 + 5 * index, seed=index) for index in range(num_sessions)]
    sessions = [model.open() for _ in prompts]
    model.forward(list(zip(sessions, prompts, strict=True)))

    for token in (3, 4):
        actual = model.forward([(session, (token,)) for session in sessions])

    for prompt, logits in zip(prompts, actual, strict=True):
        assert distance(specified(TINY, [prompt, (3,), (4,)])[-1:], logits) < BOUNDS["float64"]


@pytest.mark.parametrize("seed", range(4))
def test_sessions_that_share_a_block_stay_independent(tmp_path, seed):
    """Random steps of all or some of four sessions, with rollbacks, chunks and growth past the first capacity."""
    config = replace(TINY, max_position_embeddings=256)
    model, random = load(tmp_path, config), np.random.default_rng(seed)
    sessions, pasts = [model.open() for _ in range(4)], [[] for _ in range(4)]
    for _ in range(60):
        chosen = range(4) if random.random() < 0.8 else random.permutation(4)[:2].tolist()
        sizes = [1 if random.random() < 0.95 else 9 for _ in chosen]
        if random.random() < 0.1:
            sessions[0].truncate(len(sessions[0]) // 2)
            del pasts[0][len(sessions[0]) :]
        chunks = [random.integers(0, config.vocab_size, size).tolist() for size in sizes]
        actual = model.forward(
            [(sessions[which], chunk) for which, chunk in zip(chosen, chunks, strict=True)], "last"
        )
        for which, chunk in zip(chosen, chunks, strict=True):
            pasts[which] += chunk

    assert [len(past) for past in pasts] == [len(session) for session in sessions]
    for which, logits in zip(chosen, actual, strict=True):
        assert distance(specified(config, [tuple(pasts[which])])[-1:], logits) < BOUNDS["float64"]


def test_a_step_of_the_same_sessions_shares_one_block(tmp_path):
    """Met twice in a row, they move together; a session that outgrows the block leaves it."""
    model = load(tmp_path, replace(TINY, max_position_embeddings=512))
    first, second = model.open(), model.open()
    for _ in range(2):
        model.forward([(first, (1,)), (second, (2,))])

    assert first.block is not None
    assert first.block is second.block

    model.forward([(first, (1,) * 100)])

    assert first.block is None


def test_nothing_of_a_forgotten_token_reaches_a_neighbour(tmp_path):
    """An infinite value left behind in a shared block would turn weight 0 into NaN."""
    model = load(tmp_path)
    short, long = model.open(), model.open()
    for _ in range(5):
        model.forward([(short, (1,)), (long, (2,))])
    short.storage[:, :, :, 3:5] = np.inf
    short.truncate(3)

    actual = model.forward([(short, (4,)), (long, (2,))])

    assert long.block is short.block
    assert distance(specified(TINY, [(1, 1, 1, 4)])[-1:], actual[0]) < BOUNDS["float64"]


def test_last_logits_are_the_last_row_of_all(tmp_path):
    model = load(tmp_path)
    batches = [[(model.open(), random_tokens(7)), (model.open(), (1,)), (model.open(), (2, 3))] for _ in range(2)]

    everything = model.forward(batches[0])
    last = model.forward(batches[1], logits="last")

    assert [(1, TINY.vocab_size)] * 3 == [row.shape for row in last]
    assert max(distance(rows[-1:], row) for rows, row in zip(everything, last, strict=True)) < BOUNDS["float64"]


def test_a_long_prompt_attends_in_blocks(tmp_path):
    """300 tokens after 10: blocks of queries, each over the context that it sees; the cache has grown."""
    config = replace(TINY, max_position_embeddings=512)
    model = load(tmp_path, config)
    tokens = random_tokens(310)
    session = model.open()
    model.forward([(session, tokens[:10])])

    actual = model.forward([(session, tokens[10:])])[0]

    assert distance(specified(config, [tokens])[10:], actual) < BOUNDS["float64"]


def test_truncate_goes_back_to_an_earlier_state(tmp_path):
    model = load(tmp_path)
    session = model.open()
    model.forward([(session, (1, 2, 3, 4, 5))])

    session.truncate(2)
    actual = model.forward([(session, (6,))])[0]

    assert len(session) == 3
    assert distance(specified(TINY, [(1, 2, 6)])[-1:], actual) < BOUNDS["float64"]


def test_a_fork_and_its_origin_go_separate_ways(tmp_path):
    model = load(tmp_path)
    session = model.open()
    model.forward([(session, (1, 2, 3))])
    fork = session.fork()

    model.forward([(session, (4,))])
    of_fork = model.forward([(fork, (5,))])[0]
    of_session = model.forward([(session, (6,))])[0]

    assert (5, 4) == (len(session), len(fork))
    assert distance(specified(TINY, [(1, 2, 3, 5)])[-1:], of_fork) < BOUNDS["float64"]
    assert distance(specified(TINY, [(1, 2, 3, 4, 6)])[-1:], of_session) < BOUNDS["float64"]


@pytest.mark.parametrize(("dtype", "element_size"), [("float32", 4), ("float64", 8)])
def test_nbytes_counts_cached_tokens_only(tmp_path, dtype, element_size):
    model = load(tmp_path, dtype=dtype)
    session = model.open()
    model.forward([(session, (1, 2, 3))])

    assert 3 * TINY.kv_bytes_per_token(element_size) == session.nbytes


@pytest.mark.parametrize(
    ("reason", "tokens"),
    [
        (Refusal.PROMPT_EMPTY, ()),
        (Refusal.TOKEN_OUT_OF_RANGE, (0, -1)),
        (Refusal.TOKEN_OUT_OF_RANGE, (17,)),
        (Refusal.CONTEXT_EXCEEDED, (1,) * 65),
    ],
)
def test_a_refused_batch_changes_no_session(tmp_path, reason, tokens):
    model = load(tmp_path)
    good, bad = model.open(), model.open()
    model.forward([(good, (1, 2))])

    with pytest.raises(RefusedError) as refused:
        model.forward([(good, (3,)), (bad, tokens)])

    assert reason == refused.value.reason
    assert (2, 0) == (len(good), len(bad))
    assert distance(specified(TINY, [(1, 2, 4)])[-1:], model.forward([(good, (4,))])[0]) < BOUNDS["float64"]


def test_a_context_may_be_filled_to_its_last_token(tmp_path):
    config = rope_config("dynamic")
    model = load(tmp_path, config)
    session = model.open()
    model.forward([(session, (1,) * config.context_length)])

    with pytest.raises(RefusedError) as refused:
        model.forward([(session, (1,))])

    assert Refusal.CONTEXT_EXCEEDED == refused.value.reason


def test_a_session_may_not_be_in_a_batch_twice(tmp_path):
    model = load(tmp_path)
    session = model.open()

    with pytest.raises(RefusedError) as refused:
        model.forward([(session, (1,)), (session, (2,))])

    assert Refusal.DUPLICATE_ID == refused.value.reason
    assert len(session) == 0


def test_a_session_of_another_model_is_refused(tmp_path):
    model, other = load(tmp_path / "a"), load(tmp_path / "b", replace(TINY, num_hidden_layers=3))

    with pytest.raises(RefusedError) as refused:
        model.forward([(other.open(), (1,))])

    assert Refusal.CACHE_RANGE == refused.value.reason


@pytest.mark.parametrize("num_tokens", [-1, 4])
def test_truncating_to_what_is_not_there_is_refused(tmp_path, num_tokens):
    model = load(tmp_path)
    session = model.open()
    model.forward([(session, (1, 2, 3))])

    with pytest.raises(RefusedError) as refused:
        session.truncate(num_tokens)

    assert Refusal.CACHE_RANGE == refused.value.reason
    assert len(session) == 3


def test_an_empty_batch_has_no_logits(tmp_path):
    assert [] == load(tmp_path).forward([])


def test_large_matrices_are_the_same_model(tmp_path):
    """From STREAMED_BYTES on, `down` is stored in the other order."""
    config = replace(TINY, hidden_size=64, intermediate_size=STREAMED_BYTES // (64 * 8))
    model, tokens = load(tmp_path, config), random_tokens(5)

    actual = model.forward([(model.open(), tokens)])[0]

    assert model.weights.layers[0].down.flags.f_contiguous
    assert distance(specified(config, [tokens]), actual) < BOUNDS["float64"]
