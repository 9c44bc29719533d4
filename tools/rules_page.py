#!/usr/bin/env python3
"""Rewrite docs/rules.md: every rule with its statement, its records, the mutants that guard it and their reports.

    python tools/rules_page.py             write it
    python tools/rules_page.py --check     change nothing; exit 1 if it is stale

Made from the docstrings of the specification, the records and golden/kill_matrix.json. Exit 1, too, if a rule has no
record or a record names a rule that does not exist. A mutant guards the rules of the function that it edits; one of
another implementation (its shape) guards those of its area.
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from reference.conformance.artifacts import ROOT, read_json, write_text
from reference.conformance.catalogue import KILL_MATRIX
from reference.conformance.records import FAMILIES, Record, find_records
from reference.conformance.report.markdown import code
from tests.mutants.mutant import Mutant
from tests.mutants.table import MUTANTS

PAGE = ROOT / "docs" / "rules.md"
RULE_ID = re.compile(r"\[([A-Z]+-\d+)\]")

RULES_OF_AREA: Mapping[str, tuple[str, ...]] = {
    "rope": ("ROPE-1",),
    "positions": ("ROPE-2",),
    "norm": ("NORM-1",),
    "mlp": ("MLP-1",),
    "embedding": ("FWD-1",),
    "weights": ("HEAD-2",),
    "gqa": ("ATTN-2",),
    "precision": ("FWD-1",),
    "attention": ("ATTN-2",),
    "mask": ("ATTN-3",),
    "padding": ("ATTN-3",),
    "sliding-window": ("ATTN-3",),
    "kv-cache": ("KV-1",),
    "batch-invariance": ("FWD-1",),
    "spec-verify": ("SPEC-3",),
    "spec-kv": ("SPEC-9",),
    "spec-draft": ("SPEC-10",),
    "spec-batch": ("SPEC-9",),
    "stop": ("GEN-3",),
    "logprobs": ("GEN-1",),
    "scheduler": ("SERVE-3",),
}
"""What a mutant guards that edits no function with a rule."""

MOST_RECORDS = 12

TEXT = """# Rules

Written by `tools/rules_page.py` from the docstrings of `reference/`, the records and the kill matrix; do not edit.

A rule is stated by the function that computes it. Its records ask for it; its mutants are implementations that
break it, each caught by at least one record (in brackets: how many records, and how many judge a float32 engine
wrong, too). A mutant in **bold** stands for public reports, which are linked.

{num_rules} rules, {num_records} records, {num_mutants} mutants for {num_reports} reports.

{rules}"""


@dataclass(frozen=True)
class Rule:
    """A rule and the function or class that states it."""

    id: str
    statement: str
    file: str
    name: str
    lines: range


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 stale or a rule without record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the page is stale")
    options = parser.parse_args(arguments)
    rules, records = list(find_rules()), find_records(FAMILIES)
    problems = unmatched(rules, records)
    text = page(rules, records, read_json(KILL_MATRIX)["mutants"])
    if options.check and (not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text):
        problems.append(f"{PAGE.relative_to(ROOT)} is stale; write it with tools/rules_page.py")
    if not options.check:
        write_text(PAGE, text)
    print(*problems, sep="\n", end="\n" if problems else "")
    return 1 if problems else 0


def find_rules() -> Iterator[Rule]:
    """The rules of the specification in the order of its folders."""
    for folder in ("model", "decoding", "serving"):
        for path in sorted((ROOT / "reference" / folder).glob("*.py")):
            yield from rules_in(path)


def rules_in(path: Path) -> Iterator[Rule]:
    """The rules that a module's functions and classes state."""
    holders = (ast.ClassDef, ast.FunctionDef)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, holders):
            docstring = ast.get_docstring(node) or ""
            for rule in RULE_ID.findall(docstring):
                statement = " ".join(docstring.replace(f"[{rule}]", "").split("Raises:")[0].split())
                lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                yield Rule(rule, statement, str(path.relative_to(ROOT)), node.name, lines)


def unmatched(rules: Sequence[Rule], records: Sequence[Record]) -> list[str]:
    """Rules without a record, and names of rules that do not exist."""
    known, named = {rule.id for rule in rules}, {rule for record in records for rule in record.rules}
    lacking = [f"rule {rule} has no record" for rule in sorted(known - named)]
    return lacking + [f"a record names {rule}, which is no rule" for rule in sorted(named - known)]


def page(rules: Sequence[Rule], records: Sequence[Record], rows: Sequence[Mapping[str, Any]]) -> str:
    """The whole file."""
    guarded = {mutant.id: rules_of(mutant, rules) for mutant in MUTANTS}
    sections = []
    for rule in rules:
        asked = [record.id for record in records if rule.id in record.rules]
        guards = [row for row in rows if rule.id in guarded.get(row["id"], ())]
        sections.append("\n".join(section(rule, asked, guards)))
    reports = {report["id"] for row in rows for report in row["reports"]}
    return TEXT.format(
        num_rules=len(rules),
        num_records=len(records),
        num_mutants=len(rows),
        num_reports=len(reports),
        rules="\n\n".join(sections) + "\n",
    )


def section(rule: Rule, records: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One rule."""
    yield f"## {rule.id}"
    yield ""
    yield f"{rule.statement} ([{rule.name}](../{rule.file}))"
    yield ""
    shown = ", ".join(code(record) for record in records[:MOST_RECORDS])
    more = f" and {len(records) - MOST_RECORDS} more" if len(records) > MOST_RECORDS else ""
    yield f"Records ({len(records)}): {shown}{more}."
    if rows:
        yield ""
    for row in rows:
        in_f32 = sum("f32" in kill for kill in row["kills"].values())
        name = f"**{row['id']}**" if row["reports"] else row["id"]
        links = ", ".join(f"[{report['project']}]({report['url']})" for report in row["reports"])
        yield f"- {name} ({len(row['kills'])}, {in_f32}): {row['effect']}" + (f". {links}" if links else "")


def rules_of(mutant: Mutant, rules: Sequence[Rule]) -> frozenset[str]:
    """The rules of the functions that a mutant edits, or else of its area."""
    found = set()
    for edit in mutant.edits:
        text = (ROOT / edit.file).read_text(encoding="utf-8")
        first = text[: text.index(edit.before)].count("\n") + 1
        edited = range(first, first + edit.before.count("\n") + 1)
        # The innermost holder: a rule of a class is not that of each of its methods.
        at = [rule for rule in rules if rule.file == edit.file and set(rule.lines) & set(edited)]
        if at:
            shortest = min(len(rule.lines) for rule in at)
            found |= {rule.id for rule in at if len(rule.lines) == shortest}
    return frozenset(found) or frozenset(RULES_OF_AREA[mutant.area])


if __name__ == "__main__":
    sys.exit(main())
