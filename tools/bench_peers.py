"""The peers of tools/bench.py: each is a process of its own and answers a line of stdin with a line of stdout."""

import importlib.util
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

PROMPT_TOKENS, WARM_STEPS, WARM_SECONDS = 16, 3, 0.1


def serve(name: str, threads: int) -> None:
    """The life of a peer: answers each line of stdin with one line."""
    peer: Any = None
    for line in sys.stdin:
        task = json.loads(line)
        answer: dict[str, Any] = {"seconds": [], "tokens": []}
        if task["do"] == "load":
            needed = {"transformers": ("torch", "transformers"), "llama.cpp": ("xllamacpp",)}.get(name, ())
            installed = all(importlib.util.find_spec(module) is not None for module in needed)
            peer = MAKERS[name](Path(task["directory"]), threads) if installed else None
        elif task["do"] == "bandwidth":
            answer["seconds"] = stream_seconds()
        elif peer is not None and task["do"] == "decode":
            answer = decode(peer, task["batch"], task["steps"])
        elif peer is not None:
            answer = prefill(peer, task["tokens"])
        print(json.dumps(answer), flush=True)


def decode(peer: Any, batch: int, steps: int) -> dict[str, Any]:
    """Seconds of every step, a forward pass and the argmax of its logits, once caches and threads are awake."""
    prompts = [[(7 * index + position) % 40 for position in range(PROMPT_TOKENS)] for index in range(batch)]
    awake = time.perf_counter() + WARM_SECONDS
    while time.perf_counter() < awake:
        peer(None, prompts)
    state, tokens = peer(None, prompts)
    seconds, chosen = [], [tokens]
    for _ in range(WARM_STEPS + steps):
        start = time.perf_counter()
        state, tokens = peer(state, [[token] for token in tokens])
        seconds.append(time.perf_counter() - start)
        chosen.append(tokens)
    return {"seconds": seconds[WARM_STEPS:], "tokens": chosen}


def prefill(peer: Any, num_tokens: int) -> dict[str, Any]:
    start = time.perf_counter()
    _, tokens = peer(None, [[position % 40 for position in range(num_tokens)]])
    return {"seconds": [time.perf_counter() - start], "tokens": tokens}


def specification(directory: Path, threads: int) -> Any:
    """A peer: (state or None, new tokens of every session) -> (state, greedy next tokens)."""
    from reference.model.cache import empty_cache
    from reference.model.checkpoint import load_model
    from reference.model.transformer import forward
    from reference.numerics import argmax

    model = load_model(directory)

    def extend(caches: Any, batch: list[list[int]]) -> Any:
        caches = [empty_cache(model.config) for _ in batch] if caches is None else caches
        outcomes = [forward(model, tokens, cache) for tokens, cache in zip(batch, caches, strict=True)]
        return [cache for _, cache in outcomes], [argmax(logits[-1]) for logits, _ in outcomes]

    return extend


def fast(directory: Path, threads: int) -> Any:
    """Its threads are OpenBLAS's, set by the environment."""
    from reference.fast import FastModel

    model = FastModel.load(directory, "float32")

    def extend(sessions: Any, batch: list[list[int]]) -> Any:
        sessions = [model.open() for _ in batch] if sessions is None else sessions
        logits = model.forward(list(zip(sessions, batch, strict=True)), logits="last")
        return sessions, [int(rows[-1].argmax()) for rows in logits]

    return extend


def transformers(directory: Path, threads: int) -> Any:
    """The model called in a plain loop, without what generate() adds."""
    import inspect

    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="sdpa").eval()

    # transformers 5.24 renames it, and the old name costs a warning at every step.
    cache = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"

    def extend(past: Any, batch: list[list[int]]) -> Any:
        output = model(torch.tensor(batch), **{cache: past}, use_cache=True, logits_to_keep=1)
        return output[cache], output.logits[:, -1].argmax(-1).tolist()

    return extend


MAKERS = {"specification": specification, "fast": fast, "transformers": transformers}
GEMV_ROWS, GEMV_COLUMNS = 1024, 65536
GEMV_BYTES = 4 * GEMV_ROWS * GEMV_COLUMNS


def stream_seconds() -> list[float]:
    """Seconds of products of one row with 256 MB of float32 weights, in the faster of the two orders."""
    matrix = np.ones((GEMV_ROWS, GEMV_COLUMNS), dtype=np.float32)
    row, column = np.ones(GEMV_ROWS, dtype=np.float32), np.ones(GEMV_COLUMNS, dtype=np.float32)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for repetition in range(12):
        start = time.perf_counter()
        row @ matrix if repetition % 2 else matrix @ column
        seconds[bool(repetition % 2)].append(time.perf_counter() - start)
    return min(seconds.values(), key=median)
