"""python -m reference: the commands people type.

Exit codes: 0 done, 1 a check failed, 2 bad input. An error is one line on stderr; --debug shows the traceback.
"""

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from reference import check
from reference.conformance import experiments
from reference.conformance.artifacts import (
    DATA,
    ROOT,
    canonical_json,
    read_json,
    sha256,
    to_plain,
    validate,
    write_json,
)
from reference.conformance.compare import PASS, compare_fields
from reference.conformance.records import SEED
from reference.decoding.generate import (
    Choose,
    StopRule,
    choose_by_coins,
    choose_greedily,
    generate,
    generate_by_recomputation,
)
from reference.decoding.speculation import generate_speculatively
from reference.engine import ReferenceEngine
from reference.errors import Refusal, RefusedError
from reference.model.cache import empty_cache
from reference.model.checkpoint import load_model
from reference.model.transformer import forward
from reference.numerics import log_softmax

EXIT_DONE, EXIT_CHECK_FAILED, EXIT_BAD_INPUT = check.EXIT_DONE, check.EXIT_CHECK_FAILED, 2

SOURCE_FOLDERS = ("model", "decoding", "serving", "conformance")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(words)
    try:
        status = int(options.run(options, ["python", "-m", "reference", *words]))
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader has seen enough, as in "| head". Nothing more can be said, at the end of the process neither.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_CHECK_FAILED
    except (RefusedError, OSError) as error:
        if options.debug:
            raise
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return EXIT_BAD_INPUT


def parser() -> argparse.ArgumentParser:
    """The commands with their options."""
    top = argparse.ArgumentParser(
        prog="python -m reference",
        description="Golden Llama: an executable specification of LLM inference.",
        epilog="Start with: python -m reference check --engine fast",
    )
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    command = _command(commands, "check", check.run, "judge engines by the goldens: a table of families and verdicts")
    check.add_arguments(command)
    for name, run, text in (
        ("batching", run_batching, "fixed batches against continuous admission: the first recorded experiment"),
        ("sweep", run_sweep, "hot KV state at concurrency 1, 2, 4, 8: the second recorded experiment"),
        ("speculation", run_speculation, "a verification step, its law, the batch crossover: the third one"),
    ):
        command = _command(commands, name, run, text)
        command.add_argument("--record", type=Path, metavar="PATH", help="write the artifact (JSON) to PATH")
    _add_generate(commands)
    command = _command(commands, "score", run_score, "logits or logprobs of given token ids")
    _add_model(command, "--ids", "the token ids to score")
    command.add_argument("--logprobs", action="store_true", help="log softmax of the logits instead of the logits")
    command.add_argument("--top", type=int, metavar="N", help="only the N most likely tokens of each position")
    return top


def run_batching(options: argparse.Namespace, command_line: list[str]) -> int:
    """The batching experiment, with every output confirmed by full-prefix recomputation."""
    engine = ReferenceEngine()
    artifact = experiments.batching(engine)
    print(f"{'policy':32s} {'ticks':>5s} {'forwards':>8s}   outputs")
    for name in ("fixed", "continuous"):
        run = artifact[name]
        outputs = "  ".join(
            f"{job['id']} [{job['admitted']}, {job['finished']}): {job['generated']}" for job in run["jobs"]
        )
        print(f"{run['policy']:32s} {run['logical_ticks']:5d} {run['batch_forward_calls']:8d}   {outputs}")
    for job in artifact["fixed"]["jobs"]:
        stop = StopRule(job["tokens"], (), engine.model.config.context_length)
        recomputed = generate_by_recomputation(engine.model, job["prompt"], stop, choose_greedily)
        if list(recomputed.tokens) != job["generated"]:
            print(f"job {job['id']}: full-prefix recomputation gives {recomputed.tokens}")
            return EXIT_CHECK_FAILED
    return finish("batching", artifact, options, command_line)


def run_sweep(options: argparse.Namespace, command_line: list[str]) -> int:
    """The concurrency sweep and its mid-run telemetry."""
    engine = ReferenceEngine()
    artifact = experiments.sweep(engine, time.perf_counter)
    columns = ("concurrency", "ticks", "decode_batches", "avg_batch_occupancy", "tokens_per_tick", "peak_kv_bytes")
    print("  ".join(columns))
    for row in artifact["concurrency_sweep"]["results"]:
        print("  ".join(f"{row[column]:>{len(column)}}" for column in columns))
    swept = artifact["concurrency_sweep"]
    print(f"saturation at concurrency {swept['saturation_concurrency']}; corruption free: {swept['corruption_free']}")
    return finish("sweep", artifact, options, command_line)


def run_speculation(options: argparse.Namespace, command_line: list[str]) -> int:
    """The verification step, the distances with and without the residual, and the crossover."""
    artifact = experiments.speculation(ReferenceEngine())
    print("position  draft  p(x)  q(x)  accept  coin  outcome")
    for row in artifact["verification_step"]["trace"]:
        print(
            f"{row['position']:8d}  {row['draft_token']:5d}  {row['p_target']:4.2f}  {row['q_draft']:4.2f}  "
            f"{row['accept_prob']:6.4f}  {row['u_draw']:4.2f}  {row['outcome']} -> {row['emitted_token']}"
        )
    law = artifact["distribution_check_pos2"]
    print(f"total variation to the target: {law['tv_distance_with_residual']} with the residual, "
          f"{law['tv_distance_without_residual']} without")  # fmt: skip
    print("batch  standard ms  speedup at alpha 0.80  at 0.45")
    for row in artifact["batch_crossover"]:
        standard, speedups = row["standard_decode_ms_per_token"], (row["alpha_80_speedup"], row["alpha_45_speedup"])
        print(f"{row['batch_size']:5d}  {standard:11.2f}  {speedups[0]:21.2f}  {speedups[1]:7.2f}")
    return finish("speculation", artifact, options, command_line)


def finish(family: str, artifact: dict[str, Any], options: argparse.Namespace, command_line: list[str]) -> int:
    """Compares an artifact with the recorded one and, with --record, writes it with its provenance."""
    seed = DATA / family / f"{SEED}.json"
    right, given = experiments.comparable(read_json(seed)), experiments.comparable(to_plain(artifact))
    judgement = compare_fields(right, given)
    exit_status = EXIT_DONE if judgement is PASS else EXIT_CHECK_FAILED
    if judgement is PASS:
        print(f"{experiments.count_fields(right)} fields agree with {seed.relative_to(ROOT)}")
    else:
        print(f"differs from {seed.relative_to(ROOT)}: {judgement.sentence}")
    if options.record is not None:
        recording = {**artifact, **provenance(command_line, exit_status)}
        validate(to_plain(recording), f"{family}_artifact", str(options.record))
        write_json(options.record, recording)
        print(f"recorded in {options.record}")
    return exit_status


def provenance(command_line: list[str], exit_status: int) -> dict[str, Any]:
    """What a run records of itself: command, environment, exit status and digests of the rules it ran."""
    root = ROOT / "reference"
    sources = [*root.glob("*.py"), *(path for folder in SOURCE_FOLDERS for path in (root / folder).glob("*.py"))]
    return {
        "command": command_line,
        "exit_status": exit_status,
        "environment": {
            "python": platform.python_version(),
            "numpy": version("numpy"),
            "platform": platform.platform(),
        },
        "sources": {str(path.relative_to(ROOT)): sha256(path) for path in sorted(sources)},
    }


def run_generate(options: argparse.Namespace, _command_line: list[str]) -> int:
    """Decodes one session and prints its tokens."""
    model = load_model(options.model)
    eos_ids = model.config.eos_token_ids if options.eos_ids is None else options.eos_ids
    context_length = model.config.context_length if options.context_length is None else options.context_length
    stop = StopRule(options.max_tokens, () if options.ignore_eos else eos_ids, context_length)
    if options.draft is not None:
        if options.temperature != 0 or options.no_cache:
            raise RefusedError(
                Refusal.USAGE, "--draft decodes greedily with a cache; leave out --temperature, --no-cache"
            )
        print(
            canonical_json(
                generate_speculatively(model, load_model(options.draft), options.prompt_ids, stop, options.gamma)
            ),
            end="",
        )
        return EXIT_DONE
    choose: Choose = choose_greedily
    if options.temperature != 0:
        num_coins = max(0, min(options.max_tokens, context_length))
        coins = np.random.default_rng(options.seed).random(num_coins)
        choose = choose_by_coins([float(coin) for coin in coins], options.temperature)
    decode = generate_by_recomputation if options.no_cache else generate
    print(canonical_json(decode(model, options.prompt_ids, stop, choose)), end="")
    return EXIT_DONE


def run_score(options: argparse.Namespace, _command_line: list[str]) -> int:
    """Prints logits or logprobs [T, V], or the most likely tokens of each position."""
    model = load_model(options.model)
    rows, _ = forward(model, options.ids, empty_cache(model.config))
    kind = "logprobs" if options.logprobs else "logits"
    rows = log_softmax(rows) if options.logprobs else rows
    if options.top is None:
        print(canonical_json({kind: rows}), end="")
        return EXIT_DONE
    if options.top < 1:
        raise RefusedError(Refusal.LIMIT_NOT_POSITIVE, f"--top is {options.top}; at least 1 is needed")
    for position, row in enumerate(rows):
        best = np.argsort(-row, kind="stable")[: options.top]
        print(f"position {position}: " + "  ".join(f"{token} ({row[token]:.4f})" for token in best))
    return EXIT_DONE


def _add_generate(commands: Any) -> None:
    command = _command(commands, "generate", run_generate, "decode one session, greedily or by coins")
    _add_model(command, "--prompt-ids", "the prompt's token ids")
    command.add_argument("--max-tokens", type=int, default=16, metavar="N", help="tokens to produce at most (16)")
    command.add_argument("--eos-ids", type=_ids, metavar="IDS", help="ids that end the output (the config's)")
    command.add_argument("--ignore-eos", action="store_true", help="no id ends the output")
    command.add_argument("--context-length", type=int, metavar="N", help="tokens of prompt and output together")
    command.add_argument("--no-cache", action="store_true", help="recompute the whole prefix for every token")
    command.add_argument("--temperature", type=float, default=0.0, metavar="T", help="sample at T (0: greedy)")
    command.add_argument("--seed", type=_seed, default=0, help="seed of the coins that --temperature uses (0)")
    command.add_argument("--draft", type=Path, metavar="DIR", help="speculate with the checkpoint in DIR")
    command.add_argument("--gamma", type=int, default=4, metavar="N", help="drafts a step (4)")


def _add_model(command: argparse.ArgumentParser, ids_option: str, ids_help: str) -> None:
    command.add_argument(
        "--model", type=Path, required=True, metavar="DIR", help="a checkpoint in Hugging Face's layout"
    )
    command.add_argument(ids_option, type=_ids, required=True, metavar="1,2,3", help=ids_help)


def _command(commands: Any, name: str, run: Callable[[argparse.Namespace, list[str]], int], text: str) -> Any:
    command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    command.set_defaults(run=run)
    command.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return command


def _seed(text: str) -> int:
    """A number at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number at least 0")
    return int(text)


def _ids(text: str) -> tuple[int, ...]:
    """Comma-separated token ids."""
    try:
        return tuple(int(word) for word in text.split(",") if word.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of token ids such as 1,2,3") from None
