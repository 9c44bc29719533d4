"""Names and shapes of a checkpoint's tensors, and their way into weights."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from reference.model.weights import tensor_shapes, weights_from_tensors
from tests.models import TINY, random_tensors

ONE_LAYER = replace(TINY, num_hidden_layers=1)
SHAPES_OF_ONE_LAYER = {
    "model.embed_tokens.weight": (17, 16),
    "model.layers.0.input_layernorm.weight": (16,),
    "model.layers.0.self_attn.q_proj.weight": (16, 16),  # 4 heads of 4
    "model.layers.0.self_attn.k_proj.weight": (8, 16),  # 2 heads of 4
    "model.layers.0.self_attn.v_proj.weight": (8, 16),
    "model.layers.0.self_attn.o_proj.weight": (16, 16),
    "model.layers.0.post_attention_layernorm.weight": (16,),
    "model.layers.0.mlp.gate_proj.weight": (24, 16),
    "model.layers.0.mlp.up_proj.weight": (24, 16),
    "model.layers.0.mlp.down_proj.weight": (16, 24),
    "model.norm.weight": (16,),
    "lm_head.weight": (17, 16),
}
BIASES = {
    "model.layers.0.self_attn.q_proj.bias": (16,),
    "model.layers.0.self_attn.k_proj.bias": (8,),
    "model.layers.0.self_attn.v_proj.bias": (8,),
    "model.layers.0.self_attn.o_proj.bias": (16,),
}
MLP_BIASES = {
    "model.layers.0.mlp.gate_proj.bias": (24,),
    "model.layers.0.mlp.up_proj.bias": (24,),
    "model.layers.0.mlp.down_proj.bias": (16,),
}


def test_tensor_shapes_of_one_layer():
    assert SHAPES_OF_ONE_LAYER == tensor_shapes(ONE_LAYER)


def test_biases_are_two_separate_options():
    assert SHAPES_OF_ONE_LAYER | BIASES == tensor_shapes(replace(ONE_LAYER, attention_bias=True))
    assert SHAPES_OF_ONE_LAYER | MLP_BIASES == tensor_shapes(replace(ONE_LAYER, mlp_bias=True))


def test_a_tied_model_stores_no_head():
    without_head = {name: shape for name, shape in SHAPES_OF_ONE_LAYER.items() if name != "lm_head.weight"}

    assert without_head == tensor_shapes(replace(ONE_LAYER, tie_word_embeddings=True))


def test_every_layer_has_its_own_tensors():
    """9 tensors a layer, and embedding, norm and head."""
    assert [3 + 9, 3 + 27] == [len(tensor_shapes(replace(TINY, num_hidden_layers=n))) for n in (1, 3)]


def test_the_names_are_those_of_transformers():
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=17,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
        attention_bias=True,
        mlp_bias=True,
    )
    state = transformers.LlamaForCausalLM(config).state_dict()
    expected = {name: tuple(tensor.shape) for name, tensor in state.items()}

    assert expected == tensor_shapes(replace(TINY, attention_bias=True, mlp_bias=True))


def test_projections_are_turned_and_the_embedding_is_not():
    config = replace(TINY, attention_bias=True, mlp_bias=True)
    tensors = random_tensors(config, 1)
    weights = weights_from_tensors(config, tensors)
    layer = weights.layers[1]
    turned = {
        "self_attn.q_proj": layer.q_proj,
        "self_attn.k_proj": layer.k_proj,
        "self_attn.v_proj": layer.v_proj,
        "self_attn.o_proj": layer.o_proj,
        "mlp.gate_proj": layer.gate_proj,
        "mlp.up_proj": layer.up_proj,
        "mlp.down_proj": layer.down_proj,
    }
    vectors = {
        "input_layernorm.weight": layer.input_norm,
        "post_attention_layernorm.weight": layer.post_attention_norm,
        "self_attn.q_proj.bias": layer.q_bias,
        "self_attn.k_proj.bias": layer.k_bias,
        "self_attn.v_proj.bias": layer.v_bias,
        "self_attn.o_proj.bias": layer.o_bias,
        "mlp.gate_proj.bias": layer.gate_bias,
        "mlp.up_proj.bias": layer.up_bias,
        "mlp.down_proj.bias": layer.down_bias,
    }

    for name, weight in turned.items():
        np.testing.assert_array_equal(tensors[f"model.layers.1.{name}.weight"].T, weight)
    for name, weight in vectors.items():
        np.testing.assert_array_equal(tensors[f"model.layers.1.{name}"], weight)
    np.testing.assert_array_equal(tensors["model.embed_tokens.weight"], weights.embedding)
    np.testing.assert_array_equal(tensors["model.norm.weight"], weights.norm)
    np.testing.assert_array_equal(tensors["lm_head.weight"].T, weights.lm_head)


def test_a_tied_head_is_the_embedding_turned():
    config = replace(TINY, tie_word_embeddings=True)
    tensors = random_tensors(config, 1)

    np.testing.assert_array_equal(
        tensors["model.embed_tokens.weight"].T, weights_from_tensors(config, tensors).lm_head
    )


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_weights_are_float64_whatever_the_checkpoint_stores(dtype):
    tensors = random_tensors(TINY, 1)
    stored = {name: tensor.astype(dtype) for name, tensor in tensors.items()}
    weights = weights_from_tensors(TINY, stored)

    assert np.float64 == weights.layers[0].q_proj.dtype
    np.testing.assert_array_equal(tensors["model.layers.0.self_attn.q_proj.weight"].T, weights.layers[0].q_proj)


def test_weights_share_no_memory_with_the_tensors_and_cannot_be_written():
    tensors = random_tensors(TINY, 1)
    weights = weights_from_tensors(TINY, tensors)
    arrays = [
        weights.embedding,
        weights.norm,
        weights.lm_head,
        weights.layers[0].q_proj,
        weights.layers[0].input_norm,
    ]

    assert [False] * 5 == [array.flags.writeable for array in arrays]
    assert [True] * len(tensors) == [tensor.flags.writeable for tensor in tensors.values()]
    assert not any(np.shares_memory(array, tensor) for array in arrays for tensor in tensors.values())
