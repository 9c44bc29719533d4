#!/usr/bin/env python3
"""Rewrite docs/mutants.md: what the kill matrix says of the corpus.

    python tools/mutants_page.py             write it
    python tools/mutants_page.py --check     change nothing; exit 1 if it is stale

Exit 1, too, if a mutant survives, or a record kills no mutant that an earlier record of its family spares and
tests/mutants/stays.json does not say why it stays.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from reference.conformance.artifacts import ROOT, read_json, write_text
from reference.conformance.catalogue import KILL_MATRIX
from reference.conformance.report.markdown import code

PAGE = ROOT / "docs" / "mutants.md"
REPORTS, STAYS = ROOT / "tests" / "mutants" / "reports", ROOT / "tests" / "mutants" / "stays.json"
ROUNDED = ("f32", "f16", "bf16")
WAITS = "waits for"

TEXT = """# Mutants

Written by `tools/mutants_page.py` from the kill matrix (`golden/kill_matrix.json`); do not edit. A mutant is a
correct implementation with a defect, nearly always one that a public report of a real engine describes
([table](../tests/mutants/table/), [reports](../tests/mutants/reports/)). It is killed if a record fails. The columns
f32, f16 and bf16 count the mutants that a record also catches in an engine of that precision.

```
{summary}
```

| area | mutants | killed | f32 | f16 | bf16 | reports in scope | with a mutant |
|---|---|---|---|---|---|---|---|
{areas}

Not to be seen in float32, by the noise of a correct engine: {unseen}.

## Reports without a mutant

{left}

{waiting} further reports wait for the specification of what they are about; `tests/mutants/reports/later.json` has
them one by one.

## Records that kill nothing new

Each of these kills no mutant that an earlier record of its family spares. They stay because:

{stays}
"""


@dataclass(frozen=True)
class Summary:
    """The numbers of the page."""

    mutants: int
    survivors: tuple[str, ...]
    covered: int
    in_scope: int
    old_news: Mapping[str, tuple[str, ...]]  # reason -> records that kill nothing new
    unexplained: tuple[str, ...]

    def lines(self) -> str:
        """For a person; the last two numbers must be 0."""
        explained = sum(map(len, self.old_news.values()))
        return "\n".join(
            (
                f"mutants                                {self.mutants:5d}",
                f"killed                                 {self.mutants - len(self.survivors):5d}",
                f"survivors                              {len(self.survivors):5d}",
                f"reports with a mutant                  {self.covered:5d} of {self.in_scope} in scope",
                f"records that kill nothing new          {explained + len(self.unexplained):5d}",
                f"of these unexplained                   {len(self.unexplained):5d}",
            )
        )

    @property
    def is_good(self) -> bool:
        return not self.survivors and not self.unexplained


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 stale, a survivor or an unexplained record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the page is stale")
    options = parser.parse_args(arguments)
    matrix, reports = read_json(KILL_MATRIX), read_reports()
    found = summarise(matrix, reports)
    text = page(matrix, reports, found)
    print(found.lines())
    print(*found.survivors, *found.unexplained, sep="\n")
    if not options.check:
        write_text(PAGE, text)
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
        print(f"{PAGE.relative_to(ROOT)} is stale; write it with tools/mutants_page.py")
        return 1
    return 0 if found.is_good else 1


def read_reports() -> list[dict[str, Any]]:
    """Every report of the table."""
    return [report for path in sorted(REPORTS.glob("*.json")) for report in read_json(path)]


def summarise(matrix: Mapping[str, Any], reports: Sequence[Mapping[str, Any]]) -> Summary:
    """The numbers of the page."""
    rows = matrix["mutants"]
    reasons = read_json(STAYS)
    old_news: dict[str, list[str]] = {}
    unexplained = []
    for record in kill_nothing_new(matrix["records"], rows):
        reason = next((reasons[pattern] for pattern in reasons if fnmatchcase(record, pattern)), None)
        if reason is None:
            unexplained.append(record)
        else:
            old_news.setdefault(reason, []).append(record)
    in_scope = [report for report in reports if not report.get("left", "").startswith(WAITS)]
    return Summary(
        mutants=len(rows),
        survivors=tuple(row["id"] for row in rows if not row["kills"]),
        covered=sum(bool(report.get("mutants")) for report in in_scope),
        in_scope=len(in_scope),
        old_news={reason: tuple(records) for reason, records in old_news.items()},
        unexplained=tuple(unexplained),
    )


def kill_nothing_new(records: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Records whose mutants are all killed by earlier records of their family."""
    killed: dict[str, set[str]] = {}
    found = []
    for record in records:
        before = killed.setdefault(record.partition("/")[0], set())
        kills = {row["id"] for row in rows if record in row["kills"]}
        if kills <= before:
            found.append(record)
        before |= kills
    return found


def page(matrix: Mapping[str, Any], reports: Sequence[Mapping[str, Any]], found: Summary) -> str:
    """The whole file."""
    rows = matrix["mutants"]
    left = [report for report in reports if "left" in report and not report["left"].startswith(WAITS)]
    unseen = [row["id"] for row in rows if not any("f32" in kill for kill in row["kills"].values())]
    reasons = [
        f"- {reason}: {', '.join(code(record) for record in records)}." for reason, records in found.old_news.items()
    ]
    return TEXT.format(
        summary=found.lines(),
        areas="\n".join(area_line(area, rows, reports) for area in sorted({row["area"] for row in rows})),
        unseen=", ".join(map(code, unseen)) or "none",
        left="\n".join(f"- [{one['id']}]({one['url']}) ({one['area']}): {one['left']}" for one in left) or "None.",
        waiting=sum(report.get("left", "").startswith(WAITS) for report in reports),
        stays="\n".join(reasons) or "None.",
    )


def area_line(area: str, rows: Sequence[Mapping[str, Any]], reports: Sequence[Mapping[str, Any]]) -> str:
    """A row of the table."""
    mine = [row for row in rows if row["area"] == area]
    counts = [sum(any(precision in kill for kill in row["kills"].values()) for row in mine) for precision in ROUNDED]
    scope = [one for one in reports if one["area"] == area and not one.get("left", "").startswith(WAITS)]
    covered = sum(bool(one.get("mutants")) for one in scope)
    cells = [area, len(mine), sum(bool(row["kills"]) for row in mine), *counts, len(scope), covered]
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    sys.exit(main())
