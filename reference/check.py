"""python -m reference check: engines judged by the goldens."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from reference.conformance.catalogue import load_catalogue
from reference.conformance.compare import BAD, Verdict
from reference.conformance.diagnosis import Diagnosis, diagnose, explanation
from reference.conformance.engines import NAMES, Options, expectations_file, find_engine, match_engines
from reference.conformance.expectations import Expectation, expect, load_expectations
from reference.conformance.http_dialects import DIALECTS
from reference.conformance.judge import judge_all
from reference.conformance.records import FAMILIES, Record, find_records
from reference.conformance.remote import ANSWER_S
from reference.conformance.report.rows import Run
from reference.conformance.report.words import legible
from reference.conformance.report.write import prepare, write_report
from reference.conformance.table import Judged, failures, is_good, verdict_table
from reference.engine import Description
from reference.errors import Refusal, RefusedError

DTYPES = ("float64", "float32", "float16", "bfloat16", "int8")

EXIT_DONE, EXIT_CHECK_FAILED = 0, 1


def add_arguments(command: argparse.ArgumentParser) -> None:
    """The options of the command."""
    command.add_argument(
        "--engine",
        action="append",
        metavar="ENGINE",
        help=f"one of {', '.join(NAMES)}, or a pattern of them; path/to/adapter.py:Class; http://host:port; or the "
        "command line of a program that speaks the protocol (docs/protocol.md); may be repeated (default: spec)",
    )
    command.add_argument(
        "--engine-python", metavar="PATH", help="interpreter that runs an adapter (the engine's own)"
    )
    command.add_argument("--dtype", choices=DTYPES, help="type the engine is to compute in (float32)")
    command.add_argument(
        "--timeout", type=_seconds, default=ANSWER_S, metavar="S", help=f"seconds for an answer ({ANSWER_S:g})"
    )
    command.add_argument("--dialect", choices=DIALECTS, default="openai", help="what an HTTP server speaks (openai)")
    command.add_argument(
        "--served-model",
        type=Path,
        metavar="DIR",
        help="the checkpoint an HTTP server was started with (docs/http.md)",
    )
    command.add_argument("--expectations", type=Path, metavar="PATH", help="the engine's known failures (JSON)")
    command.add_argument(
        "--family", action="append", metavar="FAMILY", help=f"only these: {', '.join(FAMILIES)}; may be repeated"
    )
    command.add_argument("--record", action="append", metavar="ID", help="only this record; may be repeated")
    command.add_argument(
        "--report", type=Path, metavar="DIR", help="write JSON, HTML, JUnit and Markdown into DIR (docs/report.md)"
    )


def run(options: argparse.Namespace, _command_line: list[str]) -> int:
    """Judges engines by the goldens and prints a table of families and verdicts for each."""
    unknown = sorted(set(options.family or ()) - set(FAMILIES))
    if unknown:
        raise RefusedError(Refusal.USAGE, f"no family {unknown[0]!r}; there are {', '.join(FAMILIES)}")
    records = find_records(options.family or FAMILIES, options.record or ())
    names = [name for pattern in options.engine or ["spec"] for name in match_engines(pattern)]
    if options.report is not None:
        prepare(options.report)
    runs = [_check_engine(name, records, options) for name in names]
    if options.report is not None:
        write_report(options.report, runs)
    return EXIT_DONE if all(is_good(run.judged) for run in runs) else EXIT_CHECK_FAILED


def _check_engine(name: str, records: Sequence[Record], options: argparse.Namespace) -> Run:
    """The judgements on an engine, known failures marked."""
    expected = _expectations_of(name, options.expectations)
    engine = find_engine(name, _options(options))
    try:
        judged = [
            (record, expect(judgement, record.id, expected)) for record, judgement in judge_all(engine, records)
        ]
        description = engine.describe()
    finally:
        engine.bye()
    print(legible(verdict_table(description, judged)))
    print(legible(failures(judged)))
    diagnosis = _diagnosis(judged, description)
    if diagnosis is not None:
        print(explanation(diagnosis))
    return Run(name, description, judged, expected, _options(options), options.expectations, diagnosis)


def _diagnosis(judged: Judged, description: Description) -> Diagnosis | None:
    """The known defect that the answers look like, if any failed. Known failures are no evidence."""
    if not any(judgement.verdict in BAD for _, judgement in judged):
        return None
    try:
        catalogue = load_catalogue()
    except RefusedError as error:  # the verdicts stand without it
        print(f"  no diagnosis: {error}")
        return None
    evidence = {record.id: found.evidence for record, found in judged if found.verdict is not Verdict.XFAIL}
    return diagnose(evidence, description.precision, catalogue)


def _options(given: argparse.Namespace) -> Options:
    return Options(given.engine_python, given.dtype, given.timeout, given.dialect, given.served_model)


def _expectations_of(name: str, given: Path | None) -> dict[str, Expectation]:
    """Known failures: those given, else those that we keep for engines of ours."""
    path = expectations_file(name) if given is None else given
    if path is None or (given is None and not path.exists()):
        return {}
    return load_expectations(path, name, {record.id for record in find_records(FAMILIES)})


def _seconds(text: str) -> float:
    """A time limit above 0."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds
