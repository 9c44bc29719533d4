"""Two ways to the same answer."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from golden_models import SWEEP_PROMPTS

from golden_records.common import Record, leading_prompt, models_in, record
from reference.model.weights import Model


def metamorphic_records(models: Path) -> Iterator[Record]:
    loaded = models_in(models)
    limits = {"max_tokens": 8, "eos_ids": []}
    tokens, scores = {"agreement": "tokens"}, {"agreement": "scores"}
    for name in ("sweep", "batching"):
        lengths = (3, 9, 1, 17)
        prompts = [leading_prompt(loaded[name], f"batched {name} {length}", length, 8) for length in lengths]
        asked: dict[str, Any] = {"kind": "batched", "model": name, "prompts": prompts, **limits}
        catches = "padding that is seen, positions counted from the padding, or a row that leaks into another"
        yield record(f"metamorphic/batched-{name}", ["GEN-1", "FWD-1"], catches, asked, tokens)
        prompt = prompts[-1]
        for label, chunks in (("single", [1] * 17), ("uneven", [5, 1, 8, 3])):
            asked = {"kind": "chunked", "model": name, "prompt": prompt, "chunks": chunks}
            catches = "a chunk that does not see the ones before it, or a decode kernel that differs from prefill"
            yield record(f"metamorphic/chunked-{label}-{name}", ["FWD-1", "KV-2"], catches, asked, scores)
        asked = {"kind": "rescored", "model": name, "prompt": prompt, "between": prompts[1]}
        catches = "a prompt that is taken for the continuation of the one scored before"
        yield record(f"metamorphic/rescored-{name}", ["FWD-1"], catches, asked, scores)
        for kind, catches, agreement in (
            ("warm", "a cached prefix of another prompt, or one token too many of it", tokens),
            (
                "decoded",
                "logprobs after a temperature or of another position, or a decode that is no prefill",
                scores,
            ),
            ("repeated", "state that one request leaves to the next", tokens),
        ):
            asked = {"kind": kind, "model": name, "prompt": prompt, **limits}
            yield record(f"metamorphic/{kind}-{name}", ["GEN-1", "GEN-2"], catches, asked, agreement)
    yield from hard_batches(loaded)
    for session, gamma in (("s5", 4), ("s6", 4)):
        asked = {"kind": "speculation", "model": "sweep", "draft": "draft", "prompt": SWEEP_PROMPTS[session]}
        catches = "drafts that change the output: a rollback forgotten, or a rejected draft emitted"
        yield record(
            f"metamorphic/speculation-{session}", ["SPEC-9"], catches, {**asked, "gamma": gamma, **limits}, tokens
        )
    questions = [{"model": name, "prompt": SWEEP_PROMPTS["s1"]} for name in ("sweep", "draft", "rope-linear")]
    asked = {"kind": "order", "questions": questions, "order": [2, 0, 1], "max_tokens": 8}
    catches = "answers that depend on what was asked before: weights, caches or settings of an earlier checkpoint"
    yield record("metamorphic/order", ["GEN-1"], catches, asked, tokens)


def hard_batches(loaded: Mapping[str, Model]) -> Iterator[Record]:
    """Batches on checkpoints where padding shows most."""
    for name, num_longest, catches in (
        ("rope-longrope", 20, "positions counted from the padding, or frequencies of another row's length"),
        ("zoo-peaked", 12, "padding that is hidden by a finite number, where scores go further"),
    ):
        prompts = [leading_prompt(loaded[name], f"batched {name} {n}", n, 6) for n in (3, num_longest, 1, 7)]
        asked = {"kind": "batched", "model": name, "prompts": prompts, "max_tokens": 6, "eos_ids": []}
        yield record(
            f"metamorphic/batched-{name}", ["GEN-1", "FWD-1", "ROPE-2"], catches, asked, {"agreement": "tokens"}
        )
