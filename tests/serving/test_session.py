from dataclasses import replace

import pytest

from reference.errors import Refusal, RefusedError
from reference.serving.session import Request, Session, WaitingQueue, arrival_order

EARLY, LATE, TIED = Request("early", 0, (1,), 1), Request("late", 5, (1,), 1), Request("tied", 0, (2,), 1)


def test_requests_are_ordered_by_arrival_and_ties_keep_their_order() -> None:
    assert (EARLY, TIED, LATE) == arrival_order([LATE, EARLY, TIED])


def test_two_requests_with_one_id_are_refused() -> None:
    with pytest.raises(RefusedError, match="two requests have the id 'early'") as caught:
        arrival_order([EARLY, EARLY])

    assert Refusal.DUPLICATE_ID == caught.value.reason


@pytest.mark.parametrize(
    "request_", [Request("x", -1, (1,), 1), Request("x", 0, (), 1), Request("x", 0, (1,), 0)], ids=str
)
def test_a_request_that_cannot_be_served_is_refused(request_: Request) -> None:
    with pytest.raises(RefusedError) as caught:
        arrival_order([request_])

    assert Refusal.REQUEST_INVALID == caught.value.reason


def test_the_queue_holds_what_arrived_and_was_not_taken() -> None:
    queue = WaitingQueue((EARLY, TIED, LATE)).arrive(4)

    assert ([EARLY, TIED], 2, 5) == (list(queue), len(queue), queue.next_arrival)
    assert [TIED, LATE] == list(queue.take(1).arrive(5))
    assert queue.arrive(5).next_arrival is None
    assert [EARLY, TIED] == list(queue)


def test_a_tick_that_passes_several_arrivals_lets_all_of_them_in() -> None:
    """Arrivals at 0, 0 and 5: at tick 9 the queue holds three, and taking all leaves an empty one."""
    queue = WaitingQueue((EARLY, TIED, LATE)).arrive(9)

    assert WaitingQueue((EARLY, TIED, LATE), 0, 3) == queue
    assert ([], 0, None) == (list(queue.take(3)), len(queue.take(3)), queue.take(3).next_arrival)


def test_no_requests_are_an_empty_queue() -> None:
    assert () == arrival_order([])
    assert (0, None) == (len(WaitingQueue(()).arrive(3)), WaitingQueue(()).next_arrival)


def test_a_session_knows_all_its_tokens_but_the_pending_one() -> None:
    """3 prompt and 2 output tokens: the second output token has not been fed yet, 4 have."""
    session = Session(Request("x", 0, (1, 2, 3), 3), admitted=0, num_output=2)

    assert (4, False) == (session.num_known, session.is_finished)
    assert replace(session, num_output=3).is_finished


def test_the_last_token_never_enters_the_cache() -> None:
    """4 prompt and 8 output tokens leave 11 entries."""
    assert 11 == Request("x", 0, (1, 2, 3, 4), 8).max_cached
