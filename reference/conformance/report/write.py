"""Writes the report of a run into a directory."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from reference.conformance.artifacts import validate, write_json, write_text
from reference.conformance.report.html import page
from reference.conformance.report.junit import junit_xml
from reference.conformance.report.markdown import summary
from reference.conformance.report.rows import Run, report_of
from reference.errors import Refusal, RefusedError

REPORT, PAGE, JUNIT, SUMMARY = "report.json", "report.html", "junit.xml", "summary.md"


def prepare(directory: Path) -> None:
    """Finds out before engines run, which may take hours, whether a report can be made. Raises: USAGE, NOT_FOUND."""
    if find_spec("jinja2") is None:
        raise RefusedError(Refusal.USAGE, "--report needs jinja2: pip install 'golden-llama[report]'")
    probe = directory / f".{REPORT}.probe"
    write_text(probe, "")
    probe.unlink()


def write_report(directory: Path, runs: Sequence[Run]) -> None:
    """The four files, each complete or not there. Raises: ARTIFACT_INVALID, NOT_FOUND."""
    report = report_of(runs)
    validate(report, "report", REPORT)
    texts = {PAGE: page(report), JUNIT: junit_xml(report), SUMMARY: summary(report)}
    write_json(directory / REPORT, report)
    for name, text in texts.items():
        write_text(directory / name, text)
