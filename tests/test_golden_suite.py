"""pytest golden/ as its users run it: what passes, what is named as unsupported, what fails and what is refused."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reference.conformance.records import FAMILIES

ROOT = Path(__file__).parents[1]
DATA = ROOT / "golden" / "data"

ADAPTER = '''
from pathlib import Path

from reference.engine import ReferenceEngine

F64 = {"version": "3", "precisions": {"float32": "f64"}}


class ScoreOnly:
    def __init__(self):
        self._spec = ReferenceEngine()

    def hello(self):
        return {"name": "score only", **F64}

    def load(self, model_dir):
        self._spec.load(Path(model_dir))

    def score(self, tokens):
        return self._spec.score(tokens)


class Broken(ScoreOnly):
    """Half of the logits are those of the next position."""

    def score(self, tokens):
        logits = super().score(tokens)
        return logits if len(tokens) < 5 else logits[[*range(1, len(tokens)), 0]]


class Dying(ScoreOnly):
    def score(self, tokens):
        raise SystemExit(3)


class Wordless:
    def hello(self):
        return {"name": "wordless", **F64}

    def load(self, model_dir):
        pass


class Unnamed:
    def hello(self):
        return F64
'''


@pytest.fixture(scope="module")
def adapter(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("adapter") / "adapter.py"
    path.write_text(ADAPTER)
    return path


def golden(*options: str, path: str = "golden/", root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """pytest golden/, or one file of it, in its own process."""
    command = [sys.executable, "-m", "pytest", path, "-q", "-p", "no:cacheprovider", *options]
    environment = {name: setting for name, setting in os.environ.items() if not name.startswith(("PYTEST", "COV_"))}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)


def ids(*families: str) -> set[str]:
    """The ids of the records of some families."""
    return {f"{path.parent.name}/{path.stem}" for family in families for path in (DATA / family).glob("*.json")}


def row(output: str, family: str) -> list[str]:
    """The numbers of a family's row: pass, fail, near_tie, unsupported, harness_error, records."""
    (line,) = [line for line in output.splitlines() if line.startswith(f"  {family} ")]
    return line.split()[1:]


OTHERS = tuple(family for family in FAMILIES if family not in ("forward", "metamorphic"))

# Metamorphic records that want nothing but scores.
SCORED = {"metamorphic/rescored-batching", "metamorphic/rescored-sweep"}


def refusals(family: str) -> set[str]:
    """Records that must be refused: loading fails before anything else can."""
    contents = {name: json.loads((DATA / f"{name}.json").read_text(encoding="utf-8")) for name in ids(family)}
    return {name for name, content in contents.items() if "refusal" in content["expected"]}


# Two ways that the specification does not have: it decodes one session at a time and keeps no cache between two.
NOT_TAKEN = {name for name in ids("metamorphic") if name.startswith(("metamorphic/batched-", "metamorphic/warm-"))}


def test_the_specification_passes_every_record_that_compares_with_it():
    run = golden("--engine", "spec")
    num_passed, num_all = len(ids(*FAMILIES) - NOT_TAKEN), len(ids(*FAMILIES))

    assert 0 == run.returncode, run.stdout
    assert [str(num_passed), "-", "-", str(len(NOT_TAKEN)), "-", str(num_all)] == row(run.stdout, "all")
    assert f"{num_passed} passed, {len(NOT_TAKEN)} skipped" in run.stdout


def test_a_run_in_several_processes_has_the_same_table():
    one, several = golden("--engine", "fast"), golden("--engine", "fast", "-n", "2")

    assert 0 == one.returncode == several.returncode, several.stdout
    assert row(one.stdout, "all") == row(several.stdout, "all")


def test_what_an_engine_lacks_is_named_and_is_no_failure(adapter):
    run = golden("--engine", f"{adapter}:ScoreOnly")
    num_forward, not_asked = str(len(ids("forward"))), ids(*OTHERS, "metamorphic") - SCORED
    named = set(re.findall(r"\b[a-z]+/[a-z0-9-]+", run.stdout.partition("  unsupported (the engine has no ")[2]))

    assert 0 == run.returncode, run.stdout
    assert "score only 3 (compared as f64)" in run.stdout
    assert [num_forward, "-", "-", "-", "-", num_forward] == row(run.stdout, "forward")
    assert str(len(not_asked)) == row(run.stdout, "all")[3]
    assert not_asked == named


def test_a_broken_engine_fails_with_the_records_named(adapter):
    run = golden("--engine", f"{adapter}:Broken", path="golden/test_forward.py")

    assert 1 == run.returncode
    assert "fail: forward/sweep-long: first divergence at position 0" in run.stdout
    assert "-" == row(run.stdout, "forward")[3]


def test_an_engine_that_dies_fails_with_its_deaths_counted(adapter):
    run = golden("--engine", f"{adapter}:Dying", path="golden/test_forward.py")
    total, num_refused = len(ids("forward")), len(refusals("forward"))
    num_died = total - num_refused

    assert 1 == run.returncode
    assert [str(num_refused), "-", "-", "-", str(num_died), str(total)] == row(run.stdout, "forward")
    assert "ended with exit status 3 before it answered" in run.stdout
    assert f"the engine died {2 * num_died} times" in run.stdout


def test_an_engine_that_answers_nothing_fails(adapter):
    run = golden("--engine", f"{adapter}:Wordless")
    total = str(len(ids(*FAMILIES)))

    assert 1 == run.returncode
    assert ["-", "-", "-", total, "-", total] == row(run.stdout, "all")


@pytest.mark.parametrize(
    ("engine", "sentence"),
    [
        ("nonesuch", "no engine 'nonesuch'; use one of spec, fast"),
        ("nonesuch.py:Engine", "no adapter file nonesuch.py"),
        ("{adapter}:Nothing", "has no attribute 'Nothing'"),
        ("{adapter}:Unnamed", "'name' is a required property"),
    ],
)
def test_an_unknown_engine_is_a_usage_error(adapter, engine, sentence):
    run = golden("--engine", engine.format(adapter=adapter))

    assert 4 == run.returncode
    assert sentence in run.stderr
    assert "Traceback" not in run.stderr + run.stdout


@pytest.fixture
def copy(tmp_path) -> Path:
    """The repository's golden suite with everything it needs, to be damaged."""
    for folder in ("golden", "reference", "schemas"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "setup.cfg", tmp_path)
    return tmp_path


# pytest makes an error of collection (exit 2) of what golden/conftest.py raises while it collects.
STOPPED = (4,)


def test_a_family_without_records_stops_the_run(copy):
    for path in (copy / "golden" / "data" / "crossover").glob("*.json"):
        path.unlink()
    run = golden(path="golden/test_crossover.py", root=copy)

    assert run.returncode in STOPPED
    assert "family crossover has no record" in run.stderr + run.stdout


def test_a_record_that_breaks_its_schema_stops_the_run(copy):
    path = copy / "golden" / "data" / "crossover" / "recorded.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "surprise": 1}))
    run = golden(path="golden/test_crossover.py", root=copy)

    assert run.returncode in STOPPED
    assert "surprise" in run.stderr + run.stdout


def test_an_edited_digit_of_a_record_fails(copy):
    path = copy / "golden" / "data" / "crossover" / "recorded.json"
    content = json.loads(path.read_text())
    content["expected"]["rows"][0]["standard_ms"] += 0.01
    path.write_text(json.dumps(content))
    run = golden(path="golden/test_crossover.py", root=copy)

    assert 1 == run.returncode
    assert "fail: crossover/recorded: $[0].standard_ms is 22.0, expected 22.01" in run.stdout
