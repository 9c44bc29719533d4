"""Markdown: the matrix of verdicts, and the summary of a run for a pull request."""

import re
from collections.abc import Sequence
from typing import Any

from reference.conformance.report.counts import ALL, Row, counts, failed, families_of

MOST_FAILURES = 20
MOST_ADDRESSES = 5


def summary(report: Row) -> str:
    """The matrix, then the gravest failures. Strings of engines are code, in which Markdown and HTML mean nothing."""
    engines = report["engines"]
    conformant = sum(engine["is_conformant"] for engine in engines)
    failures = [(engine, record) for engine in engines for record in failed(engine)]
    lines = [f"## Conformance: {conformant} of {len(engines)} engines conform", "", *matrix(engines), ""]
    if failures:
        lines += [f"### Failures: {len(failures)}", ""]
        lines += [_failure(engine, record) for engine, record in failures[:MOST_FAILURES]]
        if len(failures) > MOST_FAILURES:
            lines.append(f"- and {len(failures) - MOST_FAILURES} more, in report.html")
        lines += [_diagnosis(engine) for engine in engines if engine["diagnosis"] is not None]
        lines += ["", f"The first one again: {code(failures[0][1]['command'])}", ""]
    corpus, versions = report["corpus"], report["versions"]
    lines.append(
        f"Corpus {corpus['version']}, digest {code(corpus['digest'][:12])}; Golden Llama {versions['golden_llama']}, "
        f"Python {versions['python']}, numpy {versions['numpy']}, {report['platform']}."
    )
    return "\n".join(lines) + "\n"


def matrix(engines: Sequence[Row]) -> list[str]:
    """Lines of a table: one row an engine, one column a family, counts of verdicts in the cells."""
    families = families_of(engines)
    lines = [_line(["engine", "version", "dtype", *families, ALL]), _line(["---"] * (len(families) + 4))]
    for engine in engines:
        named = [code(engine["engine"]), code(f"{engine['name']} {engine['version']}"), engine["dtype"]]
        lines.append(_line([*named, *(cell(engine, family) for family in [*families, ALL])]))
    return lines


def cell(engine: Row, family: str) -> str:
    """ "36", or "2 fail, 34 pass"; "-" where no record was asked."""
    given = counts(engine, family)
    if list(given) == ["pass"]:
        return str(given["pass"])
    return ", ".join(f"{number} {verdict}" for verdict, number in given.items()) or "-"


def code(text: str) -> str:
    """A code span that shows exactly this text on one line, fenced by more backticks than it has in a row."""
    line = " ".join(text.split()) or " "
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    space = " " if "`" in (line[0], line[-1]) else ""
    return f"{fence}{space}{line}{space}{fence}"


def _line(cells: Sequence[Any]) -> str:
    """A row of a table, in which a bar of a cell, even of code, is written with a backslash."""
    return "| " + " | ".join(str(one).replace("|", "\\|") for one in cells) + " |"


def _failure(engine: Row, record: Row) -> str:
    return f"- **{record['verdict']}** {code(record['id'])} by {code(engine['engine'])}: {code(record['sentence'])}"


def _diagnosis(engine: Row) -> str:
    best = engine["diagnosis"]["best"]
    if best is None:
        return f"- {code(engine['engine'])} behaves like none of the known defects"
    addresses = [address for defect in best["defects"] for address in defect["reports"]]
    seen = f" Seen before: {', '.join(addresses[:MOST_ADDRESSES])}" if addresses else ""
    return f"- {code(engine['engine'])} behaves like: {best['sentence']}.{seen}"
