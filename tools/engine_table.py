#!/usr/bin/env python3
"""Rewrite docs/engines.md, the table of engines against families, from reports.

    python tools/engine_table.py DIR ...             directories written by check --report
    python tools/engine_table.py --check DIR ...     change nothing; exit 1 if docs/engines.md is another table

The reports must be of one corpus and of all its records. An engine may be in several, with the same result.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from reference.conformance.artifacts import ROOT, read_json, validate, write_text
from reference.conformance.report.markdown import code, matrix
from reference.conformance.report.write import REPORT
from reference.errors import Refusal, RefusedError

TABLE = ROOT / "docs" / "engines.md"

TEXT = """# Engines against families

Written by `tools/engine_table.py` from the reports of CI ([report.md](report.md)); do not edit. A number alone is
records that all pass. An `xfail` is a failure that is known, with its reason and address in the `expectations.json`
of the engine's adapter; `unsupported` is what the engine does not offer.

Corpus {version}, digest {digest}.

{table}
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 stale, 2 bad input."""
    options = parse(arguments)
    try:
        text = table_of([read_report(directory) for directory in options.reports])
        if options.check:
            return compare(text, options.output)
        write_text(options.output, text)
    except RefusedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="+", type=Path, metavar="DIR", help=f"a directory with a {REPORT}")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the table is stale")
    parser.add_argument("--output", type=Path, default=TABLE, metavar="PATH", help="the table (docs/engines.md)")
    return parser.parse_args(arguments)


def read_report(directory: Path) -> Any:
    """Raises: NOT_FOUND, ARTIFACT_INVALID."""
    path = directory / REPORT
    report = read_json(path)
    validate(report, "report", str(path))
    return report


def table_of(reports: Sequence[Any]) -> str:
    """The whole file, engines sorted by name and dtype. Raises: ARTIFACT_INVALID for reports that do not fit."""
    corpora = {(report["corpus"]["version"], report["corpus"]["digest"]) for report in reports}
    if len(corpora) > 1:
        digests = " and ".join(sorted(digest[:12] for _, digest in corpora))
        raise RefusedError(Refusal.ARTIFACT_INVALID, f"the reports are of different corpora: {digests}")
    engines = unique([engine for report in reports for engine in report["engines"]])
    asked = {engine["engine"]: frozenset(record["id"] for record in engine["records"]) for engine in engines}
    for name, ids in asked.items():
        missing = sorted(frozenset().union(*asked.values()) - ids)
        if missing:
            raise RefusedError(Refusal.ARTIFACT_INVALID, f"{name} was not asked {missing[0]}, which another was")
    ((version, digest),) = corpora
    return TEXT.format(version=version, digest=code(digest), table="\n".join(matrix(engines)))


def unique(engines: Sequence[Any]) -> list[Any]:
    """Each engine of each dtype once. Raises: ARTIFACT_INVALID for one with two results."""
    found: dict[tuple[str, str], Any] = {}
    for engine in engines:
        key = engine["engine"], engine["dtype"]
        if matrix([found.setdefault(key, engine)]) != matrix([engine]):
            sentence = f"{engine['engine']} in {engine['dtype']} has different results in two reports"
            raise RefusedError(Refusal.ARTIFACT_INVALID, sentence)
    return [found[key] for key in sorted(found)]


def compare(text: str, path: Path) -> int:
    """0 if the file holds the text, else 1 and a sentence."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return 0
    print(f"{path} is stale; write it with tools/engine_table.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
