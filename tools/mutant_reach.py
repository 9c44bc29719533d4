"""Which records can tell a mutant at all: those for which the unbroken implementation enters an edited function."""

import ast
import importlib
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from reference.conformance.judge import ask
from reference.conformance.records import Record
from tests.mutants.adapter import SHAPES
from tests.mutants.mutant import ROOT, Edit, Mutant

Place = tuple[str, int]
"""A file relative to the repository, and the first line of a function in it."""


def reached(shape: str, records: Sequence[Record]) -> dict[str, frozenset[Place]]:
    """Record id -> the functions of the repository that a fresh engine of the shape enters for it."""
    module, _, class_name = SHAPES[shape].partition(":")
    engine_class = getattr(importlib.import_module(module), class_name)
    found = {}
    for record in records:
        entered: set[Any] = set()

        def note(frame: FrameType, event: str, _argument: Any, entered: set[Any] = entered) -> None:
            if event == "call":
                entered.add(frame.f_code)

        engine = engine_class()
        sys.setprofile(note)
        try:
            ask(engine, record)
        finally:
            sys.setprofile(None)
        root = f"{ROOT}/"
        found[record.id] = frozenset(
            (code.co_filename.removeprefix(root), code.co_firstlineno)
            for code in entered
            if code.co_filename.startswith(root)
        )
    return found


def edited(mutant: Mutant) -> frozenset[Place] | None:
    """The functions whose bodies the mutant edits; None if it edits anything else, which may show everywhere."""
    places = [place for edit in mutant.edits for place in _places(edit)]
    return None if None in places else frozenset(place for place in places if place is not None)


def _places(edit: Edit) -> Iterator[Place | None]:
    text = (ROOT / edit.file).read_text(encoding="utf-8")
    first = text[: text.index(edit.before)].count("\n") + 1
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    for line in range(first, first + edit.before.rstrip("\n").count("\n") + 1):
        around = [node for node in functions if node.body[0].lineno <= line <= (node.end_lineno or 0)]
        if around:
            innermost = max(around, key=lambda node: node.lineno)
            yield edit.file, min([innermost.lineno, *(one.lineno for one in innermost.decorator_list)])
        else:
            yield None
