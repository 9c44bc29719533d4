"""The page in a real browser: no complaint, filters and search that work, readable on a phone and in the dark."""

from dataclasses import replace

import pytest

from reference.conformance.compare import PASS, Judgement, Verdict
from reference.conformance.records import find_records
from reference.conformance.report.html import page
from reference.conformance.report.rows import Run, report_of
from reference.engine import Description
from tests.conformance.chromium import Browser, find_chromium

CHROMIUM = find_chromium()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")

HOSTILE = "<img src=x onerror=complain()> </script> & ' \""
SCORES = {"differences": [1e-6, 1.0, "NaN"], "tolerances": [1e-3] * 3, "position": 1}
TICK = {name: [] for name in ("prefilled", "decoded", "cache_misses", "evicted", "finished")} | {"refused": {}}
NUMBERS = ("prefill_tokens", "recomputed_tokens", "kv_tokens", "kv_tokens_high", "running", "waiting")
TRACE = [{**TICK, **dict.fromkeys(NUMBERS, 1), "tick": tick, "decoded": ["a" * 40]} for tick in range(200)]


def judgement_of(record_id: str) -> Judgement:
    """A failure of each kind, and passes."""
    if record_id == "sweep/evict-24":
        traces = {"expected_trace": TRACE, "answered_trace": TRACE[:50]}
        return Judgement(Verdict.FAIL, "the schedules differ", traces)
    if record_id.startswith("forward/zoo"):
        return Judgement(Verdict.FAIL, f"off at position 1 {HOSTILE}", SCORES)
    if record_id.startswith("generate"):
        tokens = {"expected_tokens": list(range(90000, 90030)), "answered_tokens": list(range(90000, 90029))}
        return Judgement(Verdict.NEAR_TIE, "unbroken" * 40, tokens)
    return PASS


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    """Two engines: one with failures, one that passes."""
    records = find_records(["forward", "generate", "sweep"])
    judged = [(record, judgement_of(record.id)) for record in records]
    failing = Run("first " + HOSTILE, Description(HOSTILE, "1", "f32", choices={"a": HOSTILE}), judged, {})
    passing = replace(failing, engine="second", judged=[(record, PASS) for record in records])
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page(report_of([failing, passing])), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(CHROMIUM, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def opened(browser, page_file):
    """The page as a person with a large screen first sees it, and at the end nothing to complain of."""
    browser.look(1280, 900)
    browser.open("about:blank")
    browser.open(page_file.as_uri())
    yield browser
    assert [] == browser.complaints
    assert set(browser.requests) <= {page_file.as_uri(), "about:blank"}


def visible(browser, what="section li") -> int:
    return browser.evaluate(f"[...document.querySelectorAll('{what}')].filter(one => one.checkVisibility()).length")


def enter(browser, name, value) -> None:
    browser.evaluate(f"(document.getElementById('{name}').value = '{value}', 0)")
    browser.evaluate(f"document.getElementById('{name}').dispatchEvent(new Event('input', {{bubbles: true}}))")


NUM_RECORDS = {family: len(find_records([family])) for family in ("forward", "generate", "sweep")}
NUM_ALL = 2 * sum(NUM_RECORDS.values())
NUM_ZOO = sum(record.id.startswith("forward/zoo") for record in find_records(["forward"]))


def test_everything_is_there_at_first(opened):
    assert NUM_ALL == visible(opened)
    assert f"{NUM_ALL} of {NUM_ALL} records" == opened.evaluate("document.getElementById('shown').textContent")
    assert "fail" == opened.evaluate("document.querySelector('section li').dataset.v")


def test_search_finds_words_of_ids_and_sentences(opened):
    enter(opened, "search", "ZOO onerror=complain()")
    assert NUM_ZOO == visible(opened)
    assert 1 == visible(opened, "section")
    assert f"{NUM_ZOO} of {NUM_ALL} records" == opened.evaluate("document.getElementById('shown').textContent")
    enter(opened, "search", "sweep/evict-24")
    assert 2 == visible(opened)
    enter(opened, "search", "no such words")
    assert (0, 1) == (visible(opened), visible(opened, "#none"))
    opened.evaluate("document.querySelector('button[type=reset]').click()")
    opened.evaluate("new Promise(done => setTimeout(done, 20))")
    assert (NUM_ALL, 0) == (visible(opened), visible(opened, "#none"))


def test_filters_of_engine_family_and_verdict_go_together(opened):
    enter(opened, "family", "forward")
    assert 2 * NUM_RECORDS["forward"] == visible(opened)
    enter(opened, "engine", "second")
    assert NUM_RECORDS["forward"] == visible(opened)
    assert "0" == opened.evaluate("document.querySelector('output[data-verdict=fail]').textContent")
    enter(opened, "engine", "")
    opened.evaluate("document.querySelector('input[value=fail]').click()")
    assert NUM_ZOO == visible(opened)
    assert f"{NUM_ZOO}" == opened.evaluate("document.querySelector('output[data-verdict=fail]').textContent")
    opened.evaluate("document.querySelector('input[value=near_tie]').click()")
    enter(opened, "family", "")
    assert NUM_ZOO + 1 + NUM_RECORDS["generate"] == visible(opened)


def test_a_cell_of_the_matrix_shows_its_records(opened):
    opened.evaluate("document.querySelector('.matrix a[data-engine=second][data-family=sweep]').click()")
    opened.evaluate("new Promise(done => setTimeout(done, 20))")

    assert NUM_RECORDS["sweep"] == visible(opened)
    assert 1 == visible(opened, "section")


def test_an_address_opens_its_record_even_where_a_filter_hid_it(opened, page_file):
    enter(opened, "search", "no such words")
    slug = opened.evaluate("document.querySelector('section').id")
    opened.open(f"{page_file.as_uri()}#{slug}:sweep/evict-24")
    place = "document.getElementById(decodeURIComponent(location.hash.slice(1)))"

    assert opened.evaluate(f"{place}.querySelector('details').open")
    top = opened.evaluate(f"{place}.getBoundingClientRect().top")
    assert 0 <= top < 900
    assert 1 == visible(opened, "svg")


def test_an_address_without_an_engine_searches_for_its_record(opened, page_file):
    opened.open(f"{page_file.as_uri()}#sweep/evict-24")
    assert 2 == visible(opened)
    opened.open(f"{page_file.as_uri()}#100%")
    assert 0 == visible(opened)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 1280])
def test_nothing_leaves_the_page_at_its_side(opened, width, scheme):
    opened.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    opened.look(width, 844, scheme)

    assert width == opened.evaluate("document.documentElement.scrollWidth")
    assert opened.evaluate("document.querySelector('svg.gantt').getBoundingClientRect().width") > 390, "it scrolls"


CONTRAST = """
(() => {
  const light = (color) => {
    const parts = color.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255);
    const [r, g, b] = parts.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const color = getComputedStyle(node).backgroundColor;
      if (!/, 0\\)$/.test(color)) return color;
    }
  };
  const lowest = {};
  const kinds = "p, a, dt, dd, th, td, b, small, label, .sentence, figcaption, svg text";
  for (const node of document.querySelectorAll(kinds)) {
    if (!node.checkVisibility()) continue;
    const own = node instanceof SVGElement;
    const color = own ? getComputedStyle(node).fill : getComputedStyle(node).color;
    const behind = own && node.previousElementSibling?.tagName === "rect"
      ? getComputedStyle(node.previousElementSibling).fill : ground(node);
    const [one, other] = [light(color), light(behind)].sort((a, b) => b - a);
    lowest[`${node.tagName}.${node.getAttribute("class")}`] = (one + 0.05) / (other + 0.05);
  }
  return Object.entries(lowest).filter(([, contrast]) => !(contrast >= 4.5));
})()
"""


def test_the_dark_scheme_is_dark_and_both_can_be_read(opened):
    opened.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    grounds = {}
    for scheme in ("light", "dark"):
        opened.look(1280, 900, scheme)
        grounds[scheme] = opened.evaluate("getComputedStyle(document.body).backgroundColor")
        assert [] == opened.evaluate(CONTRAST), scheme

    assert {"light": "rgb(252, 252, 250)", "dark": "rgb(20, 23, 26)"} == grounds


def test_the_keyboard_reaches_what_can_be_used(opened):
    reachable = "[...document.querySelectorAll('summary, input, select, button, a, .wide[tabindex]')]"

    assert 0 == opened.evaluate(f"{reachable}.filter(one => one.tabIndex < 0).length")
    assert 1 == visible(opened, ".matrix") == visible(opened, "#filters")


def test_without_scripts_everything_is_there_and_no_filter(browser, page_file):
    browser.call("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        for address in ("about:blank", page_file.as_uri()):
            browser.call("Page.navigate", {"url": address})
        while browser.evaluate("document.readyState") != "complete":
            pass
        assert (NUM_ALL, 0) == (visible(browser), visible(browser, "#filters"))
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", {"value": False})
