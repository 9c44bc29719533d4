#!/usr/bin/env python3
"""Rewrite docs/tolerances.md: how far correct engines may be from each forward record, and what it catches then.

    python tools/tolerances.py             write it (about a minute)
    python tools/tolerances.py --check     change nothing; exit 1 if it is stale

From the noise of rounded computations (reference/conformance/noise.py) and from golden/kill_matrix.json.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from reference.conformance.artifacts import ROOT, read_json, write_text
from reference.conformance.catalogue import KILL_MATRIX
from reference.conformance.compare import DECISIVE, TOLERANCES
from reference.conformance.evidence import NUMERIC
from reference.conformance.noise import HEADROOM, SEEDS, noise
from reference.conformance.records import Record, find_records
from reference.engine import Precision

PAGE = ROOT / "docs" / "tolerances.md"
PRECISIONS: tuple[Precision, ...] = ("f32", "f16", "bf16")

TEXT = """# Tolerances

Written by `tools/tolerances.py`; do not edit. All numbers are relative to max(1, the largest |logit| of the row).

A correct engine of a precision may be as far from the specification as {headroom:g} times the furthest of {num}
computations of the specification in that precision: with every result rounded, to nearest or by chance (f16,
bf16), or with its sums in other orders, in pairs, in blocks and shuffled (f32); and at least {f32:g} (f32),
{f16:g} (f16), {bf16:g} (bf16). *Tolerance* is that of the record's quietest and of its noisiest position.
*Caught* counts the mutants ([mutants.md](mutants.md)) that the record still catches, of all that it catches in
an exact engine; *smallest* is the smallest deviation among those caught, *missed* the largest among the others.
The gap between tolerance and smallest is what separates right from wrong; a deviation may belong to a quieter
position than the noisiest one.

Where nothing is caught in a precision the record is no core record there ([versions.md](versions.md)); where every
position is noisier than {decisive:g} it is not applicable.

{table}
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 stale."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the page is stale")
    options = parser.parse_args(arguments)
    text = page(read_json(KILL_MATRIX)["mutants"])
    if not options.check:
        write_text(PAGE, text)
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
        print(f"{PAGE.relative_to(ROOT)} is stale; write it with tools/tolerances.py")
        return 1
    return 0


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """The whole file."""
    head = [
        "record",
        *(f"{name} {what}" for name in PRECISIONS for what in ("tolerance", "caught", "smallest", "missed")),
    ]
    lines = [head, ["---"] * len(head), *(line(record, rows) for record in scored_records())]
    return TEXT.format(
        headroom=HEADROOM,
        num=len(SEEDS),
        decisive=DECISIVE,
        table="\n".join("| " + " | ".join(cells) + " |" for cells in lines),
        **{name: TOLERANCES[name] for name in PRECISIONS},
    )


def scored_records() -> list[Record]:
    """The forward records that have logits, and are no refusals."""
    return [record for record in find_records(("forward",)) if "logits" in record.expected]


def line(record: Record, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A row of the table."""
    kills = [row["kills"][record.id] for row in rows if record.id in row["kills"]]
    sized = [(kill, size) for kill in kills if (size := deviation(kill)) is not None]
    cells = [record.id.partition("/")[2]]
    for precision in PRECISIONS:
        positions = record.expected.get("positions", slice(None))
        limits = noise(record.input["model"], tuple(record.input["prompt"]), precision)[positions]
        limits = limits.clip(min=TOLERANCES[precision])
        caught = [size for kill, size in sized if precision in kill]
        missed = [size for kill, size in sized if precision not in kill]
        cells += [
            f"{limits.min():.1g} to {limits.max():.1g}",
            f"{sum(precision in kill for kill in kills)} of {len(kills)}",
            f"{min(caught):.1g}" if caught else "-",
            f"{max(missed):.1g}" if missed else "-",
        ]
    return cells


def deviation(kill: Sequence[str]) -> float | None:
    """The largest deviation of a number; None for a kill by tokens or an error."""
    sizes = [float(word.split()[1]) for word in kill if word.split()[0] in NUMERIC and " " in word]
    return max(sizes, default=None)


if __name__ == "__main__":
    sys.exit(main())
