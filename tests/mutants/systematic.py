"""Every single small change of the rule modules, as mutants: a boundary, an operator, a sign, a constant, an axis.

An id names the function, the place in it and the change (sys-rope-llama3-07-lt-le), so it stands when lines move.
Annotations, decorators and the sentences of refusals are left alone. Imports nothing of reference.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from tests.mutants.mutant import ROOT, Edit, Mutant

MODULES = {
    "numerics": "reference/numerics.py",
    "rope": "reference/model/rope.py",
    "transformer": "reference/model/transformer.py",
    "cache": "reference/model/cache.py",
    "generate": "reference/decoding/generate.py",
    "sampling": "reference/decoding/sampling.py",
    "speculation": "reference/decoding/speculation.py",
    "verification": "reference/decoding/verification.py",
}
PREFIX = "sys-"
OPERATORS: dict[type[ast.AST], tuple[str, str, str]] = {
    ast.Lt: ("<", "<=", "lt-le"),
    ast.LtE: ("<=", "<", "le-lt"),
    ast.Gt: (">", ">=", "gt-ge"),
    ast.GtE: (">=", ">", "ge-gt"),
    ast.Eq: ("==", "!=", "eq-ne"),
    ast.NotEq: ("!=", "==", "ne-eq"),
    ast.Is: ("is", "is not", "is-not"),
    ast.IsNot: ("is not", "is", "not-is"),
    ast.In: ("in", "not in", "in-not"),
    ast.NotIn: ("not in", "in", "not-in"),
    ast.Add: ("+", "-", "add-sub"),
    ast.Sub: ("-", "+", "sub-add"),
    ast.Mult: ("*", "/", "mul-div"),
    ast.Div: ("/", "*", "div-mul"),
    ast.FloorDiv: ("//", "/", "floordiv-div"),
    ast.Mod: ("%", "//", "mod-floordiv"),
    ast.Pow: ("**", "*", "pow-mul"),
    ast.LShift: ("<<", ">>", "left-right"),
    ast.BitAnd: ("&", "|", "and-or"),
    ast.BitOr: ("|", "&", "or-and"),
    ast.And: ("and", "or", "and-or"),
    ast.Or: ("or", "and", "or-and"),
}
"""Operator -> its text, what replaces it, what the change is called."""

TWINS = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}
AXES = (0, 1, -1, -2)


@dataclass(frozen=True)
class Change:
    """Bytes start to end of a file become `text`."""

    start: int
    end: int
    text: str
    name: str


@cache
def mutants(module: str) -> tuple[Mutant, ...]:
    """The mutants of a module, by its name in MODULES."""
    file = MODULES[module]
    source = (ROOT / file).read_bytes()
    made = []
    for function, node in functions(ast.parse(source)):
        sites = sorted(Site(source).changes(node), key=lambda change: (change.start, change.end))
        places = sorted({(change.start, change.end) for change in sites})
        for change in sites:
            number = places.index((change.start, change.end)) + 1
            name = f"{PREFIX}{module}-{function}-{number:02d}-{change.name}"
            edit = edit_of(file, source, change)
            made.append(Mutant(name, "systematic", (edit,), f"{change.name} in {function}", "any record"))
    return tuple(made)


def find(name: str) -> Mutant | None:
    """The mutant with an id, or None."""
    modules = [module for module in MODULES if name.startswith(f"{PREFIX}{module}-")]
    return next((mutant for module in modules for mutant in mutants(module) if mutant.id == name), None)


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """(name, node) of every function and method, and of each statement outside of them as "module"."""
    outside = ast.Module([], [])
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield kebab(node.name), node
        elif isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef):
                    yield f"{kebab(node.name)}-{kebab(member.name)}", member
        elif isinstance(node, ast.Assign):
            outside.body.append(node)
    yield "module", outside


def kebab(name: str) -> str:
    return name.strip("_").replace("_", "-").lower()


def edit_of(file: str, source: bytes, change: Change) -> Edit:
    """The change as an edit of whole lines, as many as it takes to stand once in the file."""
    start = source.rfind(b"\n", 0, change.start) + 1
    end = source.find(b"\n", change.end) % (len(source) + 1)
    while source.count(source[start:end]) != 1:
        start = source.rfind(b"\n", 0, start - 1) + 1
    after = source[start : change.start] + change.text.encode() + source[change.end : end]
    return Edit(file, source[start:end].decode(), after.decode())


class Site:
    """The changes of a syntax tree in a source."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def changes(self, node: ast.AST) -> Iterator[Change]:
        """Of a node and all below it; parents that already change a child as a whole leave it out."""
        match node:
            case ast.JoinedStr() | ast.Subscript(value=ast.Name(id="Callable" | "Literal")):
                return
            case ast.FunctionDef(args=args, body=body):
                yield from self._all([*args.defaults, *(x for x in args.kw_defaults if x is not None), *body])
                return
            case ast.AnnAssign(value=value):
                yield from self._all([value] if value is not None else [])
                return
            case ast.Constant():
                yield from self._constant(node)
            case ast.Compare(left=left, ops=ops, comparators=right):
                for before, operator, after in zip([left, *right], ops, right, strict=False):
                    yield from self._operator(operator, before, after)
            case ast.BoolOp(op=operator, values=values):
                for before, after in pairwise(values):
                    yield from self._operator(operator, before, after)
            case ast.BinOp(left=left, op=operator, right=right):
                yield from self._operator(operator, left, right)
                if isinstance(operator, ast.Add) and isinstance(right, ast.Constant) and right.value == 0:
                    start, end = self._span(left)[1], self._span(node)[1]
                    closed = self._source[start:end].decode().rpartition("+")[0].rstrip()
                    yield Change(start, end, closed, "zero-dropped")
                # The other sign of a number that is added is the other operator.
                if isinstance(operator, ast.Add | ast.Sub) and isinstance(right, ast.Constant):
                    yield from self.changes(left)
                    yield from (change for change in self.changes(right) if change.name != "negated")
                    return
            case ast.AugAssign(target=target, op=operator, value=value):
                yield from self._operator(operator, target, value)
            case ast.UnaryOp(op=operator, operand=operand):
                start, _ = self._span(node)
                yield Change(start, start + (4 if isinstance(operator, ast.Not) else 1), "", "operator-dropped")
                yield from (change for change in self.changes(operand) if change.name != "negated")
                return
            case ast.Subscript(value=value, slice=place):
                yield from self.changes(value)
                for part in place.elts if isinstance(place, ast.Tuple) else [place]:
                    yield from self._bounds(part)
                return
            case ast.keyword(arg="axis", value=value):
                start, end = self._span(value)
                for axis in AXES:
                    if str(axis).encode() != self._source[start:end]:
                        yield Change(start, end, str(axis), f"axis-{axis}".replace("--", "-minus-"))
                return
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name) as called) if name in TWINS:
                _, end = self._span(called)
                yield Change(end - len(name), end, TWINS[name], f"{name}-{TWINS[name]}")
        yield from self._all(list(ast.iter_child_nodes(node)))

    def _all(self, nodes: list[ast.AST] | list[ast.expr]) -> Iterator[Change]:
        for node in nodes:
            yield from self.changes(node)

    def _constant(self, node: ast.Constant) -> Iterator[Change]:
        start, end = self._span(node)
        match node.value:
            case bool():
                yield Change(start, end, str(not node.value), f"{node.value}-{not node.value}".lower())
            case int() | float():
                yield Change(start, end, repr(node.value + 1), "one-more")
                if node.value != 0:
                    yield Change(start, start, "-", "negated")

    def _operator(self, operator: ast.AST, before: ast.expr, after: ast.expr) -> Iterator[Change]:
        if type(operator) not in OPERATORS:
            return
        old, new, name = OPERATORS[type(operator)]
        start, end = self._span(before)[1], self._span(after)[0]
        found = re.search(re.escape(old).replace(r"\ ", r"\s+"), self._source[start:end].decode())
        assert found is not None
        yield Change(start + found.start(), start + found.end(), new, name)

    def _bounds(self, part: ast.expr) -> Iterator[Change]:
        """An index, or both ends of a slice, one more and one less."""
        for bound in (part.lower, part.upper) if isinstance(part, ast.Slice) else (part,):
            if bound is None or (isinstance(bound, ast.Constant) and not isinstance(bound.value, int)):
                continue
            start, end = self._span(bound)
            text = self._source[start:end].decode()
            if re.fullmatch(r"-?\d+", text):
                more, less = str(int(text) + 1), str(int(text) - 1)
            else:
                more, less = f"({text}) + 1", f"({text}) - 1"
                yield from self.changes(bound)
            yield Change(start, end, more, "bound-up")
            yield Change(start, end, less, "bound-down")

    def _span(self, node: ast.expr | ast.keyword) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start, end = self._lines[node.lineno - 1], self._lines[node.end_lineno - 1]
        return start + node.col_offset, end + node.end_col_offset
