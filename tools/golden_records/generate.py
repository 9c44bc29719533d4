"""Greedy decoding: tokens and finish reasons."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from golden_models import BATCHING_PROMPTS, SWEEP_PROMPTS

from golden_records.common import LEAST_MARGIN, Record, leading_prompt, margins, models_in, record
from reference.decoding.generate import StopRule, choose_greedily, generate
from reference.model.weights import Model

RULES = ["GEN-1", "GEN-2", "GEN-3", "DEC-1"]


def generate_records(models: Path) -> Iterator[Record]:
    loaded = models_in(models)
    for session, prompt in SWEEP_PROMPTS.items():
        catches = "a decode step that is not the prefill of the longer prefix"
        yield generation(f"sweep-{session}", loaded, "sweep", prompt, 8, (), RULES, catches)
    catches = "a stop at the first repeated token, or a prompt counted as output"
    yield generation("batching-b", loaded, "batching", BATCHING_PROMPTS["b"], 5, (), RULES, catches)
    yield from ended_records(loaded)
    yield from long_records(loaded)
    for name, model in loaded.items():
        prompt = leading_prompt(model, f"generate {name}", 6, 12)
        catches = "cached keys rotated by the wrong position, or a cache entry lost"
        yield generation(f"{name}-twelve", loaded, name, prompt, 12, (), RULES, catches)


def ended_records(loaded: Mapping[str, Model]) -> Iterator[Record]:
    """Outputs that end at an eos, at a limit, or at neither."""
    for suffix, name, prompt, recorded in (
        ("", "batching", BATCHING_PROMPTS["b"], (33, 89, 79, 4, 67)),
        ("-sweep", "sweep", SWEEP_PROMPTS["s4"], (23, 11, 44, 29)),
        ("-grouped", "zoo-grouped", leading_prompt(loaded["zoo-grouped"], "edge 16", 16, 4), (26, 29, 23, 4)),
    ):
        for label, eos_ids, catches in (
            ("eos-ends", (recorded[2],), "an eos that is dropped from the output, or does not end it"),
            (
                "eos-is-last",
                (recorded[-1],),
                "'length' reported for a token that is both eos and the last one allowed",
            ),
            ("eos-second-of-two", (1, recorded[-2]), "a list of eos ids of which only the first is looked at"),
            ("eos-in-prompt", (prompt[-1],), "an eos in the prompt that ends the output"),
        ):
            yield generation(f"{label}{suffix}", loaded, name, prompt, len(recorded), eos_ids, RULES, catches)
    for max_tokens, label, catches in (
        (1, "one-token", "a limit that is looked at after the next token, or that is taken for none"),
        (4, "limit-in-run", "a run of tokens that repeats the text before it and is not cut at max_tokens"),
    ):
        yield generation(label, loaded, "sweep", SWEEP_PROMPTS["s0"], max_tokens, (), RULES, catches)
    prompt, eos_id = copied_end(loaded["zoo-grouped"], 24, 8)
    catches = "an eos copied from the prompt that does not end the output, or that is taken for padding in the prompt"
    yield generation("eos-copied-from-prompt", loaded, "zoo-grouped", prompt, 8, (eos_id,), RULES, catches)


def long_records(loaded: Mapping[str, Model]) -> Iterator[Record]:
    """The end of the context, the edges of blocks, distant positions."""
    for name in ("sweep", "batching"):
        limit = loaded[name].config.max_position_embeddings
        prompt = leading_prompt(loaded[name], f"context {name}", limit - 4, 4)
        catches = "a context length off by one: prompt and output together fill it exactly"
        yield generation(f"{name}-fills-context", loaded, name, prompt, 9, (), [*RULES, "FWD-2"], catches)
    for num_tokens in (1, 15, 16, 17, 31, 32, 33):
        prompt = leading_prompt(loaded["zoo-grouped"], f"edge {num_tokens}", num_tokens, 4)
        catches = "a block of the cache that is filled exactly, or one token more or less"
        yield generation(f"zoo-grouped-edge-{num_tokens}", loaded, "zoo-grouped", prompt, 4, (), RULES, catches)
    prompt = leading_prompt(loaded["zoo-far"], "distant", 300, 6)
    catches = "decoding at positions of several hundred"
    yield generation("zoo-far-distant", loaded, "zoo-far", prompt, 6, (), RULES, catches)


def copied_end(model: Model, num_tokens: int, max_tokens: int) -> tuple[list[int], int]:
    """A prompt with a bigram that its continuation repeats, and the second token of it, new to the output."""
    stop = StopRule(max_tokens, (), model.config.context_length)
    for attempt in range(400):
        prompt = leading_prompt(model, f"copied {attempt}", num_tokens, max_tokens)
        output = generate(model, prompt, stop, choose_greedily).tokens
        for end in range(2, max_tokens - 1):
            before = [*prompt, *output[:end]]
            last = max((i for i, token in enumerate(before[:-1]) if token == before[-1]), default=num_tokens)
            if last < num_tokens - 2 and before[last + 1] == output[end] not in output[:end]:
                return prompt, output[end]
    raise SystemExit("no continuation repeats a bigram of its prompt")


def generation(
    label: str,
    models: Mapping[str, Model],
    name: str,
    prompt: Sequence[int],
    max_tokens: int,
    eos_ids: Sequence[int],
    rules: Sequence[str],
    catches: str,
) -> Record:
    model = models[name]
    stop = StopRule(max_tokens, tuple(eos_ids), model.config.context_length)
    output = generate(model, prompt, stop, choose_greedily)
    leads = list(margins(model, prompt, len(output.tokens)))
    assert min(leads) >= LEAST_MARGIN, f"{label}: margin {min(leads)}"
    asked = {"model": name, "prompt": list(prompt), "max_tokens": max_tokens, "eos_ids": list(eos_ids)}
    expected = {"tokens": output.tokens, "finish_reason": output.finish_reason, "margins": leads}
    return record(f"generate/{label}", rules, catches, asked, expected)
