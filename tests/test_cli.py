"""The commands: what they print, what they refuse, and that an error is one line and never a traceback."""

import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from reference import cli
from reference.conformance import engines
from reference.conformance.artifacts import DATA, MODELS
from reference.errors import RefusedError
from reference.model.cache import empty_cache
from reference.model.checkpoint import save_model
from reference.model.transformer import forward
from tests.models import TINY, random_model, random_tensors

ROOT = Path(__file__).parents[1]

OPTIONS = {
    "check": [
        *("--engine", "--engine-python", "--dtype", "--timeout", "--dialect", "--served-model", "--expectations"),
        *("--family", "--record", "--corpus", "--report", "--debug"),
    ],
    "batching": ["--record", "--debug"],
    "sweep": ["--record", "--debug"],
    "speculation": ["--record", "--debug"],
    "generate": [
        *("--model", "--prompt-ids", "--max-tokens", "--eos-ids", "--ignore-eos", "--context-length"),
        *("--no-cache", "--temperature", "--seed", "--draft", "--gamma", "--debug"),
    ],
    "score": ["--model", "--ids", "--logprobs", "--top", "--debug"],
}


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("models")
    for name, seed in (("tiny", 1), ("draft", 2)):
        save_model(directory / name, TINY, random_tensors(TINY, seed))
    return directory


@pytest.fixture
def broken(tmp_path, models) -> Path:
    """A copy of the tiny checkpoint, to be damaged."""
    return Path(shutil.copytree(models / "tiny", tmp_path / "broken"))


@pytest.fixture
def run(capsys):
    """Runs a command in this process: (exit code, stdout, stderr)."""

    def command(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = cli.main([str(word) for word in words])
        except SystemExit as leaving:
            code = leaving.code
        out, err = capsys.readouterr()
        return code, out, err

    return command


def assert_refused(answer: tuple[int, str, str], *fragments: str) -> None:
    """Exit code 2 and exactly one line on stderr, which holds the fragments."""
    code, _, err = answer
    assert cli.EXIT_BAD_INPUT == code
    assert re.fullmatch(r"error: [^\n]+\n", err), err
    assert [] == [fragment for fragment in fragments if fragment not in err], err


def test_help_names_every_command(run):
    code, out, _ = run("--help")

    assert 0 == code
    assert [] == [name for name in OPTIONS if name not in out]
    assert "Start with: python -m reference check" in out


@pytest.mark.parametrize("name", OPTIONS)
def test_the_help_of_a_command_names_its_options_and_no_others(run, name):
    code, out, _ = run(name, "--help")

    assert 0 == code
    assert {*OPTIONS[name], "--help"} == set(re.findall(r"--[a-z][a-z-]+", out))


def test_the_module_runs_as_a_program():
    command = [sys.executable, "-m", "reference", "--help"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert (0, "") == (run.returncode, run.stderr)
    assert run.stdout.startswith("usage: python -m reference")


def test_the_program_ends_with_the_exit_code_of_its_command(tmp_path):
    command = [sys.executable, "-m", "reference", "score", "--model", str(tmp_path / "none"), "--ids", "1"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert_refused((run.returncode, run.stdout, run.stderr), str(tmp_path / "none"))


def test_a_reader_that_has_seen_enough_is_no_error():
    """As in "| head -1": no message, but no success either, for nobody has seen the rest."""
    command = [sys.executable, "-m", "reference", "check", "--family", "sampling"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        run.stdout.close()
        assert b"" == run.stderr.read()

    assert cli.EXIT_CHECK_FAILED == run.returncode


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("unheard-of",),
        ("score",),
        ("score", "--model", "m"),
        ("score", "--model", "m", "--ids", "1,two"),
        ("generate", "--model", "m", "--prompt-ids", "1;2"),
        ("generate", "--model", "m", "--prompt-ids", "1", "--eos-ids", "x"),
        ("generate", "--model", "m", "--prompt-ids", "1", "--max-tokens", "many"),
        ("generate", "--model", "m", "--prompt-ids", "1", "--seed", "-1"),
        ("generate", "--model", "m", "--prompt-ids", "1", "--seed", "x"),
        ("batching", "--surprise"),
    ],
)
def test_a_malformed_command_line_is_bad_input(run, words):
    code, out, err = run(*words)

    assert (2, "") == (code, out)
    assert "usage: " in err
    assert "Traceback" not in err


# generate

TEN = ("--prompt-ids", "1,2,3", "--max-tokens", "10")


def test_generate_prints_tokens_and_finish_reason(run, models):
    code, out, err = run("generate", "--model", models / "tiny", *TEN)
    answer = json.loads(out)

    assert (0, "") == (code, err)
    assert {"tokens", "finish_reason"} == answer.keys()
    assert (10, "length") == (len(answer["tokens"]), answer["finish_reason"])


@pytest.mark.parametrize("more", [(), ("--temperature", "1.5", "--seed", "3")])
def test_without_a_cache_the_same_text_comes_out(run, models, more):
    cached = run("generate", "--model", models / "tiny", *TEN, *more)

    assert cached == run("generate", "--model", models / "tiny", *TEN, *more, "--no-cache")


@pytest.mark.parametrize("gamma", [1, 3, 8])
@pytest.mark.parametrize("draft", ["tiny", "draft"])
def test_with_a_draft_the_same_tokens_come_out(run, models, draft, gamma):
    plain = json.loads(run("generate", "--model", models / "tiny", *TEN)[1])
    code, out, _ = run("generate", "--model", models / "tiny", *TEN, "--draft", models / draft, "--gamma", gamma)
    drafted = json.loads(out)

    assert 0 == code
    assert plain == {name: drafted[name] for name in plain}
    assert all(len(step["drafts"]) <= gamma for step in drafted["steps"])


def test_an_eos_id_ends_the_output_unless_it_is_ignored(run, models, broken):
    tokens = json.loads(run("generate", "--model", models / "tiny", *TEN)[1])["tokens"]
    first = tokens.index(tokens[4]) + 1
    expected = {"tokens": tokens[:first], "finish_reason": "stop"}
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "eos_token_id": tokens[4]}))
    given = run("generate", "--model", models / "tiny", *TEN, "--eos-ids", f"{tokens[4]}")
    configured = run("generate", "--model", broken, *TEN)
    ignored = run("generate", "--model", broken, *TEN, "--ignore-eos")
    emptied = run("generate", "--model", broken, *TEN, "--eos-ids", "")

    assert expected == json.loads(given[1]) == json.loads(configured[1])
    assert tokens == json.loads(ignored[1])["tokens"] == json.loads(emptied[1])["tokens"]


def test_a_context_length_ends_the_output(run, models):
    answer = json.loads(run("generate", "--model", models / "tiny", *TEN, "--context-length", "7")[1])

    assert (4, "length") == (len(answer["tokens"]), answer["finish_reason"])


def test_a_seed_reproduces_a_sample(run, models):
    sample = ("generate", "--model", models / "tiny", *TEN, "--temperature", "2", "--seed")
    texts = [run(*sample, seed)[1] for seed in range(4)]

    assert texts == [run(*sample, seed)[1] for seed in range(4)]
    assert 4 == len(set(texts))
    assert texts[0] == run(*sample[:-1])[1]


def test_a_shorter_sample_is_the_start_of_a_longer_one(run, models):
    sample = ("generate", "--model", models / "tiny", "--prompt-ids", "1", "--temperature", "2", "--max-tokens")
    short, long = (json.loads(run(*sample, size)[1])["tokens"] for size in (3, 12))

    assert short == long[:3]


def test_a_sample_may_fill_the_context(run, models):
    """More coins than tokens are never needed, whatever max_tokens says."""
    sample = ("generate", "--model", models / "tiny", "--prompt-ids", "1", "--temperature", "1")
    answer = json.loads(run(*sample, "--max-tokens", 10**15)[1])

    assert TINY.max_position_embeddings - 1 == len(answer["tokens"])


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        (("--max-tokens", "0"), ["max_tokens is 0"]),
        (("--max-tokens", "-3"), ["max_tokens is -3"]),
        (("--max-tokens", "-3", "--temperature", "1"), ["max_tokens is -3"]),
        (("--temperature", "-1"), ["temperature -1.0"]),
        (("--temperature", "nan"), ["temperature nan"]),
        (("--temperature", "inf"), ["temperature inf"]),
        (("--context-length", "0"), ["a context of 0"]),
        (("--context-length", "-1", "--temperature", "1"), ["a context of -1"]),
        (("--context-length", "3"), ["a prompt of 3 tokens leaves no room"]),
        (("--context-length", "65"), ["a context of 65 exceeds the model's 64"]),
        (("--draft", "{models}/draft", "--gamma", "0"), ["gamma"]),
        (("--draft", "{models}/draft", "--temperature", "1"), ["--draft decodes greedily"]),
        (("--draft", "{models}/draft", "--no-cache"), ["--no-cache"]),
        (("--draft", "{models}/none"), ["none"]),
    ],
)
def test_generate_refuses_what_it_cannot_do(run, models, words, fragments):
    words = [word.format(models=models) for word in words]

    assert_refused(run("generate", "--model", models / "tiny", "--prompt-ids", "1,2,3", *words), *fragments)


@pytest.mark.parametrize(
    ("prompt", "fragment"), [("", "at least one token"), ("17", "token 17"), ("1,-2", "token -2")]
)
def test_a_prompt_outside_the_vocabulary_is_refused(run, models, prompt, fragment):
    assert_refused(run("generate", "--model", models / "tiny", "--prompt-ids", prompt), fragment)


# score


def test_score_prints_logits(run, models):
    logits, _ = forward(random_model(), (1, 2, 3), empty_cache(TINY))
    code, out, _ = run("score", "--model", models / "tiny", "--ids", "1,2,3")

    assert 0 == code
    assert {"logits": logits.tolist()} == json.loads(out)


def test_logprobs_sum_to_one(run, models):
    rows = json.loads(run("score", "--model", models / "tiny", "--ids", "1,2,3", "--logprobs")[1])["logprobs"]

    assert (3, 17) == np.shape(rows)
    assert [pytest.approx(1.0, abs=1e-12)] * 3 == [math.fsum(map(math.exp, row)) for row in rows]


def test_top_prints_the_most_likely_tokens_of_each_position(run, models):
    rows = json.loads(run("score", "--model", models / "tiny", "--ids", "4,9")[1])["logits"]
    code, out, _ = run("score", "--model", models / "tiny", "--ids", "4,9", "--top", "3")
    expected = [
        f"position {position}: "
        + "  ".join(f"{token} ({row[token]:.4f})" for token in sorted(range(17), key=lambda token: -row[token])[:3])
        for position, row in enumerate(rows)
    ]

    assert (0, expected) == (code, out.splitlines())


def test_top_of_less_than_one_is_refused(run, models):
    assert_refused(run("score", "--model", models / "tiny", "--ids", "1", "--top", "0"), "--top is 0")


@pytest.mark.parametrize(
    ("ids", "fragment"), [("", "at least one token"), ("99", "token 99"), ("1," * 65, "context")]
)
def test_ids_that_have_no_logits_are_refused(run, models, ids, fragment):
    assert_refused(run("score", "--model", models / "tiny", "--ids", ids), fragment)


# checkpoints


def test_a_missing_checkpoint_is_refused_by_name(run, tmp_path):
    assert_refused(run("score", "--model", tmp_path / "none", "--ids", "1"), str(tmp_path / "none"))


def test_a_missing_weight_file_is_refused_by_name(run, broken):
    (broken / "model.safetensors").unlink()

    assert_refused(run("score", "--model", broken, "--ids", "1"), "model.safetensors")


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_truncated_checkpoint_is_refused_by_name(run, broken, kept):
    whole = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(whole[:kept])

    assert_refused(run("score", "--model", broken, "--ids", "1"), "model.safetensors is not a whole safetensors file")


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("{", "is not JSON"),
        ("[]", "must hold a JSON object"),
        ("{}", "vocab_size"),
        ('{"model_type":\n"mamba"}', "mamba"),
        ("\x00", "is not JSON"),
    ],
)
def test_a_malformed_config_is_refused(run, broken, text, fragment):
    (broken / "config.json").write_text(text)

    assert_refused(run("generate", "--model", broken, "--prompt-ids", "1"), fragment)


def test_debug_raises_instead(models, tmp_path):
    with pytest.raises(RefusedError):
        cli.main(["score", "--model", str(tmp_path / "none"), "--ids", "1", "--debug"])


# experiments


@pytest.mark.parametrize(
    ("name", "fragments"),
    [
        ("batching", ["fixed batch until all finish", "[33, 89, 79, 4, 67]"]),
        ("sweep", ["concurrency  ticks", "corruption free: True"]),
        ("speculation", ["rejected_and_resampled -> 1", "0.1364 without"]),
    ],
)
def test_an_experiment_prints_a_table_and_what_agrees(run, name, fragments):
    code, out, err = run(name)

    assert (0, "") == (code, err)
    assert re.search(rf"\d+ fields agree with golden/data/{name}/seed.json\n$", out)
    assert [] == [fragment for fragment in fragments if fragment not in out]


def test_a_recording_that_cannot_be_written_is_refused(run, tmp_path):
    (tmp_path / "file").write_text("")

    assert_refused(run("speculation", "--record", tmp_path / "file" / "record.json"), "cannot write")


def test_a_cache_that_changes_tokens_fails_the_batching_experiment(run, monkeypatch):
    right = cli.generate_by_recomputation

    def wrong(model, prompt, stop, choose):
        output = right(model, prompt, stop, choose)
        return type(output)((0, *output.tokens[1:]), output.finish_reason)

    monkeypatch.setattr(cli, "generate_by_recomputation", wrong)
    code, out, _ = run("batching")

    assert cli.EXIT_CHECK_FAILED == code
    assert "job a: full-prefix recomputation gives (0, " in out


# check

ADAPTERS = """
from dataclasses import asdict

from reference.engine import ReferenceEngine
from reference.serving.cost_model import ForwardCost


class Wrong:
    def hello(self):
        return {"name": "wrong", "version": "1", "precisions": {"float32": "exact"}}

    def load(self, model_dir):
        pass

    def sample(self, logits, temperature, coin):
        return ReferenceEngine().sample(logits, temperature, coin)

    def crossover(self, batch_size, gamma, alphas, target, draft):
        costs = ForwardCost(**target), ForwardCost(**draft)
        return asdict(ReferenceEngine().crossover(batch_size + 1, gamma, alphas, *costs))


class Silent:
    pass


class Wordless:
    def hello(self):
        return {"name": "wordless", "version": "0", "precisions": {"float32": "f32"}}

    def load(self, model_dir):
        pass


class Failing:
    def __init__(self):
        raise RuntimeError("no licence\\nfor this machine")


class Unnamed:
    def hello(self):
        return {"version": "0", "precisions": {"float32": "f32"}}


class Vague(Wordless):
    def hello(self):
        return {**super().hello(), "precisions": {"float32": "about right"}}


no_class = 3
"""


@pytest.fixture(scope="module")
def adapters(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("adapters") / "adapters.py"
    path.write_text(ADAPTERS)
    return path


def num_records(family: str) -> int:
    return len(list((DATA / family).glob("*.json")))


def test_check_prints_a_table(run):
    code, out, err = run("check", "--family", "crossover", "--family", "generate")
    counts = [num_records("crossover"), num_records("generate")]

    assert (0, "") == (code, err)
    assert "specification 0.1.0 (compared as exact)" in out
    for name, count in zip(("crossover", "generate", "all"), (*counts, sum(counts)), strict=True):
        assert re.search(rf"^  {name} +{count} +- +- +- +- +{count}$", out, re.MULTILINE), out


def test_check_judges_several_engines(run):
    code, out, _ = run("check", "--engine", "fast64", "--engine", "spec", "--family", "generate")

    assert 0 == code
    assert out.index("fast twin (float64)") < out.index("specification")


def test_one_bad_engine_among_several_fails_the_check(run, adapters):
    words = ("--engine", "spec", "--engine", f"{adapters}:Wrong", "--engine", "spec")
    code, out, _ = run("check", *words, "--family", "crossover")

    assert cli.EXIT_CHECK_FAILED == code
    assert "fail: crossover/recorded: $[0]." in out


def test_an_engine_that_answers_nothing_fails_the_check(run, adapters):
    code, out, _ = run("check", "--engine", f"{adapters}:Wordless", "--family", "crossover")

    assert cli.EXIT_CHECK_FAILED == code
    assert "unsupported (the engine has no crossover): crossover/" in out


@pytest.mark.parametrize(
    ("engine", "fragments"),
    [
        ("nonesuch", ["no engine 'nonesuch'", "spec, fast, fast64, hosted-spec", "path/to/adapter.py:Class"]),
        ("llama.cpp?", ["no engine 'llama.cpp?'"]),
        ("nonesuch.py:Engine", ["no adapter file nonesuch.py", "path/to/adapter.py:Class"]),
        ("{adapters}", ["no engine"]),
        ("", ["no engine ''"]),
        ("{adapters}:Unheard", ["does not greet", "has no attribute 'Unheard'"]),
        ("{adapters}:no_class", ["does not greet", "'int' object is not callable"]),
        ("{adapters}:Silent", ["does not greet", "'Silent' object has no attribute 'hello'"]),
        ("{adapters}:Unnamed", ["does not greet", "'name' is a required property"]),
        ("{adapters}:Vague", ["does not greet", "'about right' is not one of"]),
        ("{adapters}:Failing", ["RuntimeError: no licence", "for this machine"]),
        ("true", ["does not greet", "ended with exit status 0"]),
        ("echo hello", ["does not greet"]),
    ],
)
def test_an_engine_that_cannot_be_had_is_bad_input(run, adapters, engine, fragments):
    assert_refused(run("check", "--engine", engine.format(adapters=adapters)), *fragments)


@pytest.mark.parametrize(
    ("source", "fragment"),
    [("def", "SyntaxError"), ("import nonesuch", "No module named 'nonesuch'"), ("1 / 0", "ZeroDivisionError")],
)
def test_an_adapter_that_does_not_load_is_bad_input(run, tmp_path, source, fragment):
    (tmp_path / "bad.py").write_text(source)

    assert_refused(run("check", "--engine", f"{tmp_path / 'bad.py'}:Engine"), "does not greet", fragment)


def test_a_dtype_that_an_engine_lacks_is_bad_input(run, adapters):
    words = ("--engine", f"{adapters}:Wordless", "--dtype", "int8")

    assert_refused(run("check", *words), "int8", "float32")


def test_an_interpreter_that_is_not_there_is_bad_input(run, adapters):
    words = ("--engine", f"{adapters}:Wordless", "--engine-python", "/no/such/python")

    assert_refused(run("check", *words), "/no/such/python")


@pytest.mark.parametrize("limit", ["0", "-1", "nan", "inf", "soon"])
def test_a_time_limit_is_a_number_of_seconds(run, limit):
    code, _, err = run("check", "--timeout", limit)

    assert 2 == code
    assert "is not a number of seconds above 0" in err


def test_check_judges_one_record(run):
    code, out, _ = run("check", "--record", "generate/batching-b")

    assert 0 == code
    assert re.search(r"^  all +1 +- +- +- +- +1$", out, re.MULTILINE), out


def test_an_unknown_record_is_bad_input(run):
    assert_refused(run("check", "--record", "generate/nonesuch"), "no record 'generate/nonesuch'")


@pytest.mark.parametrize(
    ("engine", "verdict", "code"), [("{adapters}:Wrong", "xfail", 0), ("spec", "xpass", cli.EXIT_CHECK_FAILED)]
)
def test_a_known_failure_must_still_fail(run, adapters, tmp_path, engine, verdict, code):
    known = [{"id": "crossover/recorded", "reason": "counts one session too many", "issue": None}]
    (tmp_path / "known.json").write_text(json.dumps({"expected_failures": known}))
    words = ("--engine", engine.format(adapters=adapters), "--expectations", tmp_path / "known.json")
    answer = run("check", *words, "--record", "crossover/recorded", "--record", "sampling/plain")

    assert f"{verdict}: crossover/recorded: " in answer[1]
    assert code == answer[0]


def test_an_unknown_family_is_bad_input(run):
    assert_refused(run("check", "--family", "nonesuch"), "no family 'nonesuch'; there are batching, cache")


def test_an_engine_without_its_packages_is_bad_input(run, monkeypatch, tmp_path):
    monkeypatch.setattr(engines, "VENVS", tmp_path)

    answer = run("check", "--engine", "mlx")
    assert_refused(answer, "mlx", "make conform ENGINE=mlx")


def test_the_golden_checkpoints_answer_like_the_records(run):
    content = json.loads((DATA / "generate" / "batching-b.json").read_text())
    prompt = ",".join(map(str, content["input"]["prompt"]))
    code, out, _ = run("generate", "--model", MODELS / "batching", "--prompt-ids", prompt, "--max-tokens", "5")

    assert 0 == code
    assert content["expected"]["tokens"] == json.loads(out)["tokens"]
