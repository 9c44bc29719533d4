"""Metrics and telemetry, all computed from a trace, so they cannot disagree with it. Ratios are unrounded."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from reference.errors import Refusal, RefusedError
from reference.serving.session import Trace


@dataclass(frozen=True)
class Summary:
    """What a run did. Occupancy is sessions per decode batch; KV is sampled at the end of each tick."""

    ticks: int  # the last tick and all before it
    forward_ticks: int  # ticks in which a forward ran
    prefill_tokens: int
    decode_tokens: int
    decode_batches: int
    recomputed_tokens: int
    cache_misses: int
    evictions: int
    occupancy_average: float
    occupancy_max: int
    occupancy_last: int
    tokens_per_tick: float
    peak_kv_tokens: int
    completed: int
    refused_by_reason: Mapping[Refusal, int]

    @property
    def refused(self) -> int:
        return sum(self.refused_by_reason.values())


def summarize(trace: Trace) -> Summary:
    """[METRIC-1] tokens_per_tick = (prefill + decode tokens) / ticks; occupancy = decode tokens / decode batches."""
    batches = [len(row.decoded) for row in trace if row.decoded]
    prefill_tokens = sum(row.prefill_tokens for row in trace)
    num_ticks = trace[-1].tick + 1 if trace else 0
    return Summary(
        ticks=num_ticks,
        forward_ticks=sum(bool(row.prefilled or row.decoded) for row in trace),
        prefill_tokens=prefill_tokens,
        decode_tokens=sum(batches),
        decode_batches=len(batches),
        recomputed_tokens=sum(row.recomputed_tokens for row in trace),
        cache_misses=sum(len(row.cache_misses) for row in trace),
        evictions=sum(len(row.evicted) for row in trace),
        occupancy_average=sum(batches) / len(batches) if batches else 0.0,
        occupancy_max=max(batches, default=0),
        occupancy_last=batches[-1] if batches else 0,
        tokens_per_tick=(prefill_tokens + sum(batches)) / num_ticks if num_ticks else 0.0,
        peak_kv_tokens=max((row.kv_tokens for row in trace), default=0),
        completed=sum(len(row.finished) for row in trace),
        refused_by_reason=Counter(reason for row in trace for reason in row.refused.values()),
    )


@dataclass(frozen=True)
class Telemetry:
    """A snapshot after a number of ticks: the totals so far and the state at that moment."""

    summary: Summary
    running: int
    waiting: int
    kv_tokens: int


def snapshot(trace: Trace, num_ticks: int) -> Telemetry:
    """[METRIC-2] The telemetry after `num_ticks` ticks. Raises: LIMIT_NOT_POSITIVE before the first row."""
    seen = tuple(row for row in trace if row.tick < num_ticks)
    if not seen:
        raise RefusedError(Refusal.LIMIT_NOT_POSITIVE, f"nothing has happened after {num_ticks} ticks")
    last, summary = seen[-1], summarize(seen)
    if len(seen) < len(trace):
        # The run goes on later: the ticks since the last row were idle, and count.
        tokens_per_tick = (summary.prefill_tokens + summary.decode_tokens) / num_ticks
        summary = replace(summary, ticks=num_ticks, tokens_per_tick=tokens_per_tick)
    return Telemetry(summary, last.running, last.waiting, last.kv_tokens)


def lifetimes(trace: Trace) -> dict[str, tuple[int, int]]:
    """[METRIC-3] Request id -> (admitted, finished), the half-open interval of ticks in which it was active."""
    admitted = {session_id: row.tick for row in trace for session_id in row.prefilled}
    finished = {session_id: row.tick + 1 for row in trace for session_id in row.finished}
    return {session_id: (admitted[session_id], finished[session_id]) for session_id in finished}


def saturation(tokens_per_tick: Mapping[int, float]) -> int:
    """[METRIC-4] The smallest concurrency that reaches the highest tokens per tick of a sweep.

    Raises: LIMIT_NOT_POSITIVE for a sweep of nothing.
    """
    if not tokens_per_tick:
        raise RefusedError(Refusal.LIMIT_NOT_POSITIVE, "a sweep needs at least one concurrency")
    best = max(tokens_per_tick.values())
    return min(concurrency for concurrency, rate in tokens_per_tick.items() if rate == best)
