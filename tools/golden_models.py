"""The recipe of the golden checkpoints.

The weights behind the recorded artifacts, and the sweep's prompts, do not exist any more. These checkpoints have an
arbitrary body of small integers times powers of two, and an output head FITTED to the recorded tokens,
teacher-forced. That the recorded tokens come out of them is by construction and says nothing about a trained
model; what the goldens pin is the forward pass through that body.

Everything here is integer arithmetic or the specification's own, so the files have the same bytes on every machine.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from golden_refused import REFUSED
from golden_zoo import ZOO

from reference.errors import Array
from reference.model.cache import empty_cache
from reference.model.checkpoint import save_model
from reference.model.config import ModelConfig
from reference.model.rope_parameters import RopeParameters
from reference.model.transformer import forward
from reference.model.weights import LM_HEAD, Model, tensor_shapes, weights_from_tensors

RECORDED_SWEEP_TOKENS: Mapping[str, tuple[int, ...]] = {
    "s0": (27, 8, 27, 8, 27, 8, 1, 1),
    "s1": (26, 39, 39, 39, 39, 3, 39, 39),
    "s2": (12, 12, 12, 12, 12, 12, 30, 12),
    "s3": (29, 41, 42, 47, 47, 42, 47, 42),
    "s4": (23, 11, 44, 29, 29, 29, 41, 29),
    "s5": (35, 11, 0, 1, 11, 0, 11, 15),
    "s6": (39, 39, 28, 39, 39, 39, 28, 28),
    "s7": (39, 39, 39, 39, 39, 39, 8, 47),
}
SWEEP_PROMPTS: Mapping[str, tuple[int, ...]] = {
    f"s{n}": tuple((7 * n + 11 * i + 3 * n * i + 5) % 48 for i in range(4)) for n in range(8)
}
BATCHING_PROMPTS: Mapping[str, tuple[int, ...]] = {"a": (58, 36), "b": (61, 36), "c": (6, 39, 36)}
RECORDED_BATCHING_TOKENS: Mapping[str, tuple[int, ...]] = {
    "a": (33, 89),
    "b": (33, 89, 79, 4, 67),
    "c": (33,),
}
# How many of a session's tokens the draft's head is fitted to: with the others it agrees by chance only, so that
# steps accept all, some or none of their drafts.
DRAFTED_TOKENS: Mapping[str, int] = {"s0": 8, "s2": 8, "s4": 5, "s5": 4, "s6": 3, "s7": 2}

SWEEP = ModelConfig(
    vocab_size=48, hidden_size=32, intermediate_size=88, num_hidden_layers=6, num_attention_heads=4,
    num_key_value_heads=4, head_dim=8, max_position_embeddings=64, rms_norm_eps=1e-5,
)  # fmt: skip
BATCHING = ModelConfig(
    vocab_size=96, hidden_size=48, intermediate_size=112, num_hidden_layers=3, num_attention_heads=6,
    num_key_value_heads=2, head_dim=16, max_position_embeddings=128, rms_norm_eps=1e-2, attention_bias=True,
    rope=RopeParameters("llama3", 5000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                        original_max_position_embeddings=64),
)  # fmt: skip
DRAFT = ModelConfig(
    vocab_size=48, hidden_size=16, intermediate_size=40, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, head_dim=8, max_position_embeddings=64, rms_norm_eps=1e-5,
)  # fmt: skip
TINY = replace(DRAFT, tie_word_embeddings=True, mlp_bias=True)
# One tied checkpoint for each other RoPE type, with original contexts so short that the formulas matter.
ROPE_MODELS: Mapping[str, ModelConfig] = {
    "rope-linear": replace(TINY, rope=RopeParameters("linear", 1000.0, factor=3.0)),
    "rope-dynamic": replace(TINY, rope=RopeParameters("dynamic", 1000.0, factor=4.0), max_position_embeddings=16),
    "rope-yarn": replace(
        TINY, rope=RopeParameters("yarn", 1000.0, factor=4.0, original_max_position_embeddings=16, beta_fast=4.0)
    ),
    "rope-longrope": replace(
        TINY,
        rope=RopeParameters(
            "longrope",
            1000.0,
            original_max_position_embeddings=16,
            short_factor=(1.0, 1.25, 1.5, 2.0),
            long_factor=(1.0, 2.0, 3.0, 5.0),
        ),
    ),
}


def build_models(directory: Path) -> None:
    """Writes every golden checkpoint below `directory`. Raises: SystemExit if a fit misses its margin."""
    sweep_steps = steps(SWEEP_PROMPTS, RECORDED_SWEEP_TOKENS)
    drafted = {session: RECORDED_SWEEP_TOKENS[session][:num_tokens] for session, num_tokens in DRAFTED_TOKENS.items()}
    save_fitted(directory / "sweep", SWEEP, sweep_steps)
    save_fitted(directory / "batching", BATCHING, steps(BATCHING_PROMPTS, RECORDED_BATCHING_TOKENS))
    save_fitted(directory / "draft", DRAFT, steps({session: SWEEP_PROMPTS[session] for session in drafted}, drafted))
    for name, config in ROPE_MODELS.items():
        save_model(directory / name, config, body(name, config))
    for name, animal in ZOO.items():
        tensors = animal.change(animal.config, body(name, animal.config))
        save_model(directory / name, animal.config, tensors, animal.storage, animal.num_shards)
        if animal.fields is not None:
            (directory / name / "config.json").write_text(json.dumps(animal.fields, indent=2, sort_keys=True) + "\n")
    for name, refused in REFUSED.items():
        save_model(directory / name, refused.config, body(name, refused.config))
        path = directory / name / "config.json"
        fields = {**json.loads(path.read_text()), **refused.fields}
        present = {
            field: given for field, given in fields.items() if given is not None or field not in refused.fields
        }
        path.write_text(json.dumps(present, indent=2, sort_keys=True) + "\n")


def integers(stream: str, num_integers: int) -> list[int]:
    """Numbers in 0 .. 2**24 - 1 from a 64-bit linear congruential generator (Knuth's MMIX), seeded by the name."""
    state = 0
    for byte in stream.encode():
        state = (state * 257 + byte + 1) % 2**64
    drawn = []
    for _ in range(num_integers):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        drawn.append(state >> 40)
    return drawn


def body(name: str, config: ModelConfig) -> dict[str, Array]:
    """Every tensor of a config: integers in -31 .. 31 times a power of two, about 1.5 / sqrt(inputs) in size.

    Norm weights lie between 1/2 and 2 in magnitude and have both signs; biases are up to 1/2.
    """
    tensors = {}
    for tensor, shape in tensor_shapes(config).items():
        drawn = np.array(integers(f"{name} {tensor}", int(np.prod(shape)))).reshape(shape)
        centred = (drawn % 63 - 31).astype(np.float64)
        if tensor.endswith("norm.weight"):
            sign = np.where(drawn // 63 % 4 == 0, -1.0, 1.0)
            tensors[tensor] = sign * (32 + drawn % 97) / 64.0
        elif tensor.endswith("bias"):
            tensors[tensor] = centred / 64.0
        else:
            # The score of a pair of tokens is peaked when queries and keys are larger than the rest.
            gain = 2.0 if "q_proj" in tensor or "k_proj" in tensor else 1.0
            tensors[tensor] = centred * gain * power_of_two_below(1.0 / (12.0 * shape[-1] ** 0.5))
    return tensors


def power_of_two_below(size: float) -> float:
    scale = 1.0
    while scale > size:
        scale /= 2.0
    return scale


def steps(
    prompts: Mapping[str, Sequence[int]], recorded: Mapping[str, Sequence[int]]
) -> list[tuple[list[int], int, list[int]]]:
    """(prefix with all recorded tokens but the last, length of the prompt, recorded tokens) of each session."""
    return [([*prompt, *recorded[name][:-1]], len(prompt), list(recorded[name])) for name, prompt in prompts.items()]


def save_fitted(directory: Path, config: ModelConfig, sessions: Sequence[tuple[list[int], int, list[int]]]) -> None:
    tensors = body(directory.name, config)
    features = []
    targets: list[int] = []
    for tokens, num_prompt, recorded in sessions:
        features.append(final_features(config, tensors, tokens)[num_prompt - 1 :])
        targets += recorded
    tensors[LM_HEAD] = fit_head(np.concatenate(features), targets, config.vocab_size, directory.name)
    save_model(directory, config, tensors)


def final_features(config: ModelConfig, tensors: Mapping[str, Array], tokens: Sequence[int]) -> Array:
    """What the head reads, [T, E]: the logits of the same model under an identity head."""
    E = config.hidden_size
    weights = replace(weights_from_tensors(config, tensors), lm_head=np.eye(E))
    return forward(Model(config, weights), tokens, empty_cache(config))[0]


def fit_head(features: Array, targets: Sequence[int], vocab_size: int, name: str) -> Array:
    """A head [V, E] under which features[i] gives targets[i] with a margin of at least 1 logit after rounding.

    A perceptron with margin: while a step's target does not lead by `wanted`, its row moves towards the features and
    the best other row away from them. The result is rounded to integers of 8 bits times a power of two.
    """
    wanted = 6.0
    head = np.zeros((vocab_size, features.shape[1]))
    for _ in range(20000):
        is_done = True
        for x, target in zip(features, targets, strict=True):
            scores = row_sums(head * x)
            rival = best_other(scores, target)
            if scores[target] - scores[rival] < wanted:
                head[target] += x / 8.0
                head[rival] -= x / 8.0
                is_done = False
        if is_done:
            break
    else:
        raise SystemExit(f"no head of {name} gives all its tokens; choose other prompts or a wider body")
    head = round_to_8_bits(head)
    margins = [scores[t] - scores[best_other(scores, t)] for x, t in zip(features, targets, strict=True)
               for scores in [row_sums(head * x)]]  # fmt: skip
    if min(margins) < 1.0:
        raise SystemExit(f"the head of {name} leads by {min(margins):.3f} logits only; at least 1 is needed")
    return head


def row_sums(products: Array) -> Array:
    """Sums over the last axis in index order."""
    return np.add.accumulate(products, axis=-1)[:, -1]


def best_other(scores: Array, target: int) -> int:
    others = scores.copy()
    others[target] = -np.inf
    return int(np.argmax(others))


def round_to_8_bits(head: Array) -> Array:
    """Integers of at most 255 in magnitude times one power of two: exact in bfloat16 and float16."""
    scale = 1.0
    while np.max(np.abs(head)) / scale <= 127.0:
        scale /= 2.0
    while np.max(np.abs(head)) / scale > 255.0:
        scale *= 2.0
    return np.rint(head / scale) * scale
