"""JUnit XML: one suite an engine, one case a record."""

from collections.abc import Mapping
from xml.etree import ElementTree as ET

from reference.conformance.report.counts import Row, counts

TAGS: Mapping[str, str] = {
    "fail": "failure",
    "xpass": "failure",
    "harness_error": "error",
    "timeout": "error",
    "unsupported": "skipped",
    "not_applicable": "skipped",
    "xfail": "skipped",
}
"""What a case holds; a pass and a near tie hold nothing that a reader of JUnit counts."""


def junit_xml(report: Row) -> str:
    """The report for a test reporter. Strings have no character that XML forbids (words.py)."""
    suites = ET.Element("testsuites", name="golden-llama")
    totals = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for engine in report["engines"]:
        suite = _suite(report, engine)
        suites.append(suite)
        totals = {name: total + int(suite.get(name, "0")) for name, total in totals.items()}
    suites.attrib |= {name: str(total) for name, total in totals.items()}
    ET.indent(suites)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(suites, encoding="unicode")}\n'


def _suite(report: Row, engine: Row) -> ET.Element:
    given = counts(engine)
    sums = {tag: sum(given.get(verdict, 0) for verdict in TAGS if TAGS[verdict] == tag) for tag in TAGS.values()}
    suite = ET.Element(
        "testsuite",
        name=engine["engine"],
        tests=str(len(engine["records"])),
        failures=str(sums["failure"]),
        errors=str(sums["error"]),
        skipped=str(sums["skipped"]),
    )
    properties = ET.SubElement(suite, "properties")
    for name in ("name", "version", "dtype", "precision"):
        ET.SubElement(properties, "property", name=name, value=engine[name])
    ET.SubElement(properties, "property", name="corpus", value=report["corpus"]["digest"])
    for record in engine["records"]:
        suite.append(_case(engine, record))
    return suite


def _case(engine: Row, record: Row) -> ET.Element:
    case = ET.Element("testcase", classname=f"{engine['engine']}.{record['family']}", name=record["id"])
    verdict, sentence = record["verdict"], record["sentence"]
    if verdict in TAGS:
        held = ET.SubElement(case, TAGS[verdict], message=f"{verdict}: {sentence}")
        if TAGS[verdict] != "skipped":
            held.set("type", verdict)
            held.text = f"{sentence}\n{record['command']}"
    elif sentence:
        ET.SubElement(case, "system-out").text = f"{verdict}: {sentence}"
    return case
