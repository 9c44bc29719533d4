"""The cost of plain and speculative decoding."""

from collections.abc import Iterator
from pathlib import Path

from golden_records.common import Record, record
from reference.conformance.experiments import (
    CROSSOVER_ALPHAS,
    CROSSOVER_BATCHES,
    CROSSOVER_GAMMA,
    DRAFT_COST,
    TARGET_COST,
)
from reference.serving.cost_model import ForwardCost, crossover


def crossover_records(_models: Path) -> Iterator[Record]:
    flat = ForwardCost(10.0, 0.0, 0)
    cases = {
        "recorded": (CROSSOVER_BATCHES, CROSSOVER_GAMMA, CROSSOVER_ALPHAS, TARGET_COST, DRAFT_COST),
        "edges": ((31, 32, 33), 1, (0.0, 0.5, 1.0), TARGET_COST, DRAFT_COST),
        "free-draft": ((1, 7), 3, (0.5,), flat, ForwardCost(0.0, 0.0, 1)),
    }
    for label, (batch_sizes, gamma, alphas, target, draft) in cases.items():
        rows = [crossover(batch_size, gamma, alphas, target, draft) for batch_size in batch_sizes]
        asked = {"batch_sizes": batch_sizes, "gamma": gamma, "alphas": alphas, "target": target, "draft": draft}
        catches = "expected tokens without the bonus, or a verification priced as one token a session"
        rules = ["COST-1", "COST-2", "SPEC-8"]
        yield record(f"crossover/{label}", rules, catches, asked, {"rows": rows})
