from typing import Any

import pytest

from reference.errors import Refusal, RefusedError
from reference.serving.policies import Limits, budgeted, continuous, make_room, never_fits, static
from reference.serving.session import Decode, Evict, Plan, Prefill, Request, Session, WaitingQueue

A, B, C = (Request(name, 0, (1, 2, 3), 4) for name in "abc")
RUNNING_A = Session(A, admitted=0, num_output=1, num_cached=3, last_used=0)
RUNNING_B = Session(B, admitted=0, num_output=1, num_cached=3, last_used=1)


def queue(*requests: Request) -> WaitingQueue:
    return WaitingQueue(requests).arrive(0)


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_capacity_below_one_is_refused(capacity: int) -> None:
    with pytest.raises(RefusedError, match=r"^positive capacity required$") as caught:
        Limits(capacity)

    assert Refusal.CAPACITY_NOT_POSITIVE == caught.value.reason


@pytest.mark.parametrize("name", ["prefill_token_budget", "scratch_units", "kv_budget_bytes"])
def test_a_budget_below_one_is_refused(name: str) -> None:
    with pytest.raises(RefusedError, match=f"{name} is 0") as caught:
        Limits(1, **{name: 0})

    assert Refusal.LIMIT_NOT_POSITIVE == caught.value.reason


def test_static_admits_nothing_beside_a_running_session() -> None:
    assert Plan((Decode("a"),)) == static(queue(B, C), [RUNNING_A], Limits(3))
    assert Plan((Prefill(B), Prefill(C)), num_taken=2) == static(queue(B, C), [], Limits(3))


def test_continuous_fills_free_slots() -> None:
    assert Plan((Decode("a"), Prefill(B)), num_taken=1) == continuous(queue(B, C), [RUNNING_A], Limits(2))


def test_scratch_units_limit_live_sessions_like_capacity() -> None:
    assert Plan((Prefill(A),), num_taken=1) == continuous(queue(A, B), [], Limits(5, scratch_units=1))


def test_budgeted_prefills_whole_prompts_within_the_tick_budget() -> None:
    """Budget 5 holds one prompt of 3, not two: b waits, and c behind it."""
    assert Plan((Prefill(A),), num_taken=1) == budgeted(queue(A, B, C), [], Limits(3, prefill_token_budget=5))


def test_what_can_never_fit_is_refused_and_the_next_is_admitted() -> None:
    long, grown = Request("long", 0, (1,) * 6, 1), Request("grown", 0, (1,), 20)
    limits = Limits(3, prefill_token_budget=5, kv_budget_bytes=10)
    expected = Plan(
        (Prefill(A),),
        {"long": Refusal.PROMPT_EXCEEDS_TOKEN_BUDGET, "grown": Refusal.KV_EXCEEDS_BUDGET},
        num_taken=3,
    )

    assert expected == budgeted(queue(long, grown, A), [], limits)
    assert never_fits(A, limits) is None


def test_kv_is_reserved_to_the_end_of_a_session() -> None:
    """a grows to 3 + 4 - 1 = 6 entries; a budget of 11 does not hold another 6, one of 12 does."""
    held = Limits(3, kv_budget_bytes=11)
    free = Limits(3, kv_budget_bytes=12)

    assert Plan((Decode("a"),)) == budgeted(queue(B), [RUNNING_A], held)
    assert Plan((Prefill(B), Decode("a")), num_taken=1) == budgeted(queue(B), [RUNNING_A], free)


def test_the_least_recently_used_session_is_evicted_and_misses() -> None:
    """Budget 7; a (older) and b hold 3 each. a's decode needs 4, and 7 fit; b's needs 4 too, so a goes."""
    expected = (Decode("a"), Evict("a"), Decode("b"))

    assert expected == make_room((Decode("a"), Decode("b")), [RUNNING_A, RUNNING_B], 7)

    evicted = Session(A, admitted=0, num_output=2, num_cached=0, last_used=2)
    hot = Session(B, admitted=0, num_output=2, num_cached=4, last_used=3)
    # a's prefix is 3 + 2 - 1 = 4 tokens and one more is decoded: 5 entries beside b's 4 exceed 7.
    assert (Evict("b"), Decode("a", is_miss=True)) == make_room((Decode("a"),), [evicted, hot], 7)


def test_under_eviction_admission_does_not_reserve() -> None:
    limits = Limits(3, kv_budget_bytes=7, kv_pressure="evict")
    expected = Plan((Prefill(B), Decode("a")), num_taken=1)

    assert expected == budgeted(queue(B), [RUNNING_A], limits)


def test_a_full_machine_admits_nobody() -> None:
    for policy in (continuous, budgeted):
        assert Plan((Decode("a"),)) == policy(queue(B), [RUNNING_A], Limits(1))


def test_the_stricter_of_capacity_and_scratch_units_holds() -> None:
    assert (3, 2, 2) == (
        Limits(3).max_running,
        Limits(3, scratch_units=2).max_running,
        Limits(2, scratch_units=3).max_running,
    )
    assert Plan((Prefill(B), Decode("a")), num_taken=1) == budgeted(
        queue(B, C), [RUNNING_A], Limits(5, scratch_units=2)
    )


def test_several_prompts_that_fill_the_budget_exactly_are_prefilled() -> None:
    assert Plan((Prefill(A), Prefill(B)), num_taken=2) == budgeted(
        queue(A, B, C), [], Limits(3, prefill_token_budget=6)
    )


def test_the_first_that_does_not_fit_now_holds_up_smaller_ones() -> None:
    """Of 5 prompt tokens a takes 3; b (3) waits, and so does the one of 1 token behind it, which would fit."""
    small = Request("small", 0, (1,), 1)

    assert Plan((Prefill(A),), num_taken=1) == budgeted(queue(A, B, small), [], Limits(3, prefill_token_budget=5))
    # Here a grows to 6 of 11 entries; the 5 left do not hold b's 6, though they would hold the small one's 1.
    assert Plan((Prefill(A),), num_taken=1) == budgeted(queue(A, B, small), [], Limits(3, kv_budget_bytes=11))


def test_behind_one_that_waits_nobody_is_refused_yet() -> None:
    """The request that can never fit is looked at when its turn has come."""
    long = Request("long", 0, (1,) * 6, 1)

    assert Plan((Prefill(A),), num_taken=1) == budgeted(queue(A, B, long), [], Limits(3, prefill_token_budget=5))


def test_a_request_beyond_both_budgets_is_refused_for_its_prompt() -> None:
    long = Request("long", 0, (1,) * 6, 1)
    limits = Limits(1, prefill_token_budget=5, kv_budget_bytes=5)

    assert Refusal.PROMPT_EXCEEDS_TOKEN_BUDGET == never_fits(long, limits)
    assert Refusal.KV_EXCEEDS_BUDGET == never_fits(long, Limits(1, kv_budget_bytes=5))


@pytest.mark.parametrize("kv_pressure", ["queue", "evict"])
def test_a_session_that_fills_the_kv_budget_alone_fits(kv_pressure: Any) -> None:
    """a grows to 3 + 4 - 1 = 6 entries."""
    full, short = (Limits(1, kv_budget_bytes=size, kv_pressure=kv_pressure) for size in (6, 5))

    assert Plan((Prefill(A),), num_taken=1) == budgeted(queue(A), [], full)
    assert Plan((), {"a": Refusal.KV_EXCEEDS_BUDGET}, 1) == budgeted(queue(A), [], short)


def test_a_refused_request_takes_no_slot_and_no_budget() -> None:
    grown = Request("grown", 0, (1, 2), 20)
    limits = Limits(1, prefill_token_budget=3, kv_budget_bytes=6)

    assert Plan((Prefill(A),), {"grown": Refusal.KV_EXCEEDS_BUDGET}, 2) == budgeted(queue(grown, A), [], limits)


def test_a_prefill_evicts_in_order_of_last_use_and_not_of_admission() -> None:
    """Budget 10; b (used by operation 4), c (6) and a (7) hold 3 each. A prompt of 5 needs two of them to go."""
    running = [
        Session(A, admitted=0, num_output=1, num_cached=3, last_used=7),
        Session(B, admitted=1, num_output=1, num_cached=3, last_used=4),
        Session(C, admitted=2, num_output=1, num_cached=3, last_used=6),
    ]
    long = Request("long", 3, (1,) * 5, 1)

    assert (Evict("b"), Evict("c"), Prefill(long)) == make_room((Prefill(long),), running, 10)
    # 9 + 5 - 3 = 11 entries.
    assert (Evict("b"), Prefill(long)) == make_room((Prefill(long),), running, 11)


def test_a_session_touched_in_this_tick_is_the_last_to_go() -> None:
    """Budget 8, a, b and c hold 2, 2 and 3: a's decode (3) fits; b's (3) makes 9, and the coldest is now c."""
    running = [
        Session(Request("a", 0, (1, 2), 9), admitted=0, num_output=1, num_cached=2, last_used=0),
        Session(Request("b", 0, (1, 2), 9), admitted=0, num_output=1, num_cached=2, last_used=1),
        Session(C, admitted=0, num_output=1, num_cached=3, last_used=2),
    ]

    assert (Decode("a"), Evict("c"), Decode("b")) == make_room((Decode("a"), Decode("b")), running, 8)


def test_a_session_evicted_before_its_turn_misses_in_the_same_tick() -> None:
    """Budget 6: a's and b's 3 entries fill it. a's fourth sends b out, whose prefix of 4 then sends a out."""
    expected = (Evict("b"), Decode("a"), Evict("a"), Decode("b", is_miss=True))

    assert expected == make_room((Decode("a"), Decode("b")), [RUNNING_A, RUNNING_B], 6)


def test_what_fits_exactly_evicts_nobody() -> None:
    decodes = (Decode("a"), Decode("b"))

    assert decodes == make_room(decodes, [RUNNING_A, RUNNING_B], 8)
