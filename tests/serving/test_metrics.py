"""The numbers of the recorded artifacts."""

import pytest

from reference.errors import RefusedError
from reference.serving.metrics import lifetimes, saturation, snapshot, summarize
from reference.serving.policies import Limits, budgeted, continuous, static
from tests.serving.workloads import BATCHING, SWEEP, trace_of

KV_BYTES_PER_TOKEN = 1536


@pytest.mark.parametrize(
    ("concurrency", "expected"),
    [
        (1, (64, 32, 56, 56, 1.0, 1, 1.375, 15360)),
        (2, (33, 32, 56, 32, 1.75, 2, 2.6667, 29184)),
        (4, (19, 32, 56, 18, 3.1111, 4, 4.6316, 52224)),
        (8, (15, 32, 56, 14, 4.0, 7, 5.8667, 75264)),
    ],
)
def test_the_recorded_sweep(concurrency: int, expected: tuple[float, ...]) -> None:
    summary = summarize(trace_of(SWEEP, budgeted, Limits(concurrency, prefill_token_budget=4)))

    assert expected == (
        summary.ticks,
        summary.prefill_tokens,
        summary.decode_tokens,
        summary.decode_batches,
        round(summary.occupancy_average, 4),
        summary.occupancy_max,
        round(summary.tokens_per_tick, 4),
        summary.peak_kv_tokens * KV_BYTES_PER_TOKEN,
    )
    assert (0, 0, 8) == (summary.cache_misses, summary.refused, summary.completed)


def test_the_recorded_telemetry() -> None:
    """Four live sessions by four scratch units; 20 decode tokens after 6 ticks; 55296 bytes."""
    seen = snapshot(trace_of(SWEEP, budgeted, Limits(8, 16, 4)), 6)

    assert (4, 4, 55296) == (seen.running, seen.waiting, seen.kv_tokens * KV_BYTES_PER_TOKEN)
    assert (20, 16, 4, 6) == (
        seen.summary.decode_tokens,
        seen.summary.prefill_tokens,
        seen.summary.occupancy_last,
        seen.summary.ticks,
    )


def test_there_is_no_telemetry_before_the_first_tick() -> None:
    with pytest.raises(RefusedError, match="nothing has happened after 0 ticks"):
        snapshot(trace_of(SWEEP, budgeted, Limits(8)), 0)


def test_the_recorded_lifetimes() -> None:
    fixed, admitted = (trace_of(BATCHING, policy, Limits(2)) for policy in (static, continuous))

    assert {"a": (0, 2), "b": (0, 5), "c": (5, 6)} == lifetimes(fixed)
    assert {"a": (0, 2), "b": (0, 5), "c": (2, 3)} == lifetimes(admitted)
    assert (6, 5) == (summarize(fixed).forward_ticks, summarize(admitted).forward_ticks)


def test_an_empty_trace_has_no_ticks() -> None:
    summary = summarize(())

    assert (0, 0.0, 0.0) == (summary.ticks, summary.tokens_per_tick, summary.occupancy_average)


def test_saturation_is_the_smallest_concurrency_with_the_highest_rate() -> None:
    assert 2 == saturation({1: 1.0, 2: 3.0, 4: 3.0, 8: 2.0})
