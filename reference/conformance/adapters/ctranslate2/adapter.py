"""CTranslate2 on CPU: its own model specification, filled from the checkpoint."""

import json
import math
import tempfile
from pathlib import Path

import ctranslate2
import numpy as np
from ctranslate2.converters.utils import fuse_linear
from ctranslate2.specs import attention_spec, common_spec, transformer_spec

THREADS = 2
SCALINGS = {
    "default": None,
    "linear": attention_spec.RotaryScalingType.Linear,
    "llama3": attention_spec.RotaryScalingType.Llama3,
    "longrope": attention_spec.RotaryScalingType.Su,
}


class Llama:
    """Weights and arithmetic in float32."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="ctranslate2-")
        self.converted = {}

    def hello(self):
        return {
            "name": "CTranslate2",
            "version": ctranslate2.__version__,
            "precisions": {"float32": "f32"},
            "features": ["finish_reason", "logprobs"],
            "choices": {
                "compute_type": "float32",
                "finish_reason": "derived by the adapter from the last token",
                "logprobs": "log softmax, by the adapter, of the logits that generate_batch returns",
                "context": "bounded by the adapter",
            },
        }

    def load(self, model_dir, dtype):
        if model_dir not in self.converted:
            path = Path(self.folder.name) / str(len(self.converted))
            self.converted[model_dir] = (path, convert(Path(model_dir), path))
        path, self.config = self.converted[model_dir]
        self.generator = ctranslate2.Generator(str(path), device="cpu", compute_type="float32", intra_threads=THREADS)

    def score(self, tokens):
        return np.array(self.generator.forward_batch([list(tokens)]))[0]

    def generate(self, prompts, max_tokens, eos_ids, logprobs):
        rooms = [min(max_tokens, self.config["max_position_embeddings"] - len(prompt)) for prompt in prompts]
        answers = self.generator.generate_batch(
            [[f"<{token}>" for token in prompt] for prompt in prompts],
            beam_size=1,
            sampling_topk=1,
            max_length=max(rooms),
            min_length=0,
            end_token=list(eos_ids),
            return_end_token=True,
            include_prompt_in_result=False,
            return_logits_vocab=True,
        )
        return [self.output(*row, eos_ids, logprobs) for row in zip(answers, rooms, strict=True)]

    def output(self, answer, room, eos_ids, logprobs):
        tokens = answer.sequences_ids[0][:room]
        output = {"tokens": tokens, "finish_reason": "stop" if tokens[-1] in eos_ids else "length"}
        if logprobs:
            rows = [np.array(row, dtype=np.float64) for row in answer.logits[0][:room]]
            scores = [row - row.max() - math.log(np.exp(row - row.max()).sum()) for row in rows]
            output["logprobs"] = [float(row[token]) for row, token in zip(scores, tokens, strict=True)]
        return output

    def bye(self):
        self.folder.cleanup()


def convert(model_dir, path):
    """Writes the engine's own files, float32. Raises NotImplementedError for a RoPE type it lacks."""
    config = with_defaults(json.loads((model_dir / "config.json").read_text()))
    tensors = read_tensors(model_dir)
    check_agreement(config, tensors)
    spec = empty_spec(config)
    fill(spec, config, tensors)
    names = [f"<{token}>" for token in range(config["vocab_size"])]
    spec.register_vocabulary(names)
    spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = names[-1]
    spec.config.layer_norm_epsilon = config["rms_norm_eps"]
    spec.validate()
    path.mkdir()
    spec.save(str(path))
    return config


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


def empty_spec(config):
    rope, heads, kv_heads = config["rope"], config["num_attention_heads"], config["num_key_value_heads"]
    if rope["rope_type"] not in SCALINGS:
        raise NotImplementedError(f"rope type {rope['rope_type']}")
    is_longrope = rope["rope_type"] == "longrope"
    return transformer_spec.TransformerDecoderModelSpec.from_config(
        config["num_hidden_layers"],
        heads,
        pre_norm=True,
        activation=common_spec.Activation.SWISH,
        ffn_glu=True,
        rms_norm=True,
        rotary_dim=0,
        rotary_interleave=False,
        rotary_scaling_type=SCALINGS[rope["rope_type"]],
        rotary_scaling_factor=rope.get("factor", 1.0),
        rotary_base=rope["rope_theta"],
        original_max_position_embeddings=rope["original_max_position_embeddings"] if is_longrope else 0,
        max_position_embeddings=config["max_position_embeddings"] if is_longrope else 0,
        num_heads_kv=None if kv_heads == heads else kv_heads,
        head_dim=config["head_dim"],
    )


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


def fill(spec, config, tensors):
    decoder, rope = spec.decoder, config["rope"]
    decoder.scale_embeddings = False
    decoder.embeddings.weight = tensors["model.embed_tokens.weight"]
    decoder.layer_norm.gamma = tensors["model.norm.weight"]
    is_tied = config["tie_word_embeddings"]
    decoder.projection.weight = tensors["model.embed_tokens.weight" if is_tied else "lm_head.weight"]
    for number, layer in enumerate(decoder.layer):
        prefix = f"model.layers.{number}."
        attention, ffn = layer.self_attention, layer.ffn
        attention.layer_norm.gamma = tensors[prefix + "input_layernorm.weight"]
        ffn.layer_norm.gamma = tensors[prefix + "post_attention_layernorm.weight"]
        parts = [common_spec.LinearSpec() for _ in "qkv"]
        for part, name in zip(parts, "qkv", strict=True):
            set_linear(part, tensors, f"{prefix}self_attn.{name}_proj")
        fuse_linear(attention.linear[0], parts)
        set_linear(attention.linear[1], tensors, prefix + "self_attn.o_proj")
        set_linear(ffn.linear_0, tensors, prefix + "mlp.gate_proj")
        set_linear(ffn.linear_0_noact, tensors, prefix + "mlp.up_proj")
        set_linear(ffn.linear_1, tensors, prefix + "mlp.down_proj")
        if rope["rope_type"] == "llama3":
            attention.rotary_low_freq_factor = np.float32(rope["low_freq_factor"])
            attention.rotary_high_freq_factor = np.float32(rope["high_freq_factor"])
        if rope["rope_type"] == "longrope":
            attention.rotary_scaling_long_factor = np.array(rope["long_factor"], np.float32)
            attention.rotary_scaling_short_factor = np.array(rope["short_factor"], np.float32)


def set_linear(spec, tensors, name):
    spec.weight = tensors[f"{name}.weight"]
    if f"{name}.bias" in tensors:
        spec.bias = tensors[f"{name}.bias"]


def read_tensors(model_dir):
    """Name -> float32 array, from every safetensors file; bfloat16 is the upper half of a float32."""
    from safetensors import deserialize

    tensors = {}
    for path in sorted(model_dir.glob("*.safetensors")):
        for name, entry in deserialize(path.read_bytes()):
            if entry["dtype"] == "BF16":
                array = (np.frombuffer(entry["data"], "<u2").astype(np.uint32) << 16).view(np.float32)
            else:
                array = np.frombuffer(entry["data"], {"F16": "<f2", "F32": "<f4"}[entry["dtype"]])
            tensors[name] = array.astype(np.float32).reshape(entry["shape"])
    return tensors
