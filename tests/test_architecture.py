"""The architecture, read from the source: who imports whom, where floats are computed, what a rule may touch.

Each check takes (module name, syntax tree) and gives its offences: none in the repository, one in a small bad source.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

LAYERS = ("errors", "numerics", "model", "decoding", "serving", "engine", "conformance", "check", "cli", "__main__")
RULE_LAYERS = frozenset({"errors", "numerics", "model", "decoding", "serving"})
COUNTING_ONLY = frozenset({"reference.serving.session", "reference.serving.policies", "reference.serving.metrics"})
FAST_MAY_IMPORT = (
    "reference.errors",
    "reference.numerics",
    "reference.fast",
    *(f"reference.model.{name}" for name in ("config", "rope_parameters", "weights", "checkpoint", "rope", "checks")),
)
GOLDEN_MAY_IMPORT = ("reference.engine", "reference.conformance", "reference.errors")
MAY_IMPORT_FAST = ("reference.fast", "reference.conformance.adapters", "tools", "tests")

# They run in the environments of other engines, whose numbers are those engines'.
GUESTS = ("reference.conformance.adapters",)
WORKER = "reference.conformance.worker"

MACHINE_ARITHMETIC = frozenset(
    {
        *("dot", "vdot", "inner", "outer", "tensordot", "einsum", "matmul", "linalg", "exp", "exp2", "expm1"),
        *("log", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh", "arctan2", "power"),
        *("float_power", "hypot", "cbrt", "logaddexp", "erf", "gamma"),
    }
)
NUMBER_MODULES = frozenset({"np", "numpy", "math", "cmath", "scipy"})
WORLD_MODULES = frozenset(
    {
        *("time", "datetime", "random", "secrets", "uuid", "logging", "os", "sys", "io", "subprocess"),
        *("socket", "threading", "multiprocessing", "asyncio", "importlib", "tempfile", "shutil", "warnings"),
    }
)
FILE_METHODS = frozenset({"read_text", "read_bytes", "write_text", "write_bytes", "unlink", "mkdir", "touch"})
MUTABLE_MAKERS = frozenset({"list", "dict", "set", "bytearray", "defaultdict", "deque", "Counter", "OrderedDict"})
READ_ONLY = ("Mapping", "frozenset", "tuple", "Sequence", "Final[tuple")

MAX_FUNCTION_LINES, MAX_MODULE_LINES = 45, 300

Check = Callable[[str, ast.Module], list[str]]


def area(name: str) -> str:
    """The package or module directly below `reference` that a dotted name is in."""
    return name.split(".")[1] if name.startswith("reference.") else ""


def is_below(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything imported anywhere; a relative import is called "<relative>"."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level > 0:
            yield node.lineno, "<relative>"
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def imports_point_left(name: str, tree: ast.Module) -> list[str]:
    """errors, numerics <- model <- decoding <- serving <- engine <- conformance <- check, cli; fast stands apart."""
    if area(name) not in LAYERS:
        return [] if area(name) in ("fast", "") else [f"{name} is in no layer"]
    allowed = LAYERS[: LAYERS.index(area(name)) + 1]
    return [
        f"{name}:{line} imports {other}"
        for line, other in imported(tree)
        if other == "<relative>" or (other.startswith("reference") and area(other) not in (*allowed, "fast"))
    ]


def schedulers_only_count(name: str, tree: ast.Module) -> list[str]:
    """session, policies and metrics import nothing of model or decoding."""
    if name not in COUNTING_ONLY:
        return []
    logits = ("model", "decoding")
    return [f"{name}:{line} imports {other}" for line, other in imported(tree) if area(other) in logits]


def fast_stands_apart(name: str, tree: ast.Module) -> list[str]:
    """The fast twin shares the checkpoint's shape with the specification and no rule; only its adapter knows it."""
    if is_below(name, ("reference.fast",)):
        return [
            f"{name}:{line} imports {other}"
            for line, other in imported(tree)
            if other == "<relative>" or (other.startswith("reference") and not is_below(other, FAST_MAY_IMPORT))
        ]
    if is_below(name, MAY_IMPORT_FAST):
        return []
    return [f"{name}:{line} imports {other}" for line, other in imported(tree) if area(other) == "fast"]


def goldens_ask_engines(name: str, tree: ast.Module) -> list[str]:
    """golden/ imports the engine protocol and its judge, so that any engine can replace the specification."""
    if not is_below(name, ("golden",)):
        return []
    return [
        f"{name}:{line} imports {other}"
        for line, other in imported(tree)
        if other.startswith("reference") and not is_below(other, GOLDEN_MAY_IMPORT)
    ]


def guests_stand_alone(name: str, tree: ast.Module) -> list[str]:
    """The worker needs the standard library and numpy; an adapter of another engine imports nothing of ours."""
    is_ours = is_below(name, (f"{GUESTS[0]}.golden_llama", f"{GUESTS[0]}.fast"))
    if name != WORKER and (is_ours or not is_below(name, GUESTS)):
        return []
    offences = [f"{name}:{line} imports {other}" for line, other in imported(tree) if other.startswith("reference")]
    if name == WORKER:
        known = sys.stdlib_module_names | {"numpy"}
        others = [(line, other) for line, other in imported(tree) if other.split(".")[0] not in known]
        offences = [f"{name}:{line} imports {other}" for line, other in others]
    return offences


def arithmetic_is_numerics(name: str, tree: ast.Module) -> list[str]:
    """No product or elementary function of numpy or math, whose bytes differ between machines, but in numerics."""
    if area(name) in ("", "numerics", "fast") or is_below(name, GUESTS):
        return []
    offences = []
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.MatMult):
            offences.append(f"{name}:{node.lineno} uses @")
        if isinstance(node, ast.Attribute) and node.attr in MACHINE_ARITHMETIC and root_name(node) in NUMBER_MODULES:
            offences.append(f"{name}:{node.lineno} uses {ast.unparse(node)}")
        if isinstance(node, ast.Attribute) and node.attr == "dot":
            offences.append(f"{name}:{node.lineno} uses .dot")
    for line, other in imported(tree):
        module, _, member = other.rpartition(".")
        if module.split(".")[0] in NUMBER_MODULES and member in MACHINE_ARITHMETIC:
            offences.append(f"{name}:{line} imports {other}")
    return offences


def rules_touch_nothing(name: str, tree: ast.Module) -> list[str]:
    """No clock, chance, log, environment, file or global in a rule; checkpoint alone may touch files."""
    if area(name) not in RULE_LAYERS:
        return []
    may_touch_files = name == "reference.model.checkpoint"
    offences = [
        f"{name}:{line} imports {other}"
        for line, other in imported(tree)
        if other.split(".")[0] in WORLD_MODULES - ({"os"} if may_touch_files else set()) or other == "numpy.random"
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            offences.append(f"{name}:{node.lineno} has a global")
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("np.random", "numpy.random", "os.environ"):
            offences.append(f"{name}:{node.lineno} uses {ast.unparse(node)}")
        if may_touch_files or not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id in ("open", "print", "input", "__import__", "exec"):
            offences.append(f"{name}:{node.lineno} calls {node.func.id}")
        if isinstance(node.func, ast.Attribute) and node.func.attr in FILE_METHODS:
            offences.append(f"{name}:{node.lineno} calls .{node.func.attr}")
    return offences


def rules_share_no_state(name: str, tree: ast.Module) -> list[str]:
    """A module-level list, dict or set of a rule is annotated as what cannot be changed."""
    if area(name) not in RULE_LAYERS:
        return []
    offences = []
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None or not is_mutable(node.value):
            continue
        annotation = ast.unparse(node.annotation) if isinstance(node, ast.AnnAssign) else ""
        if not annotation.startswith(READ_ONLY):
            offences.append(f"{name}:{node.lineno} holds a mutable object")
    return offences


def is_mutable(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return ast.unparse(value.func).rpartition(".")[2].partition("[")[0] in MUTABLE_MAKERS
    return isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)


def root_name(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def functions_are_short(name: str, tree: ast.Module) -> list[str]:
    return [
        f"{name}.{node.name} has {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES
    ]


def modules_are_short(name: str, tree: ast.Module) -> list[str]:
    """By the end of the last statement."""
    last = max((node.end_lineno or 0 for node in tree.body), default=0)
    return [f"{name} has {last} lines"] if last > MAX_MODULE_LINES else []


CHECKS: tuple[Check, ...] = (
    imports_point_left,
    schedulers_only_count,
    fast_stands_apart,
    goldens_ask_engines,
    guests_stand_alone,
    arithmetic_is_numerics,
    rules_touch_nothing,
    rules_share_no_state,
    functions_are_short,
    modules_are_short,
)


def modules(*folders: str) -> dict[str, ast.Module]:
    """Dotted name -> syntax tree of every module of these folders."""
    found = {}
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = ast.parse(path.read_text(encoding="utf-8"))
    return found


MODULES = modules("reference", "golden", "tools")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_architecture_holds(check):
    assert [] == [offence for name, tree in MODULES.items() for offence in check(name, tree)]


def test_every_folder_was_read():
    assert {"reference", "golden", "tools"} <= {name.split(".")[0] for name in MODULES}
    assert set(LAYERS) | {"fast"} == {area(name) for name in MODULES} - {""}


LONG_FUNCTION = "def f():\n" + "    x = 1\n" * MAX_FUNCTION_LINES
LONG_MODULE = "x = 1\n" * (MAX_MODULE_LINES + 1)


@pytest.mark.parametrize(
    ("check", "name", "source"),
    [
        (imports_point_left, "reference.model.cache", "from reference.decoding.generate import generate"),
        (imports_point_left, "reference.model.cache", "import reference.serving.loop"),
        (imports_point_left, "reference.model.cache", "def f():\n    from reference.engine import Engine"),
        (imports_point_left, "reference.model.cache", "from reference import cli"),
        (imports_point_left, "reference.model.cache", "from .config import ModelConfig"),
        (imports_point_left, "reference.errors", "from reference.numerics import exp"),
        (imports_point_left, "reference.engine", "from reference.conformance import law"),
        (imports_point_left, "reference.unheard.of", ""),
        (schedulers_only_count, "reference.serving.policies", "from reference.model.cache import KVCache"),
        (schedulers_only_count, "reference.serving.session", "from reference.decoding import sampling"),
        (schedulers_only_count, "reference.serving.metrics", "import reference.decoding.generate"),
        (fast_stands_apart, "reference.fast.model", "from reference.model.transformer import forward"),
        (fast_stands_apart, "reference.fast.model", "from reference.model.cache import KVCache"),
        (fast_stands_apart, "reference.fast.model", "from reference.decoding.sampling import greedy"),
        (fast_stands_apart, "reference.fast.model", "from .weights import fuse"),
        (fast_stands_apart, "reference.engine", "from reference.fast.model import FastModel"),
        (fast_stands_apart, "reference.conformance.engines", "from reference import fast"),
        (fast_stands_apart, "golden.test_forward", "import reference.fast"),
        (goldens_ask_engines, "golden.conftest", "from reference.model.checkpoint import load_model"),
        (goldens_ask_engines, "golden.test_forward", "import reference.numerics"),
        (guests_stand_alone, "reference.conformance.worker", "import jsonschema"),
        (guests_stand_alone, "reference.conformance.worker", "from reference.errors import Refusal"),
        (guests_stand_alone, "reference.conformance.adapters.mlx.adapter", "import reference.numerics"),
        (arithmetic_is_numerics, "reference.model.transformer", "y = x @ w"),
        (arithmetic_is_numerics, "reference.model.transformer", "x @= w"),
        (arithmetic_is_numerics, "reference.model.transformer", "y = np.einsum('ij,jk', x, w)"),
        (arithmetic_is_numerics, "reference.model.transformer", "y = x.dot(w)"),
        (arithmetic_is_numerics, "reference.decoding.sampling", "y = np.exp(x)"),
        (arithmetic_is_numerics, "reference.decoding.sampling", "y = math.log(x)"),
        (arithmetic_is_numerics, "reference.model.rope", "from math import cos"),
        (arithmetic_is_numerics, "reference.model.rope", "from numpy import sin as sine"),
        (arithmetic_is_numerics, "reference.model.rope", "y = np.power(theta, x)"),
        (arithmetic_is_numerics, "reference.model.rope", "y = np.tanh(x)"),
        (arithmetic_is_numerics, "reference.conformance.law", "y = np.linalg.norm(x)"),
        (rules_touch_nothing, "reference.serving.loop", "import time"),
        (rules_touch_nothing, "reference.decoding.sampling", "from random import random"),
        (rules_touch_nothing, "reference.decoding.sampling", "x = np.random.default_rng(0)"),
        (rules_touch_nothing, "reference.decoding.sampling", "from numpy import random"),
        (rules_touch_nothing, "reference.model.cache", "import logging"),
        (rules_touch_nothing, "reference.model.checkpoint", "x = os.environ['HOME']"),
        (rules_touch_nothing, "reference.model.config", "f = open('config.json')"),
        (rules_touch_nothing, "reference.model.config", "f = path.read_text()"),
        (rules_touch_nothing, "reference.model.config", "def f():\n    global x"),
        (rules_touch_nothing, "reference.serving.loop", "print('tick')"),
        (rules_share_no_state, "reference.serving.loop", "SEEN = []"),
        (rules_share_no_state, "reference.serving.loop", "SEEN: dict[str, int] = {}"),
        (rules_share_no_state, "reference.model.rope", "TABLES = collections.defaultdict(list)"),
        (rules_share_no_state, "reference.model.rope", "TABLES = {n: n for n in range(3)}"),
        (rules_share_no_state, "reference.model.rope", "TABLES = set[int]()"),
        (functions_are_short, "tools.regen", LONG_FUNCTION),
        (modules_are_short, "tools.regen", LONG_MODULE),
    ],
)
def test_a_check_finds_what_it_is_for(check, name, source):
    assert 1 == len(check(name, ast.parse(source)))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("reference.serving.loop", "from reference.decoding.sampling import greedy"),
        ("reference.numerics", "y = np.exp(x @ w)"),
        ("reference.fast.model", "y = x @ w"),
        ("reference.conformance.adapters.fast", "from reference.fast.model import FastModel"),
        ("reference.conformance.adapters.golden_llama.adapter", "from reference.engine import ReferenceEngine"),
        ("reference.conformance.adapters.mlx.adapter", "import mlx\nx = y @ z"),
        ("reference.conformance.worker", "import json\nimport numpy as np"),
        ("reference.model.checkpoint", "import os\nx = path.read_bytes()"),
        ("reference.model.rope", "from reference.numerics import power\ny = power(2.0, x)"),
        ("reference.serving.session", "NONE: Mapping[str, int] = {}\nALSO = (1, 2)"),
        ("reference.conformance.engines", "import importlib.util\nNAMES = {}"),
        ("tools.regen", LONG_FUNCTION.removesuffix("    x = 1\n")),
        ("tools.regen", LONG_MODULE.removesuffix("x = 1\n")),
    ],
)
def test_what_is_allowed_is_no_offence(name, source):
    assert [] == [offence for check in CHECKS for offence in check(name, ast.parse(source))]
