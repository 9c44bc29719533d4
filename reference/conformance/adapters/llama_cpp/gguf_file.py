"""A GGUF file from a checkpoint in Hugging Face's layout, float32, with a vocabulary of dummy tokens."""

import json
from pathlib import Path

import gguf
import numpy as np
from safetensors import deserialize

ARCHITECTURE = "llama"
LAYER_TENSORS = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(model_dir, path, eos_ids=()):
    """Writes the checkpoint in `model_dir` to `path` and returns its config.

    Raises NotImplementedError for a RoPE type llama.cpp lacks, for more eos ids than a file can name, and for tensors
    that are not the config's.
    """
    config = with_defaults(json.loads((Path(model_dir) / "config.json").read_text()))
    tensors = read_tensors(Path(model_dir))
    check_agreement(config, tensors)
    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    add_sizes(writer, config)
    add_vocabulary(writer, config["vocab_size"], eos_ids)
    add_rope(writer, config)
    for name, tensor in tensors.items():
        renamed = gguf_name(name)
        if renamed == "output.weight" and config["tie_word_embeddings"]:
            continue
        writer.add_tensor(renamed, np.ascontiguousarray(permuted(name, tensor, config)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return config


def check_agreement(config, tensors):
    """Raises NotImplementedError where file and config.json disagree: the engine would see this adapter's choice."""
    has_biases = any(name.endswith("self_attn.q_proj.bias") for name in tensors)
    head, embedding = tensors.get("lm_head.weight"), tensors["model.embed_tokens.weight"]
    has_its_head = head is not None
    if config["tie_word_embeddings"]:
        has_its_head = head is None or np.array_equal(head, embedding)
    if not has_its_head or has_biases != config.get("attention_bias", False):
        raise NotImplementedError(
            "reading of checkpoints, so it cannot refuse one whose tensors are not its config's"
        )


def with_defaults(raw):
    """The config with the defaults of transformers' LlamaConfig, RoPE parameters in one place."""
    config = {"max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, **raw}
    heads = config["num_attention_heads"]
    config.setdefault("num_key_value_heads", heads)
    config.setdefault("head_dim", config["hidden_size"] // heads)
    given = {**(raw.get("rope_scaling") or {}), **(raw.get("rope_parameters") or {})}
    rope = {"rope_type": given.pop("type", "default"), "rope_theta": raw.get("rope_theta", 10000.0)}
    config["rope"] = {**rope, **given}
    return config


def read_tensors(model_dir):
    """Name -> float32 array, from every safetensors file; bfloat16 is the upper half of a float32."""
    tensors = {}
    for path in sorted(model_dir.glob("*.safetensors")):
        for name, entry in deserialize(path.read_bytes()):
            if entry["dtype"] == "BF16":
                array = (np.frombuffer(entry["data"], "<u2").astype(np.uint32) << 16).view(np.float32)
            else:
                array = np.frombuffer(entry["data"], {"F16": "<f2", "F32": "<f4"}[entry["dtype"]])
            tensors[name] = array.astype(np.float32).reshape(entry["shape"])
    return tensors


def gguf_name(name):
    if not name.startswith("model.layers."):
        whole = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
        return whole.get(name, "output.weight")
    _, _, number, rest = name.split(".", 3)
    base, _, kind = rest.rpartition(".")
    return f"blk.{number}." + (LAYER_TENSORS[rest] if rest in LAYER_TENSORS else f"{LAYER_TENSORS[base]}.{kind}")


def permuted(name, tensor, config):
    """llama.cpp rotates neighbouring rows (2i, 2i + 1) where the checkpoint has (i, i + D/2)."""
    for part, heads in (("q_proj", config["num_attention_heads"]), ("k_proj", config["num_key_value_heads"])):
        if part in name:
            halves = tensor.reshape(heads, 2, config["head_dim"] // 2, *tensor.shape[1:])
            return halves.swapaxes(1, 2).reshape(tensor.shape)
    return tensor


def add_sizes(writer, config):
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def add_vocabulary(writer, vocab_size, eos_ids):
    """Tokens without meaning. The tokenizer's kind is rwkv because llama.cpp gives it no eos of its own."""
    writer.add_tokenizer_model("rwkv")
    writer.add_token_list([f"<{token}>".encode() for token in range(vocab_size)])
    writer.add_token_types([gguf.TokenType.NORMAL] * vocab_size)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    # Generation ends at each of the three.
    ends = (writer.add_eos_token_id, writer.add_eot_token_id, writer.add_eom_token_id)
    if len(eos_ids) > len(ends):
        raise NotImplementedError(f"{len(eos_ids)} eos ids")
    for add, token in zip(ends, eos_ids, strict=False):
        add(token)


def add_rope(writer, config):
    rope, half = config["rope"], config["head_dim"] // 2
    writer.add_rope_freq_base(rope["rope_theta"])
    match rope["rope_type"]:
        case "default":
            pass
        case "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(rope["factor"])
        case "yarn":
            if rope.get("attention_factor", rope.get("mscale")) is not None or rope.get("truncate") is False:
                raise NotImplementedError("yarn with attention_factor, mscale or a ramp that is not truncated")
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(rope["factor"])
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
            writer.add_rope_scaling_yarn_beta_fast(rope.get("beta_fast", 32.0))
            writer.add_rope_scaling_yarn_beta_slow(rope.get("beta_slow", 1.0))
        case "llama3":
            writer.add_tensor("rope_freqs.weight", llama3_divisors(rope, half))
        case "longrope":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
            ratio = config["max_position_embeddings"] / rope["original_max_position_embeddings"]
            attention = rope.get("attention_factor") or longrope_attention(
                ratio, rope["original_max_position_embeddings"]
            )
            writer.add_rope_scaling_attn_factors(attention)
            writer.add_tensor("rope_factors_long.weight", np.array(rope["long_factor"], np.float32))
            writer.add_tensor("rope_factors_short.weight", np.array(rope["short_factor"], np.float32))
        case other:
            raise NotImplementedError(f"rope type {other}")


def llama3_divisors(rope, half):
    """What llama.cpp divides the frequencies by, as its converter computes them."""
    frequencies = 1.0 / rope["rope_theta"] ** (np.arange(half) / half)
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    turns = rope["original_max_position_embeddings"] * frequencies / (2 * np.pi)
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1.0 / ((1 - smooth) / factor + smooth)).astype(np.float32)


def longrope_attention(ratio, original):
    return 1.0 if ratio <= 1.0 else float(np.sqrt(1.0 + np.log(ratio) / np.log(original)))
