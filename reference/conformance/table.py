"""Verdicts as text for a terminal."""

import textwrap
from collections.abc import Sequence

from reference.conformance.compare import BAD, GOOD, Judgement, Verdict
from reference.conformance.records import Record
from reference.engine import Description, Precision

Judged = Sequence[tuple[Record, Judgement]]

TOGETHER = frozenset({Verdict.PASS, Verdict.UNSUPPORTED, Verdict.NOT_APPLICABLE})

ALWAYS_SHOWN = (Verdict.PASS, Verdict.FAIL, Verdict.NEAR_TIE, Verdict.UNSUPPORTED, Verdict.HARNESS_ERROR)


def verdict_table(engine: Description, judged: Judged) -> str:
    """One row a family, one column a verdict, and their sum: the records that were planned."""
    shown = [verdict for verdict in Verdict if verdict in ALWAYS_SHOWN or verdict in _verdicts(judged)]
    lines = [f"{engine.name} {engine.version} (compared as {engine.precision})"]
    lines.append(f"  {'family':12s}" + "".join(f"{verdict:>15s}" for verdict in shown) + f"{'records':>9s}")
    families = sorted({record.family for record, _ in judged})
    for family in [*families, "all"]:
        verdicts = [judgement.verdict for record, judgement in judged if family in (record.family, "all")]
        counts = "".join(f"{verdicts.count(verdict) or '-':>15}" for verdict in shown)
        lines.append(f"  {family:12s}{counts}{len(verdicts):9d}")
    crashes = sum(judgement.crashes for _, judgement in judged)
    if crashes > 0:
        lines.append(f"  the engine died {crashes} times and was started again")
    return "\n".join(lines)


def failures(judged: Judged) -> str:
    """A line a record that did not pass; those of one sentence are named together where it is not about them."""
    lines = []
    together: dict[str, list[str]] = {}
    for record, judgement in judged:
        if judgement.verdict in TOGETHER and judgement.sentence:
            together.setdefault(f"{judgement.verdict} ({judgement.sentence})", []).append(record.id)
        elif judgement.verdict is not Verdict.PASS:
            lines.append(f"  {judgement.verdict}: {record.id}: {judgement.sentence}")
    for kind, ids in together.items():
        text = f"{kind}: {', '.join(ids)}"
        lines.append(textwrap.fill(text, 110, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False))
    return "\n".join(lines)


def is_good(judged: Judged, precision: Precision) -> bool:
    """Whether nothing failed and a core record was executed: a run that executed none shows nothing."""
    executed = any(judgement.verdict in GOOD and record.is_core(precision) for record, judgement in judged)
    return executed and not _verdicts(judged) & BAD


def _verdicts(judged: Judged) -> frozenset[Verdict]:
    return frozenset(judgement.verdict for _, judgement in judged)
