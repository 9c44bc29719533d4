"""What judging costs beside the engine: the protocol's round trip, and the whole corpus against the fast twin."""

import collections
import time
from collections.abc import Sequence
from statistics import median

from reference.conformance.engines import find_engine
from reference.conformance.judge import judge_all
from reference.conformance.records import FAMILIES, Record, find_records
from reference.engine import Engine

QUICK = "forward/draft-one-token"


def harness_table(rounds: int) -> str:
    """Milliseconds a record behind the worker beside the same engine in this process, and seconds for the corpus."""
    records = find_records(FAMILIES)
    (quick,) = [record for record in records if record.id == QUICK]
    names = ("fast", "hosted-fast")
    engines = {name: find_engine(name) for name in names}
    try:
        single = {name: _seconds(engine, [quick], 20 * rounds) for name, engine in engines.items()}
        whole = {name: _seconds(engine, records, rounds) for name, engine in engines.items()}
    finally:
        for engine in engines.values():
            engine.bye()
    overhead = single["hosted-fast"] - single["fast"]
    return "\n".join(
        (
            f"\njudging, the fast twin in this process and behind the worker ({len(records)} records)",
            f"  {QUICK}: {1e3 * single['fast']:.2f} ms and {1e3 * single['hosted-fast']:.2f} ms: "
            f"{1e3 * overhead:.2f} ms of protocol a record",
            f"  the whole corpus: {whole['fast']:.1f} s and {whole['hosted-fast']:.1f} s",
        )
    )


def _seconds(engine: Engine, records: Sequence[Record], rounds: int) -> float:
    """The median over rounds, after one that is not counted: what is read and computed once."""
    seconds = []
    for _ in range(1 + rounds):
        start = time.perf_counter()
        collections.deque(judge_all(engine, records), maxlen=0)
        seconds.append(time.perf_counter() - start)
    return median(seconds[1:])
