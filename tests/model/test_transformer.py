"""The forward pass on cases that a pencil can check. Whole models are compared in test_against_transformers.py."""

import math
from dataclasses import replace

import numpy as np
import pytest

from reference.errors import Array, Refusal, RefusedError
from reference.model.cache import empty_cache
from reference.model.config import ModelConfig
from reference.model.transformer import attention, causal, forward, linear, project, rms_norm, swiglu
from reference.model.weights import Layer, Model, Weights
from tests.models import TINY, random_model, random_tokens

# Two tokens, two dimensions, one layer of one head.
MICRO = ModelConfig(
    vocab_size=2,
    hidden_size=2,
    intermediate_size=1,
    num_hidden_layers=1,
    num_attention_heads=1,
    num_key_value_heads=1,
    head_dim=2,
    max_position_embeddings=4,
    rms_norm_eps=0.0,
)


def micro_layer(**changes: Array) -> Layer:
    """A layer that adds nothing, but for the changes."""
    zeros = {
        "input_norm": np.ones(2),
        "post_attention_norm": np.ones(2),
        **{f"{name}_proj": np.zeros((2, 2)) for name in "qkvo"},
        "gate_proj": np.zeros((2, 1)),
        "up_proj": np.zeros((2, 1)),
        "down_proj": np.zeros((1, 2)),
    }
    return Layer(**{**zeros, **changes})


def micro_model(layer: Layer, **changes: Array) -> Model:
    """Embeddings (1, 7) and (7, 1), whose root mean square is 5; the head copies both dimensions."""
    weights = {"embedding": np.array([[1.0, 7.0], [7.0, 1.0]]), "norm": np.ones(2), "lm_head": np.eye(2)}
    return Model(MICRO, Weights(layers=(layer,), **{**weights, **changes}))


def logits_of(model: Model, *tokens: int) -> Array:
    return forward(model, tokens, empty_cache(model.config))[0]


# Parts


def test_rms_norm_divides_by_the_root_mean_square_and_multiplies_by_the_weight():
    """Mean of 1 and 49 is 25; 1/5 * 10 = 2 and 7/5 * 5 = 7."""
    assert [[2.0, 7.0]] == rms_norm(np.array([[1.0, 7.0]]), np.array([10.0, 5.0]), eps=0.0).tolist()


def test_eps_stands_inside_the_root():
    """Mean square 9 and eps 7 give sqrt(16) = 4; outside it would be 3 + 7."""
    assert [[0.75, 0.75]] == rms_norm(np.array([[3.0, 3.0]]), np.ones(2), eps=7.0).tolist()


def test_rms_norm_does_not_subtract_the_mean():
    assert [[1.0, 1.0]] == rms_norm(np.array([[5.0, 5.0]]), np.ones(2), eps=0.0).tolist()


def test_one_head_mixes_values_by_the_softmax_of_its_scores():
    """q.k / sqrt(4) = 0 and ln 3, so the weights are 1/4 and 3/4: 1/4 * 4 = 1, 3/4 * 8 = 6."""
    q = np.array([[[2 * math.log(3), 0.0, 0.0, 0.0]]])
    keys = np.array([[[0.0, 5.0, 0.0, 0.0]], [[1.0, 9.0, 0.0, 0.0]]])
    values = np.array([[[4.0, 0.0, 0.0, 1.0]], [[0.0, 8.0, 0.0, 1.0]]])

    np.testing.assert_allclose(attention(q, keys, values), [[1.0, 6.0, 0.0, 1.0]], rtol=1e-15)


def test_a_query_sees_no_later_token():
    """Equal scores: query 0 (of context tokens 1 and 2) averages tokens 0 and 1, query 1 all three."""
    q = np.zeros((2, 1, 2))
    keys = np.ones((3, 1, 2))
    values = np.array([[[1.0, 0.0]], [[3.0, 4.0]], [[5.0, 8.0]]])

    np.testing.assert_allclose(attention(q, keys, values), [[2.0, 2.0], [3.0, 4.0]], rtol=1e-15)


def test_the_causal_rule():
    assert [[True, True, False], [True, True, True]] == causal(2, 3).tolist()
    assert [[True]] == causal(1, 1).tolist()
    assert [[True, False], [True, True]] == causal(2, 2).tolist()


@pytest.mark.parametrize(("num_kv_heads", "owners"), [(1, [0, 0, 0, 0]), (2, [0, 0, 1, 1]), (4, [0, 1, 2, 3])])
def test_query_head_h_reads_key_value_head_h_over_group_size(num_kv_heads, owners):
    """One context token has weight 1 exactly, so each head's output is the value of its key-value head."""
    values = np.arange(1.0, num_kv_heads + 1)[None, :, None] * np.array([1.0, 10.0])
    expected = [number for owner in owners for number in (owner + 1.0, 10.0 * (owner + 1))]

    assert [expected] == attention(np.ones((1, 4, 2)), np.ones((1, num_kv_heads, 2)), values).tolist()


def test_each_query_head_scores_for_itself_within_its_group():
    """Four query heads on two key-value heads, 2 tokens: heads 0 and 2 have scores (0, ln 3), 1 and 3 (0, 0)."""
    big = math.sqrt(2) * math.log(3)
    q = np.array([[[big, 0.0], [0.0, 0.0], [big, 0.0], [0.0, 0.0]]])
    keys = np.array([[[0.0, 0.0]] * 2, [[1.0, 0.0]] * 2])  # [S, K, D]
    values = np.array([[[0.0, 1.0], [0.0, 2.0]], [[4.0, 1.0], [8.0, 2.0]]])

    np.testing.assert_allclose(attention(q, keys, values), [[3.0, 1.0, 2.0, 1.0, 6.0, 2.0, 4.0, 2.0]], rtol=1e-15)


def test_grouped_heads_score_with_the_keys_of_their_own_head():
    """Two query heads on two key-value heads; 2 tokens. Head 0 has scores (0, ln 3), head 1 (ln 3, 0)."""
    big = math.sqrt(2) * math.log(3)
    q = np.full((1, 2, 2), [big, 0.0])
    keys = np.array([[[0.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]]])  # [S, K, D]
    values = np.array([[[0.0, 1.0], [0.0, 1.0]], [[4.0, 1.0], [4.0, 1.0]]])

    np.testing.assert_allclose(attention(q, keys, values), [[3.0, 1.0, 1.0, 1.0]], rtol=1e-15)


def test_heads_are_consecutive_columns():
    """q_proj [E=1, H*D=4]: head 0 is columns 0 and 1; k and v have one head."""
    config = replace(MICRO, hidden_size=1, num_attention_heads=2)
    layer = micro_layer(
        q_proj=np.array([[1.0, 2.0, 3.0, 4.0]]), k_proj=np.array([[5.0, 6.0]]), v_proj=np.array([[7.0, 8.0]])
    )
    q, k, v = project(np.array([[1.0], [10.0]]), layer, config)

    assert [[[1.0, 2.0], [3.0, 4.0]], [[10.0, 20.0], [30.0, 40.0]]] == q.tolist()
    assert [[[5.0, 6.0]], [[50.0, 60.0]]] == k.tolist()
    assert [[[7.0, 8.0]], [[70.0, 80.0]]] == v.tolist()


def test_swiglu_gates_with_silu_of_the_gate():
    """silu(ln 3) = ln 3 / (1 + 1/3) = 3/4 ln 3; times up = 8 and down = (1, 1/2)."""
    layer = micro_layer(
        gate_proj=np.array([[math.log(3)], [0.0]]), up_proj=np.array([[8.0], [0.0]]), down_proj=np.array([[1.0, 0.5]])
    )
    expected = [[6 * math.log(3), 3 * math.log(3)]]

    np.testing.assert_allclose(swiglu(np.array([[1.0, 99.0]]), layer), expected, rtol=1e-15)


def test_linear_adds_the_bias_if_there_is_one():
    x, weight = np.array([[1.0, 2.0]]), np.array([[1.0], [10.0]])

    assert [[21.0]] == linear(x, weight, None).tolist()
    assert [[24.0]] == linear(x, weight, np.array([3.0])).tolist()


# The whole pass


def test_a_layer_that_adds_nothing_leaves_the_normed_embedding():
    """(1, 7) / 5 and (7, 1) / 5."""
    assert [[0.2, 1.4], [1.4, 0.2]] == logits_of(micro_model(micro_layer()), 0, 1).tolist()


def test_the_final_norm_and_the_head_are_applied():
    """(1, 7) / 5 * (5, 10) = (1, 14); head columns (1, 0) and (1, 2)."""
    model = micro_model(micro_layer(), norm=np.array([5.0, 10.0]), lm_head=np.array([[1.0, 1.0], [0.0, 2.0]]))

    assert [[1.0, 29.0]] == logits_of(model, 0).tolist()


def test_a_tied_head_multiplies_by_the_embedding():
    """(0.2, 1.4) . (1, 7) = 10 and (0.2, 1.4) . (7, 1) = 2.8."""
    model = micro_model(micro_layer(), lm_head=np.array([[1.0, 7.0], [7.0, 1.0]]).T)

    np.testing.assert_allclose(logits_of(model, 0), [[10.0, 2.8]], rtol=1e-15)


def test_attention_is_added_to_the_unnormed_input():
    """v = normed (0.2, 1.4), o = 20 v = (4, 28): x = (5, 35), whose root mean square is 25."""
    model = micro_model(micro_layer(v_proj=np.eye(2), o_proj=20 * np.eye(2)))

    np.testing.assert_allclose(logits_of(model, 0), [[0.2, 1.4]], rtol=1e-15)


def test_attention_reads_the_input_norm():
    """input_norm (5, 0) makes v = (1, 0); o takes it to (0, -6): x = (1, 1)."""
    layer = micro_layer(input_norm=np.array([5.0, 0.0]), v_proj=np.eye(2), o_proj=np.array([[0.0, -6.0], [0.0, 0.0]]))

    assert [[1.0, 1.0]] == logits_of(micro_model(layer), 0).tolist()


def test_the_mlp_reads_the_post_attention_norm_after_attention():
    """Attention makes x = (1, 1), so the second norm (2, 0) gives (2, 0); gate 50 x 2 = 100 passes silu unchanged;
    up 2, so silu * up = 200; down (0, 0.01) adds 2: x = (1, 3) with mean square 5."""
    layer = micro_layer(
        input_norm=np.array([5.0, 0.0]),
        v_proj=np.eye(2),
        o_proj=np.array([[0.0, -6.0], [0.0, 0.0]]),
        post_attention_norm=np.array([2.0, 0.0]),
        gate_proj=np.array([[50.0], [7.0]]),
        up_proj=np.array([[1.0], [7.0]]),
        down_proj=np.array([[0.0, 0.01]]),
    )
    expected = [[1 / math.sqrt(5), 3 / math.sqrt(5)]]

    np.testing.assert_allclose(logits_of(micro_model(layer), 0), expected, rtol=1e-14)


@pytest.mark.parametrize(
    ("bias", "expected"),
    [
        ("v_bias", [6.0, 17.0]),  # x + 1 * (5, 10)
        ("o_bias", [6.0, 17.0]),
        ("down_bias", [6.0, 17.0]),
    ],
)
def test_a_bias_that_reaches_the_output_is_added_once(bias, expected):
    """x = (1, 7) + (5, 10) before the final norm."""
    model = micro_model(micro_layer(o_proj=np.eye(2), **{bias: np.array([5.0, 10.0])}))
    root_mean_square = math.sqrt((6**2 + 17**2) / 2)

    np.testing.assert_allclose(logits_of(model, 0) * root_mean_square, [expected], rtol=1e-15)


def test_gate_and_up_biases():
    """gate 100, up 3: 300 down (0.01, -0.03) adds (3, -9) to (1, 7): (4, -2), mean square 10."""
    model = micro_model(
        micro_layer(gate_bias=np.array([100.0]), up_bias=np.array([3.0]), down_proj=np.array([[0.01, -0.03]]))
    )
    expected = [[4 / math.sqrt(10), -2 / math.sqrt(10)]]

    np.testing.assert_allclose(logits_of(model, 0), expected, rtol=1e-14)


def test_query_and_key_biases_make_the_scores_and_positions_turn_them():
    """q = k = (b, 0) at every token, so the score of tokens one apart is b*b cos(1) / sqrt(2), of a token with
    itself b*b / sqrt(2): the later token has weight w = 1 / (1 + e**-(b*b (1 - cos 1) / sqrt 2)).

    v = normed input, o = 5: token 1 adds w (7, 1) + (1 - w) (1, 7) to (7, 1).
    """
    b = 1.5
    bias = np.array([b, 0.0])
    model = micro_model(micro_layer(q_bias=bias, k_bias=bias, v_proj=np.eye(2), o_proj=5 * np.eye(2)))
    w = 1 / (1 + math.exp(-b * b * (1 - math.cos(1.0)) / math.sqrt(2)))
    x = np.array([7 + 7 * w + (1 - w), 1 + w + 7 * (1 - w)])
    expected = x / math.sqrt(x @ x / 2)

    np.testing.assert_allclose(logits_of(model, 0, 1)[1], expected, rtol=1e-14)


def test_forward_returns_rotated_keys_and_plain_values():
    """k = (1, 0) at every token, turned by its position: (cos s, sin s); v = (0.2, 1.4) of token 0."""
    model = micro_model(micro_layer(k_bias=np.array([1.0, 0.0]), v_proj=np.eye(2)))
    _, cache = forward(model, (0, 0, 0), empty_cache(MICRO))
    _, longer = forward(model, (0,), cache)
    turned = [[[math.cos(s), math.sin(s)]] for s in range(4)]

    np.testing.assert_allclose(cache.keys[0], turned[:3], rtol=1e-15)
    np.testing.assert_allclose(longer.keys[0], turned, rtol=1e-15)
    np.testing.assert_allclose(longer.values[0], [[[0.2, 1.4]]] * 4, rtol=1e-15)


def test_forward_leaves_its_cache_as_it_was():
    model = random_model()
    _, cache = forward(model, random_tokens(3), empty_cache(TINY))
    before = cache.keys.copy(), cache.values.copy()
    forward(model, random_tokens(2), cache)

    assert len(cache) == 3
    np.testing.assert_array_equal(cache.keys, before[0])
    np.testing.assert_array_equal(cache.values, before[1])


def test_logits_have_one_row_a_new_token():
    logits, cache = forward(random_model(), random_tokens(5), empty_cache(TINY))

    assert ((5, 17), (2, 5, 2, 4), (2, 5, 2, 4)) == (logits.shape, cache.keys.shape, cache.values.shape)


# Refusals


@pytest.mark.parametrize(
    ("tokens", "reason", "sentence"),
    [
        ((), Refusal.PROMPT_EMPTY, "at least one token is needed to compute logits"),
        ((0, 2), Refusal.TOKEN_OUT_OF_RANGE, "token 2 at position 3 is not in 0 .. 1"),
        ((-1,), Refusal.TOKEN_OUT_OF_RANGE, "token -1 at position 2 is not in 0 .. 1"),
        ((0, 1, 0), Refusal.CONTEXT_EXCEEDED, "5 tokens exceed the context of 4"),
    ],
)
def test_forward_refuses_what_has_no_logits(tokens, reason, sentence):
    """The cache holds two tokens of a context of four."""
    model = micro_model(micro_layer())
    _, cache = forward(model, (0, 1), empty_cache(MICRO))
    with pytest.raises(RefusedError) as refused:
        forward(model, tokens, cache)

    assert (reason, sentence) == (refused.value.reason, str(refused.value))


def test_the_last_token_of_the_context_is_not_refused():
    assert (4, 2) == logits_of(micro_model(micro_layer()), 0, 1, 0, 1).shape
