"""What a config.json says about a Llama, checked before anything is computed.

The field names are Hugging Face's. Both spellings of the RoPE parameters are read: `rope_theta` with `rope_scaling`
(transformers 4) and `rope_parameters` (transformers 5). A field that could change the logits and is not specified
here is refused, never ignored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reference.errors import Refusal, RefusedError
from reference.model.checks import check_number, refuse_field
from reference.model.rope_parameters import DEFAULT_ROPE, RopeParameters, check_rope, rope_from_dict, rope_to_dict

# Fields that say something about training, storage or text, and nothing about logits.
FIELDS_WITHOUT_EFFECT = frozenset(
    {"attention_dropout", "bos_token_id", "dtype", "initializer_range", "is_llama_config", "pad_token_id"}
    | {"pretraining_tp", "torch_dtype", "transformers.js_config", "transformers_version", "use_cache"}
)
# Fields of related models: accepted only with the value that leaves a Llama unchanged.
FIELDS_WITH_ONE_VALUE: Mapping[str, tuple[object, ...]] = {
    "architectures": (["LlamaForCausalLM"], None),
    "hidden_act": ("silu", "swish"),
    "model_type": ("llama",),
    "partial_rotary_factor": (1, None),
    "rope_interleaved": (False,),
    "sliding_window": (None,),
    "quantization_config": (None,),
}


@dataclass(frozen=True)
class ModelConfig:
    """The sizes and options of a dense Llama. Every instance is consistent: __post_init__ refuses the others."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope: RopeParameters = DEFAULT_ROPE
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in SIZES:
            check_number(name, getattr(self, name), minimum=1, whole=True)
        for name in ("tie_word_embeddings", "attention_bias", "mlp_bias"):
            if not isinstance(getattr(self, name), bool):
                refuse_field(name, getattr(self, name), "true or false")
        check_number("rms_norm_eps", self.rms_norm_eps, minimum=0.0)
        if self.head_dim % 2 != 0:
            refuse_field("head_dim", self.head_dim, "an even number, since RoPE rotates pairs")
        if self.num_attention_heads % self.num_key_value_heads != 0:
            refuse_field(
                "num_key_value_heads",
                self.num_key_value_heads,
                f"a divisor of {self.num_attention_heads} heads",
            )
        for eos_id in self.eos_token_ids:
            check_number("eos_token_id", eos_id, minimum=0, whole=True)
        check_rope(self.rope, self.head_dim)

    @property
    def group_size(self) -> int:
        """Query heads that share one key-value head."""
        return self.num_attention_heads // self.num_key_value_heads

    @property
    def context_length(self) -> int:
        """Tokens a session can hold: max_position_embeddings, and `factor` times as many with dynamic RoPE.

        A dynamic model's max_position_embeddings is what it was trained on; its formula only differs beyond that.
        """
        if self.rope.rope_type != "dynamic":
            return self.max_position_embeddings
        assert self.rope.factor is not None
        return int(self.max_position_embeddings * self.rope.factor)

    def kv_bytes_per_token(self, element_size: int = 4) -> int:
        """Bytes that one token's keys and values take: layers * 2 * kv heads * head_dim * bytes per element."""
        return self.num_hidden_layers * 2 * self.num_key_value_heads * self.head_dim * element_size


SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)
REQUIRED_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
)


def config_from_dict(raw: Mapping[str, Any]) -> ModelConfig:
    """Reads the content of a config.json; absent and null fields take the defaults of transformers' LlamaConfig.

    An absent eos_token_id means 2, a null one that there is none.
    Raises: CONFIG_INVALID, naming field, value and what would be right.
    """
    present = {name: given for name, given in raw.items() if given is not None}
    _check_field_names(raw)
    for name in REQUIRED_SIZES:
        if name not in present:
            refuse_field(name, None, "a whole number of at least 1; the field is missing")
        check_number(name, present[name], minimum=1, whole=True)
    heads, hidden_size = present["num_attention_heads"], present["hidden_size"]
    if "head_dim" not in present and hidden_size % heads != 0:
        refuse_field("hidden_size", hidden_size, f"a multiple of {heads} heads, or head_dim must be given")
    eos = raw.get("eos_token_id", 2)
    if eos is None:
        eos = []
    if not isinstance(eos, int | list):
        refuse_field("eos_token_id", eos, "a token id or a list of token ids")
    return ModelConfig(
        **{name: present[name] for name in REQUIRED_SIZES},
        num_key_value_heads=present.get("num_key_value_heads", heads),
        head_dim=present.get("head_dim", hidden_size // heads),
        eos_token_ids=tuple(eos) if isinstance(eos, list) else (eos,),
        rope=rope_from_dict(present),
        **{name: present[name] for name in OPTIONAL_FIELDS if name in present},
    )


OPTIONAL_FIELDS = (
    "max_position_embeddings",
    "rms_norm_eps",
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
)
KNOWN_FIELDS = frozenset(
    {*REQUIRED_SIZES, *OPTIONAL_FIELDS, *FIELDS_WITHOUT_EFFECT, *FIELDS_WITH_ONE_VALUE}
    | {"num_key_value_heads", "head_dim", "eos_token_id", "rope_theta", "rope_scaling", "rope_parameters"}
)


def check_tokens(config: ModelConfig, tokens: Sequence[int], num_cached: int) -> None:
    """[FWD-2] Refuses what has no logits. Raises: PROMPT_EMPTY, TOKEN_OUT_OF_RANGE, CONTEXT_EXCEEDED."""
    if len(tokens) == 0:
        raise RefusedError(Refusal.PROMPT_EMPTY, "at least one token is needed to compute logits")
    for position, token in enumerate(tokens, start=num_cached):
        if not 0 <= token < config.vocab_size:
            sentence = f"token {token} at position {position} is not in 0 .. {config.vocab_size - 1}"
            raise RefusedError(Refusal.TOKEN_OUT_OF_RANGE, sentence)
    if num_cached + len(tokens) > config.context_length:
        sentence = f"{num_cached + len(tokens)} tokens exceed the context of {config.context_length}"
        raise RefusedError(Refusal.CONTEXT_EXCEEDED, sentence)


def config_to_dict(config: ModelConfig) -> dict[str, Any]:
    """The content of a config.json, with the RoPE parameters in both spellings and every default written out."""
    rope = rope_to_dict(config.rope)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        **{name: getattr(config, name) for name in (*SIZES, *OPTIONAL_FIELDS)},
        "eos_token_id": list(config.eos_token_ids) if len(config.eos_token_ids) != 1 else config.eos_token_ids[0],
        "rope_parameters": {**rope, "rope_theta": config.rope.rope_theta},
        "rope_scaling": None if config.rope.rope_type == "default" else rope,
        "rope_theta": config.rope.rope_theta,
    }


def _check_field_names(raw: Mapping[str, Any]) -> None:
    for name, given in raw.items():
        allowed = FIELDS_WITH_ONE_VALUE.get(name)
        if allowed is not None and given not in allowed:
            refuse_field(name, given, f"{allowed[0]!r} for a dense Llama")
        if name not in KNOWN_FIELDS and not name.startswith("_"):
            refuse_field(name, given, "removed if it has no effect on logits; the field is not part of a dense Llama")
