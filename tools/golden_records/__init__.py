"""What each family asks, and the specification's answers: the content of golden/data."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from golden_records.cache import cache_records
from golden_records.common import Record
from golden_records.crossover import crossover_records
from golden_records.forward import forward_records
from golden_records.generate import generate_records
from golden_records.metamorphic import metamorphic_records
from golden_records.sampling import sampling_records
from golden_records.serving import batching_records, sweep_records
from golden_records.speculation import speculation_records

FAMILIES: Mapping[str, Callable[[Path], Iterator[Record]]] = {
    "batching": batching_records,
    "sweep": sweep_records,
    "speculation": speculation_records,
    "crossover": crossover_records,
    "forward": forward_records,
    "generate": generate_records,
    "cache": cache_records,
    "sampling": sampling_records,
    "metamorphic": metamorphic_records,
}
