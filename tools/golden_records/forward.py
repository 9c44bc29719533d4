"""Logits at every position."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from golden_refused import REFUSED
from golden_zoo import ZOO

from golden_records.common import FORWARD_RULES, ROPE_RULES, Record, logits_of, models_in, record, tokens_of
from reference.model.weights import Model


def forward_records(models: Path) -> Iterator[Record]:
    lengths = {
        "one-token": (1, "a model that skips RoPE's identity at position 0, or a wrong norm, MLP or head"),
        "short": (5, "a wrong score scale, rotation, mask or head mapping"),
        "long": (33, "positions, frequencies or sums that drift with length"),
    }
    for name, model in models_in(models).items():
        rules = FORWARD_RULES + ROPE_RULES[model.config.rope.rope_type]
        rules = [*rules, "HEAD-1"] if model.config.tie_word_embeddings else rules
        for label, (num_tokens, catches) in lengths.items():
            prompt = tokens_of(f"forward {name} {label}", num_tokens, model.config.vocab_size)
            asked = {"model": name, "prompt": prompt}
            yield record(f"forward/{name}-{label}", rules, catches, asked, {"logits": logits_of(model, prompt)})
        if name == "zoo-far":
            yield distant(name, model, rules)
        if name in ZOO:
            continue
        prompt = [7] * 9
        catches = "attention weights that do not sum to 1: values are equal, so all positions have the same logits"
        asked = {"model": name, "prompt": prompt}
        yield record(f"forward/{name}-repeated", rules, catches, asked, {"logits": logits_of(model, prompt)})
    for name, refused in REFUSED.items():
        asked = {"model": name, "prompt": [1, 2, 3]}
        yield record(f"forward/{name}", refused.rules, refused.catches, asked, {"refusal": refused.reason})


def distant(name: str, model: Model, rules: Sequence[str]) -> Record:
    """A long prompt, compared at some of its positions only."""
    prompt = tokens_of(f"forward {name} distant", 300, model.config.vocab_size)
    positions = [0, 1, *range(15, 300, 32), 254, 255, 256, 299]
    expected = {"positions": sorted(positions), "logits": logits_of(model, prompt)[sorted(positions)]}
    catches = "angles in low precision, or a table of cosines that is too short"
    return record(f"forward/{name}-distant", rules, catches, {"model": name, "prompt": prompt}, expected)
