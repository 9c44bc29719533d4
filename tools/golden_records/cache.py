"""Scripts of session operations."""

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

from golden_zoo import ZOO

from golden_records.common import Record, logits_of, models_in, record, tokens_of
from reference.errors import Array
from reference.model.weights import Model

CACHE_ZOO = ("zoo-grouped", "zoo-one-kv-head")


def cache_records(models: Path) -> Iterator[Record]:
    rules = ["KV-1", "KV-2", "FWD-1", "ROPE-2"]
    for name, model in models_in(models).items():
        if name in ZOO and name not in CACHE_ZOO:
            continue
        is_path_dependent = model.config.rope.rope_type in ("dynamic", "longrope")
        num_tokens = 4 if is_path_dependent else 5
        prompt = tokens_of(f"cache {name}", 12, model.config.vocab_size)
        splits = [
            [("open", f"split{number}"), *(("extend", f"split{number}", chunk) for chunk in chunks)]
            for number, chunks in enumerate(chunkings(prompt[:num_tokens]))
        ]
        catches = "a chunk whose mask or positions start at 0, or that does not see the chunks before it"
        yield script(f"{name}-every-split", model, name, [step for split in splits for step in split], rules, catches)
        if is_path_dependent:
            continue
        truncated = [("open", "a"), ("extend", "a", prompt[:7]), ("truncate", "a", 3), ("extend", "a", prompt[8:11])]
        truncated += [("truncate", "a", 0), ("extend", "a", prompt[2:6]), ("truncate", "a", 4), ("extend", "a", [1])]
        catches = "rolled-back entries that are still seen, or positions that do not roll back"
        yield script(f"{name}-truncate", model, name, truncated, [*rules, "KV-3"], catches)
        forked = [("open", "a"), ("extend", "a", prompt[:4]), ("fork", "a", "b"), ("extend", "a", prompt[4:6])]
        forked += [("extend", "b", prompt[6:9]), ("extend", "a", prompt[9:10]), ("fork", "b", "c")]
        forked += [("truncate", "b", 2), ("extend", "c", prompt[10:12]), ("extend", "b", prompt[5:7]), ("close", "a")]
        catches = "sessions that share storage after a fork"
        yield script(f"{name}-fork", model, name, forked, [*rules, "KV-3", "KV-4"], catches)
        mixed = [("open", "a"), ("open", "b"), ("extend", "a", prompt[:5]), ("extend", "b", prompt[5:7])]
        mixed += [("extend", "a", prompt[7:8]), ("extend", "b", prompt[8:9]), ("close", "a"), ("open", "c")]
        mixed += [("extend", "c", prompt[9:11]), ("extend", "b", prompt[11:12])]
        catches = "positions or entries of one session that leak into another, or into a reused slot"
        yield script(f"{name}-interleaved", model, name, mixed, rules, catches)
        sized = [("open", "a"), ("kv_bytes", "a"), ("extend", "a", prompt[:5]), ("kv_bytes", "a"), ("fork", "a", "b")]
        sized += [("extend", "b", prompt[5:7]), ("kv_bytes", "b"), ("truncate", "a", 2), ("kv_bytes", "a")]
        catches = "KV heads counted as query heads, keys without values, or entries that outlive a rollback"
        yield script(f"{name}-kv-bytes", model, name, sized, [*rules, "KV-3", "KV-4", "KV-5"], catches)


def chunkings(tokens: Sequence[int]) -> list[list[list[int]]]:
    """Every way to cut tokens into consecutive chunks."""
    inner = range(1, len(tokens))
    cuts = [(0, *cut, len(tokens)) for size in range(len(tokens)) for cut in combinations(inner, size)]
    return [[list(tokens[start:end]) for start, end in pairwise(cut)] for cut in cuts]


def script(
    label: str, model: Model, name: str, steps: Sequence[tuple[Any, ...]], rules: Sequence[str], catches: str
) -> Record:
    """A script of session operations; the expected logits are those of fresh computations, without any cache."""
    sessions: dict[str, list[int]] = {}
    written: list[dict[str, Any]] = []
    rows: list[Array] = []
    sizes: list[int] = []
    for op, session, *operands in steps:
        step: dict[str, Any] = {"op": op, "session": session}
        if op == "open":
            sessions[session] = []
        elif op == "extend":
            (step["tokens"],) = operands
            sessions[session] = sessions[session] + operands[0]
            rows.extend(logits_of(model, sessions[session])[-len(operands[0]) :])
        elif op == "truncate":
            (step["num_tokens"],) = operands
            sessions[session] = sessions[session][: operands[0]]
        elif op == "fork":
            (step["into"],) = operands
            sessions[operands[0]] = sessions[session]
        elif op == "kv_bytes":
            sizes.append(len(sessions[session]) * model.config.kv_bytes_per_token(1))
        written.append(step)
    expected = {"logits": rows, "kv_numbers": sizes} if sizes else {"logits": rows}
    return record(f"cache/{label}", rules, catches, {"model": name, "steps": written}, expected)
