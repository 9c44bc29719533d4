"""The three recorded artifacts come out of our commands, field by field.

The recorded file is read and compared with a recording of the command by the walker below. It shares nothing with
experiments.comparable, by which the commands judge themselves.
"""

import json
import shutil
from pathlib import Path

import pytest

from reference import cli
from reference.conformance.artifacts import DATA, ROOT, sha256, validate
from reference.conformance.compare import PASS, Verdict
from reference.conformance.engines import find_engine
from reference.conformance.judge import judge
from reference.conformance.records import load_record
from reference.engine import ReferenceEngine

FAMILIES = ("batching", "sweep", "speculation")

# Fields that seeds/RULES.md calls volatile or descriptive, by the place where the recorded files have them.
RUN_FIELDS = frozenset({"environment", "sources", "command", "exit_status"})
DESCRIPTIVE = frozenset({"$.mode", "$.scope", "$.execution_mode", "$.model.reference"})
# The recorded step does not show the coin that drew its replacement; ours does.
EXTRA = frozenset({"final_coin"})

# How many values of the recorded files are left out, counted by hand. batching: mode, scope, exit_status, 4 words of
# command, 3 of environment, 8 sources; sweep: two rates and the model's reference; speculation: execution_mode.
LEFT_OUT_SCALARS = {"batching": 18, "sweep": 3, "speculation": 1}


def is_left_out(place: str) -> bool:
    parent, _, name = place.rpartition(".")
    return (parent == "$" and name in RUN_FIELDS) or place in DESCRIPTIVE or name.endswith("_per_sec")


def differences(recorded: object, ours: object, place: str = "$") -> list[str]:
    """Places at which two JSON values differ in type or value."""
    if isinstance(recorded, dict) and isinstance(ours, dict):
        added = [f"{place}.{name}" for name in ours.keys() - recorded.keys() - EXTRA]
        missing = [f"{place}.{name}" for name in recorded.keys() - ours.keys()]
        shared = sorted(recorded.keys() & ours.keys())
        kept = [name for name in shared if not is_left_out(f"{place}.{name}")]
        inner = [one for name in kept for one in differences(recorded[name], ours[name], f"{place}.{name}")]
        return [one for one in sorted(added + missing) if not is_left_out(one)] + inner
    if isinstance(recorded, list) and isinstance(ours, list):
        if len(recorded) != len(ours):
            return [place]
        pairs = enumerate(zip(recorded, ours, strict=True))
        return [one for index, (old, new) in pairs for one in differences(old, new, f"{place}[{index}]")]
    return [] if type(recorded) is type(ours) and recorded == ours else [place]


def leaves(content: object, place: str = "$") -> list[str]:
    """Places of all compared values that are no object and no array."""
    if isinstance(content, dict):
        kept = [name for name in content if not is_left_out(f"{place}.{name}")]
        return [one for name in kept for one in leaves(content[name], f"{place}.{name}")]
    if isinstance(content, list):
        return [one for index, member in enumerate(content) for one in leaves(member, f"{place}[{index}]")]
    return [place]


def count_scalars(content: object) -> int:
    """Values of a file that are no object and no array."""
    members = content.values() if isinstance(content, dict) else content if isinstance(content, list) else None
    return 1 if members is None else sum(map(count_scalars, members))


def recorded(family: str) -> dict:
    return json.loads((DATA / family / "seed.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def recordings(tmp_path_factory) -> dict[str, dict]:
    """Family -> what its command recorded."""
    directory = tmp_path_factory.mktemp("recordings")
    found = {}
    for family in FAMILIES:
        path = directory / f"{family}.json"
        assert cli.EXIT_DONE == cli.main([family, "--record", str(path)])
        found[family] = json.loads(path.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_every_field_of_the_recorded_artifact_comes_out_of_the_command(recordings, family):
    assert [] == differences(recorded(family), recordings[family])


def test_the_comparison_looks_at_the_fields_it_should():
    """A walker that skipped a part of a file would have fewer leaves; the counts are those of the recorded files."""
    expected = {family: count_scalars(recorded(family)) for family in FAMILIES}

    assert expected == {family: len(leaves(recorded(family))) + LEFT_OUT_SCALARS[family] for family in FAMILIES}
    assert "$.fixed.jobs[0].generated[1]" in leaves(recorded("batching"))
    assert "$.concurrency_sweep.results[3].peak_kv_bytes" in leaves(recorded("sweep"))
    assert "$.mid_run_telemetry_concurrency_4.kv_pressure" in leaves(recorded("sweep"))
    assert "$.batch_crossover[6].alpha_45_speedup" in leaves(recorded("speculation"))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_change_of_any_compared_value_is_seen(recordings, family):
    """Every leaf of the recording is replaced in turn by what no field holds."""

    def changed(content: object, target: str, place: str = "$") -> object:
        if place == target:
            return "changed"
        if isinstance(content, dict):
            return {name: changed(member, target, f"{place}.{name}") for name, member in content.items()}
        if isinstance(content, list):
            return [changed(member, target, f"{place}[{index}]") for index, member in enumerate(content)]
        return content

    right = recorded(family)
    for place in leaves(right):
        assert [place] == differences(right, changed(recordings[family], place))


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        ({"a": 1.0}, ["$.a"]),
        ({"a": True}, ["$.a"]),
        ({}, ["$.a"]),
        ({"a": 1, "b": 2}, ["$.b"]),
        ({"a": [1]}, ["$.a"]),
        ({"a": 1, "final_coin": 0.5, "mode": "", "command": [], "x_per_sec": 1.0}, []),
        ({"a": 1, "reference": ""}, ["$.reference"]),
    ],
)
def test_the_walker_names_the_place_of_a_difference(ours, expected):
    assert expected == differences({"a": 1}, ours)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_recording_validates_and_tells_how_it_was_made(recordings, family):
    recording = recordings[family]
    validate(recording, f"{family}_artifact", family)

    assert 0 == recording["exit_status"]
    assert ["python", "-m", "reference", family, "--record"] == recording["command"][:-1]
    assert {"python", "numpy", "platform"} == set(recording["environment"])
    assert sha256(ROOT / "reference/numerics.py") == recording["sources"]["reference/numerics.py"]
    assert sha256(ROOT / "reference/model/rope.py") == recording["sources"]["reference/model/rope.py"]


def test_the_digests_cover_every_module_of_the_specification(recordings):
    paths = [path for path in (ROOT / "reference").rglob("*.py") if "fast" not in str(path.relative_to(ROOT))]
    names = {str(path.relative_to(ROOT)) for path in paths if not {"adapters", "report"} & set(path.parts)}

    assert names == set(recordings["sweep"]["sources"])


def test_both_rates_come_from_one_elapsed_time(recordings):
    """16 prefill tokens and 20 decode tokens: whatever the clock said, the rates are as 16 to 20."""
    telemetry = recordings["sweep"]["mid_run_telemetry_concurrency_4"]
    prefill, decode = telemetry["prefill_tokens_per_sec"], telemetry["decode_tokens_per_sec"]

    assert decode > 0
    assert 16 * decode == pytest.approx(20 * prefill, abs=(16 + 20) * 0.0005)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_recorded_artifact_is_a_record_that_the_specification_passes(family):
    assert PASS == judge(ReferenceEngine(), load_record(family, DATA / family / "seed.json"))


class FewerAccepted(ReferenceEngine):
    """The accept coins are those of a stricter rule."""

    def verify(self, p, q, drafts, accept_coins, final_coin):
        return super().verify(p, q, drafts, [min(0.999, 2 * coin) for coin in accept_coins], final_coin)


def test_an_engine_that_verifies_otherwise_fails_the_recorded_artifact():
    judgement = judge(FewerAccepted(), load_record("speculation", DATA / "speculation" / "seed.json"))

    assert Verdict.FAIL is judgement.verdict
    assert judgement.sentence.startswith("$.verification_step.")


def test_an_engine_that_cannot_serve_is_unsupported_on_the_recorded_artifacts():
    for family in ("batching", "sweep"):
        record = load_record(family, DATA / family / "seed.json")
        assert Verdict.UNSUPPORTED is judge(find_engine("fast"), record).verdict


@pytest.mark.parametrize(
    ("family", "damaged"),
    [
        ("batching", "$.continuous.jobs[1].generated[4]"),
        ("batching", "$.refusal"),
        ("sweep", "$.concurrency_sweep.results[2].peak_kv_bytes"),
        ("sweep", "$.concurrency_sweep.reference_outputs.s7[7]"),
        ("speculation", "$.batch_crossover[6].alpha_45_speedup"),
        ("speculation", "$.distribution_check_pos2.tv_distance_without_residual"),
    ],
)
def test_a_damaged_seed_makes_the_command_fail_and_name_the_field(tmp_path, monkeypatch, capsys, family, damaged):
    data = tmp_path / "golden" / "data"
    shutil.copytree(DATA / family, data / family)
    damage(data / family / "seed.json", damaged)
    monkeypatch.setattr(cli, "ROOT", tmp_path)
    monkeypatch.setattr(cli, "DATA", data)

    assert cli.EXIT_CHECK_FAILED == cli.main([family])
    assert f"differs from golden/data/{family}/seed.json: {damaged} is " in capsys.readouterr().out


def test_a_recording_of_a_failed_check_says_so(tmp_path, monkeypatch):
    data = tmp_path / "golden" / "data"
    shutil.copytree(DATA / "speculation", data / "speculation")
    damage(data / "speculation" / "seed.json", "$.verification_step.total_emitted")
    (tmp_path / "reference").symlink_to(ROOT / "reference")
    monkeypatch.setattr(cli, "ROOT", tmp_path)
    monkeypatch.setattr(cli, "DATA", data)

    assert cli.EXIT_CHECK_FAILED == cli.main(["speculation", "--record", str(tmp_path / "record.json")])
    assert cli.EXIT_CHECK_FAILED == json.loads((tmp_path / "record.json").read_text())["exit_status"]


def damage(path: Path, place: str) -> None:
    """Adds 1 to the number, or a letter to the text, at a place of a JSON file."""
    content = json.loads(path.read_text(encoding="utf-8"))
    *steps, last = place.replace("[", ".").replace("]", "").removeprefix("$.").split(".")
    holder = content
    for step in steps:
        holder = holder[int(step)] if step.isdigit() else holder[step]
    key = int(last) if last.isdigit() else last
    holder[key] += "x" if isinstance(holder[key], str) else 1
    path.write_text(json.dumps(content), encoding="utf-8")
