"""Rules and records belong together: every rule has a record, and every record names rules that exist."""

import ast
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from reference.conformance.records import FAMILIES

ROOT = Path(__file__).parents[1]
DATA = ROOT / "golden" / "data"
RULE_ID = re.compile(r"\[([A-Z]+-\d+)\]")


def docstrings() -> list[str]:
    """Every docstring under reference/."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "reference").rglob("*.py"))]
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, holders)]
    return [docstring for node in nodes if (docstring := ast.get_docstring(node)) is not None]


RULES = Counter(rule for docstring in docstrings() for rule in set(RULE_ID.findall(docstring)))
PATHS = tuple(path for path in sorted(DATA.rglob("*.json")) if path.stem != "seed")
RECORDS = {path: json.loads(path.read_text(encoding="utf-8")) for path in PATHS}


def test_there_are_rules_and_records():
    assert {"ROPE-2", "SPEC-3", "SCHED-3", "METRIC-1"} <= set(RULES)
    assert set(FAMILIES) == {path.parent.name for path in RECORDS}


def test_a_rule_stands_in_exactly_one_docstring():
    assert {} == {rule: count for rule, count in RULES.items() if count != 1}


def test_the_rules_of_an_area_are_numbered_without_gaps():
    numbers: dict[str, set[int]] = {}
    for rule in RULES:
        rule_area, _, number = rule.partition("-")
        numbers.setdefault(rule_area, set()).add(int(number))

    assert {name: set(range(1, len(found) + 1)) for name, found in numbers.items()} == numbers


def test_every_rule_has_a_record():
    assert set() == set(RULES) - {rule for record in RECORDS.values() for rule in record["rules"]}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_record_stands_where_its_id_says_and_names_rules_that_exist(path):
    record = RECORDS[path]

    assert f"{path.parent.name}/{path.stem}" == record["id"]
    assert path.parent.name == record["family"]
    assert [] == [rule for rule in record["rules"] if rule not in RULES]
    assert sorted(set(record["rules"])) == record["rules"] != []


@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_record_names_the_mistake_it_catches(path):
    catches = RECORDS[path]["catches"]

    assert catches.strip() == catches != ""
    assert not catches.endswith(".")
