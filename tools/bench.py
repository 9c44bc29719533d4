"""Speed of the specification, its fast twin, llama.cpp and transformers, side by side on the same checkpoint.

    python tools/bench.py                      every shape; the largest takes several minutes
    python tools/bench.py --quick              fewer rounds
    python tools/bench.py --only 135M --json bench.json
    python tools/bench.py --only harness       what judging costs beside the engine

Every peer is a process of its own with the same number of threads, float32 (the specification: float64), the same
checkpoint and the same prompt, and decodes greedily in a plain loop. Peers take turns in rounds and rest before each
turn, so that what else the machine does hits all of them alike; a figure is the median over all steps of all rounds.
The specification is measured on the small shapes only: at 135M it needs about 0.4 seconds for a step of one session.
llama.cpp computes with float32 weights and cache, one session; it tells its own times, which leave its server out.

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

from reference.conformance.engines import HOSTED
from reference.model.checkpoint import save_model
from reference.model.config import ModelConfig
from reference.model.weights import EMBEDDING, tensor_shapes
from tools.bench_harness import harness_table
from tools.bench_peers import GEMV_BYTES, serve

REST_SECONDS = 0.1
PEERS = ("specification", "fast", "llama.cpp", "transformers")
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
    parts = (*SHAPES, "harness")
    parser.add_argument("--only", choices=parts, metavar="PART", help="one of " + ", ".join(parts))
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
    names = [given.only] if given.only else [*SHAPES, "harness"]
    record: dict[str, Any] = {"machine": machine(), "threads": given.threads, "rounds": rounds, "rows": []}
    print(*(f"{name}: {value}" for name, value in record["machine"].items()), sep="\n", flush=True)
    for name in names:
        if name == "harness":
            print(harness_table(rounds), flush=True)
            continue
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
        # Without an answer to the first task it is not installed; llama.cpp is asked for one session at a time.
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
                is_left_out = peer == "specification" or (peer == "llama.cpp" and row.get("batch") == 8)
                lines.append(f"  {peer:14}" + ("not measured" if is_left_out else "not installed"))
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
    running = {
        name: subprocess.Popen(
            _command(name, threads),
            env=_environment(threads),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if name == "llama.cpp" else None,  # a log of every request
            text=True,
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


def _command(name: str, threads: int) -> list[str]:
    """llama.cpp runs in its own environment, if there is one."""
    if name == "llama.cpp" and HOSTED[name].is_installed:
        return [HOSTED[name].python, str(Path(__file__).with_name("bench_llama_cpp.py")), str(threads)]
    return [sys.executable, __file__, "--threads", str(threads), "--peer", name]


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
