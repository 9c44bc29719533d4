"""The serving loop: a policy plans each tick, the loop carries the plan out and writes the trace.

Without a model it only counts, so a schedule of a million requests needs no logits.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from reference.decoding.sampling import greedy
from reference.errors import Refusal
from reference.model.cache import KVCache, empty_cache
from reference.model.transformer import forward
from reference.model.weights import Model
from reference.serving.policies import Limits, Policy
from reference.serving.session import (
    Decode,
    Evict,
    Plan,
    Prefill,
    Request,
    Session,
    Tick,
    Trace,
    WaitingQueue,
    arrival_order,
)

Compute = Callable[[Plan, "Outputs"], "Outputs"]


@dataclass(frozen=True)
class Served:
    """The result of a run: its trace, and the tokens of every request that was not refused."""

    trace: Trace
    tokens: dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Outputs:
    """What the model side remembers between ticks: tokens of the live sessions, KV caches of the hot ones."""

    tokens: dict[str, tuple[int, ...]]  # prompt and output
    caches: dict[str, KVCache]


def serve(
    model: Model, requests: Sequence[Request], policy: Policy, limits: Limits, max_ticks: int | None = None
) -> Served:
    """[SERVE-1] Serves requests greedily under a policy, to the end or for max_ticks; no token depends on the policy.

    Raises: DUPLICATE_ID, REQUEST_INVALID, and what forward raises.
    """
    outputs = Outputs({}, {})
    ticks = []
    finished: dict[str, tuple[int, ...]] = {}
    for plan, tick in schedule(requests, policy, limits):
        if max_ticks is not None and tick.tick >= max_ticks:
            break
        outputs = compute(model, plan, outputs)
        for session_id in tick.finished:
            outputs.caches.pop(session_id, None)
            finished[session_id] = outputs.tokens.pop(session_id)
        ticks.append(tick)
    prompts = {request.id: len(request.prompt) for request in requests}
    known = {**finished, **outputs.tokens}
    return Served(tuple(ticks), {id_: tokens[prompts[id_] :] for id_, tokens in known.items()})


def compute(model: Model, plan: Plan, outputs: Outputs) -> Outputs:
    """[SERVE-2] The forwards of one tick. A decode feeds the tokens its cache lacks: one, or all after a miss."""
    tokens, caches = dict(outputs.tokens), dict(outputs.caches)
    for operation in plan.operations:
        if isinstance(operation, Evict):
            del caches[operation.id]
            continue
        session_id = operation.request.id if isinstance(operation, Prefill) else operation.id
        known = operation.request.prompt if isinstance(operation, Prefill) else tokens[session_id]
        cache = caches.get(session_id, empty_cache(model.config))
        logits, caches[session_id] = forward(model, known[len(cache) :], cache)
        tokens[session_id] = (*known, greedy(logits[-1]))
    return Outputs(tokens, caches)


def schedule(requests: Sequence[Request], policy: Policy, limits: Limits) -> Iterator[tuple[Plan, Tick]]:
    """[SERVE-3] The plan and the trace row of every tick until all requests are finished or refused.

    Ticks in which nothing runs or waits are skipped. Raises: DUPLICATE_ID, REQUEST_INVALID.
    """
    waiting = WaitingQueue(arrival_order(requests))
    running: tuple[Session, ...] = ()
    tick = operation_count = 0
    while True:
        waiting = waiting.arrive(tick)
        if len(waiting) == 0 and len(running) == 0:
            if waiting.next_arrival is None:
                return
            tick = waiting.next_arrival
            continue
        plan = policy(waiting, running, limits)
        assert plan.operations or plan.refused, "a policy must make progress"
        waiting = waiting.take(plan.num_taken)
        sessions, high = carry_out(plan, running, tick, operation_count)
        operation_count += len(plan.operations)
        running = tuple(session for session in sessions if not session.is_finished)
        finished = tuple(session.id for session in sessions if session.is_finished)
        yield plan, trace_row(plan, tick, running, finished, high, len(waiting), sessions)
        tick += 1


def carry_out(
    plan: Plan, running: Sequence[Session], tick: int, operation_count: int
) -> tuple[tuple[Session, ...], int]:
    """The sessions after a plan's operations, and the most KV entries they held at any moment."""
    sessions = {session.id: session for session in running}
    total = high = sum(session.num_cached for session in running)
    for number, operation in enumerate(plan.operations, start=operation_count):
        if isinstance(operation, Prefill):
            request = operation.request
            before = Session(request, tick)
            after = replace(before, num_output=1, num_cached=len(request.prompt), last_used=number)
        elif isinstance(operation, Decode):
            before = sessions[operation.id]
            num_cached = before.num_known + 1
            after = replace(before, num_output=before.num_output + 1, num_cached=num_cached, last_used=number)
        else:
            before = sessions[operation.id]
            after = replace(before, num_cached=0)
        sessions[after.id] = after
        total += after.num_cached - before.num_cached
        high = max(high, total)
    return tuple(sessions.values()), high


def trace_row(
    plan: Plan,
    tick: int,
    running: Sequence[Session],
    finished: tuple[str, ...],
    high: int,
    num_waiting: int,
    sessions: Sequence[Session],
) -> Tick:
    """The trace row of a tick whose plan was carried out."""
    prefills = [operation.request for operation in plan.operations if isinstance(operation, Prefill)]
    decodes = [operation for operation in plan.operations if isinstance(operation, Decode)]
    misses = tuple(operation.id for operation in decodes if operation.is_miss)
    # A miss computes the whole prefix of which a hit would have computed the last token only.
    recomputed = {session.id: session.num_known - 1 for session in sessions} if misses else {}
    refused: dict[str, Refusal] = dict(plan.refused)
    return Tick(
        tick=tick,
        prefilled=tuple(request.id for request in prefills),
        decoded=tuple(operation.id for operation in decodes),
        cache_misses=misses,
        evicted=tuple(operation.id for operation in plan.operations if isinstance(operation, Evict)),
        finished=finished,
        refused=refused,
        prefill_tokens=sum(len(request.prompt) for request in prefills),
        recomputed_tokens=sum(recomputed[session_id] for session_id in misses),
        kv_tokens=sum(session.num_cached for session in running),
        kv_tokens_high=high,
        running=len(running),
        waiting=num_waiting,
    )
