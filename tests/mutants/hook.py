"""Imports modules of this repository with the edits of a mutant."""

import importlib.machinery
import types
from collections.abc import Mapping
from typing import Any

from tests.mutants.mutant import ROOT, Edit, Mutant, broken


def install(mutant: Mutant) -> None:
    """Every module imported from now on has the mutant's edits; none of them may have been imported before."""
    edits: dict[str, tuple[Edit, ...]] = {}
    for edit in mutant.edits:
        path = str(ROOT / edit.file)
        edits[path] = (*edits.get(path, ()), edit)
    whole = importlib.machinery.SourceFileLoader.get_code

    def get_code(self: Any, fullname: str) -> types.CodeType | None:
        path = self.get_filename(fullname)
        if path not in edits:
            return whole(self, fullname)
        source = self.get_data(path).decode("utf-8")
        return self.source_to_code(broken(source, edits[path], mutant.id), path)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign]


def is_applied(mutant: Mutant, modules: Mapping[str, types.ModuleType]) -> bool:
    """Whether every edited file has been imported."""
    files = {getattr(module, "__file__", None) for module in modules.values()}
    return all(str(ROOT / edit.file) in files for edit in mutant.edits)
