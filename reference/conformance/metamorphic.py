"""Checks that need no golden: two ways to the same answer must agree.

Each wants evidence that both ways were taken (sessions in a batch, tokens from a cache, drafts rejected); an engine
that gives none is unsupported, which is no pass.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from reference.conformance.artifacts import MODELS
from reference.conformance.compare import PASS, Judgement, Verdict, compare_tokens, fail, tolerances
from reference.conformance.exact import reference_logits
from reference.conformance.families import Asked, Expected, Family, output_noise
from reference.conformance.noise import Measure
from reference.engine import Description, Engine, Output
from reference.errors import Array, UnsupportedError
from reference.numerics import log_softmax

Pair = tuple[str, str]
"""What two ways are called."""


def ask(engine: Engine, asked: Asked) -> Any:
    return KINDS[asked["kind"]][0](engine, asked)


def compare(answered: Any, asked: Asked, _expected: Expected, engine: Description, measure: Measure) -> Judgement:
    return KINDS[asked["kind"]][1](answered, asked, engine, measure)


def ask_batched(engine: Engine, asked: Asked) -> list[tuple[Sequence[int], Output, Output]]:
    """Prompts decoded together and one by one."""
    max_tokens, eos_ids = asked["max_tokens"], asked["eos_ids"]
    together = engine.generate(asked["prompts"], max_tokens, eos_ids)
    if any(output.batch_size is None or output.batch_size < 2 for output in together):
        raise UnsupportedError("evidence of a batch (batch_size of at least 2)")
    alone = [engine.generate([prompt], max_tokens, eos_ids)[0] for prompt in asked["prompts"]]
    return list(zip(asked["prompts"], alone, together, strict=True))


def ask_warm(engine: Engine, asked: Asked) -> list[tuple[Sequence[int], Output, Output]]:
    """A prompt decoded twice; the second time its KV must come from a cache."""
    prompt, limits = asked["prompt"], (asked["max_tokens"], asked["eos_ids"])
    (cold,), (warm,) = engine.generate([prompt], *limits), engine.generate([prompt], *limits)
    if warm.cached_tokens is None or warm.cached_tokens < 1:
        raise UnsupportedError("evidence of a prefix cache (cached_tokens of at least 1)")
    return [(prompt, cold, warm)]


def ask_repeated(engine: Engine, asked: Asked) -> list[tuple[Sequence[int], Output, Output]]:
    """The same question three times: the first answer and the last."""
    prompt, limits = asked["prompt"], (asked["max_tokens"], asked["eos_ids"])
    outputs = [engine.generate([prompt], *limits)[0] for _ in range(3)]
    return [(prompt, outputs[0], outputs[-1])]


def ask_speculation(engine: Engine, asked: Asked) -> list[tuple[Sequence[int], Output, Output]]:
    """Plain decoding, and decoding with drafts of which some are accepted and some rejected."""
    prompt, limits = asked["prompt"], (asked["max_tokens"], asked["eos_ids"])
    (plain,) = engine.generate([prompt], *limits)
    drafted = engine.speculate(MODELS / asked["draft"], prompt, asked["gamma"], *limits)
    if not drafted.num_accepted or not drafted.num_rejected:
        raise UnsupportedError("evidence of drafts (num_accepted and num_rejected of at least 1)")
    return [(prompt, plain, drafted)]


def ask_order(engine: Engine, asked: Asked) -> list[tuple[Sequence[int], Output, Output]]:
    """Questions about several checkpoints in one order, then in another."""
    first: dict[int, Output] = {}
    answers = []
    for number in [*range(len(asked["questions"])), *asked["order"]]:
        question = asked["questions"][number]
        engine.load(MODELS / question["model"])
        (output,) = engine.generate([question["prompt"]], asked["max_tokens"], [])
        if number in first:
            answers.append((question["prompt"], first[number], output))
        first.setdefault(number, output)
    return answers


def compare_outputs(
    answered: Sequence[tuple[Sequence[int], Output, Output]], asked: Asked, engine: Description, measure: Measure
) -> Judgement:
    """Tokens of the two ways; they may part where the specification's own margin is within the stated noise."""
    names = [question["model"] for question in asked.get("questions", ())]
    order = asked.get("order", range(len(answered)))
    for number, (prompt, first, second) in zip(order, answered, strict=True):
        model = names[number] if names else asked["model"]
        row = reference_logits(model, prompt, first.tokens)
        measured = output_noise(model, prompt, first.tokens, measure)
        judgement = compare_tokens(first.tokens, second.tokens, engine.precision, row, measured)
        if judgement is not PASS:
            one, other = WAYS[asked["kind"]]
            sentence = f"prompt {number}: {other} differs from {one} (here: expected): {judgement.sentence}"
            return Judgement(judgement.verdict, sentence, judgement.details)
        if first.finish_reason != second.finish_reason:
            return fail(f"prompt {number}: finish reasons {first.finish_reason!r} and {second.finish_reason!r}")
    return PASS


Scored = tuple[Sequence[int], Array, Array]
"""Tokens, and the scores [n, ...] of the last n of them in two ways."""


def ask_chunked(engine: Engine, asked: Asked) -> Scored:
    """A prompt scored at once, then appended to a session chunk by chunk."""
    prompt, end = asked["prompt"], 0
    whole = engine.score(prompt)
    session, rows = engine.open(), []
    for length in asked["chunks"]:
        start, end = end, end + length
        rows.append(engine.extend(session, prompt[start:end]))
    engine.close(session)
    return prompt, whole, np.concatenate(rows)


def ask_rescored(engine: Engine, asked: Asked) -> Scored:
    """A prompt scored before and after another one."""
    first, _, last = (engine.score(asked[name]) for name in ("prompt", "between", "prompt"))
    return asked["prompt"], first, last


def ask_decoded(engine: Engine, asked: Asked) -> Scored:
    """Logprobs of the output as it was decoded, and by scoring prompt and output at once; [n, 1]."""
    if "logprobs" not in engine.describe().claims:
        raise UnsupportedError("logprobs of output tokens")
    prompt = asked["prompt"]
    (output,) = engine.generate([prompt], asked["max_tokens"], asked["eos_ids"], True)
    tokens = [*prompt, *output.tokens[:-1]]
    rows = engine.score(tokens)[len(prompt) - 1 :]
    if engine.describe().scores == "logits":
        rows = log_softmax(rows)
    scored = [[row[token]] for row, token in zip(rows, output.tokens, strict=True)]
    return tokens, np.array(scored), np.array(output.logprobs or ())[:, None]


def compare_rows(answered: Scored, asked: Asked, engine: Description, measure: Measure) -> Judgement:
    """Scores [T, V] of the two ways: both may be off by the tolerance."""
    tokens, right, given = answered
    one, other = WAYS[asked["kind"]]
    if right.shape != given.shape:
        return fail(f"{one} gives {list(right.shape)}, {other} {list(given.shape)}")
    off = np.abs(right - given).max(axis=-1)
    measured = measure(asked["model"], tuple(tokens))
    limits = 2.0 * tolerances(right, engine.precision, None if measured is None else measured[-len(right) :])
    wrong = np.flatnonzero(~(off <= limits))
    if len(wrong) == 0:
        return PASS
    place = int(wrong[0])
    sentence = f"{one} and {other} differ by {off[place]:.3g} at position {place} (tolerance {limits[place]:.3g})"
    details = {"position": place, "differences": off.tolist(), "tolerances": limits.tolist()}
    return Judgement(Verdict.FAIL, sentence, details)


WAYS: Mapping[str, Pair] = {
    "batched": ("alone", "in a batch"),
    "chunked": ("the whole prompt", "in chunks"),
    "rescored": ("scored first", "scored again"),
    "warm": ("cold", "warm"),
    "decoded": ("by prefill", "as decoded"),
    "speculation": ("plain", "speculative"),
    "repeated": ("the first run", "the third run"),
    "order": ("in order", "in another order"),
}

KINDS: Mapping[
    str, tuple[Callable[[Engine, Asked], Any], Callable[[Any, Asked, Description, Measure], Judgement]]
] = {
    "batched": (ask_batched, compare_outputs),
    "chunked": (ask_chunked, compare_rows),
    "rescored": (ask_rescored, compare_rows),
    "warm": (ask_warm, compare_outputs),
    "decoded": (ask_decoded, compare_rows),
    "speculation": (ask_speculation, compare_outputs),
    "repeated": (ask_repeated, compare_outputs),
    "order": (ask_order, compare_outputs),
}

FAMILY = Family(ask, compare)
