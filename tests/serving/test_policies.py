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


@pytest.mark.parametrize("name", ["prefill_token_budget", "scratch_units", "kv_budget_tokens"])
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
    limits = Limits(3, prefill_token_budget=5, kv_budget_tokens=10)
    expected = Plan(
        (Prefill(A),),
        {"long": Refusal.PROMPT_EXCEEDS_TOKEN_BUDGET, "grown": Refusal.KV_EXCEEDS_BUDGET},
        num_taken=3,
    )

    assert expected == budgeted(queue(long, grown, A), [], limits)
    assert never_fits(A, limits) is None


def test_kv_is_reserved_to_the_end_of_a_session() -> None:
    """a grows to 3 + 4 - 1 = 6 entries; a budget of 11 does not hold another 6, one of 12 does."""
    held = Limits(3, kv_budget_tokens=11)
    free = Limits(3, kv_budget_tokens=12)

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
    limits = Limits(3, kv_budget_tokens=7, kv_pressure="evict")
    expected = Plan((Prefill(B), Decode("a")), num_taken=1)

    assert expected == budgeted(queue(B), [RUNNING_A], limits)
