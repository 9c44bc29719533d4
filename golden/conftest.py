"""pytest golden/ [--engine ENGINE]: every record is a test, and a table of verdicts closes the run."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from reference.conformance.artifacts import to_plain
from reference.conformance.compare import Judgement, Verdict
from reference.conformance.diagnosis import explain
from reference.conformance.engines import NAMES, Options, expectations_file, find_engine
from reference.conformance.evidence import to_json
from reference.conformance.expectations import expect, load_expectations
from reference.conformance.http_dialects import DIALECTS
from reference.conformance.judge import judge
from reference.conformance.records import FAMILIES, Record, load_records
from reference.conformance.remote import ANSWER_S
from reference.conformance.report.rows import OPTION_NAMES, Run
from reference.conformance.report.words import legible
from reference.conformance.report.write import prepare, write_report
from reference.conformance.table import failures, is_good, verdict_table
from reference.engine import Engine
from reference.errors import RefusedError

ENGINE, JUDGED, RECORDS = pytest.StashKey[Engine](), pytest.StashKey[list](), pytest.StashKey[dict]()
EXPECTED = pytest.StashKey[dict]()


def pytest_addoption(parser: pytest.Parser) -> None:
    known = ", ".join(NAMES)
    parser.addoption("--engine", default="spec", help=f"{known}, adapter.py:Class, or a command line")
    parser.addoption("--engine-python", help="interpreter that runs an adapter")
    parser.addoption("--dtype", help="type the engine is to compute in")
    parser.addoption("--timeout", type=float, default=ANSWER_S, help="seconds for an answer")
    parser.addoption("--dialect", choices=list(DIALECTS), default="openai", help="what an HTTP server speaks")
    parser.addoption("--served-model", type=Path, help="the checkpoint an HTTP server was started with")
    parser.addoption("--expectations", type=Path, help="the engine's known failures (JSON)")
    parser.addoption("--report", type=Path, metavar="DIR", help="write JSON, HTML, JUnit and Markdown into DIR")


def pytest_configure(config: pytest.Config) -> None:
    """An unknown engine, an empty family and an invalid record are usage errors, found before collection."""
    config.stash[JUDGED] = []
    name = config.getoption("--engine")
    directory = config.getoption("--report")
    try:
        if directory is not None and not hasattr(config, "workerinput"):
            prepare(directory)
        config.stash[RECORDS] = records = {family: load_records(family) for family in FAMILIES}
        path = config.getoption("--expectations") or expectations_file(name)
        known_ids = {record.id for family in records.values() for record in family}
        is_there = path is not None and (path.exists() or config.getoption("--expectations"))
        config.stash[EXPECTED] = load_expectations(path, name, known_ids) if is_there else {}
        config.stash[ENGINE] = find_engine(name, _options(config))
    except RefusedError as error:
        raise pytest.UsageError(str(error)) from error


def _options(config: pytest.Config) -> Options:
    return Options(*(config.getoption(option) for option in OPTION_NAMES.values()))


def pytest_unconfigure(config: pytest.Config) -> None:
    if ENGINE in config.stash:
        config.stash[ENGINE].bye()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The records of a family become the parameters of its test."""
    records = metafunc.config.stash[RECORDS][Path(metafunc.module.__file__).stem.removeprefix("test_")]
    metafunc.parametrize("record", records, ids=[record.id for record in records])


@pytest.fixture
def answer(record: Record, request: pytest.FixtureRequest) -> Judgement:
    """Judges the engine by one record. What is unsupported is a skip with its reason, and stands in the table."""
    judgement = expect(judge(request.config.stash[ENGINE], record), record.id, request.config.stash[EXPECTED])
    details = {} if request.config.getoption("--report") is None else to_plain(judgement.details)
    told = (judgement.verdict.value, judgement.sentence, details, judgement.crashes, to_json(judgement.evidence))
    request.node.user_properties.append(("judgement", (record.family, record.id, *told)))
    if judgement.verdict in (Verdict.UNSUPPORTED, Verdict.NOT_APPLICABLE):
        pytest.skip(f"{judgement.verdict}: {judgement.sentence}")
    if judgement.verdict is Verdict.XFAIL:
        pytest.xfail(judgement.sentence)
    return judgement


class Collector:
    """Gathers the judgements of all processes of a run: with pytest-xdist each judges a part of the records."""

    def __init__(self, config: pytest.Config) -> None:
        self._judged = config.stash[JUDGED]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self._judged += list(judgements(report))


def judgements(report: pytest.TestReport) -> Iterator[tuple[Record, Judgement]]:
    for name, told in report.user_properties:
        if name == "judgement":
            family, record_id, verdict, sentence, details, crashes, evidence = told
            judgement = Judgement(Verdict(verdict), sentence, details, crashes, evidence)
            yield Record(record_id, family, {}, {}), judgement


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.pluginmanager.register(Collector(session.config))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    judged = config.stash.get(JUDGED, [])
    if judged:
        terminalreporter.section("verdicts")
        terminalreporter.write_line(legible(verdict_table(config.stash[ENGINE].describe(), judged)))
        terminalreporter.write_line(legible(failures(judged)))
        terminalreporter.write_line(explain(judged, config.stash[ENGINE].describe())[1])


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A run in which no core record was executed shows nothing, and fails."""
    judged = session.config.stash.get(JUDGED, [])
    is_whole = not hasattr(session.config, "workerinput")
    precision = session.config.stash[ENGINE].describe().precision if judged else "exact"
    if is_whole and judged and exitstatus == 0 and not is_good(judged, precision):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if is_whole and judged and session.config.getoption("--report") is not None:
        _report(session.config, {record.id: judgement for record, judgement in judged})


def _report(config: pytest.Config, judged: Mapping[str, Judgement]) -> None:
    """The report, with whole records in their order: processes judge in any."""
    records = [record for family in config.stash[RECORDS].values() for record in family if record.id in judged]
    run = Run(
        config.getoption("--engine"),
        config.stash[ENGINE].describe(),
        [(record, judged[record.id]) for record in records],
        config.stash[EXPECTED],
        _options(config),
        config.getoption("--expectations"),
    )
    run = replace(run, diagnosis=explain(run.judged, run.description)[0])
    write_report(config.getoption("--report"), [run])
