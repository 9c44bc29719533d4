"""The report: it says what was judged, survives whatever engines say, and is one and the same in four forms."""

import json
import math
import shutil
import sys
from dataclasses import fields, replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from reference import cli
from reference.conformance.artifacts import DATA, GOLDEN, read_json, sha256, validate
from reference.conformance.catalogue import KILL_MATRIX, Defect
from reference.conformance.compare import PASS, Judgement, Verdict
from reference.conformance.diagnosis import Candidate, Diagnosis
from reference.conformance.engines import Options
from reference.conformance.expectations import Expectation
from reference.conformance.judge import judge
from reference.conformance.records import find_records
from reference.conformance.report import html, words, write
from reference.conformance.report.gantt import Span, gantt, spans, window
from reference.conformance.report.html import page, slugs, token_window
from reference.conformance.report.junit import junit_xml
from reference.conformance.report.markdown import code, matrix, summary
from reference.conformance.report.plot import (
    BOTTOM,
    LEFT,
    MOST_DECADES,
    RIGHT,
    TOP,
    LogScale,
    difference_plot,
    log_scale,
    tick_indices,
    x_place,
)
from reference.conformance.report.rows import MOST_DEFECTS, OPTION_NAMES, Run, options_of, report_of, unknown_details
from reference.conformance.report.write import prepare, write_report
from reference.engine import Description, ReferenceEngine
from reference.errors import Refusal, RefusedError
from reference.serving.loop import serve
from reference.serving.policies import Limits
from tests.conformance.test_judge import eager

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import engine_table  # noqa: E402

HOSTILE = (
    "</script><script>alert(1)</script> ]]> <!-- ' \" & \x00\x1b[31m\r\x85 \ud800 \u202e \ufffe `code` ``` | @all #1"
)
IDS = ("forward/batching-long", "generate/batching-twelve", "sweep/evict-24", "cache/batching-fork", "sampling/hot")


def run_of(judgements, engine="spec", expected=None, **more) -> Run:
    """Made-up judgements: record id -> judgement."""
    records = {record.id: record for record in find_records(sorted({one.partition("/")[0] for one in judgements}))}
    judged = [(records[one], judgement) for one, judgement in judgements.items()]
    return Run(engine, Description("made up", "1.2", "f32"), judged, expected or {}, **more)


def one_of_each(sentence="a sentence") -> Run:
    """A record with every verdict."""
    ids = [record.id for record in find_records(["forward"])]
    judgements = dict(zip(ids, (Judgement(verdict, sentence) for verdict in Verdict), strict=False))
    known = {
        one: Expectation("known", "https://example.org/1")
        for one in judgements
        if judgements[one].verdict.value in ("xfail", "xpass")
    }
    return run_of(judgements, expected=known)


class Liar(ReferenceEngine):
    """Wrong in every way that has numbers to show."""

    def describe(self):
        return replace(super().describe(), name=HOSTILE, version=HOSTILE, precision="f32", choices={HOSTILE: HOSTILE})

    def score(self, tokens):
        logits = super().score(tokens).copy()
        logits[3] = np.nan
        logits[5:, 2] += 1.0
        return logits

    def extend(self, session, tokens):
        return super().extend(session, tokens) * 1.5

    def generate(self, prompts, max_tokens, eos_ids, logprobs=False):
        outputs = super().generate(prompts, max_tokens, eos_ids, logprobs)
        return [replace(one, tokens=(*one.tokens[:3], (one.tokens[3] + 1) % 32, *one.tokens[4:])) for one in outputs]

    def serve(self, requests, policy, limits, max_ticks=None):
        return serve(self.model, requests, eager, Limits(**limits), max_ticks)

    def sample(self, logits, temperature, coin):
        raise ValueError(HOSTILE)


@pytest.fixture(scope="module")
def lying() -> Run:
    """Judgements of an engine that is really broken."""
    engine = Liar()
    records = [record for record in find_records([one.partition("/")[0] for one in IDS]) if record.id in IDS]
    return Run(
        HOSTILE.replace("\x00", ""), engine.describe(), [(record, judge(engine, record)) for record in records], {}
    )


@pytest.fixture(scope="module")
def report(lying):
    return report_of([lying, one_of_each()])


def row(report, record_id, engine=0):
    return next(one for one in report["engines"][engine]["records"] if one["id"] == record_id)


# report.json


def test_a_report_of_a_broken_engine_is_valid_and_has_every_number(report):
    validate(report, "report", "report")

    assert {"fail"} == {one["verdict"] for one in report["engines"][0]["records"]}
    assert {"differences", "tolerances", "position", "token"} <= set(row(report, "forward/batching-long")["details"])
    assert {"expected_tokens", "answered_tokens", "margin"} <= set(row(report, "generate/batching-twelve")["details"])
    assert {"expected_trace", "answered_trace"} <= set(row(report, "sweep/evict-24")["details"])
    assert [] == [name for one in report["engines"][0]["records"] for name in one["left_out"]]


def test_what_json_has_no_number_for_survives_as_a_name(report):
    details = row(report, "forward/batching-long")["details"]

    assert ("NaN", "NaN") == (details["answered_value"], details["differences"][3])
    assert 1.0 == pytest.approx(details["differences"][5])


def test_a_row_has_what_is_needed_to_ask_again():
    given = Options("/usr/bin/python3", "bfloat16", 5.0, "llama.cpp", Path("models/my model"))
    judged = {"forward/batching-long": Judgement(Verdict.FAIL, "off", crashes=1)}
    whole = report_of([run_of(judged, "llama.cpp", options=given, expectations=Path("known.json"))])

    assert "bfloat16" == whole["engines"][0]["dtype"]
    assert {
        "id": "forward/batching-long",
        "family": "forward",
        "is_core": True,
        "verdict": "fail",
        "sentence": "off",
        "details": {},
        "left_out": [],
        "num_crashes": 1,
        "expectation": None,
        "sha256": sha256(DATA / "forward/batching-long.json"),
        "model": "batching",
        "rules": read_json(DATA / "forward/batching-long.json")["rules"],
        "catches": read_json(DATA / "forward/batching-long.json")["catches"],
        "command": "python -m reference check --engine llama.cpp --engine-python /usr/bin/python3 --dtype bfloat16 "
        "--timeout 5 --dialect llama.cpp --served-model 'models/my model' --expectations known.json "
        "--record forward/batching-long",
    } == {name: told for name, told in whole["engines"][0]["records"][0].items() if name != "known_defects"}


def test_a_failing_record_names_known_defects_that_it_catches():
    """What the kill matrix says of it, rarest first, with addresses."""
    rows = {one["id"]: one for one in read_json(KILL_MATRIX)["mutants"]}
    judged = {"forward/batching-long": Judgement(Verdict.FAIL, "off"), "forward/batching-short": PASS}
    failing, passing = report_of([run_of(judged)])["engines"][0]["records"]

    found = [defect["id"] for defect in failing["known_defects"]]
    assert MOST_DEFECTS == len(found)
    assert all("forward/batching-long" in rows[one]["kills"] for one in found)
    assert sorted(found, key=lambda one: len(rows[one]["kills"])) == found
    assert [] == passing["known_defects"]


def test_a_diagnosis_is_told_in_json_html_and_markdown():
    defects = (Defect("rope-x", "turns <b>wrongly</b>", ("https://example.org/7",)), Defect("rope-y", "and so", ()))
    diagnosis = Diagnosis(Candidate(defects, 0.75, 3, 4), Candidate((Defect("z", "or this", ()),), 0.5, 2, 4))
    run = run_of({"forward/batching-long": Judgement(Verdict.FAIL, "off")}, diagnosis=diagnosis)
    whole = report_of([run])
    validate(whole, "report", "here")

    words = "turns <b>wrongly</b> (rope-x); or and so (rope-y): 3 of 4 records fit, 75% on average"
    assert words == whole["engines"][0]["diagnosis"]["best"]["sentence"]
    assert f"`spec` behaves like: {words}. Seen before: https://example.org/7" in summary(whole)
    told = page(whole)
    assert "Behaves like: turns &lt;b&gt;wrongly&lt;/b&gt; (rope-x); or and so (rope-y)" in told
    assert 'href="https://example.org/7"' in told
    assert "Next best: or this (z): 2 of 4 records fit, 50% on average" in told


def test_no_known_defect_and_no_diagnosis_are_told_apart():
    failed = {"forward/batching-long": Judgement(Verdict.FAIL, "off")}
    none_fits = report_of([run_of(failed, diagnosis=Diagnosis(None, None))])

    assert "Behaves like none of the known defects" in page(none_fits)
    assert "behaves like none of the known defects" in summary(none_fits)
    assert "ehaves like" not in page(report_of([run_of(failed)]))


def test_the_command_is_one_that_the_program_takes():
    """Every option of an engine has its name, and the parser knows it."""
    command = report_of([run_of({"forward/batching-long": PASS})])["engines"][0]["records"][0]["command"]

    assert {field.name for field in fields(Options)} == set(OPTION_NAMES)
    assert [] == options_of(run_of({"forward/batching-long": PASS}))
    assert ["forward/batching-long"] == cli.parser().parse_args(command.split()[3:]).record
    for name in OPTION_NAMES.values():
        value = {"--dialect": "openai", "--dtype": "float32"}.get(name, "1")
        cli.parser().parse_args(["check", name, value])


def test_a_known_failure_has_its_reason_where_it_explains_the_verdict():
    rows = report_of([one_of_each()])["engines"][0]["records"]
    known = {"reason": "known", "issue": "https://example.org/1"}
    explained = {one["verdict"]: one["expectation"] for one in rows if one["expectation"]}

    assert {"xfail": known, "xpass": known} == explained


def test_the_corpus_is_that_of_the_manifest(report):
    manifest = read_json(GOLDEN / "manifest.json")

    assert {"version": manifest["corpus_version"], "digest": manifest["root"]} == report["corpus"]


@pytest.mark.parametrize(
    ("engine", "precision", "dtype"),
    [
        ("spec", "exact", "float64"),
        ("fast", "f32", "float32"),
        ("hosted-spec", "f64", "float64"),
        ("x", "f32", "float32"),
    ],
)
def test_the_dtype_is_that_of_the_engine(engine, precision, dtype):
    run = run_of({"forward/batching-long": PASS}, engine)

    described = report_of([replace(run, description=Description("e", "1", precision))])["engines"][0]
    assert dtype == described["dtype"]


@pytest.mark.parametrize(
    ("details", "left_out"),
    [
        ({"margin": 1.0, "position": 3}, []),
        ({"margin": math.nan, "differences": [math.inf, -math.inf, 0.5]}, []),
        ({"margin": "wide", "position": 3}, ["margin"]),
        ({"position": -1, "unheard_of": 1}, ["position", "unheard_of"]),
        ({"answered_trace": [{"tick": "x"}], "answered_tokens": [1.5]}, ["answered_tokens", "answered_trace"]),
        ({"differences": [object()]}, ["differences"]),
    ],
)
def test_details_of_a_form_that_nobody_knows_are_left_out_by_name(details, left_out):
    whole = report_of([run_of({"forward/batching-long": Judgement(Verdict.FAIL, "s", details)})])
    validate(whole, "report", "report")

    assert left_out == row(whole, "forward/batching-long")["left_out"]
    assert set(details) - set(left_out) == set(row(whole, "forward/batching-long")["details"])
    page(whole)


def test_no_detail_is_unknown_to_the_schema():
    names = read_json(ROOT / "schemas" / "report.schema.json")["$defs"]["details"]["properties"]

    assert [] == unknown_details({})
    assert ["x"] == unknown_details({"x": 1})
    assert set(names) >= {"positions", "limit", "index"}


# strings


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 日本 😀\n\ttext", "plain é 日本 😀\n\ttext"),
        ("\x00 \x1b[31m \x7f \r", r"\x00 \x1b[31m \x7f \x0d"),
        ("\ud800 \udfff \ufffe", r"\ud800 \udfff \ufffe"),
        ("\u202etxt.exe \u2066x", r"\u202etxt.exe \u2066x"),
    ],
)
def test_no_string_is_illegible(text, shown):
    assert shown == words.legible(text)


def test_a_report_does_not_tell_where_it_was_made(monkeypatch, tmp_path):
    home, here = tmp_path / "home", tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(home))

    assert "adapter.py:Engine" == words.portable(f"{here}/adapter.py:Engine")
    assert "--python=~/venv/bin/python" == words.portable(f"--python={home}/venv/bin/python")
    assert "reference/cli.py" == words.portable(f"{ROOT}/reference/cli.py")
    assert f"/mnt{here}/x" == words.portable(f"/mnt{here}/x")
    assert "https://host:80/v1" == words.portable("https://me:word@host:80/v1")


def test_a_command_tells_no_key():
    assert "serve --api-key *** --port 1" == words.without_secrets("serve --api-key abc --port 1")
    assert "env MY_API_KEY=*** serve" == words.without_secrets("env MY_API_KEY=abc serve")
    assert "x --password '***'".replace("'", "") == words.without_secrets("x --password 'two words'")
    assert "x --max-tokens 5" == words.without_secrets("x --max-tokens 5")


def test_a_long_string_is_cut():
    assert "a" * words.LONGEST == words.shortened("a" * words.LONGEST)
    assert f"{'a' * words.LONGEST} ... (7 characters more)" == words.shortened("a" * (words.LONGEST + 7))


# plot


def test_decades_are_equally_far_apart_and_nothing_leaves_the_plot():
    scale = LogScale(-4, 0)

    assert (BOTTOM, TOP) == pytest.approx((scale.height(1e-4), scale.height(1.0)))
    assert (BOTTOM + TOP) / 2 == pytest.approx(scale.height(1e-2))
    assert [BOTTOM] * 2 == [scale.height(value) for value in (0.0, 1e-9)]
    assert [TOP] * 3 == [scale.height(value) for value in (1e9, math.inf, math.nan)]
    assert ["1e-4", "1e-3", "1e-2", "1e-1", "1e0"] == [label for _, label in scale.ticks()]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.02, 3.0, 0.0, math.nan], LogScale(-2, 1)),
        ([1.0], LogScale(0, 1)),
        ([1e-300, 1.0, math.inf], LogScale(-MOST_DECADES, 0)),
        ([0.0, math.nan], LogScale(-1, 0)),
        ([], LogScale(-1, 0)),
    ],
)
def test_a_scale_has_whole_decades_around_what_is_finite(values, expected):
    assert expected == log_scale(values)


def test_rows_are_spread_over_the_width():
    assert [LEFT, (LEFT + RIGHT) / 2, RIGHT] == [x_place(index, 3) for index in range(3)]
    assert (LEFT + RIGHT) / 2 == x_place(0, 1)
    assert [[0], [0, 1, 2], [0, 5, 10, 15, 20, 25, 30]] == [tick_indices(count) for count in (1, 3, 33)]


def test_a_plot_marks_what_is_wrong_and_what_is_not_finite():
    plot = difference_plot(
        {"differences": [0.1, "NaN", 0.001, 1.0], "tolerances": [0.01] * 4, "positions": [0, 7, 8, 9]}
    )

    assert (2, 1) == (plot.wrong.count("M"), plot.not_finite.count("M"))
    assert 2 == plot.line.count("M"), "a gap where the NaN is"
    assert ["0", "7", "8", "9"] == [label for _, label in plot.x_ticks]
    assert (
        "3 of 4 positions are out of tolerance; the first is 0; the largest difference is 1 at position 9; "
        "1 differences are not finite"
    ) == plot.description


def test_where_the_noise_allows_anything_there_is_no_limit_and_nothing_is_wrong():
    plot = difference_plot({"differences": [1.0, "NaN", 0.1], "tolerances": [0.5, "Infinity", 0.5]})

    assert plot.description.startswith("1 of 3 positions are out of tolerance; the first is 0; ")
    assert 2 == plot.limit.count("M"), "a gap"


@pytest.mark.parametrize(
    "details", [{}, {"differences": [], "tolerances": []}, {"differences": [1.0], "tolerances": []}]
)
def test_without_differences_there_is_no_plot(details):
    assert difference_plot(details) is None


# Gantt


def tick(number, **happened):
    nothing = {"prefilled": [], "decoded": [], "cache_misses": [], "evicted": [], "finished": [], "refused": {}}
    return {"tick": number, **nothing, **happened}


def test_a_request_has_a_bar_for_each_thing_that_it_does():
    trace = [
        tick(0, prefilled=["a", "b"], decoded=["b"]),
        tick(1, decoded=["a"], refused={"c": "kv_exceeds_budget"}),
        tick(2, decoded=["a"]),
        tick(4, decoded=["a"]),
        tick(5, decoded=["a"], cache_misses=["a"]),
    ]

    expected = [Span("prefill", 0, 1), Span("decode", 1, 3), Span("decode", 4, 5), Span("recompute", 5, 6)]
    assert expected == list(spans(trace, "a"))
    assert [Span("both", 0, 1)] == list(spans(trace, "b"))
    assert [Span("refused", 1, 2)] == list(spans(trace, "c"))


def test_a_chart_has_both_schedules_and_the_first_tick_that_differs():
    right = [tick(0, prefilled=["a"]), tick(1, decoded=["a"], finished=["a"])]
    given = [tick(0, prefilled=["a"]), tick(1, prefilled=["b"], evicted=["a"])]
    chart = gantt({"expected_trace": right, "answered_trace": given})

    assert ["Expected", "Answered"] == [panel.title for panel in chart.panels]
    assert [["a", "b"]] * 2 == [[name for _, name in panel.rows] for panel in chart.panels]
    assert chart.ticks[1][0] == pytest.approx(chart.different[0] + chart.different[1] / 2)
    assert (1, 0) == tuple(panel.finished.count("M") for panel in chart.panels)
    assert (0, 1) == tuple(panel.evicted.count("M") for panel in chart.panels)
    assert "the first tick that differs is 1" in chart.description
    assert "the schedules are the same" in gantt({"expected_trace": right, "answered_trace": right}).description
    assert gantt({"expected_trace": right}) is None


def test_a_long_schedule_is_shown_around_the_difference():
    assert (0, 8) == window([7], 3)
    assert (80, 200) == window(range(1000), 100)
    assert (0, 120) == window(range(1000), None)
    assert (880, 1000) == window(range(1000), 999)
    assert 60 == len(gantt({"expected_trace": [tick(10**9)], "answered_trace": []}).ticks), "every second tick"


def test_bars_stay_inside_the_chart(report):
    chart = gantt(row(report, "sweep/evict-24")["details"])

    for panel in chart.panels:
        assert panel.bars
        assert all(0 <= bar.x <= bar.middle <= bar.x + bar.width <= chart.width for bar in panel.bars)
        assert all(panel.y <= bar.y < panel.y + chart.height / 2 for bar in panel.bars)


# HTML


class Reader(HTMLParser):
    """Tags with their attributes, ids, and the text that a person reads."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.text, self._open = [], [], "", [""]
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]
        self._open.append(tag)

    def handle_data(self, data):
        if self._open[-1] not in ("script", "style"):
            self.text += data

    def handle_endtag(self, _tag):
        self._open = [*self._open, ""]


@pytest.fixture(scope="module")
def read(report):
    return Reader(page(report))


def test_what_an_engine_says_is_text_and_never_markup(read):
    assert 1 == sum(tag == "script" for tag, _ in read.tags)
    assert 0 == sum(tag == "img" or any(name.startswith("on") for name in attrs) for tag, attrs in read.tags)
    assert "</script><script>alert(1)</script> ]]> <!--" in read.text
    assert r"\x1b[31m\x0d\x85 \ud800 \u202e \ufffe" in read.text


def test_the_page_asks_nothing_of_the_network(read):
    addresses = [attrs.get(name) for _, attrs in read.tags for name in ("src", "href", "action") if name in attrs]
    (policy,) = [attrs["content"] for _, attrs in read.tags if attrs.get("http-equiv") == "Content-Security-Policy"]

    assert {"#", "h"} == {address[0] for address in addresses}
    reports = {report["url"] for mutant in read_json(KILL_MATRIX)["mutants"] for report in mutant["reports"]}
    assert {"https://example.org/1"} == {address for address in addresses if not address.startswith("#")} - reports
    assert policy.startswith("default-src 'none'; ")


def test_every_link_within_the_page_has_its_goal_and_every_id_is_one(read):
    assert len(read.ids) == len(set(read.ids))
    goals = {attrs["href"][1:] for tag, attrs in read.tags if tag == "a" and attrs["href"].startswith("#")}
    assert set() == goals - set(read.ids)


def test_every_record_is_on_the_page_failures_first(report, read):
    shown = [attrs["data-v"] for tag, attrs in read.tags if tag == "li"]

    assert ["fail"] * len(IDS) == shown[: len(IDS)]
    expected = [
        "fail",
        "harness_error",
        "timeout",
        "xpass",
        "near_tie",
        "xfail",
        "unsupported",
        "not_applicable",
        "pass",
    ]
    assert expected == shown[len(IDS) :]
    assert [] == [one["command"] for one in report["engines"][0]["records"] if one["command"] not in read.text]


def test_a_failure_is_drawn(read):
    drawn = [attrs["class"] for tag, attrs in read.tags if tag == "svg"]

    assert ["gantt", "plot", "plot"] == sorted(drawn)
    assert 3 == sum(tag == "desc" for tag, _ in read.tags)
    assert 1 == sum(attrs.get("class") == "tokens" for _, attrs in read.tags)


def test_when_much_fails_families_share_what_is_drawn(report, monkeypatch):
    monkeypatch.setattr(html, "MOST_DRAWN", 3)

    few = Reader(page({**report, "engines": [report["engines"][0]] * 2}))
    assert 6 == sum(tag == "svg" for tag, _ in few.tags), "one a family and engine"
    monkeypatch.setattr(html, "drawn_per_family", lambda _report: 0)
    none = Reader(page(report))
    assert 0 == sum(tag == "svg" for tag, _ in none.tags)
    assert "the numbers of this one are in report.json" in none.text


def test_tokens_are_shown_around_the_first_that_differs():
    right = list(range(40))
    start, pairs = token_window({"expected_tokens": right, "answered_tokens": [*right[:30], 99]})

    assert (18, 22) == (start, len(pairs))
    assert [(29, 29, False), (30, 99, True), (31, None, True)] == pairs[11:14]
    assert (0, []) == token_window({"expected_tokens": [], "answered_tokens": []})
    assert token_window({"expected_tokens": right}) is None


def test_engines_have_addresses_of_their_own():
    assert ["llama.cpp", "spec", "spec-2", "spec-3", "a-b-c", "engine"] == slugs(
        ["llama.cpp", "spec", "spec", "spec", "a b/c", "<>"]
    )


# JUnit


def test_junit_counts_what_it_holds(report):
    root = ET.fromstring(junit_xml(report))
    suites = root.findall("testsuite")

    assert [len(IDS), len(Verdict)] == [int(suite.get("tests")) for suite in suites]
    for suite in [*suites, root]:
        cases = [case for one in (suites if suite is root else [suite]) for case in one.iter("testcase")]
        assert int(suite.get("tests")) == len(cases)
        for total, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.get(total)) == sum(case.find(tag) is not None for case in cases)


def test_junit_has_the_verdict_of_every_record():
    suite = ET.fromstring(junit_xml(report_of([one_of_each("why")]))).find("testsuite")
    held = {case[0].get("message", case[0].text).partition(":")[0]: case[0].tag for case in suite.iter("testcase")}

    assert {
        "pass": "system-out",
        "fail": "failure",
        "near_tie": "system-out",
        "xfail": "skipped",
        "xpass": "failure",
        "unsupported": "skipped",
        "not_applicable": "skipped",
        "harness_error": "error",
        "timeout": "error",
    } == held


def test_hostile_strings_come_back_out_of_xml(report):
    suite = ET.fromstring(junit_xml(report)).find("testsuite")
    (sampled,) = [case for case in suite.iter("testcase") if case.get("name") == "sampling/hot"]

    assert row(report, "sampling/hot")["sentence"] in sampled.find("failure").text
    assert words.legible(HOSTILE.replace("\x00", "")) == suite.get("name")


# Markdown


def test_the_summary_has_the_matrix_and_the_failures(report):
    text = summary(report)

    assert text.startswith("## Conformance: 0 of 2 engines conform\n")
    assert "### Failures: 9" in text
    assert 9 == sum(line.startswith("- **") for line in text.splitlines())
    assert "python -m reference check" in text


def test_a_summary_lists_twenty_failures():
    judgements = {record.id: Judgement(Verdict.FAIL, "s") for record in find_records(["forward"])}
    lines = summary(report_of([run_of(judgements)])).splitlines()

    assert 20 == sum(line.startswith("- **") for line in lines)
    assert f"- and {len(judgements) - 20} more, in report.html" in lines


def test_a_matrix_says_what_did_not_pass():
    run = run_of(
        {"forward/batching-long": PASS, "forward/batching-short": Judgement(Verdict.FAIL), "sampling/hot": PASS}
    )
    (engine,) = report_of([run])["engines"]

    assert [
        "| engine | version | dtype | forward | sampling | all |",
        "| --- | --- | --- | --- | --- | --- |",
        "| `spec` | `made up 1.2` | float32 | 1 fail, 1 pass | 1 | 1 fail, 2 pass |",
    ] == matrix([engine])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a <b>\n@all #1 https://x", "`a <b> @all #1 https://x`"),
        ("a `b` c", "``a `b` c``"),
        ("`b", "`` `b ``"),
        ("```", "```` ``` ````"),
        ("", "` `"),
    ],
)
def test_text_of_engines_is_code_in_markdown(text, shown):
    assert shown == code(text)


def test_a_bar_does_not_end_the_cell_of_a_table():
    (_, _, line) = matrix(report_of([run_of({"sampling/hot": PASS}, engine="a|b")])["engines"])

    assert line.startswith(r"| `a\|b` | ")


# writing


def test_check_writes_four_files_that_depend_on_nothing_else(tmp_path, capsys):
    for name in ("one", "two"):
        words_given = ["check", "--family", "sampling", "--engine", "spec", "--engine", "fast"]
        assert 1 == cli.main([*words_given, "--report", str(tmp_path / name)])
    capsys.readouterr()
    one, two = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("one", "two"))

    assert {"report.json", "report.html", "junit.xml", "summary.md"} == set(one)
    assert one == two
    assert ["spec", "fast"] == [engine["engine"] for engine in json.loads(one["report.json"])["engines"]]
    assert [] == [name for name, content in one.items() if str(tmp_path).encode() in content]


ADAPTER = """
class Hostile:
    def hello(self):
        return {"name": "hostile", "version": "1", "precisions": {"float32": "f32"}}

    def load(self, model_dir):
        pass

    def sample(self, logits, temperature, coin):
        raise ValueError("\\ud800 \\x1b[31m")
"""


def test_an_engine_cannot_stop_the_report_of_its_failure(tmp_path, monkeypatch, capfd):
    """A lone surrogate can be neither printed nor written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "adapter.py").write_text(ADAPTER)
    asked = ["check", "--engine", f"{tmp_path}/adapter.py:Hostile", "--record", "sampling/hot", "--report", "out"]

    assert 1 == cli.main(asked)
    assert r"ValueError: \ud800 \x1b[31m" in capfd.readouterr().out
    record = read_json(tmp_path / "out" / "report.json")["engines"][0]["records"][0]
    assert record["sentence"].endswith(r"ValueError: \ud800 \x1b[31m")
    assert "python -m reference check --engine adapter.py:Hostile --record sampling/hot" == record["command"]
    assert 1 == cli.main(record["command"].split()[3:])


@pytest.mark.parametrize("missing", [True, False])
def test_what_would_make_a_report_impossible_is_said_before_engines_run(missing, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("reference.check.find_engine", lambda *_: pytest.fail("an engine was started"))
    (tmp_path / "file").write_text("")
    if missing:
        monkeypatch.setattr(write, "find_spec", lambda _name: None)
    directory = tmp_path / ("new" if missing else "file")

    assert 2 == cli.main(["check", "--report", str(directory)])
    if missing:
        assert "error: --report needs jinja2: pip install 'golden-llama[report]'\n" == capsys.readouterr().err
    else:
        assert capsys.readouterr().err.startswith(f"error: cannot write {directory}/")
    assert not (tmp_path / "new").exists()


def test_prepare_leaves_nothing_behind(tmp_path):
    prepare(tmp_path / "deep" / "directory")

    assert [] == list((tmp_path / "deep" / "directory").iterdir())


def test_a_report_that_breaks_its_schema_is_not_written(tmp_path, lying):
    broken = replace(lying, description=replace(lying.description, scores="smells"))
    with pytest.raises(RefusedError) as refused:
        write_report(tmp_path, [broken])

    assert Refusal.ARTIFACT_INVALID is refused.value.reason
    assert [] == list(tmp_path.iterdir())


def test_a_report_of_many_engines_stays_small(lying):
    """Ten engines and every record, of which those of the broken engine fail."""
    failing = {record.id: judgement for record, judgement in lying.judged}
    judged = [
        (record, failing.get(record.id, PASS)) for record in find_records(sorted({"forward", "cache", "sweep"}))
    ]
    text = page(report_of([replace(lying, judged=judged)] * 10))

    assert len(text) / (10 * len(judged)) < 1000, "bytes a record"


# the table of engines


@pytest.fixture
def reports(tmp_path):
    """Two reports: the same engine in both, another in one."""
    judged = {"forward/batching-long": PASS, "sampling/hot": Judgement(Verdict.UNSUPPORTED, "no")}
    write_report(tmp_path / "a", [run_of(judged, "zeta"), run_of(judged, "spec")])
    write_report(tmp_path / "b", [run_of(judged, "alpha"), run_of(judged, "spec")])
    return tmp_path


def table(reports, *more, names=("a", "b")) -> int:
    output = ["--output", str(reports / "engines.md")]
    return engine_table.main([*(str(reports / name) for name in names), *output, *more])


def test_the_table_has_every_engine_once_sorted(reports):
    assert 0 == table(reports)
    text = (reports / "engines.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("| `")]

    assert ["| `alpha`", "| `spec`", "| `zeta`"] == [line[: line.index(" |", 2)] for line in lines]
    assert " float32 | 1 | 1 unsupported | 1 unsupported, 1 pass |" in lines[0]
    assert read_json(GOLDEN / "manifest.json")["root"] in text


def test_a_stale_table_is_found(reports, capsys):
    assert 1 == table(reports, "--check")
    assert 0 == table(reports)
    assert 0 == table(reports, "--check")
    assert 0 == table(reports, "--check", names=("b", "a"))
    write_report(reports / "a", [run_of({"forward/batching-long": PASS, "sampling/hot": PASS}, "zeta")])
    assert 1 == table(reports, "--check")
    assert "engines.md is stale" in capsys.readouterr().out


def edit(path, change):
    content = read_json(path)
    change(content)
    path.write_text(json.dumps(content))


def test_reports_that_do_not_fit_together_are_refused(reports, capsys):
    for name, change, sentence in (
        ("corpus", lambda whole: whole["corpus"].update(digest="0" * 64), "different corpora"),
        (
            "result",
            lambda whole: whole["engines"][1]["records"][0].update(verdict="fail"),
            "spec in float32 has different",
        ),
        ("partial", lambda whole: [one["records"].pop() for one in whole["engines"]], "different results"),
        (
            "alone",
            lambda whole: whole["engines"].pop(1) and whole["engines"][0]["records"].pop(),
            "zeta was not asked",
        ),
        ("broken", lambda whole: whole.pop("corpus"), "'corpus' is a required property"),
    ):
        shutil.copytree(reports / "a", reports / name)
        edit(reports / name / "report.json", change)
        assert 2 == table(reports, names=(name, "b")), name
        assert sentence in capsys.readouterr().err
    assert 2 == table(reports, names=("nothing-here",))
