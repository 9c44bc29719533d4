"""Which session is computed when: pure functions (waiting, running, limits) -> Plan.

Policies see counts and never tokens or logits. The cost of a plan grows with what it schedules, not with the queue.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reference.errors import Refusal, RefusedError
from reference.serving.session import (
    Decode,
    Evict,
    KvPressure,
    Operation,
    Plan,
    Prefill,
    Request,
    Session,
    WaitingQueue,
)


@dataclass(frozen=True)
class Limits:
    """What a policy must respect. None means unlimited."""

    capacity: int  # concurrently live sessions
    prefill_token_budget: int | None = None  # prompt tokens a tick
    scratch_units: int | None = None  # each live session holds one
    kv_budget_bytes: int | None = None  # KV caches of all live sessions
    kv_bytes_per_token: int = 1
    kv_pressure: KvPressure = "queue"

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise RefusedError(Refusal.CAPACITY_NOT_POSITIVE, "positive capacity required")
        for name in ("prefill_token_budget", "scratch_units", "kv_budget_bytes", "kv_bytes_per_token"):
            limit = getattr(self, name)
            if limit is not None and limit < 1:
                raise RefusedError(Refusal.LIMIT_NOT_POSITIVE, f"{name} is {limit}; at least 1 is needed")

    @property
    def kv_budget_tokens(self) -> int | None:
        """KV entries of all live sessions: a part of an entry is none."""
        return None if self.kv_budget_bytes is None else self.kv_budget_bytes // self.kv_bytes_per_token

    @property
    def max_running(self) -> int:
        """Live sessions allowed by capacity and by scratch units."""
        return self.capacity if self.scratch_units is None else min(self.capacity, self.scratch_units)


Policy = Callable[[WaitingQueue, Sequence[Session], Limits], Plan]


def static(waiting: WaitingQueue, running: Sequence[Session], limits: Limits) -> Plan:
    """[SCHED-1] A fixed batch: no admission until all of the last batch have finished (FasterTransformer).

    Raises: LIMIT_UNKNOWN for a budget.
    """
    _refuse_budgets("static", limits)
    if len(running) > 0:
        return Plan(tuple(Decode(session.id) for session in running))
    return continuous(waiting, running, limits)


def continuous(waiting: WaitingQueue, running: Sequence[Session], limits: Limits) -> Plan:
    """[SCHED-2] Free slots are filled in arrival order before each tick (Yu et al. 2022, Orca, Algorithm 1).

    Every live session gets one token a tick, a new one by its prefill. Raises: LIMIT_UNKNOWN for a budget.
    """
    _refuse_budgets("continuous", limits)
    decodes = tuple(Decode(session.id) for session in running)
    free = limits.max_running - len(running)
    prefills = tuple(Prefill(request) for _, request in zip(range(free), waiting, strict=False))
    return Plan(decodes + prefills, num_taken=len(prefills))


def budgeted(waiting: WaitingQueue, running: Sequence[Session], limits: Limits) -> Plan:
    """[SCHED-3] The tick of the concurrency sweep: admit and prefill within the budgets, then decode the others.

    Requests are taken in arrival order. The first that does not fit now waits, and with it all behind it; one that
    can never fit is refused. A session prefilled in this tick decodes from the next one on.
    """
    taken = 0
    prefills: list[Prefill] = []
    refused: dict[str, Refusal] = {}
    prompt_tokens = 0
    reserved = sum(session.request.max_cached for session in running)
    for request in waiting:
        reason = never_fits(request, limits)
        if reason is not None:
            refused[request.id] = reason
            taken += 1
            continue
        prompt_tokens += len(request.prompt)
        reserved += request.max_cached
        if len(running) + len(prefills) >= limits.max_running or not _fits_now(prompt_tokens, reserved, limits):
            break
        prefills.append(Prefill(request))
        taken += 1
    operations: tuple[Operation, ...] = (*prefills, *(Decode(session.id) for session in running))
    if limits.kv_budget_tokens is not None and limits.kv_pressure == "evict":
        operations = make_room(operations, running, limits.kv_budget_tokens)
    return Plan(operations, refused, taken)


def never_fits(request: Request, limits: Limits) -> Refusal | None:
    """[SCHED-4] Why a request can never be served alone, or None."""
    budget = limits.prefill_token_budget
    if budget is not None and len(request.prompt) > budget:
        return Refusal.PROMPT_EXCEEDS_TOKEN_BUDGET
    if limits.kv_budget_tokens is not None and request.max_cached > limits.kv_budget_tokens:
        return Refusal.KV_EXCEEDS_BUDGET
    return None


def make_room(operations: Sequence[Operation], running: Sequence[Session], budget: int) -> tuple[Operation, ...]:
    """[SCHED-5] The operations with an Evict before each that would not fit: hot KV, least recently used first.

    A decode adds one entry. On an evicted session it is a cache miss, and all its entries are computed again.
    """
    hot = {session.id: session.num_cached for session in sorted(running, key=lambda session: session.last_used)}
    known = {session.id: session.num_known for session in running}
    hot = {session_id: num_cached for session_id, num_cached in hot.items() if num_cached > 0}
    total = sum(hot.values())
    planned: list[Operation] = []
    for operation in operations:
        session_id = operation.request.id if isinstance(operation, Prefill) else operation.id
        held = hot.pop(session_id, 0)
        needed = len(operation.request.prompt) if isinstance(operation, Prefill) else known[session_id] + 1
        total += needed - held
        # A dict keeps the order of insertion, and touching a session moves it to the end.
        while total > budget:
            coldest = next(iter(hot))
            total -= hot.pop(coldest)
            planned.append(Evict(coldest))
        hot[session_id] = needed
        is_miss = isinstance(operation, Decode) and held == 0
        planned.append(Decode(session_id, is_miss=True) if is_miss else operation)
    return tuple(planned)


def _refuse_budgets(policy: str, limits: Limits) -> None:
    for name in ("prefill_token_budget", "kv_budget_bytes"):
        if getattr(limits, name) is not None:
            raise RefusedError(Refusal.LIMIT_UNKNOWN, f"the policy {policy} has no {name}; budgeted has")


def _fits_now(prompt_tokens: int, reserved: int, limits: Limits) -> bool:
    """Whether this tick's prompt tokens and, where KV is reserved, everybody's final KV are within the budgets."""
    if limits.prefill_token_budget is not None and prompt_tokens > limits.prefill_token_budget:
        return False
    is_reserved = limits.kv_budget_tokens is not None and limits.kv_pressure == "queue"
    return not is_reserved or reserved <= (limits.kv_budget_tokens or 0)
