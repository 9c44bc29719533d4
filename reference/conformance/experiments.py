"""The three recorded experiments of the project's start, run again: each gives an artifact of the recorded shape.

What is recorded by a run itself (environment, command, exit status, sources, rates) and what describes it (mode,
scope, execution_mode, model.reference) is ours; every other field comes out as recorded.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reference.conformance.artifacts import DATA, MODELS, read_json, to_plain
from reference.decoding.verification import accept_probability, output_law, residual, total_variation
from reference.engine import Engine
from reference.errors import RefusedError
from reference.model.checkpoint import load_config
from reference.serving.cost_model import ForwardCost
from reference.serving.loop import Served
from reference.serving.metrics import lifetimes, saturation, snapshot, summarize
from reference.serving.session import Request

Clock = Callable[[], float]

VOLATILE = frozenset({"environment", "sources", "command", "exit_status"})
RATES = frozenset({"decode_tokens_per_sec", "prefill_tokens_per_sec"})
DESCRIPTIVE = frozenset({"mode", "scope", "execution_mode", "reference"})

BATCHING_REQUESTS = (
    Request("a", 0, (58, 36), 2),
    Request("b", 0, (61, 36), 5),
    Request("c", 0, (6, 39, 36), 1),
)
BATCHING_POLICIES = {"fixed": "fixed batch until all finish", "continuous": "continuous admission"}

SWEEP_CONCURRENCIES = (1, 2, 4, 8)
PREFILL_BUDGET = 4
KV_BUDGET_BYTES = 1 << 26
TELEMETRY_TICKS = 6
# The telemetry run: all prompts may be prefilled in one tick, and four scratch units limit the live sessions.
TELEMETRY_PREFILL_BUDGET, SCRATCH_UNITS = 16, 4

# Positions 0 to 2 hold the recorded numbers at the drafted tokens; the rest of the rows is ours.
VERIFY_P = (
    (0.7, 0.1, 0.1, 0.1),
    (0.12, 0.68, 0.1, 0.1),
    (0.1, 0.48, 0.18, 0.24),
    (0.25, 0.25, 0.25, 0.25),
    (0.4, 0.3, 0.2, 0.1),
)
VERIFY_Q = ((0.65, 0.15, 0.1, 0.1), (0.1, 0.7, 0.1, 0.1), (0.05, 0.15, 0.6, 0.2), (0.1, 0.2, 0.3, 0.4))
VERIFY_DRAFTS, VERIFY_COINS, FINAL_COIN = (0, 1, 2, 3), (0.42, 0.51, 0.74, 0.5), 0.5

CROSSOVER_BATCHES, CROSSOVER_GAMMA, CROSSOVER_ALPHAS = (1, 2, 4, 8, 16, 32, 64), 4, (0.80, 0.45)
TARGET_COST, DRAFT_COST = ForwardCost(22.0, 0.42, 32), ForwardCost(2.6, 0.045, 32)


def batching(engine: Engine) -> dict[str, Any]:
    """Fixed batches against continuous admission, three requests in two slots."""
    engine.load(MODELS / "batching")
    fixed = engine.serve(BATCHING_REQUESTS, "static", {"capacity": 2})
    admitted = engine.serve(BATCHING_REQUESTS, "continuous", {"capacity": 2})
    try:
        refusal = f"capacity 0 served {engine.serve(BATCHING_REQUESTS, 'static', {'capacity': 0})}"
    except RefusedError as error:
        refusal = str(error)
    return {
        "mode": "numpy float64 decoding on CPU under authored logical arrival ticks",
        "fixed": _batching_run("fixed", fixed),
        "continuous": _batching_run("continuous", admitted),
        "outputs_equal": fixed.tokens == admitted.tokens,
        "scope": "Logical ticks are not wall-clock time. KV-cached decoding of a checkpoint fitted to these tokens.",
        "refusal": refusal,
    }


def sweep(engine: Engine, clock_s: Clock) -> dict[str, Any]:
    """Hot KV state at concurrency 1, 2, 4 and 8; the rates of the telemetry run are by `clock_s`, in seconds."""
    engine.load(MODELS / "sweep")
    config = load_config(MODELS / "sweep")
    requests = sweep_requests()
    kv_bytes = config.kv_bytes_per_token()
    kv_limits = {"kv_budget_bytes": KV_BUDGET_BYTES, "kv_bytes_per_token": kv_bytes}
    alone = {
        request.id: engine.serve([request], "budgeted", {"capacity": 1}).tokens[request.id] for request in requests
    }
    runs = {
        concurrency: engine.serve(
            requests, "budgeted", {"capacity": concurrency, "prefill_token_budget": PREFILL_BUDGET, **kv_limits}
        )
        for concurrency in SWEEP_CONCURRENCIES
    }
    rates = {concurrency: summarize(run.trace).tokens_per_tick for concurrency, run in runs.items()}
    return {
        "schema_version": 1,
        "evidence_kind": "synthetic-unit",
        "model": {
            "hidden": config.hidden_size,
            "n_heads": config.num_attention_heads,
            "n_layers": config.num_hidden_layers,
            "reference": "golden checkpoint sweep, fitted to the recorded tokens",
            "vocab": config.vocab_size,
        },
        "workload": {
            "max_new_tokens": requests[0].max_tokens,
            "prompt_len": len(requests[0].prompt),
            "sessions": len(requests),
        },
        "concurrency_sweep": {
            "schema_version": 1,
            "corruption_free": all(run.tokens == alone for run in runs.values()),
            "reference_outputs": to_plain(alone),
            "results": [_sweep_row(concurrency, run, kv_bytes) for concurrency, run in runs.items()],
            "saturation_concurrency": saturation(rates),
        },
        "mid_run_telemetry_concurrency_4": _telemetry(engine, requests, kv_bytes, clock_s),
    }


def speculation(engine: Engine) -> dict[str, Any]:
    """A verification step, the law of its rejected position, and the batch crossover."""
    p, q = np.array(VERIFY_P[2]), np.array(VERIFY_Q[2])
    step = engine.verify(np.array(VERIFY_P), np.array(VERIFY_Q), VERIFY_DRAFTS, VERIFY_COINS, FINAL_COIN)
    positions = range(min(step.num_accepted + 1, len(VERIFY_DRAFTS)))
    return {
        "execution_mode": "CPU, given distributions and coins; the cost coefficients are assumptions",
        "verification_step": {
            "gamma": len(VERIFY_DRAFTS),
            "accepted_draft_tokens": step.num_accepted,
            "emitted_tokens": list(step.tokens),
            "total_emitted": len(step.tokens),
            "trace": [_verdict(i, step.num_accepted, step.tokens[i]) for i in positions],
        },
        "distribution_check_pos2": {
            "target_p": p.tolist(),
            "draft_q": q.tolist(),
            "residual_p_minus_q_norm": [round(mass, 4) for mass in residual(p, q).tolist()],
            "tv_distance_with_residual": round(float(total_variation(p, output_law(p, q, residual(p, q)))), 4),
            "tv_distance_without_residual": round(float(total_variation(p, output_law(p, q, p))), 4),
        },
        "batch_crossover": [_crossover_row(engine, batch_size) for batch_size in CROSSOVER_BATCHES],
    }


def reproduce(family: str, engine: Engine, recorded: Mapping[str, Any]) -> tuple[Any, Any]:
    """A recorded artifact and ours, both without volatile and descriptive fields."""
    match family:
        case "batching":
            ours = batching(engine)
        case "sweep":
            ours = sweep(engine, iter((0.0, 1.0)).__next__)
        case _:
            ours = speculation(engine)
    return comparable(recorded), comparable(ours)


def comparable(content: Any) -> Any:
    """An artifact without its volatile and descriptive fields, at any depth."""
    if isinstance(content, Mapping):
        left_out = VOLATILE | RATES | DESCRIPTIVE | {"final_coin"}
        return {name: comparable(member) for name, member in content.items() if name not in left_out}
    if isinstance(content, list):
        return [comparable(member) for member in content]
    return content


def count_fields(content: Any) -> int:
    """Values in an artifact, at any depth."""
    if isinstance(content, Mapping):
        return sum(count_fields(member) for member in content.values())
    if isinstance(content, list):
        return sum(count_fields(member) for member in content)
    return 1


def sweep_requests() -> tuple[Request, ...]:
    """The sweep's workload: eight sessions at tick 0, from the record that holds it."""
    asked = read_json(DATA / "sweep" / "concurrency-8.json")["input"]["requests"]
    return tuple(Request(**{**request, "prompt": tuple(request["prompt"])}) for request in asked)


def _batching_run(name: str, served: Served) -> dict[str, Any]:
    intervals = lifetimes(served.trace)
    summary = summarize(served.trace)
    return {
        "policy": BATCHING_POLICIES[name],
        "capacity": 2,
        "logical_ticks": summary.ticks,
        "batch_forward_calls": summary.forward_ticks,
        "jobs": [
            {
                "id": request.id,
                "arrival": request.arrival,
                "prompt": list(request.prompt),
                "tokens": request.max_tokens,
                "generated": list(served.tokens[request.id]),
                "admitted": intervals[request.id][0],
                "finished": intervals[request.id][1],
            }
            for request in BATCHING_REQUESTS
        ],
        "trace": [{"tick": row.tick, "active": [*row.decoded, *row.prefilled]} for row in served.trace],
    }


def _sweep_row(concurrency: int, run: Served, kv_bytes: int) -> dict[str, Any]:
    summary = summarize(run.trace)
    return {
        "concurrency": concurrency,
        "ticks": summary.ticks,
        "prefill_tokens": summary.prefill_tokens,
        "decode_tokens": summary.decode_tokens,
        "decode_batches": summary.decode_batches,
        "avg_batch_occupancy": round(summary.occupancy_average, 4),
        "max_batch_occupancy": summary.occupancy_max,
        "tokens_per_tick": round(summary.tokens_per_tick, 4),
        "peak_kv_bytes": summary.peak_kv_tokens * kv_bytes,
        "cache_misses": summary.cache_misses,
        "rejected_admissions": summary.refused,
    }


def _telemetry(engine: Engine, requests: tuple[Request, ...], kv_bytes: int, clock_s: Clock) -> dict[str, Any]:
    """A snapshot in the middle of a run; both rates are totals divided by one elapsed time."""
    limits = {"capacity": len(requests), "prefill_token_budget": TELEMETRY_PREFILL_BUDGET}
    limits |= {"scratch_units": SCRATCH_UNITS, "kv_budget_bytes": KV_BUDGET_BYTES, "kv_bytes_per_token": kv_bytes}
    start = clock_s()
    served = engine.serve(requests, "budgeted", limits, TELEMETRY_TICKS)
    elapsed_s = clock_s() - start
    seen = snapshot(served.trace, TELEMETRY_TICKS)
    summary = seen.summary
    return {
        "active_sessions": seen.running,
        "batch_occupancy_avg": round(summary.occupancy_average, 4),
        "batch_occupancy_last": summary.occupancy_last,
        "batch_occupancy_max": summary.occupancy_max,
        "completed_sessions": summary.completed,
        "decode_tokens_per_sec": round(summary.decode_tokens / elapsed_s, 3),
        "decode_tokens_total": summary.decode_tokens,
        "kv_budget_bytes": KV_BUDGET_BYTES,
        "kv_pressure": round(seen.kv_tokens * kv_bytes / KV_BUDGET_BYTES, 4),
        "kv_total_bytes": seen.kv_tokens * kv_bytes,
        "prefill_tokens_per_sec": round(summary.prefill_tokens / elapsed_s, 3),
        "prefill_tokens_total": summary.prefill_tokens,
        "queue_depth": seen.waiting,
        "rejected_admissions_total": summary.refused,
        "rejected_by_reason": to_plain(summary.refused_by_reason),
        "scratch_budget_bytes": SCRATCH_UNITS,
        "scratch_pressure": round(seen.running / SCRATCH_UNITS, 4),
        "scratch_used_bytes": seen.running,
        "ticks": summary.ticks,
        # The recorded run did not count its weights.
        "weight_bytes": 0,
    }


def _verdict(position: int, num_accepted: int, token: int) -> dict[str, Any]:
    """One position of the recorded step; the final coin is shown where it was used."""
    x, is_accepted = VERIFY_DRAFTS[position], position < num_accepted
    p_x, q_x = VERIFY_P[position][x], VERIFY_Q[position][x]
    row = {
        "position": position,
        "draft_token": x,
        "p_target": p_x,
        "q_draft": q_x,
        "accept_prob": round(float(accept_probability(p_x, q_x)), 4),
        "u_draw": VERIFY_COINS[position],
        "outcome": "accepted" if is_accepted else "rejected_and_resampled",
        "emitted_token": token,
    }
    return row if is_accepted else {**row, "final_coin": FINAL_COIN}


def _crossover_row(engine: Engine, batch_size: int) -> dict[str, Any]:
    row = engine.crossover(batch_size, CROSSOVER_GAMMA, CROSSOVER_ALPHAS, TARGET_COST, DRAFT_COST)
    shown: dict[str, Any] = {
        "batch_size": row.batch_size,
        "verify_batched_tokens": row.verify_tokens,
        "standard_decode_ms_per_token": round(row.standard_ms, 2),
        "spec_cycle_ms": round(row.cycle_ms, 2),
    }
    for index, name in enumerate(("alpha_80", "alpha_45")):
        shown[f"{name}_expected_tokens"] = round(row.expected_tokens[index], 4)
        shown[f"{name}_ms_per_token"] = round(row.speculative_ms[index], 2)
        shown[f"{name}_speedup"] = round(row.speedup[index], 2)
    return shown
