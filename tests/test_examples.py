"""The example in Node.js: it passes what it claims, and a mistake in it is noticed."""

import re
import shutil
from pathlib import Path

import pytest

from reference import cli

EXAMPLE = Path(__file__).parents[1] / "examples" / "llama.mjs"

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")


def check(capsys: pytest.CaptureFixture[str], path: Path, *options: str) -> tuple[int, str]:
    code = cli.main(["check", "--engine", f"node {path}", "--dtype", "float64", *options])
    return code, capsys.readouterr().out


def test_the_example_passes_every_family_that_it_claims(capsys):
    code, out = check(capsys, EXAMPLE)

    assert 0 == code, out
    for family in ("cache", "forward", "generate", "sampling"):
        assert re.search(rf"^  {family} +(\d+) +- +- +- +- +\1$", out, re.MULTILINE), out


def test_a_mistake_in_the_example_is_noticed(capsys, tmp_path):
    """Scores divided by D and not by its root."""
    right, wrong = "start + D)) / Math.sqrt(D)", "start + D)) / D"
    source = EXAMPLE.read_text()
    assert 1 == source.count(right)
    (tmp_path / "llama.mjs").write_text(source.replace(right, wrong))
    code, out = check(capsys, tmp_path / "llama.mjs", "--family", "forward")

    assert 1 == code
    assert "first divergence at position" in out
