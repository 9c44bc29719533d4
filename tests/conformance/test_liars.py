"""Engines that lie on the wire are caught with the right verdict, and nothing of them is left."""

import sys
import time
from pathlib import Path

import pytest

from reference.conformance import channel as channel_module
from reference.conformance.compare import PASS, Verdict
from reference.conformance.engines import Options, find_engine
from reference.conformance.judge import judge, judge_all
from reference.conformance.records import find_records
from reference.conformance.remote import RemoteEngine
from reference.conformance.table import is_good, verdict_table
from reference.engine import ReferenceEngine

LIAR = Path(__file__).parent / "liar.py"
ROOT = Path(__file__).parents[2]
FORWARD, GENERATE = find_records(["forward", "generate"], ["forward/sweep-long", "generate/batching-b"])


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def liar():
    """An engine by the name of its lie; ended after the test."""
    engines = []

    def start(*words: object, limit_s: float = 20.0) -> RemoteEngine:
        engines.append(RemoteEngine([sys.executable, str(LIAR), *map(str, words)], "float64", limit_s))
        return engines[-1]

    yield start
    for engine in engines:
        engine.bye()


def test_the_liar_that_does_not_lie_passes(liar):
    engine = liar("honest")

    assert [PASS, PASS] == [judge(engine, record) for record in (FORWARD, GENERATE)]


@pytest.mark.parametrize(
    ("lie", "record", "sentence"),
    [
        ("garbage", FORWARD, "is not JSON"),
        ("log_line", FORWARD, "score: "),
        ("log_after", FORWARD, "stdout holds '[INFO] forward pass took 3 ms', which nobody asked for"),
        ("twice", FORWARD, "which nobody asked for"),
        ("out_of_order", FORWARD, "the answer has seq 2, expected 3"),
        ("bare_nan", FORWARD, 'NaN is not JSON; write it as the string "NaN"'),
        ("deep", FORWARD, "is not JSON"),
        ("two_members", FORWARD, "the answer breaks schemas/protocol.schema.json"),
        ("nothing", FORWARD, "the answer '' is not JSON"),
        ("another_dtype", FORWARD, "the answer breaks schemas/protocol.schema.json: at $.rows"),
        ("text_ids", GENERATE, "the answer breaks schemas/protocol.schema.json: at $.outputs[0].tokens["),
    ],
)
def test_what_is_no_answer_is_a_harness_error(liar, lie, record, sentence):
    judgement = judge(liar(lie), record)

    assert Verdict.HARNESS_ERROR is judgement.verdict
    assert sentence in judgement.sentence


def test_a_second_answer_that_comes_later_is_caught_by_the_next_question(liar):
    engine = liar("late_twice")
    first = judge(engine, FORWARD)
    time.sleep(0.5)
    second = judge(engine, FORWARD)

    assert PASS == first
    assert Verdict.HARNESS_ERROR is second.verdict
    assert "which nobody asked for" in second.sentence


@pytest.mark.parametrize("lie", ["never", "half"])
def test_no_answer_in_time_is_a_timeout(liar, lie):
    judgement = judge(liar(lie, limit_s=1.0), FORWARD)

    assert Verdict.TIMEOUT is judgement.verdict
    assert "score: no answer within 1 s" in judgement.sentence


def test_a_gigabyte_is_refused_before_it_is_held(liar, monkeypatch):
    monkeypatch.setattr(channel_module, "MAX_LINE_BYTES", 1 << 22)
    judgement = judge(liar("gigabyte"), FORWARD)

    assert Verdict.HARNESS_ERROR is judgement.verdict
    assert "the answer exceeds 4194304 bytes" in judgement.sentence


def test_an_engine_that_dies_is_tried_once_more_and_its_last_words_are_told(liar):
    engine = liar("dies_halfway")
    judgement = judge(engine, FORWARD)

    assert (Verdict.HARNESS_ERROR, 2) == (judgement.verdict, judgement.crashes)
    assert "died at both attempts" in judgement.sentence
    assert "ended with exit status -9 before it answered" in judgement.sentence
    assert "out of memory: killed by myself" in judgement.sentence
    assert "the engine died 2 times" in verdict_table(engine.describe(), [(FORWARD, judgement)])


def test_an_engine_that_dies_once_may_still_pass_and_the_crash_is_counted(liar, tmp_path):
    judgement = judge(liar("dies_once", tmp_path / "marker"), FORWARD)

    assert (Verdict.PASS, 1) == (judgement.verdict, judgement.crashes)


@pytest.mark.parametrize(
    ("lie", "record", "sentence"),
    [
        ("short_base64", FORWARD, "score: an array does not have the bytes of its shape"),
        ("two_outputs", GENERATE, "2 outputs for 1 prompts"),
        ("has_none", FORWARD, "the engine claims score and answers that it has none"),
    ],
)
def test_a_wrong_answer_is_a_failure(liar, lie, record, sentence):
    judgement = judge(liar(lie), record)

    assert Verdict.FAIL is judgement.verdict
    assert sentence in judgement.sentence


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not yet waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.skipif(not Path("/proc").exists(), reason="processes are looked up in /proc")
def test_an_engine_that_hangs_on_exit_is_ended_with_its_children(liar, tmp_path):
    engine = liar("hangs_on_exit", tmp_path / "pids")
    assert PASS == judge(engine, FORWARD)
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    assert [True, True] == [is_alive(pid) for pid in pids]

    start = time.monotonic()
    engine.bye()
    while any(map(is_alive, pids)) and time.monotonic() - start < 10.0:
        time.sleep(0.02)

    assert [False, False] == [is_alive(pid) for pid in pids]


# Liars of content: adapters hosted by the worker.

ADAPTERS = '''
import json
from pathlib import Path

import numpy as np

from reference.conformance.adapters.golden_llama.adapter import Specification

DATA = Path("{data}")


class Honest(Specification):
    """Claims float32, so that no lie is caught by its last bit."""

    def hello(self):
        return {{**super().hello(), "precisions": {{"float32": "f32"}}}}


class RightShape(Honest):
    """Always the golden's shape, with other numbers."""

    def __init__(self):
        super().__init__()
        score = self.score
        self.score = lambda tokens: np.random.default_rng(0).normal(size=score(tokens).shape)


class Echo(Honest):
    """Reads the goldens, and answers what another record expects."""

    def __init__(self):
        super().__init__()
        expected = json.loads((DATA / "forward" / "sweep-short.json").read_text())["expected"]["logits"]
        self.score = lambda tokens: np.resize(np.array(expected), (len(tokens), 48))
        told = json.loads((DATA / "generate" / "sweep-s0.json").read_text())["expected"]
        output = {{name: told[name] for name in ("tokens", "finish_reason")}}
        self.generate = lambda prompts: [output for _ in prompts]


class NaN(Honest):
    def __init__(self):
        super().__init__()
        score = self.score
        self.score = lambda tokens: score(tokens) * np.nan


class Changed(Honest):
    """Changes every output."""

    def __init__(self):
        super().__init__()
        generate = self.generate
        self.generate = lambda **asked: [self.change(output) for output in generate(**asked)]


class OutOfRange(Changed):
    def change(self, output):
        return {{**output, "tokens": [*output["tokens"][:-1], 100000]}}


class TooFew(Changed):
    def change(self, output):
        return {{**output, "tokens": output["tokens"][:-1], "logprobs": output.get("logprobs", [])[:-1]}}


class TooMany(Changed):
    def change(self, output):
        return {{**output, "tokens": [*output["tokens"], 1], "logprobs": [*output.get("logprobs", []), -1.0]}}


class NoLogprobs(Changed):
    def change(self, output):
        return {{name: member for name, member in output.items() if name != "logprobs"}}


class NoReason(Changed):
    def change(self, output):
        return {{name: member for name, member in output.items() if name != "finish_reason"}}


class Leaky(Honest):
    """The first prompt of a process stays in the cache and is in front of every later one."""

    past = ()

    def __init__(self):
        super().__init__()
        generate = self.generate

        def after_the_past(prompts, **asked):
            (prompt,) = prompts
            outputs = generate(prompts=[[*self.past, *prompt]], **asked)
            self.past = prompt[:1]
            return outputs

        self.generate = after_the_past


class ClaimsNothing:
    def hello(self):
        return {{"name": "modest", "version": "1", "precisions": {{"float32": "f32"}}}}

    def load(self, model_dir):
        pass


class Printing(Honest):
    """What a library prints, by Python or by its file descriptor, does not reach the channel."""

    def __init__(self):
        super().__init__()
        score = self.score

        def loud(tokens):
            import os
            import subprocess
            import sys
            print("loading ...")
            sys.stdout.write("half a line")
            os.write(1, b"native chatter\\n")
            subprocess.run(["echo", "a child"], check=True)
            return score(tokens)

        self.score = loud


class Odd(Honest):
    def __init__(self):
        super().__init__()
        self.score = lambda tokens: {{"an": {{1, 2}}}}
'''


@pytest.fixture(scope="module")
def adapters(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("liars") / "liars.py"
    path.write_text(ADAPTERS.format(data=ROOT / "golden" / "data"))
    return path


@pytest.fixture
def hosted(adapters, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    engines = []

    def start(name: str):
        engines.append(find_engine(f"{adapters}:{name}", Options(limit_s=20.0)))
        return engines[-1]

    yield start
    for engine in engines:
        engine.bye()


@pytest.mark.parametrize(
    ("name", "record", "sentence"),
    [
        ("RightShape", FORWARD, "first divergence at position 0"),
        ("Echo", FORWARD, "first divergence at position"),
        ("Echo", GENERATE, "first divergence at output token 0"),
        ("NaN", FORWARD, "first divergence at position 0: logit of token 0 is nan"),
        ("OutOfRange", GENERATE, "is 100000, which no vocabulary of 96 has"),
        ("TooFew", GENERATE, "expected 5 tokens, got 4"),
        ("TooMany", GENERATE, "expected 5 tokens, got 6"),
        ("NoLogprobs", GENERATE, "the engine claims logprobs and answers none"),
        ("NoReason", GENERATE, "finish reason None, expected 'length'"),
        ("Odd", FORWARD, "TypeError"),
    ],
)
def test_a_lie_about_content_is_a_failure(hosted, name, record, sentence):
    judgement = judge(hosted(name), record)

    assert Verdict.FAIL is judgement.verdict
    assert sentence in judgement.sentence


def test_the_honest_adapter_passes_the_same_records(hosted):
    engine = hosted("Honest")

    assert [Verdict.PASS] * 2 == [judge(engine, record).verdict for record in (FORWARD, GENERATE)]


@pytest.mark.parametrize("id_", ["metamorphic/repeated-sweep", "metamorphic/order", "generate/sweep-s0"])
def test_state_that_leaks_from_one_record_into_the_next_is_caught(hosted, id_):
    engine, (record,) = hosted("Leaky"), find_records(["metamorphic", "generate"], [id_])
    judge(engine, GENERATE)

    assert Verdict.FAIL is judge(engine, record).verdict


def test_an_engine_that_claims_nothing_passes_nothing_and_is_not_good(hosted):
    judged = list(judge_all(hosted("ClaimsNothing"), [FORWARD, GENERATE]))

    assert [Verdict.UNSUPPORTED] * 2 == [judgement.verdict for _, judgement in judged]
    assert not is_good(judged, "f32")


def test_what_a_library_prints_does_no_harm(hosted):
    assert PASS == judge(hosted("Printing"), FORWARD)


def test_the_suite_is_an_engine_of_itself():
    """In this process, and behind the worker: the same verdicts, on every family."""
    records = find_records(["cache", "speculation", "sampling", "crossover", "batching", "metamorphic"])
    engine = find_engine("hosted-spec")
    try:
        behind = [judgement.verdict for _, judgement in judge_all(engine, records)]
    finally:
        engine.bye()

    assert [judgement.verdict for _, judgement in judge_all(ReferenceEngine(), records)] == behind
