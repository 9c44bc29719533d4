"""Small workloads, and what a schedule of them gives."""

from collections.abc import Sequence

from reference.serving.loop import schedule
from reference.serving.policies import Limits, Policy
from reference.serving.session import Request, Trace

BATCHING = (Request("a", 0, (58, 36), 2), Request("b", 0, (61, 36), 5), Request("c", 0, (6, 39, 36), 1))
SWEEP = tuple(Request(f"s{n}", 0, (1, 2, 3, 4), 8) for n in range(8))


def trace_of(requests: Sequence[Request], policy: Policy, limits: Limits) -> Trace:
    return tuple(row for _, row in schedule(requests, policy, limits))
