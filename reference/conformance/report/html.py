"""One HTML file that needs no network: the matrix of verdicts, and per engine a list of records, failures first."""

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reference.conformance.report.counts import ALL, SEVERITY, Row, by_severity, counts, families_of
from reference.conformance.report.gantt import gantt
from reference.conformance.report.plot import difference_plot

FOLDER = Path(__file__).parent

MOST_DRAWN = 400
"""Records whose details are drawn; where there are more, families share: failures everywhere would fill megabytes."""

TOKENS_AROUND = 12
"""Tokens that are shown before and after the first that differs."""

MARKS: Mapping[str, str] = {
    "fail": "✗",
    "harness_error": "‼",
    "timeout": "⧖",
    "xpass": "!",
    "near_tie": "≈",
    "xfail": "~",
    "unsupported": "–",
    "not_applicable": "∅",
    "pass": "✓",
}
"""A sign beside the colour of each verdict."""


def page(report: Row) -> str:
    """The page. The template escapes whatever it shows; the policy of the page runs its own script and no other."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    style, script = ((FOLDER / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    families, share = families_of(report["engines"]), drawn_per_family(report)
    names = slugs([engine["engine"] for engine in report["engines"]])
    return environment.get_template("page.html.jinja").render(
        report=report,
        engines=[
            _engine(engine, slug, families, share) for engine, slug in zip(report["engines"], names, strict=True)
        ],
        families=families,
        verdicts=[verdict for verdict in SEVERITY if any(verdict in counts(one) for one in report["engines"])],
        marks=MARKS,
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
    )


def slugs(names: Sequence[str]) -> list[str]:
    """A name for addresses to each: letters, digits, points and dashes, all different."""
    given: list[str] = []
    for name in names:
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-") or "engine"
        same = sum(other == slug or re.fullmatch(rf"{re.escape(slug)}-\d+", other) is not None for other in given)
        given.append(slug if same == 0 else f"{slug}-{same + 1}")
    return given


def drawn_per_family(report: Row) -> int:
    """How many records of each family of each engine are drawn."""
    engines = report["engines"]
    with_details = sum(bool(record["details"]) for engine in engines for record in engine["records"])
    num_parts = sum(len(families_of([engine])) for engine in engines)
    return MOST_DRAWN if with_details <= MOST_DRAWN else max(1, MOST_DRAWN // num_parts)


def token_window(details: Row) -> tuple[int, list[tuple[int | None, int | None, bool]]] | None:
    """(index of the first, (expected, answered, differs) ...) around the first difference of two lists of tokens."""
    if "expected_tokens" not in details or "answered_tokens" not in details:
        return None
    right, given = details["expected_tokens"], details["answered_tokens"]
    longest = max(len(right), len(given))
    padded = [[*tokens, *[None] * (longest - len(tokens))] for tokens in (right, given)]
    pairs = [(one, other, one != other) for one, other in zip(*padded, strict=True)]
    first = next((index for index, (_, _, differs) in enumerate(pairs) if differs), 0)
    start = max(0, first - TOKENS_AROUND)
    return start, pairs[start : first + TOKENS_AROUND + 1]


def _engine(engine: Row, slug: str, families: Sequence[str], share: int) -> dict[str, Any]:
    """An engine as the template reads it."""
    rows, drawn = [], Counter[str]()
    for record in by_severity(engine["records"]):
        is_drawn = bool(record["details"]) and drawn[record["family"]] < share
        drawn[record["family"]] += is_drawn
        rows.append(_record(record, slug, is_drawn=is_drawn))
    given = {name: counts(engine, name) for name in [ALL, *families]}
    return {**engine, "slug": slug, "rows": rows, "counts": given}


def _record(record: Row, slug: str, *, is_drawn: bool) -> dict[str, Any]:
    details = record["details"]
    return {
        **record,
        "address": f"{slug}:{record['id']}",
        "is_drawn": is_drawn,
        "tokens": token_window(details) if is_drawn else None,
        "plot": difference_plot(details) if is_drawn else None,
        "chart": gantt(details) if is_drawn else None,
    }


def _hash(text: str) -> str:
    """How a content security policy names an inline style or script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
