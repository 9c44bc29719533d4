"""The golden checkpoints give the recorded tokens, by a margin, in every storage type."""

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from reference.conformance.artifacts import DATA, MODELS, ROOT, read_json
from reference.errors import RefusedError
from reference.model.cache import empty_cache
from reference.model.checkpoint import load_model, load_tensors
from reference.model.transformer import forward

sys.path.insert(0, str(ROOT / "tools"))
import golden_models
import golden_refused

WHOLE = [path for path in sorted(MODELS.iterdir()) if path.name not in golden_refused.REFUSED]


def recorded_sessions() -> list[tuple[str, tuple[int, ...], list[int]]]:
    """(checkpoint, prompt, recorded tokens), the tokens read from the recorded artifacts."""
    outputs = read_json(DATA / "sweep" / "seed.json")["concurrency_sweep"]["reference_outputs"]
    sweep = [("sweep", golden_models.SWEEP_PROMPTS[name], tokens) for name, tokens in sorted(outputs.items())]
    jobs = read_json(DATA / "batching" / "seed.json")["fixed"]["jobs"]
    return sweep + [("batching", tuple(job["prompt"]), job["generated"]) for job in jobs]


@pytest.mark.parametrize(("name", "prompt", "recorded"), recorded_sessions(), ids=str)
def test_every_recorded_token_leads_by_a_logit(name: str, prompt: tuple[int, ...], recorded: list[int]) -> None:
    model = load_model(MODELS / name)
    logits, _ = forward(model, [*prompt, *recorded[:-1]], empty_cache(model.config))
    steps = logits[len(prompt) - 1 :]
    ordered = np.sort(steps, axis=-1)

    assert recorded == [int(token) for token in np.argmax(steps, axis=-1)]
    assert np.min(ordered[:, -1] - ordered[:, -2]) >= 1.0


@pytest.mark.parametrize("directory", WHOLE, ids=lambda path: path.name)
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
def test_weights_are_exact_in_every_storage_type(directory: Path, dtype: type) -> None:
    tensors = load_tensors(directory, load_model(directory).config)
    exact = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}

    assert [] == [name for name, x in exact.items() if not np.array_equal(x, x.astype(dtype).astype(np.float64))]


@pytest.mark.parametrize("name", golden_refused.REFUSED)
def test_a_checkpoint_to_refuse_is_refused_for_its_reason(name: str) -> None:
    with pytest.raises(RefusedError) as refused:
        load_model(MODELS / name)

    assert golden_refused.REFUSED[name].reason is refused.value.reason


def test_the_generator_follows_its_recurrence() -> None:
    """ "a" is byte 97, so the state starts at 98; one step of Knuth's MMIX generator, and the upper 24 bits."""
    state = (98 * 6364136223846793005 + 1442695040888963407) % 2**64

    assert [state >> 40] == golden_models.integers("a", 1)


def test_a_head_that_cannot_lead_is_refused() -> None:
    """The same features cannot give two tokens."""
    with pytest.raises(SystemExit, match="no head of impossible gives all its tokens"):
        golden_models.fit_head(np.ones((2, 3)), [0, 1], 4, "impossible")
