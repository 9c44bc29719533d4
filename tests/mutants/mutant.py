"""A defect of the table: edits of a correct implementation, and what is known of it. Imports nothing of reference."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Edit:
    """`before` stands exactly once in the file (relative to the repository) and is replaced by `after`."""

    file: str
    before: str
    after: str


@dataclass(frozen=True)
class Mutant:
    """A defect.

    `shape` is the correct implementation that the edits break: "specification", or one of SHAPES in
    tests/mutants/adapter.py, which compute the same in the way engines do (a padded batch, slots, a ring cache).
    """

    id: str
    area: str  # as in the reports
    edits: tuple[Edit, ...]
    effect: str  # one sentence: what the engine does
    shows: str  # what a record needs so that it shows
    reports: tuple[str, ...] = ()  # ids in tests/mutants/reports/
    shape: str = "specification"


class StaleError(Exception):
    """An edit whose `before` does not stand exactly once: the table and the code have drifted apart."""


def broken(source: str, edits: tuple[Edit, ...], mutant_id: str) -> str:
    """The source of a file with its edits. Raises: StaleError."""
    for edit in edits:
        count = source.count(edit.before)
        if count != 1:
            raise StaleError(
                f"mutant {mutant_id}: in {edit.file} the text {edit.before!r} stands {count} times, not once"
            )
        source = source.replace(edit.before, edit.after)
    return source


def check(mutant: Mutant) -> None:
    """Raises: StaleError; ValueError for an edit that changes nothing or does not compile."""
    for file in {edit.file for edit in mutant.edits}:
        path = ROOT / file
        text = path.read_text(encoding="utf-8")
        changed = broken(text, tuple(edit for edit in mutant.edits if edit.file == file), mutant.id)
        if changed == text:
            raise ValueError(f"mutant {mutant.id}: the edits of {file} change nothing")
        compile(changed, str(path), "exec")
