"""HTTP servers as engines: a stub that replays answers of the documented shape, and the real server of llama.cpp.

The stub's tokens and logprobs come from the specification, asked about the golden checkpoint `batching`.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from reference import cli
from reference.conformance import http_channel
from reference.conformance.artifacts import MODELS, ROOT
from reference.conformance.compare import Verdict
from reference.conformance.engines import VENVS, Options, find_engine, match_engines
from reference.conformance.http_channel import KEY_VARIABLE, HttpChannel
from reference.conformance.http_dialects import DIALECTS, LLAMA_SERVER, ask_llama_server
from reference.conformance.http_engine import PRECISIONS, HttpEngine
from reference.conformance.judge import judge
from reference.conformance.records import Record, load_records
from reference.conformance.table import failures, verdict_table
from reference.engine import Output, ReferenceEngine
from reference.errors import Refusal, RefusedError, UnsupportedError

MODEL = MODELS / "batching"
RECORDS = {record.id: record for record in load_records("generate") if record.input["model"] == "batching"}
TWELVE, EOS_ENDS = RECORDS["generate/batching-twelve"], RECORDS["generate/eos-ends"]
KEY = "sk-golden/llama+key=="
LLAMA_CPP = VENVS / "llama_cpp" / "bin" / "python"
ADAPTER = ROOT / "reference" / "conformance" / "adapters" / "llama_cpp"

# Fields that could change a token, as the documentation of each server names them (docs/http.md has the sources).
SAMPLING = {
    "vllm": "n temperature top_p top_k min_p seed repetition_penalty presence_penalty frequency_penalty logit_bias "
    "bad_words use_beam_search length_penalty min_tokens max_tokens stop stop_token_ids ignore_eos "
    "add_special_tokens",
    "sglang": "n temperature top_p top_k min_p sampling_seed repetition_penalty presence_penalty frequency_penalty "
    "logit_bias min_new_tokens max_new_tokens stop stop_regex stop_token_ids ignore_eos json_schema regex ebnf "
    "structural_tag",
    "llama-server": "temperature dynatemp_range dynatemp_exponent top_k top_p min_p n_predict n_indent n_keep stop "
    "typical_p repeat_penalty repeat_last_n presence_penalty frequency_penalty dry_multiplier dry_base "
    "dry_allowed_length dry_penalty_last_n xtc_probability xtc_threshold mirostat mirostat_tau mirostat_eta grammar "
    "seed ignore_eos logit_bias min_keep t_max_predict_ms samplers lora",
    "openai": "n best_of temperature top_p seed presence_penalty frequency_penalty logit_bias stop max_tokens",
}
OTHERS = {
    "vllm": "prompt stream echo logprobs return_tokens_as_token_ids return_token_ids include_stop_str_in_output "
    "skip_special_tokens spaces_between_special_tokens",
    "sglang": "skip_special_tokens spaces_between_special_tokens no_stop_trim",
    "llama-server": "prompt stream id_slot cache_prompt n_cache_reuse return_tokens n_probs post_sampling_probs "
    "top_n_sigma adaptive_target adaptive_decay",
    "openai": "model prompt stream echo logprobs",
}


class Stub:
    """A server on a free port of 127.0.0.1. `respond` gets a handler and the JSON asked; it gives status and body."""

    def __init__(self, respond):
        self.respond, self.asked, self.greeted = respond, [], 0
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                stub.greeted += 1
                self.answer(200, {"version": "1.2.3", "build_info": "b7"})

            def do_POST(self):
                question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                stub.asked.append((self.path, question, self.headers.get("Authorization")))
                answered = stub.respond(self, question)
                if answered is not None:
                    self.answer(*answered)

            def answer(self, status, body, **headers):
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def start():
    """Starts stubs, and ends them."""
    stubs = []

    def started(respond):
        stubs.append(Stub(respond))
        return stubs[-1]

    yield started
    for stub in stubs:
        stub.close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(http_channel, "PAUSES_S", (0.01, 0.01))
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


def engine_at(url: str, dialect: str = "vllm", limit_s: float = 20.0, **options) -> HttpEngine:
    return HttpEngine(url, dialect, limit_s, served_model=MODEL, **options)


def specified(prompt, max_tokens, eos_ids) -> Output:
    spec = ReferenceEngine()
    spec.load(MODEL)
    return spec.generate([prompt], max_tokens, eos_ids, True)[0]


def as_vllm(_handler, asked):
    """vLLM's CompletionResponse with return_token_ids and return_tokens_as_token_ids."""
    assert asked["ignore_eos"]  # the checkpoint's own eos ids do not count
    output = specified(asked["prompt"], asked["max_tokens"], asked["stop_token_ids"])
    names = [f"token_id:{token}" for token in output.tokens]
    logprobs = {"tokens": names, "token_logprobs": output.logprobs, "text_offset": [], "top_logprobs": []}
    ids = {"token_ids": output.tokens, "prompt_token_ids": asked["prompt"], "stop_reason": None}
    choice = {"index": 0, "text": "", "finish_reason": output.finish_reason, "logprobs": logprobs, **ids}
    usage = {"prompt_tokens": len(asked["prompt"]), "prompt_tokens_details": None}
    return 200, {"id": "cmpl-1", "object": "text_completion", "model": "m", "choices": [choice], "usage": usage}


def as_sglang(_handler, asked):
    """SGLang's answer to /generate; ignore_eos ignores the stop_token_ids too."""
    sampling = asked["sampling_params"]
    ends = [] if sampling["ignore_eos"] else sampling["stop_token_ids"]
    output = specified(asked["input_ids"], sampling["max_new_tokens"], ends)
    ended = {"stop": {"type": "stop", "matched": output.tokens[-1]}, "length": {"type": "length", "length": 1}}
    steps = [[logprob, token, None] for logprob, token in zip(output.logprobs, output.tokens, strict=True)]
    meta = {"id": "1", "finish_reason": ended[output.finish_reason], "output_token_logprobs": steps}
    return 200, {"text": "", "output_ids": output.tokens, "meta_info": {**meta, "cached_tokens": 0}}


def as_llama_server(_handler, asked):
    """llama.cpp's answer to /completion with return_tokens and n_probs."""
    output = specified(asked["prompt"], asked["n_predict"], [])
    steps = [
        {"id": token, "token": "?", "bytes": [63], "logprob": logprob, "top_logprobs": []}
        for logprob, token in zip(output.logprobs, output.tokens, strict=True)
    ]
    told = {"tokens": output.tokens, "tokens_predicted": len(output.tokens), "completion_probabilities": steps}
    return 200, {"content": "?", "stop": True, "stop_type": "limit", "timings": {"cache_n": 0}, **told}


def as_openai(_handler, asked):
    """OpenAI's completion: tokens are text."""
    output = specified(asked["prompt"], asked["max_tokens"], [])
    logprobs = {"tokens": ["?"] * len(output.tokens), "token_logprobs": output.logprobs, "top_logprobs": []}
    choice = {"index": 0, "text": "?", "finish_reason": output.finish_reason, "logprobs": logprobs}
    return 200, {"id": "cmpl-1", "object": "text_completion", "model": asked["model"], "choices": [choice]}


STUBS = {"vllm": as_vllm, "sglang": as_sglang, "llama-server": as_llama_server, "openai": as_openai}
WITH_IDS = ("vllm", "sglang", "llama-server")


def changed(stub, change):
    """The stub with its answer changed."""

    def respond(handler, asked):
        status, answer = stub(handler, asked)
        answer = json.loads(json.dumps(answer))
        change(answer)
        return status, answer

    return respond


@pytest.mark.parametrize("dialect", STUBS)
def test_every_sampling_field_is_sent_and_no_unknown_one(start, dialect):
    stub = start(STUBS[dialect])
    judge(engine_at(stub.url, dialect), TWELVE)
    ((path, question, _),) = stub.asked
    fields = question.get("sampling_params", question)
    expected = {*SAMPLING[dialect].split(), *OTHERS[dialect].split()}

    assert (DIALECTS[dialect].path, expected) == (path, set(fields))
    greedy = (0.0, 1.0, 0.0, 0.0)
    assert greedy == tuple(fields[name] for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty"))
    assert TWELVE.input["prompt"] == question.get("prompt", question.get("input_ids"))


@pytest.mark.parametrize("dialect", WITH_IDS)
def test_server_that_follows_the_specification_passes(start, dialect):
    """llama-server cannot be told eos ids, so those records are unsupported."""
    engine = engine_at(start(STUBS[dialect]).url, dialect)
    by_eos = Verdict.UNSUPPORTED if dialect == "llama-server" else Verdict.PASS
    expected = {id_: by_eos if record.input["eos_ids"] else Verdict.PASS for id_, record in RECORDS.items()}

    assert expected == {id_: judge(engine, record).verdict for id_, record in RECORDS.items()}


@pytest.mark.parametrize(
    ("dialect", "change"),
    [
        ("vllm", lambda answer: answer["choices"][0]["logprobs"]["token_logprobs"].__setitem__(3, -9.0)),
        ("sglang", lambda answer: answer["meta_info"]["output_token_logprobs"][3].__setitem__(0, -9.0)),
        ("llama-server", lambda answer: answer["completion_probabilities"][3].update(logprob=-9.0)),
    ],
)
def test_wrong_logprob_fails(start, dialect, change):
    judgement = judge(engine_at(start(changed(STUBS[dialect], change)).url, dialect), TWELVE)

    assert (Verdict.FAIL, True) == (judgement.verdict, "logprob of output token 3" in judgement.sentence)


def test_null_is_no_logprob(start):
    """Nor is it 0, which a peaked distribution may have."""
    null = changed(as_llama_server, lambda answer: answer["completion_probabilities"][0].update(logprob=None))
    (output,) = engine_at(start(null).url, "llama-server").generate([[61, 36]], 1, [], True)

    assert ["nan"] == [str(logprob) for logprob in output.logprobs]


@pytest.mark.parametrize(
    ("dialect", "change", "words"),
    [
        ("vllm", lambda answer: answer["choices"][0].update(finish_reason="abort"), "finish reason 'abort'"),
        ("sglang", lambda answer: answer["output_ids"].insert(0, 61), "the answer tells the tokens [61, "),
        ("vllm", lambda answer: answer["choices"][0]["token_ids"].pop(), "and elsewhere"),
        ("llama-server", lambda answer: answer.update(stop_type="word"), "finish reason 'word'"),
    ],
)
def test_wrong_answer_fails(start, dialect, change, words):
    judgement = judge(engine_at(start(changed(STUBS[dialect], change)).url, dialect), TWELVE)

    assert (Verdict.FAIL, True) == (judgement.verdict, words in judgement.sentence), judgement


@pytest.mark.parametrize(
    ("dialect", "change"),
    [
        ("openai", lambda answer: None),
        ("openai", lambda answer: answer["choices"][0].update(logprobs=None)),
        ("openai", lambda answer: answer["choices"][0]["logprobs"].update(tokens=["token_id:7", "?"])),
        ("llama-server", lambda answer: answer.update(tokens=[], completion_probabilities=None)),
        ("sglang", lambda answer: (answer.pop("output_ids"), answer["meta_info"].pop("output_token_logprobs"))),
        ("vllm", lambda answer: answer["choices"][0].update(token_ids=None, logprobs=None)),
    ],
)
def test_answer_without_token_ids_is_unsupported(start, dialect, change):
    """Text is never tokenised again."""
    judgement = judge(engine_at(start(changed(STUBS[dialect], change)).url, dialect), TWELVE)

    assert (Verdict.UNSUPPORTED, "the engine has no token ids in the answer") == (
        judgement.verdict,
        judgement.sentence,
    )


@pytest.mark.parametrize(
    "tell",
    [
        lambda choice, tokens: choice.update(token_ids=tokens),
        lambda choice, tokens: choice["logprobs"].update(tokens=[f"token_id:{token}" for token in tokens]),
        lambda choice, tokens: choice.update(logprobs={"content": [{"id": token} for token in tokens]}),
    ],
    ids=["token_ids", "names", "content"],
)
def test_openai_answer_that_carries_ids_is_judged_without_its_logprobs(start, tell):
    def change(answer):
        (choice,) = answer["choices"]
        choice["logprobs"]["token_logprobs"] = [-9.0] * 12  # of an unknown distribution
        tell(choice, TWELVE.expected["tokens"])

    engine = engine_at(start(changed(as_openai, change)).url, "openai")

    assert Verdict.PASS == judge(engine, TWELVE).verdict
    assert "logprobs" not in engine.describe().claims


def test_cached_tokens_are_evidence(start):
    def change(answer):
        answer["usage"]["prompt_tokens_details"] = {"cached_tokens": 2}

    def cached(dialect, respond):
        (output,) = engine_at(start(respond).url, dialect).generate([[61, 36]], 2, [])
        return output.cached_tokens

    llama_server = changed(as_llama_server, lambda answer: answer["timings"].update(cache_n=1))
    sglang = changed(as_sglang, lambda answer: answer["meta_info"].update(cached_tokens=3))

    assert 2 == cached("vllm", changed(as_vllm, change))
    assert None is cached("vllm", as_vllm)
    assert 1 == cached("llama-server", llama_server)
    assert 3 == cached("sglang", sglang)


def test_eos_ids_that_the_server_would_add_are_unsupported(start):
    """zoo-defaults-spelled ends at 2 by itself: SGLang adds that to what is asked, llama-server and OpenAI have no
    other, vLLM can leave it out.
    """

    def possible(dialect, eos_ids):
        engine = HttpEngine(stubs[dialect], dialect, served_model=MODELS / "zoo-defaults-spelled")
        with suppress(UnsupportedError):
            engine.generate([[1]], 1, eos_ids)
            return True
        return False

    def tell_one(handler, asked):
        return STUBS["vllm"](handler, asked) if "ignore_eos" in asked else as_openai(handler, asked)

    told = changed(as_openai, lambda answer: answer["choices"][0].update(token_ids=[1]))
    stubs = {name: start(stub).url for name, stub in {**STUBS, "openai": told}.items()}
    expected = {
        "vllm": (True, True, True, True),
        "sglang": (True, True, True, False),
        "llama-server": (False, True, False, False),
        "openai": (False, True, False, False),
    }

    assert expected == {
        dialect: tuple(possible(dialect, eos_ids) for eos_ids in ((), (2,), (1, 2), (1,))) for dialect in DIALECTS
    }


def test_one_checkpoint_is_served_and_others_are_unsupported(start):
    stub = start(as_vllm)
    engine = engine_at(stub.url)
    other = load_records("forward")[-1]
    engine.load(Path(os.path.relpath(MODEL)))

    assert Verdict.UNSUPPORTED == judge(engine, other).verdict
    with pytest.raises(UnsupportedError, match="checkpoint other than the served one"):
        engine.load(MODELS / "sweep")
    assert [] == stub.asked


def test_description_tells_dialect_address_and_claim(start):
    stub = start(as_vllm)
    described = engine_at(stub.url + "/", dtype="bfloat16").describe()

    assert ("vllm over HTTP", "1.2.3", "bf16") == (described.name, described.version, described.precision)
    assert ("vllm", stub.url, "batching") == tuple(
        described.choices[name] for name in ("dialect", "url", "checkpoint")
    )
    assert {"describe", "load", "generate", "finish_reason", "logprobs"} == described.claims
    assert "b7" == engine_at(stub.url, "llama-server").describe().version
    assert "(version not told)" == engine_at(stub.url, "openai").describe().version


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
def test_error_status_is_the_engines_own_failure_and_is_not_repeated(start, status):
    stub = start(lambda _handler, _asked: (status, {"error": {"message": "no room"}}))
    judgement = judge(engine_at(stub.url), TWELVE)

    assert Verdict.FAIL == judgement.verdict
    assert f'HTTP {status} for POST /v1/completions: {{"error": {{"message": "no room"}}}}' in judgement.sentence
    assert 1 == len(stub.asked)


def test_redirect_is_not_followed(start):
    other = start(as_vllm)

    def redirect(handler, _asked):
        handler.answer(307, b"", Location=f"{other.url}/v1/completions")

    judgement = judge(engine_at(start(redirect).url), TWELVE)

    assert (Verdict.HARNESS_ERROR, []) == (judgement.verdict, other.asked)
    assert "HTTP 307 for POST /v1/completions: redirects are not followed" == judgement.sentence


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>", "is not JSON"),
        (b'{"choices": [NaN]}', "is not JSON (NaN is no JSON)"),
        (b"[" * 100_000, "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"", "is not JSON"),
        (b"[]", "is not of the form of vllm"),
        (b"{}", "is not of the form of vllm: KeyError: 'choices'"),
        (b'{"choices": []}', "is not of the form of vllm"),
        (b'{"choices": [7]}', "is not of the form of vllm: AttributeError"),
        (b'{"choices": [{"token_ids": ["7"]}]}', "a token id is no integer"),
        (b'{"choices": [{"token_ids": [true]}]}', "a token id is no integer"),
        (b'{"choices": [{"token_ids": [7], "logprobs": {"token_logprobs": ["x"]}}]}', "could not convert"),
    ],
)
def test_answer_of_another_form_is_a_harness_error(start, body, words):
    judgement = judge(engine_at(start(lambda _handler, _asked: (200, body)).url), TWELVE)

    assert (Verdict.HARNESS_ERROR, True) == (judgement.verdict, words in judgement.sentence), judgement


def test_answer_beyond_the_limit_is_a_harness_error(start, monkeypatch):
    assert 1 << 28 == http_channel.MAX_LINE_BYTES
    monkeypatch.setattr(http_channel, "MAX_LINE_BYTES", 1000)
    monkeypatch.setattr(http_channel, "PIECE_BYTES", 100)
    judgement = judge(engine_at(start(lambda _handler, _asked: (200, b" " * 1001)).url), TWELVE)

    assert (Verdict.HARNESS_ERROR, "the answer exceeds 1000 bytes") == (judgement.verdict, judgement.sentence)


def drip(handler, beginning, piece, is_over):
    """Sends the beginning, then a piece now and then, so that no single read waits long."""
    with suppress(OSError):
        handler.wfile.write(beginning)
        while not is_over.wait(0.05):
            handler.wfile.write(piece)


@pytest.mark.parametrize(
    ("beginning", "piece"),
    [
        (b"", b""),
        (b"HTTP/1.1 200 OK\r\nX-Long: ", b"x"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    ],
    ids=["silence", "headers", "body", "chunks"],
)
def test_time_limit_is_of_the_whole_answer(start, beginning, piece):
    is_over = threading.Event()
    stub = start(lambda handler, _asked: drip(handler, beginning, piece, is_over))
    judgement = judge(engine_at(stub.url, limit_s=0.4), TWELVE)
    is_over.set()

    assert (Verdict.TIMEOUT, 1) == (judgement.verdict, len(stub.asked)), judgement
    assert "within 0.4 s" in judgement.sentence


@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9",
    ],
    ids=["nothing", "body", "chunk"],
)
def test_connection_that_ends_too_early_is_a_crash(start, beginning):
    """The judge asks once more, as it does with a process that dies."""

    def hang_up(handler, _asked):
        handler.wfile.write(beginning)
        handler.close_connection = True

    stub = start(hang_up)
    judgement = judge(engine_at(stub.url), TWELVE)

    assert (Verdict.HARNESS_ERROR, 2, 2) == (judgement.verdict, judgement.crashes, len(stub.asked)), judgement


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_server_that_is_not_there_is_named_after_three_attempts(monkeypatch):
    attempts = []
    monkeypatch.setattr(http_channel.time, "sleep", attempts.append)
    url = f"http://127.0.0.1:{free_port()}"
    expected = f"no connection to {url} at 3 attempts: Connection refused; start the server, or correct --engine"

    with pytest.raises(RefusedError) as refused:
        find_engine(url, Options(dialect="vllm", served_model=MODEL))
    assert (Refusal.NOT_FOUND, expected) == (refused.value.reason, str(refused.value))
    assert 2 == len(attempts)


def test_server_that_comes_up_meanwhile_is_found(monkeypatch):
    port = free_port()
    stubs = []

    def wait(_seconds):
        server = ThreadingHTTPServer(("127.0.0.1", port), BaseHTTPRequestHandler)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        stubs.append(server)

    monkeypatch.setattr(http_channel, "PAUSES_S", (0.5,))
    monkeypatch.setattr(http_channel.time, "sleep", wait)
    engine_at(f"http://127.0.0.1:{port}").describe()
    (server,) = stubs
    server.shutdown()
    server.server_close()


def test_server_that_goes_away_is_a_harness_error(start):
    stub = Stub(as_vllm)
    engine = engine_at(stub.url)
    engine.describe()
    stub.close()
    judgement = judge(engine, TWELVE)

    assert (Verdict.HARNESS_ERROR, True) == (judgement.verdict, "at 3 attempts" in judgement.sentence)


def echo(handler, status=200):
    """The key in an answer of the right form, and as an error."""
    key = handler.headers["Authorization"]
    return status, {"error": key, "choices": [{"token_ids": [33], "finish_reason": key}]}


@pytest.mark.parametrize(
    "respond",
    [
        lambda handler, _asked: echo(handler),
        lambda handler, _asked: echo(handler, 401),
        lambda handler, _asked: (200, handler.headers["Authorization"].encode()),
        lambda handler, _asked: (500, b"x" * 280 + handler.headers["Authorization"].encode()),
        lambda handler, _asked: handler.answer(302, b"", Location=handler.headers["Authorization"]),
        lambda handler, _asked: handler.wfile.write(handler.headers["Authorization"].encode()) and None,
    ],
    ids=["answer", "401", "no JSON", "cut", "redirect", "no HTTP"],
)
def test_key_is_sent_and_never_shown(start, monkeypatch, respond):
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    stub = start(respond)
    engine = engine_at(stub.url)
    one = Record("generate/one", "generate", {**TWELVE.input, "max_tokens": 1}, {**TWELVE.expected, "tokens": [33]})
    judged = [(record, judge(engine, record)) for record in (one, TWELVE)]
    shown = "\n".join(
        [repr(engine.describe()), repr(judged), verdict_table(engine.describe(), judged), failures(judged)]
    )

    assert {f"Bearer {KEY}"} == {key for _, _, key in stub.asked}
    assert [] == [part for part in (KEY, KEY[:8]) if part in shown], shown


def test_no_key_no_header(start):
    stub = start(as_vllm)
    judge(engine_at(stub.url), TWELVE)

    assert [None] == [key for _, _, key in stub.asked]


@pytest.mark.parametrize("key", ["two words", "secret\n", "secret\r\nX-Other: 1", "geheim-ü", '"secret"'])
def test_key_that_no_header_can_carry_is_refused_unseen(monkeypatch, key):
    monkeypatch.setenv(KEY_VARIABLE, key)
    with pytest.raises(RefusedError, match=KEY_VARIABLE) as refused:
        engine_at("http://127.0.0.1:1")

    assert (Refusal.USAGE, False) == (refused.value.reason, key in str(refused.value))


@pytest.mark.parametrize(
    "url",
    [
        "http://user:secret@127.0.0.1:1",
        "http://secret@127.0.0.1:1",
        "http://127.0.0.1:1/?key=secret",
        "http://127.0.0.1:1/#secret",
        "http://127.0.0.1:secret",
        "http://127.0.0.1:1/a secret",
        "http://127.0.0.1:1/secret\r\nX: 1",
        "http:///secret",
        "http://[secret",
    ],
)
def test_address_with_more_than_host_and_path_is_refused_unseen(capsys, url):
    """Also by the command, where ? and [ mean a pattern of names."""
    assert 2 == cli.main(["check", "--engine", url, "--served-model", str(MODEL), "--family", "crossover"])

    written = capsys.readouterr()
    assert "an HTTP engine is http[s]://host[:port][/path]" in written.err
    assert "secret" not in written.out + written.err


def test_address_of_ip_version_6_is_no_pattern():
    assert ["http://[::1]:8080"] == match_engines("http://[::1]:8080")


@pytest.mark.parametrize(
    ("options", "reason", "words"),
    [
        ({"served_model": None}, Refusal.USAGE, "--served-model DIR"),
        ({"served_model": Path("no/such")}, Refusal.NOT_FOUND, "config.json"),
        (
            {"served_model": MODEL, "dialect": "ollama"},
            Refusal.USAGE,
            "--dialect takes vllm, sglang, llama-server, openai",
        ),
        ({"served_model": MODEL, "dtype": "int4"}, Refusal.USAGE, f"--dtype takes {', '.join(PRECISIONS)}"),
    ],
)
def test_option_that_does_not_exist_is_refused(options, reason, words):
    with pytest.raises(RefusedError, match=words.replace("[", r"\[")) as refused:
        find_engine("http://127.0.0.1:1", Options(**options))

    assert reason == refused.value.reason


def test_path_of_the_address_is_kept(start):
    stub = start(as_vllm)
    judge(engine_at(f"{stub.url}/behind/proxy/"), TWELVE)

    assert ["/behind/proxy/v1/completions"] == [path for path, _, _ in stub.asked]


def test_check_judges_a_server(start, capsys):
    stub = start(as_sglang)
    options = ["--dialect", "sglang", "--served-model", str(MODEL), "--dtype", "float64", "--timeout", "20"]
    named = ["--family", "generate", "--record", TWELVE.id, "--record", EOS_ENDS.id]

    assert 0 == cli.main(["check", "--engine", stub.url, *options, *named])
    assert "sglang over HTTP 1.2.3 (compared as f64)" in capsys.readouterr().out
    assert 2 == len(stub.asked)


def test_goldens_judge_a_server(start):
    stub = start(as_llama_server)
    options = ["--engine", stub.url, "--dialect", "llama-server", "--served-model", str(MODEL)]
    command = [sys.executable, "-m", "pytest", "golden/test_generate.py", "-q", "-k", "batching-twelve", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)

    assert 0 == done.returncode, done.stdout + done.stderr
    assert "llama-server over HTTP b7 (compared as f32)" in done.stdout


SERVER = """
import os
import sys

import xllamacpp
from gguf_file import write_gguf

config = write_gguf(sys.argv[1], sys.argv[2])
parameters = xllamacpp.CommonParams()
parameters.model.path = sys.argv[2]
parameters.n_ctx, parameters.n_parallel = config["max_position_embeddings"], 1
parameters.cache_type_k = parameters.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
parameters.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
parameters.warmup = parameters.fit_params = False
server = xllamacpp.Server(parameters)
print(server.listening_address, flush=True)
sys.stdin.read()  # until the test is over, or gone
os._exit(0)  # its destructor may hang
"""


@pytest.fixture(scope="module")
def llama_server(tmp_path_factory):
    """The address of llama.cpp's server with the golden checkpoint `sweep`, on loopback."""
    if not LLAMA_CPP.exists():
        pytest.skip("no .venvs/llama_cpp: make .venvs/llama_cpp/.ready")
    folder = tmp_path_factory.mktemp("llama-server")
    with (folder / "stderr").open("wb") as words:
        process = subprocess.Popen(
            [str(LLAMA_CPP), "-c", SERVER, str(MODELS / "sweep"), str(folder / "sweep.gguf")],
            env={**os.environ, "PYTHONPATH": str(ADAPTER)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=words,
            text=True,
            start_new_session=True,
        )
    limit = threading.Timer(120, os.killpg, [process.pid, signal.SIGKILL])
    limit.start()
    try:
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:"), (folder / "stderr").read_text()[-2000:]
        yield address
    finally:
        limit.cancel()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdin.close()
        process.stdout.close()


REAL = [record for family in ("generate", "metamorphic") for record in load_records(family)]


@pytest.mark.parametrize("dialect", ["llama-server", "openai"])
def test_real_llama_server_passes_what_it_can_be_asked(llama_server, dialect):
    """Its own dialect and the plain one: all ten generate records of the checkpoint, a prompt twice, three times."""
    engine = HttpEngine(llama_server, dialect, served_model=MODELS / "sweep")
    verdicts = {record.id: judge(engine, record) for record in REAL}
    passed = {id_ for id_, judgement in verdicts.items() if judgement.verdict is Verdict.PASS}
    on_sweep = [record for record in REAL if record.family == "generate" and record.input["model"] == "sweep"]
    # llama-server has no field for ids that end an output.
    generated = {record.id for record in on_sweep if not record.input["eos_ids"]}

    assert {*generated, "metamorphic/warm-sweep", "metamorphic/repeated-sweep"} == passed
    assert {Verdict.PASS, Verdict.UNSUPPORTED} == {judgement.verdict for judgement in verdicts.values()}


def test_real_llama_server_decides_no_sampling_setting_by_itself(llama_server):
    """What it says it sampled with is what was sent; what was not sent is of logs, chats, drafts and grammars."""
    answer = HttpChannel(llama_server, 60.0).ask("/completion", ask_llama_server("sweep", [1, 2, 3], 2, []))
    settings = answer["generation_settings"]
    assert 2 == len(answer["tokens"])
    sent = {name: LLAMA_SERVER[name] for name in settings if name in LLAMA_SERVER}
    rest = (
        "max_tokens n_predict n_discard dry_sequence_breakers grammar_lazy grammar_triggers preserved_tokens "
        "chat_format reasoning_format reasoning_in_content generation_prompt speculative.types timings_per_token "
        "backend_sampling"
    )

    assert set(settings) - set(sent) <= set(rest.split())
    assert [] == [name for name in sent if sent[name] != pytest.approx(settings[name])]


def test_real_llama_server_refuses_an_empty_prompt(llama_server):
    engine = HttpEngine(llama_server, "llama-server", served_model=MODELS / "sweep")
    asked = {**TWELVE.input, "model": "sweep", "prompt": []}
    judgement = judge(engine, Record("generate/empty", "generate", asked, TWELVE.expected))

    assert Verdict.FAIL == judgement.verdict
    assert "HTTP 400 for POST /completion" in judgement.sentence
