"""The numbers of the recorded artifacts."""

import pytest

from reference.errors import Refusal, RefusedError
from reference.serving.metrics import Summary, Telemetry, lifetimes, saturation, snapshot, summarize
from reference.serving.policies import Limits, Policy, budgeted, continuous, static
from reference.serving.session import Request
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


@pytest.mark.parametrize(
    ("policy", "expected"),
    [(static, ["ab", "ab", "b", "b", "b", "c"]), (continuous, ["ab", "ab", "bc", "b", "b"])],
)
def test_the_recorded_sessions_are_active_in_their_ticks(policy: Policy, expected: list[str]) -> None:
    trace = trace_of(BATCHING, policy, Limits(2))

    assert expected == ["".join(sorted(row.prefilled + row.decoded)) for row in trace]


def test_the_sweep_saturates_at_eight() -> None:
    rates = {
        capacity: summarize(trace_of(SWEEP, budgeted, Limits(capacity, prefill_token_budget=4))).tokens_per_tick
        for capacity in (1, 2, 4, 8)
    }

    assert 8 == saturation(rates)


def test_an_empty_trace_has_nothing_in_it() -> None:
    expected = Summary(
        ticks=0, forward_ticks=0, prefill_tokens=0, decode_tokens=0, decode_batches=0, recomputed_tokens=0,
        cache_misses=0, evictions=0, occupancy_average=0.0, occupancy_max=0, occupancy_last=0, tokens_per_tick=0.0,
        peak_kv_tokens=0, completed=0, refused_by_reason={},
    )  # fmt: skip

    assert expected == summarize(())
    assert {} == lifetimes(())


def test_a_summary_with_evictions_refusals_and_an_idle_gap_by_hand() -> None:
    """The two sessions of the trace with eviction (see test_loop.py), one refused at tick 1, one served at tick 6.

    Ticks 0 to 6 are 7, and 4 of them run a forward. Prefills 2 + 2 + 1; decodes y and x in ticks 1 and 2.
    """
    requests = (
        Request("x", 0, (1, 2), 3),
        Request("y", 0, (3, 4), 3),
        Request("long", 1, (1, 2, 3), 5),
        Request("z", 6, (1,), 1),
    )
    trace = trace_of(requests, budgeted, Limits(3, kv_budget_bytes=4, kv_pressure="evict"))
    expected = Summary(
        ticks=7, forward_ticks=4, prefill_tokens=5, decode_tokens=4, decode_batches=2, recomputed_tokens=8,
        cache_misses=3, evictions=4, occupancy_average=2.0, occupancy_max=2, occupancy_last=2, tokens_per_tick=9 / 7,
        peak_kv_tokens=4, completed=3, refused_by_reason={Refusal.KV_EXCEEDS_BUDGET: 1},
    )  # fmt: skip

    assert expected == summarize(trace)
    assert 1 == expected.refused
    assert {"x": (0, 3), "y": (0, 3), "z": (6, 7)} == lifetimes(trace)


def test_telemetry_after_each_tick_ends_in_the_summary() -> None:
    trace = trace_of(SWEEP, budgeted, Limits(4, 4))

    assert Telemetry(summarize(trace), 0, 0, 0) == snapshot(trace, 19)
    assert Telemetry(summarize(trace[:1]), 1, 7, 4) == snapshot(trace, 1)


def test_a_session_that_is_not_finished_has_no_lifetime_yet() -> None:
    assert {"a": (0, 2)} == lifetimes(trace_of(BATCHING, static, Limits(2))[:4])


def test_saturation_is_the_smallest_concurrency_with_the_highest_rate() -> None:
    assert 2 == saturation({1: 1.0, 2: 3.0, 4: 3.0, 8: 2.0})
