"""How often each verdict was given: the matrix of engines against families, as HTML and Markdown show it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

SEVERITY = (
    *("fail", "harness_error", "timeout", "xpass", "near_tie", "xfail", "unsupported", "not_applicable", "pass"),
)
"""Verdicts, those that need attention first."""

FAILED = frozenset({"fail", "harness_error", "timeout", "xpass"})

ALL = "all"

Row = Mapping[str, Any]


def families_of(engines: Iterable[Row]) -> list[str]:
    """The families of all records, sorted."""
    return sorted({record["family"] for engine in engines for record in engine["records"]})


def counts(engine: Row, family: str = ALL) -> dict[str, int]:
    """Verdict -> how many records of a family, those that need attention first."""
    given = Counter(record["verdict"] for record in engine["records"] if family in (ALL, record["family"]))
    return {verdict: given[verdict] for verdict in SEVERITY if given[verdict] > 0}


def by_severity(records: Sequence[Row]) -> list[Row]:
    """Failures first, else in their order."""
    return sorted(records, key=lambda record: SEVERITY.index(record["verdict"]))


def failed(engine: Row) -> list[Row]:
    """The records that count as failures, the gravest first."""
    return [record for record in by_severity(engine["records"]) if record["verdict"] in FAILED]
