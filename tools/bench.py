"""Speed of the specification, its fast twin and transformers, side by side on the same checkpoint.

    python tools/bench.py                      every shape; the largest takes several minutes
    python tools/bench.py --quick              fewer rounds
    python tools/bench.py --only 135M --json bench.json

Every peer is a process of its own with the same number of threads, float32 (the specification: float64), the same
checkpoint and the same prompt, and decodes greedily in a plain loop. Peers take turns in rounds and rest before each
turn, so that what else the machine does hits all of them alike; a figure is the median over all steps of all rounds.
The specification is measured on the small shapes only: at 135M it needs about 0.4 seconds for a step of one session.

"limit" is the time to stream a step's weights once at this machine's bandwidth, which is measured in the same rounds
by a product of one row with a matrix much larger than the caches.
"""

import argparse
import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from reference.model.checkpoint import save_model
from reference.model.config import ModelConfig
from reference.model.weights import EMBEDDING, tensor_shapes

PROMPT_TOKENS, WARM_STEPS, WARM_SECONDS, REST_SECONDS = 16, 3, 0.1, 0.1
PEERS = ("specification", "fast", "transformers")
# Settings that other checks of this project use to change the arithmetic, and with it the speed.
UNSET = ("OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES", "MKL_DEBUG_CPU_TYPE")


@dataclass(frozen=True)
class Shape:
    """A model to measure: decode steps per turn, prompt length of the prefill (0: not measured)."""

    config: ModelConfig
    steps: int
    prefill: int
    peers: tuple[str, ...]


def _config(hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int, vocab: int) -> ModelConfig:
    return ModelConfig(vocab, hidden, intermediate, layers, heads, kv_heads, hidden // heads, eos_token_ids=())


SHAPES = {
    "32x6": Shape(_config(32, 6, 4, 4, 88, 48), steps=40, prefill=0, peers=PEERS),
    "128x3": Shape(_config(128, 3, 4, 4, 352, 256), steps=40, prefill=0, peers=PEERS),
    "135M": Shape(
        replace(_config(576, 30, 9, 3, 1536, 49152), tie_word_embeddings=True), steps=12, prefill=512, peers=PEERS[1:]
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3 rounds instead of 9: a first impression in a minute")
    parser.add_argument("--only", choices=sorted(SHAPES), metavar="SHAPE", help="one of " + ", ".join(SHAPES))
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="threads of every peer (default 2)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the figures as JSON")
    parser.add_argument("--peer", help=argparse.SUPPRESS)  # this process is a peer, told what to do on stdin
    given = parser.parse_args()
    if given.peer is not None:
        serve(given.peer, given.threads)
        return
    # An exception ends the peers and removes the checkpoints; the default action would leave both behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    rounds = 3 if given.quick else 9
    names = [given.only] if given.only else list(SHAPES)
    record: dict[str, Any] = {"machine": machine(), "threads": given.threads, "rounds": rounds, "rows": []}
    print(*(f"{name}: {value}" for name, value in record["machine"].items()), sep="\n", flush=True)
    for name in names:
        rows = measure(name, SHAPES[name], rounds, given.threads)
        print(table(rows), flush=True)
        record["rows"] += rows
    record["machine"]["load_after"] = os.getloadavg()[0]
    if given.json is not None:
        temporary = given.json.with_name(given.json.name + ".tmp")
        temporary.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")
        os.replace(temporary, given.json)


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    found: dict[str, Any] = {"cpu": _cpu_name(), "cores": os.cpu_count(), "load_before": os.getloadavg()[0]}
    found |= {"python": platform.python_version(), "numpy": np.__version__, "numpy_blas": "unknown"}
    if importlib.util.find_spec("threadpoolctl") is not None:
        code = "import numpy, threadpoolctl, json; print(json.dumps(threadpoolctl.threadpool_info()))"
        answer = subprocess.run([sys.executable, "-c", code], env=_environment(2), capture_output=True, check=True)
        blas = [pool for pool in json.loads(answer.stdout) if pool["user_api"] == "blas"]
        found["numpy_blas"] = ", ".join(
            f"{pool['internal_api']} {pool['version']} {pool['architecture']}" for pool in blas
        )
    return found


def measure(name: str, shape: Shape, rounds: int, threads: int) -> list[dict[str, Any]]:
    """One row per quantity: median seconds of every peer, and of the bandwidth limit where there is one."""
    tasks = [{"do": "decode", "batch": batch, "steps": shape.steps} for batch in (1, 8)]
    if shape.prefill:
        tasks.append({"do": "prefill", "tokens": shape.prefill})
    samples: dict[tuple[int, str], list[float]] = {}
    tokens: dict[tuple[int, str], Any] = {}
    bandwidth: list[float] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        save_model(Path(directory), shape.config, random_tensors(shape.config))
        with peers(shape.peers, directory, threads) as ask:
            for _ in range(rounds):
                for number, task in enumerate(tasks):
                    for peer in shape.peers:
                        answer = ask(peer, task)
                        samples.setdefault((number, peer), []).extend(answer["seconds"])
                        tokens[number, peer] = answer["tokens"]
                        if shape.prefill and number == 0 and peer == "fast":
                            bandwidth += ask(peer, {"do": "bandwidth"})["seconds"]
    rows = []
    for number, task in enumerate(tasks):
        seconds = {peer: median(samples[number, peer]) for peer in shape.peers if samples[number, peer]}
        row = {"shape": name, **task, "seconds": seconds, "config": asdict(shape.config)}
        row["same_tokens"] = len({json.dumps(tokens[number, peer]) for peer in seconds}) == 1
        if bandwidth and task["do"] == "decode":
            row["gigabytes_per_second"] = GEMV_BYTES / median(bandwidth) / 1e9
            row["limit"] = weight_bytes(shape.config) / GEMV_BYTES * median(bandwidth)
        rows.append(row)
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Milliseconds, and how many times faster fast is."""
    lines = []
    for row in rows:
        what = f"decode, batch {row['batch']}" if row["do"] == "decode" else f"prefill of {row['tokens']}"
        lines.append(f"\n{row['shape']}, {what} (ms per {'step' if row['do'] == 'decode' else 'prompt'})")
        fast = row["seconds"]["fast"]
        for peer in PEERS:
            if peer in row["seconds"]:
                own = row["seconds"][peer]
                note = "" if peer == "fast" else f"{own / fast:9.2f} times fast's time"
                lines.append(f"  {peer:14}{own * 1e3:10.3f}{note}")
            else:
                lines.append(f"  {peer:14}" + ("not measured" if peer == "specification" else "not installed"))
        if "limit" in row:
            share = f"{row['limit'] / fast:9.0%} of the limit reached at {row['gigabytes_per_second']:.1f} GB/s"
            lines.append(f"  {'limit':14}{row['limit'] * 1e3:10.3f}{share}")
        if not row["same_tokens"]:
            lines.append("  the peers' greedy tokens differ: near ties, or an error")
    return "\n".join(lines)


def random_tensors(config: ModelConfig) -> dict[str, Any]:
    """Integers / 64, exact in bfloat16: products keep the size of their input, the embedding is in [-1, 1]."""
    random = np.random.default_rng(1)
    tensors = {}
    for name, shape in tensor_shapes(config).items():
        if name.endswith("norm.weight"):
            tensors[name] = np.ones(shape)
            continue
        largest = 64 if name == EMBEDDING else max(1, round(64 * (3 / shape[-1]) ** 0.5))
        tensors[name] = random.integers(-largest, largest + 1, shape) / 64
    return tensors


def weight_bytes(config: ModelConfig) -> int:
    """Bytes of the float32 matrices a step multiplies by: all but norms, biases and an untied embedding."""
    shapes = tensor_shapes(config)
    matrices = [shape for name, shape in shapes.items() if len(shape) == 2 and name != EMBEDDING]
    head = [shapes[EMBEDDING]] if config.tie_word_embeddings else []
    return 4 * sum(rows * columns for rows, columns in matrices + head)


@contextmanager
def peers(names: Sequence[str], directory: str, threads: int) -> Iterator[Any]:
    """Starts the peers; gives ask(peer, task) -> answer."""
    command = [sys.executable, __file__, "--threads", str(threads), "--peer"]
    running = {
        name: subprocess.Popen(
            [*command, name], env=_environment(threads), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for name in names
    }

    def ask(name: str, task: dict[str, Any]) -> dict[str, Any]:
        process = running[name]
        assert process.stdin is not None
        assert process.stdout is not None
        time.sleep(REST_SECONDS)
        print(json.dumps(task), file=process.stdin, flush=True)
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"{name} ended without an answer to {task}, exit status {process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    try:
        for name in names:
            ask(name, {"do": "load", "directory": directory})
        yield ask
    finally:
        for process in running.values():
            process.kill()
            process.wait()


def serve(name: str, threads: int) -> None:
    """The life of a peer: answers each line of stdin with one line."""
    peer: Any = None
    for line in sys.stdin:
        task = json.loads(line)
        answer: dict[str, Any] = {"seconds": [], "tokens": []}
        if task["do"] == "load":
            needed = ("torch", "transformers") if name == "transformers" else ()
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


def _environment(threads: int) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in UNSET}
    limits = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    return {**kept, **limits, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "PYTHONWARNINGS": "ignore"}


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
