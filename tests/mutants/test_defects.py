"""Every defect of the table makes at least one golden record fail: the suite's own strength."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reference.conformance.artifacts import ROOT
from tests.mutants.defects import DEFECTS, Defect


@pytest.mark.parametrize("defect", DEFECTS, ids=[defect.id for defect in DEFECTS])
def test_a_golden_record_fails(defect: Defect, tmp_path: Path) -> None:
    broken_tree(defect, tmp_path)

    run = check(tmp_path, defect.family)

    assert run.returncode == 1, f"{defect.effect}: not noticed\n{run.stdout}{run.stderr}"
    assert f"fail: {defect.family}/" in run.stdout


def test_the_unbroken_copy_passes(tmp_path: Path) -> None:
    """The negative control: copying alone breaks nothing."""
    shutil.copytree(ROOT / "reference", tmp_path / "reference")
    link_goldens(tmp_path)

    run = check(tmp_path, "forward")

    assert run.returncode == 0, run.stdout + run.stderr


def broken_tree(defect: Defect, directory: Path) -> None:
    """A copy of the specification with one edit, beside the same goldens and schemas."""
    shutil.copytree(ROOT / "reference", directory / "reference", ignore=shutil.ignore_patterns("__pycache__"))
    link_goldens(directory)
    path = directory / "reference" / defect.file
    text = path.read_text(encoding="utf-8")
    assert text.count(defect.before) == 1, (
        f"{defect.id}: the text to replace stands {text.count(defect.before)} times"
    )
    path.write_text(text.replace(defect.before, defect.after), encoding="utf-8")


def link_goldens(directory: Path) -> None:
    for name in ("golden", "schemas"):
        (directory / name).symlink_to(ROOT / name)


def check(directory: Path, family: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "reference", "check", "--engine", "spec", "--family", family]
    environment = {**os.environ, "PYTHONPATH": str(directory), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, cwd=directory, env=environment, check=False, capture_output=True, text=True, timeout=300
    )
