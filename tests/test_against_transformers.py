"""Logits and greedy tokens of whole random models against Hugging Face transformers, through files on disk.

transformers runs in float64, but computes RMSNorm and the RoPE tables in float32 all the same: hence the tolerance.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reference.conformance.artifacts import MODELS
from reference.conformance.records import find_records
from reference.decoding.generate import Generation, StopRule, choose_greedily, generate
from reference.errors import Array
from reference.model.cache import empty_cache
from reference.model.checkpoint import load_model, save_model
from reference.model.config import ModelConfig
from reference.model.rope_parameters import RopeParameters
from reference.model.transformer import forward
from tests.models import ROPES, TINY, random_model, random_tensors, random_tokens, rope_config

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# Measured: at most 2.2e-6 of the largest logit (about 3.5) over all configs below.
TOLERANCE = 1e-5
# Measured: at most 2.8e-5, where attention is torn between two tokens (zoo-peaked); all but four are below 1e-5.
GOLDEN_TOLERANCE = 5e-5

CONFIGS = {
    **{f"rope {rope_type}": rope_config(rope_type) for rope_type in ROPES},
    "rope yarn, mscale": replace(
        rope_config("yarn"), rope=replace(ROPES["yarn"], mscale=0.7, mscale_all_dim=1.4, truncate=False)
    ),
    "rope longrope, factor": replace(rope_config("longrope"), rope=replace(ROPES["longrope"], factor=2.0)),
    "rope llama3 as Llama 3.1": replace(TINY, rope=RopeParameters("llama3", 500000.0, 8.0, 8192, 1.0, 4.0)),
    "every head its own keys": replace(TINY, num_key_value_heads=4),
    "one key-value head": replace(TINY, num_key_value_heads=1),
    "attention bias": replace(TINY, attention_bias=True),
    "mlp bias": replace(TINY, mlp_bias=True),
    "all biases": replace(TINY, attention_bias=True, mlp_bias=True),
    "tied": replace(TINY, tie_word_embeddings=True),
    "head_dim larger": replace(TINY, head_dim=6),
    "head_dim smaller": replace(TINY, head_dim=2),
    "large eps": replace(TINY, rms_norm_eps=0.25),
    "one layer": replace(TINY, num_hidden_layers=1),
    "four layers": replace(TINY, num_hidden_layers=4),
    "one head": replace(TINY, num_attention_heads=1, num_key_value_heads=1, head_dim=16),
}


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def saved(directory: Path, config: ModelConfig, seed: int = 1) -> Path:
    save_model(directory, config, random_tensors(config, seed))
    return directory


def theirs(directory: Path) -> Any:
    model = transformers.LlamaForCausalLM.from_pretrained(directory, dtype=torch.float64, attn_implementation="eager")
    return model.eval()


def their_logits(model: Any, tokens: tuple[int, ...]) -> Array:
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].numpy()


def their_greedy_tokens(model: Any, prompt: tuple[int, ...], eos: int | None) -> tuple[int, ...]:
    """24 tokens at most. Without a mask transformers takes prompt tokens equal to pad_token_id for padding."""
    ids = torch.tensor([prompt])
    limits = {"max_new_tokens": 24, "eos_token_id": eos, "pad_token_id": 0}
    answer = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **limits)
    return tuple(answer[0, len(prompt) :].tolist())


def assert_close(expected: Array, logits: Array) -> None:
    np.testing.assert_allclose(logits, expected, rtol=0, atol=TOLERANCE * np.abs(expected).max())


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_at_every_position(name, tmp_path):
    """40 tokens: beyond the original context of yarn and llama3 (32) and of longrope (16)."""
    directory = saved(tmp_path, CONFIGS[name])
    tokens = random_tokens(40)
    model = load_model(directory)
    logits, _ = forward(model, tokens, empty_cache(model.config))

    assert_close(their_logits(theirs(directory), tokens), logits)


@pytest.mark.parametrize(
    ("rope_type", "num_tokens"),
    [("dynamic", 64), ("dynamic", 65), ("dynamic", 150), ("longrope", 15), ("longrope", 16), ("longrope", 17)],
)
def test_logits_around_and_beyond_the_original_context_in_one_forward(rope_type, num_tokens, tmp_path):
    """dynamic was trained on 64 tokens, longrope on 16."""
    directory = saved(tmp_path, rope_config(rope_type))
    tokens = random_tokens(num_tokens)
    model = load_model(directory)
    logits, _ = forward(model, tokens, empty_cache(model.config))

    assert_close(their_logits(theirs(directory), tokens), logits)


def test_logits_of_chunks_with_a_cache(tmp_path):
    directory = saved(tmp_path, TINY)
    tokens, model = random_tokens(20), load_model(directory)
    first, cache = forward(model, tokens[:7], empty_cache(TINY))
    second, _ = forward(model, tokens[7:], cache)

    assert_close(their_logits(theirs(directory), tokens), np.concatenate([first, second]))


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
@pytest.mark.parametrize("rope_type", ["longrope", "dynamic"])
def test_logits_of_a_session_that_outgrows_its_original_context_token_by_token(rope_type, tmp_path):
    """Cached keys keep the angles they were cached with, as in transformers with a cache."""
    directory = saved(tmp_path, rope_config(rope_type))
    num_tokens = {"longrope": 20, "dynamic": 68}[rope_type]
    tokens, model, their_model = random_tokens(num_tokens), load_model(directory), theirs(directory)
    cache, their_cache = empty_cache(model.config), transformers.DynamicCache()
    rows, their_rows = [], []
    for token in tokens:
        logits, cache = forward(model, (token,), cache)
        rows.append(logits[0])
        with torch.no_grad():
            answer = their_model(torch.tensor([[token]]), past_key_values=their_cache, use_cache=True)
        their_rows.append(answer.logits[0, 0].numpy())

    assert_close(np.array(their_rows), np.array(rows))


def test_the_tolerance_tells_rope_types_apart():
    """The logits of any two RoPE types differ by more than 100 tolerances, so a wrong formula cannot pass."""
    tokens = random_tokens(40)
    logits = {}
    for rope_type in ROPES:
        config = rope_config(rope_type)
        logits[rope_type] = forward(random_model(config), tokens, empty_cache(config))[0]
    scale = np.abs(logits["default"]).max()
    # Within its trained context dynamic is the default.
    names = [rope_type for rope_type in ROPES if rope_type != "dynamic"]
    differences = [np.abs(logits[a] - logits[b]).max() / scale for a in names for b in names if a < b]

    assert min(differences) > 100 * TOLERANCE


@pytest.mark.parametrize(
    "name", ["rope default", "rope llama3", "rope yarn", "all biases", "tied", "one key-value head"]
)
def test_greedy_tokens(name, tmp_path):
    config = CONFIGS[name]
    directory = saved(tmp_path, config)
    prompt = random_tokens(6)
    expected = Generation(their_greedy_tokens(theirs(directory), prompt, None), "length")

    assert expected == generate(load_model(directory), prompt, StopRule(24, (), 64), choose_greedily)


def test_greedy_tokens_with_eos(tmp_path):
    """eos is the token that the model itself produces fourth; both include it in the output."""
    directory = saved(tmp_path, TINY, seed=3)
    prompt = random_tokens(6, seed=2)
    model = load_model(directory)
    free = generate(model, prompt, StopRule(24, (), 64), choose_greedily).tokens
    eos = free[3]
    expected = Generation(their_greedy_tokens(theirs(directory), prompt, eos), "stop")

    assert len(expected.tokens) < 24
    assert expected == generate(model, prompt, StopRule(24, (eos,), 64), choose_greedily)


SCORED = [record for record in find_records(("forward",)) if "logits" in record.expected]


@pytest.mark.parametrize("record", SCORED, ids=lambda record: record.id)
def test_the_golden_logits_are_those_of_transformers_in_float64(record):
    """So that a misreading of ours cannot become a golden."""
    model = transformers.AutoModelForCausalLM.from_pretrained(MODELS / record.input["model"], dtype=torch.float64)
    with torch.no_grad():
        logits = model.eval()(torch.tensor([record.input["prompt"]])).logits[0].double().numpy()
    right = np.array(record.expected["logits"])
    answered = logits[record.expected.get("positions", slice(None))]

    difference = np.abs(answered - right).max(axis=-1) / np.maximum(1.0, np.abs(right).max(axis=-1))

    assert answered.shape == right.shape
    assert difference.max() <= GOLDEN_TOLERANCE
