"""What judging costs beside the engine: the whole corpus against the fast twin, in this process and hosted."""

import collections
import time
from collections.abc import Sequence
from statistics import median

from reference.conformance.engines import find_engine
from reference.conformance.judge import judge_all
from reference.conformance.records import FAMILIES, Record, find_records
from reference.engine import Engine

ENGINES = ("fast", "hosted-fast")


def harness_table(rounds: int) -> str:
    """Seconds for the corpus in this process and behind the worker; the difference is the protocol's."""
    records = find_records(FAMILIES)
    engines = [find_engine(name) for name in ENGINES]
    samples: list[list[float]] = [[] for _ in engines]
    try:
        for number in range(1 + rounds):
            for engine, seconds in zip(engines, samples, strict=True):
                elapsed = _seconds(engine, records)
                if number > 0:  # the first round reads the corpus and starts the worker
                    seconds.append(elapsed)
    finally:
        for engine in engines:
            engine.bye()
    in_process, hosted = map(median, samples)
    overhead = (hosted - in_process) / len(records)
    return "\n".join(
        (
            f"\njudging the fast twin by {len(records)} records",
            f"  in this process    {in_process:6.1f} s",
            f"  behind the worker  {hosted:6.1f} s: {1e3 * overhead:.1f} ms of protocol a record",
        )
    )


def _seconds(engine: Engine, records: Sequence[Record]) -> float:
    start = time.perf_counter()
    collections.deque(judge_all(engine, records), maxlen=0)
    return time.perf_counter() - start
