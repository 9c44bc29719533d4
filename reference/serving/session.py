"""What a scheduler knows: requests, sessions, the waiting queue and the plan of a tick. Counts, never logits.

A tick is one iteration of the serving loop. Intervals are half-open: a session is active in [admitted, finished).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from reference.errors import Refusal, RefusedError

NO_REFUSALS: Mapping[str, Refusal] = {}


@dataclass(frozen=True)
class Request:
    """What a client asked. Immutable."""

    id: str
    arrival: int  # tick
    prompt: tuple[int, ...]
    max_tokens: int

    @property
    def max_cached(self) -> int:
        """Entries the session's KV cache grows to: the last token's keys and values are never computed."""
        return len(self.prompt) + self.max_tokens - 1


@dataclass(frozen=True)
class Session:
    """A request being served."""

    request: Request
    admitted: int  # tick
    num_output: int = 0
    num_cached: int = 0  # entries in its KV cache; 0 once evicted
    last_used: int = -1  # number of the operation that last touched its KV cache

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def num_known(self) -> int:
        """Tokens whose keys and values a forward over the whole prefix would compute, but for the pending one."""
        return len(self.request.prompt) + self.num_output - 1

    @property
    def is_finished(self) -> bool:
        return self.num_output >= self.request.max_tokens


@dataclass(frozen=True)
class Prefill:
    """Compute a whole prompt, which yields the session's first token."""

    request: Request


@dataclass(frozen=True)
class Decode:
    """One token for a running session; `is_miss` when its KV was evicted and the prefix is computed again."""

    id: str
    is_miss: bool = False


@dataclass(frozen=True)
class Evict:
    """A running session's KV cache loses its content; the session stays running."""

    id: str


Operation = Prefill | Decode | Evict


@dataclass(frozen=True)
class Plan:
    """What a policy decides for a tick: requests refused, then operations in order."""

    operations: tuple[Operation, ...] = ()
    refused: Mapping[str, Refusal] = field(default_factory=lambda: NO_REFUSALS)
    num_taken: int = 0  # requests that leave the front of the waiting queue, admitted or refused


@dataclass(frozen=True)
class WaitingQueue:
    """Requests that arrived and were not taken, first come first served: a window on all requests in arrival order.

    Taking from the front moves the window, so a tick costs what it takes and not the length of the queue.
    """

    requests: Sequence[Request]  # sorted by arrival
    start: int = 0
    end: int = 0

    def __len__(self) -> int:
        return self.end - self.start

    def __iter__(self) -> Iterator[Request]:
        return (self.requests[index] for index in range(self.start, self.end))

    def arrive(self, tick: int) -> "WaitingQueue":
        """The queue once every request with arrival <= tick is in it."""
        end = self.end
        while end < len(self.requests) and self.requests[end].arrival <= tick:
            end += 1
        return WaitingQueue(self.requests, self.start, end)

    def take(self, num_requests: int) -> "WaitingQueue":
        """The queue without its first requests."""
        return WaitingQueue(self.requests, self.start + num_requests, self.end)

    @property
    def next_arrival(self) -> int | None:
        """Tick of the next request that has not arrived, or None."""
        return self.requests[self.end].arrival if self.end < len(self.requests) else None


@dataclass(frozen=True)
class Tick:
    """What happened in one tick: a row of the trace."""

    tick: int
    prefilled: tuple[str, ...]
    decoded: tuple[str, ...]  # the decode batch
    cache_misses: tuple[str, ...]  # the part of it whose prefix was computed again
    evicted: tuple[str, ...]
    finished: tuple[str, ...]
    refused: Mapping[str, Refusal]
    prefill_tokens: int  # prompt tokens of sessions prefilled in this tick
    recomputed_tokens: int  # tokens computed again because of cache misses
    kv_tokens: int  # KV entries of live sessions at the end of the tick
    kv_tokens_high: int  # the most KV entries at any moment of the tick
    running: int  # live sessions at the end of the tick
    waiting: int  # queue depth at the end of the tick


Trace = tuple[Tick, ...]

KvPressure = Literal["queue", "evict"]


def arrival_order(requests: Sequence[Request]) -> tuple[Request, ...]:
    """Requests by arrival, ties in the order given. Raises: DUPLICATE_ID, REQUEST_INVALID."""
    seen: set[str] = set()
    for request in requests:
        if request.id in seen:
            raise RefusedError(Refusal.DUPLICATE_ID, f"two requests have the id {request.id!r}")
        seen.add(request.id)
        if request.arrival < 0 or request.max_tokens < 1 or len(request.prompt) == 0:
            sentence = f"request {request.id!r} needs arrival >= 0, max_tokens >= 1 and a prompt"
            raise RefusedError(Refusal.REQUEST_INVALID, sentence)
    return tuple(sorted(requests, key=lambda request: request.arrival))
