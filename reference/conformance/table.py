"""Verdicts as text for a terminal."""

import textwrap
from collections.abc import Sequence

from reference.conformance.compare import Judgement, Verdict
from reference.conformance.judge import Record
from reference.engine import Description

Judged = Sequence[tuple[Record, Judgement]]


def verdict_table(engine: Description, judged: Judged) -> str:
    """One row a family, one column a verdict, and their sum: the records that were planned."""
    lines = [f"{engine.name} {engine.version} (compared as {engine.precision})"]
    lines.append(f"  {'family':12s}" + "".join(f"{verdict:>15s}" for verdict in Verdict) + f"{'records':>9s}")
    families = sorted({record.family for record, _ in judged})
    for family in [*families, "all"]:
        verdicts = [judgement.verdict for record, judgement in judged if family in (record.family, "all")]
        counts = "".join(f"{verdicts.count(verdict) or '-':>15}" for verdict in Verdict)
        lines.append(f"  {family:12s}{counts}{len(verdicts):9d}")
    return "\n".join(lines)


def failures(judged: Judged) -> str:
    """A line a record that did not pass; unsupported ones are named together, by what the engine does not have."""
    lines = []
    unsupported: dict[str, list[str]] = {}
    for record, judgement in judged:
        if judgement.verdict is Verdict.UNSUPPORTED:
            unsupported.setdefault(judgement.sentence, []).append(record.id)
        elif judgement.verdict is not Verdict.PASS:
            lines.append(f"  {judgement.verdict}: {record.id}: {judgement.sentence}")
    for sentence, ids in unsupported.items():
        text = f"unsupported ({sentence}): {', '.join(ids)}"
        lines.append(textwrap.fill(text, 110, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False))
    return "\n".join(lines)


def is_good(judged: Judged) -> bool:
    """Whether nothing failed and something was executed: a run without a pass shows nothing."""
    verdicts = {judgement.verdict for _, judgement in judged}
    return Verdict.PASS in verdicts and not verdicts & {Verdict.FAIL, Verdict.HARNESS_ERROR}
