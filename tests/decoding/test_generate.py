"""Plain decoding: cached equals recomputed, and every way to end."""

import math
from dataclasses import replace

import numpy as np
import pytest

from reference.decoding.generate import (
    Generation,
    StopRule,
    choose_by_coins,
    choose_greedily,
    finish_reason,
    generate,
    generate_by_recomputation,
)
from reference.errors import Array, Refusal, RefusedError
from reference.model.config import ModelConfig
from reference.model.weights import Layer, Model, Weights
from tests.models import ROPES, TINY, random_model, random_tokens, rope_config

# A model that counts: after token t comes t + 1 modulo 5, since the layer adds nothing, embeddings are unit
# vectors and the head turns unit vector t into unit vector t + 1.
COUNTER = ModelConfig(5, 5, 1, 1, 1, 1, 2, max_position_embeddings=12)


def counter() -> Model:
    layer = Layer(
        input_norm=np.ones(5),
        q_proj=np.zeros((5, 2)),
        k_proj=np.zeros((5, 2)),
        v_proj=np.zeros((5, 2)),
        o_proj=np.zeros((2, 5)),
        post_attention_norm=np.ones(5),
        gate_proj=np.zeros((5, 1)),
        up_proj=np.zeros((5, 1)),
        down_proj=np.zeros((1, 5)),
    )
    return Model(COUNTER, Weights(np.eye(5), (layer,), np.ones(5), np.roll(np.eye(5), 1, axis=1)))


BOTH = pytest.mark.parametrize("decode", [generate, generate_by_recomputation])


@BOTH
def test_each_token_follows_from_the_one_before(decode):
    expected = Generation((3, 4, 0, 1, 2, 3), "length")

    assert expected == decode(counter(), (0, 2), StopRule(6, (), 12), choose_greedily)


@BOTH
@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (StopRule(max_tokens=1, eos_ids=(), context_length=12), Generation((3,), "length")),
        (StopRule(max_tokens=8, eos_ids=(0,), context_length=12), Generation((3, 4, 0), "stop")),
        (StopRule(max_tokens=8, eos_ids=(3,), context_length=12), Generation((3,), "stop")),
        (StopRule(max_tokens=8, eos_ids=(1, 0), context_length=12), Generation((3, 4, 0), "stop")),
        # eos as the max_tokens-th token, and as the token that fills the context
        (StopRule(max_tokens=3, eos_ids=(0,), context_length=12), Generation((3, 4, 0), "stop")),
        (StopRule(max_tokens=8, eos_ids=(0,), context_length=5), Generation((3, 4, 0), "stop")),
        # eos one token after a limit
        (StopRule(max_tokens=2, eos_ids=(0,), context_length=12), Generation((3, 4), "length")),
        (StopRule(max_tokens=8, eos_ids=(0,), context_length=4), Generation((3, 4), "length")),
        # the prompt's own eos counts for nothing
        (StopRule(max_tokens=2, eos_ids=(2,), context_length=12), Generation((3, 4), "length")),
        # prompt and output fill the model's context: 2 + 10 tokens
        (
            StopRule(max_tokens=99, eos_ids=(), context_length=12),
            Generation((3, 4, 0, 1, 2, 3, 4, 0, 1, 2), "length"),
        ),
        (StopRule(max_tokens=99, eos_ids=(), context_length=3), Generation((3,), "length")),
    ],
)
def test_an_output_ends_with_its_first_reason(decode, stop, expected):
    assert expected == decode(counter(), (1, 2), stop, choose_greedily)


@pytest.mark.parametrize(
    ("num_prompt", "output", "expected"),
    [
        (1, [5], None),
        (1, [5, 9], "stop"),
        (1, [9, 5], None),  # only the last token is looked at
        (1, [5, 5, 5], "length"),
        (1, [5, 5, 9], "stop"),
        (4, [5], None),
        (4, [5, 5], "length"),
        (4, [5, 9], "stop"),
    ],
)
def test_finish_reason_of_the_last_token(num_prompt, output, expected):
    """max_tokens 3, eos 9, context 6."""
    assert expected == finish_reason(num_prompt, output, StopRule(3, (9,), 6))


@pytest.mark.parametrize("rope_type", ROPES)
def test_decoding_with_a_cache_equals_recomputation_bit_for_bit(rope_type):
    """Logits too, byte for byte. longrope: within its original 16 tokens, so that no cached key gets old."""
    model = random_model(rope_config(rope_type))
    stop = StopRule(10, (), 16)
    seen: dict[str, list[bytes]] = {"cached": [], "recomputed": []}

    def chooser(name: str):
        def choose(logits: Array, index: int) -> int:
            seen[name].append(logits.tobytes())
            return choose_greedily(logits, index)

        return choose

    cached = generate(model, random_tokens(6), stop, chooser("cached"))
    recomputed = generate_by_recomputation(model, random_tokens(6), stop, chooser("recomputed"))

    assert len(cached.tokens) == 10
    assert cached == recomputed
    assert seen["cached"] == seen["recomputed"]


def test_sampling_with_a_cache_equals_recomputation():
    coins = np.random.default_rng(1).random(20).tolist()
    stop = StopRule(20, (), 64)
    outputs = [
        decode(random_model(), random_tokens(6), stop, choose_by_coins(coins, 1.5))
        for decode in (generate, generate_by_recomputation)
    ]

    assert outputs[0] == outputs[1]
    assert len(set(outputs[0].tokens)) > 5


def test_coins_choose_by_the_cumulative_distribution():
    """Logits of COUNTER are sqrt(5) times a unit vector (norm of a unit vector over 5 dimensions, eps 1e-6).

    At temperature sqrt(5) / ln 4 the next token weighs 4, the others 1: with token 3 next the cumulative
    probabilities are 1/8, 2/8, 3/8, 7/8, 1.
    """
    temperature = math.sqrt(5) / math.log(4)
    choose = choose_by_coins([0.12, 0.13, 0.37, 0.38, 0.87, 0.88], temperature)
    stop = StopRule(1, (), 12)
    drawn = []
    for index in range(6):
        at_this_index = lambda logits, _, index=index: choose(logits, index)  # noqa: E731
        drawn.append(generate(counter(), (2,), stop, at_this_index).tokens[0])

    assert [0, 1, 2, 3, 3, 4] == drawn


def test_coins_are_used_in_output_order():
    """At a low temperature only the counter's own token is likely, whatever the coin; a coin each is still needed."""
    stop = StopRule(3, (), 12)

    assert generate(counter(), (2,), stop, choose_by_coins([0.5] * 3, 0.05)) == Generation((3, 4, 0), "length")
    with pytest.raises(RefusedError, match="output token 2 needs a coin; 2 were given") as refused:
        generate(counter(), (2,), stop, choose_by_coins([0.5] * 2, 0.05))
    assert refused.value.reason is Refusal.COIN_OUT_OF_RANGE


@BOTH
@pytest.mark.parametrize(
    ("prompt", "stop", "reason", "sentence"),
    [
        ((1,), StopRule(0, (), 12), Refusal.LIMIT_NOT_POSITIVE, "max_tokens is 0; at least 1 is needed"),
        ((1,), StopRule(-1, (), 12), Refusal.LIMIT_NOT_POSITIVE, "max_tokens is -1; at least 1 is needed"),
        ((1,), StopRule(1, (), 13), Refusal.CONTEXT_EXCEEDED, "a context of 13 exceeds the model's 12"),
        (
            (1, 2, 3),
            StopRule(1, (), 3),
            Refusal.CONTEXT_EXCEEDED,
            "a prompt of 3 tokens leaves no room in a context of 3",
        ),
        ((), StopRule(1, (), 12), Refusal.PROMPT_EMPTY, "at least one token is needed to compute logits"),
        ((1, 5), StopRule(1, (), 12), Refusal.TOKEN_OUT_OF_RANGE, "token 5 at position 1 is not in 0 .. 4"),
        ((-1,), StopRule(1, (), 12), Refusal.TOKEN_OUT_OF_RANGE, "token -1 at position 0 is not in 0 .. 4"),
    ],
)
def test_what_cannot_be_decoded_is_refused(decode, prompt, stop, reason, sentence):
    with pytest.raises(RefusedError) as refused:
        decode(counter(), prompt, stop, choose_greedily)

    assert (reason, sentence) == (refused.value.reason, str(refused.value))


@BOTH
def test_a_model_whose_logits_are_nan_is_refused(decode):
    model = counter()
    broken = Model(COUNTER, replace(model.weights, norm=np.full(5, np.nan)))
    with pytest.raises(RefusedError) as refused:
        decode(broken, (1,), StopRule(1, (), 12), choose_greedily)

    assert refused.value.reason is Refusal.NOT_A_NUMBER


def test_a_dynamic_model_decodes_beyond_its_trained_context():
    """64 trained tokens, factor 4: a context of 256."""
    config = rope_config("dynamic")
    stop = StopRule(8, (), 256)

    assert len(generate(random_model(config), random_tokens(60), stop, choose_greedily).tokens) == 8
    with pytest.raises(RefusedError, match="a context of 257 exceeds the model's 256"):
        generate(random_model(config), random_tokens(60), StopRule(8, (), 257), choose_greedily)


def test_decoding_does_not_change_its_prompt():
    prompt = [1, 2]
    generate(random_model(), prompt, StopRule(3, (), TINY.max_position_embeddings), choose_greedily)
    generate_by_recomputation(random_model(), prompt, StopRule(3, (), 64), choose_greedily)

    assert [1, 2] == prompt
