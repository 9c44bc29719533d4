"""The report as JSON: one row a record, with everything needed to ask it again (schemas/report.schema.json)."""

import platform
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from reference.conformance.artifacts import DATA, GOLDEN, SCHEMAS, read_json, schema_part, sha256, to_plain
from reference.conformance.compare import Judgement, Verdict
from reference.conformance.diagnosis import Candidate, Diagnosis, sentence
from reference.conformance.engines import HOSTED, IN_PROCESS, Options
from reference.conformance.expectations import Expectation
from reference.conformance.records import Record
from reference.conformance.report.words import presentable, without_secrets
from reference.conformance.table import Judged, is_good
from reference.engine import Description, Precision

KNOWN_FAILURES = frozenset({Verdict.XFAIL, Verdict.XPASS})

OPTION_NAMES: Mapping[str, str] = {
    "python": "--engine-python",
    "dtype": "--dtype",
    "limit_s": "--timeout",
    "dialect": "--dialect",
    "served_model": "--served-model",
}
"""How the command line calls what is in Options."""

OUR_DTYPES: Mapping[Precision, str] = {"exact": "float64", "f64": "float64", "f32": "float32"}
"""What the engines in this process compute in, which take no --dtype."""


DEFAULTS = Options()


@dataclass(frozen=True)
class Run:
    """An engine and the judgements of one run."""

    engine: str  # as named to --engine
    description: Description
    judged: Judged
    expected: Mapping[str, Expectation]  # record id -> known failure
    options: Options = DEFAULTS
    expectations: Path | None = None  # as given
    diagnosis: Diagnosis | None = None  # of a run with failures


def report_of(runs: Sequence[Run]) -> dict[str, Any]:
    """The whole report. It names neither time nor directory, so equal runs have equal reports."""
    manifest = read_json(GOLDEN / "manifest.json")
    return {
        "schema_version": 1,
        "versions": {
            "golden_llama": version("golden-llama"),
            "python": platform.python_version(),
            "numpy": version("numpy"),
        },
        "platform": f"{platform.system()} {platform.machine()}",
        "corpus": {"version": manifest["corpus_version"], "digest": manifest["root"]},
        "engines": [engine_row(run) for run in runs],
    }


def engine_row(run: Run) -> dict[str, Any]:
    """An engine: what it says of itself, and its records."""
    told = run.description
    described = {
        "engine": without_secrets(run.engine),
        "name": told.name,
        "version": told.version,
        "dtype": dtype_of(run),
        "precision": told.precision,
        "scores": told.scores,
        "claims": sorted(told.claims),
        "choices": {name: told.choices[name] for name in sorted(told.choices)},
        "kv_itemsize": told.kv_itemsize,
        "is_conformant": is_good(run.judged),
    }
    records = [record_row(run, record, judgement) for record, judgement in run.judged]
    return {**presentable(described), "diagnosis": diagnosis_row(run.diagnosis), "records": records}


def diagnosis_row(diagnosis: Diagnosis | None) -> dict[str, Any] | None:
    """What the answers look like; None for a run without failures."""
    if diagnosis is None:
        return None
    both = {"best": diagnosis.best, "runner_up": diagnosis.runner_up}
    return {name: None if candidate is None else _candidate_row(candidate) for name, candidate in both.items()}


def _candidate_row(candidate: Candidate) -> dict[str, Any]:
    return {**to_plain(candidate), "sentence": sentence(candidate)}


def record_row(run: Run, record: Record, judgement: Judgement) -> dict[str, Any]:
    """A record and its verdict. Details that the schema does not know are left out: a report is never lost."""
    known = run.expected.get(record.id) if judgement.verdict in KNOWN_FAILURES else None
    details = to_plain(judgement.details)
    left_out = unknown_details(details)
    row = {
        "id": record.id,
        "family": record.family,
        "is_core": record.is_core,
        "verdict": judgement.verdict.value,
        "sentence": judgement.sentence,
        "left_out": left_out,
        "num_crashes": judgement.crashes,
        "expectation": None if known is None else to_plain(known),
        "sha256": sha256(DATA / f"{record.id}.json"),
        "model": record.input.get("model"),
        "rules": list(record.rules),
        "catches": record.catches,
        "command": command_of(run, record),
    }
    return {**presentable(row), "details": {name: details[name] for name in details if name not in left_out}}


def unknown_details(details: Mapping[str, Any]) -> list[str]:
    """Names of the details that break the schema, sorted."""
    known, validator = _details_schema()
    ill_formed = {str(error.absolute_path[0]) for error in validator.iter_errors(details) if error.absolute_path}
    return sorted(ill_formed | (set(details) - known))


def command_of(run: Run, record: Record) -> str:
    """The command line that asks this record again."""
    words = ["python", "-m", "reference", "check", "--engine", run.engine, *options_of(run), "--record", record.id]
    return without_secrets(shlex.join(words))


def options_of(run: Run) -> list[str]:
    """The options that were given otherwise than they are by default, as words."""
    pairs = {name: getattr(run.options, field) for field, name in OPTION_NAMES.items()}
    defaults = {name: getattr(DEFAULTS, field) for field, name in OPTION_NAMES.items()}
    pairs["--expectations"], defaults["--expectations"] = run.expectations, None
    given = [(name, value) for name, value in pairs.items() if value != defaults[name]]
    return [
        word for name, value in given for word in (name, f"{value:g}" if isinstance(value, float) else str(value))
    ]


def dtype_of(run: Run) -> str:
    """The type that the engine was to compute in."""
    if run.engine in IN_PROCESS:
        return OUR_DTYPES[run.description.precision]
    default = HOSTED[run.engine].dtype if run.engine in HOSTED else "float32"
    return default if run.options.dtype is None else run.options.dtype


@cache
def _details_schema() -> tuple[frozenset[str], Any]:
    """The names of details, and their validator."""
    schema = read_json(SCHEMAS / "report.schema.json")["$defs"]["details"]
    return frozenset(schema["properties"]), schema_part("report", "details")
