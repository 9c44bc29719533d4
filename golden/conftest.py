"""pytest golden/ [--engine NAME]: every record is a test, and a table of verdicts closes the run."""

from pathlib import Path

import pytest

from reference.conformance.compare import Judgement, Verdict
from reference.conformance.engines import ENGINES, find_engine
from reference.conformance.judge import JUDGES, Record, judge, load_records
from reference.conformance.table import failures, verdict_table
from reference.engine import Engine
from reference.errors import RefusedError

ENGINE, JUDGED, RECORDS = pytest.StashKey[Engine](), pytest.StashKey[list](), pytest.StashKey[dict]()


def pytest_addoption(parser: pytest.Parser) -> None:
    known = ", ".join(ENGINES)
    parser.addoption("--engine", default="spec", help=f"engine under test: {known}, or path/to/adapter.py:Class")


def pytest_configure(config: pytest.Config) -> None:
    """An unknown engine, an empty family and an invalid record are usage errors, found before collection."""
    config.stash[JUDGED] = []
    try:
        config.stash[ENGINE] = find_engine(config.getoption("--engine"))
        config.stash[RECORDS] = {family: load_records(family) for family in JUDGES}
    except RefusedError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The records of a family become the parameters of its test."""
    records = metafunc.config.stash[RECORDS][Path(metafunc.module.__file__).stem.removeprefix("test_")]
    metafunc.parametrize("record", records, ids=[record.id for record in records])


@pytest.fixture
def answer(record: Record, request: pytest.FixtureRequest) -> Judgement:
    """Judges the engine by one record. An unsupported one is a skip with its reason, and stands in the table."""
    judgement = judge(request.config.stash[ENGINE], record)
    request.config.stash[JUDGED].append((record, judgement))
    if judgement.verdict is Verdict.UNSUPPORTED:
        pytest.skip(f"{judgement.verdict}: {judgement.sentence}")
    return judgement


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    judged = config.stash.get(JUDGED, [])
    if judged:
        terminalreporter.section("verdicts")
        terminalreporter.write_line(verdict_table(config.stash[ENGINE].describe(), judged))
        terminalreporter.write_line(failures(judged))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A run in which no record passed shows nothing, and fails."""
    judged = session.config.stash.get(JUDGED, [])
    if judged and exitstatus == 0 and not any(judgement.verdict is Verdict.PASS for _, judgement in judged):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
