"""Lists small changes of meaning to a Python source: off by one, another sign, a dropped term or condition, swapped operands.

bench/mutants.py injects them.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass

# Others, turned round, turn the whole branch round: any test sees that.
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
SIGNS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.Mult: ast.Div, ast.Div: ast.Mult,
}  # fmt: skip
UNORDERED = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.LShift, ast.RShift, ast.MatMult)
NAMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "any": "all", "all": "any"}
ROUNDINGS = {"rint": "floor", "round": "floor", "floor": "ceil", "ceil": "floor", "round_half_away": "np.floor"}
# What is in these only words a message or names a type.
SILENT = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)


@dataclass(frozen=True)
class Mutant:
    """A change of a file: `new` in the place of `old`, which begins at the byte `start` of its text."""

    path: str
    function: str
    line: int
    kind: str
    start: int
    old: str
    new: str

    @property
    def key(self) -> str:
        """The mutant's name, which stays the same as long as the changed expression does, wherever it moves in its function."""
        return f"{self.path} {self.function} {self.kind}: {self.old} -> {self.new}"

    def apply(self, text: str) -> str:
        """Return the file's text with the change."""
        data, old = text.encode(), self.old.encode()
        return (data[: self.start] + self.new.encode() + data[self.start + len(old) :]).decode()


def mutants_of(path: str, text: str) -> list[Mutant]:
    """Return a mutant for every place of the source and every mutation that applies there, in the order of the text."""
    data, starts = text.encode(), [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    mutants = []
    for function, node in _expressions(ast.parse(text)):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        for kind, new in _changes(node):
            old = data[start:end].decode()
            mutants.append(Mutant(path, function, node.lineno, kind, start, old, f"({ast.unparse(new)})"))
    return mutants


def sample(candidates: Iterable[Mutant], count: int, seed: int) -> list[Mutant]:
    """Return at most `count` mutants of different functions.

    What is chosen in one function does not depend on the source of the others.
    """

    def drawn(*words: object) -> str:
        return hashlib.sha256(repr((seed, *words)).encode()).hexdigest()

    by_function: dict[tuple[str, str], list[Mutant]] = {}
    for mutant in candidates:
        by_function.setdefault((mutant.path, mutant.function), []).append(mutant)
    chosen = sorted(by_function, key=lambda where: drawn(*where))[:count]
    picked = []
    for where in chosen:
        kind = min({m.kind for m in by_function[where]}, key=lambda k: drawn(*where, k))
        picked.append(min((m for m in by_function[where] if m.kind == kind), key=lambda m: drawn(m.key)))
    return picked


def _expressions(tree: ast.AST, function: str = "") -> Iterator[tuple[str, ast.expr]]:
    """Expressions inside functions that compute something, with the innermost function's name."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, SILENT) or _is_words(child):
            continue
        if isinstance(child, ast.FunctionDef):
            for statement in child.body:
                yield from _expressions(ast.Module([statement], []), child.name)
            continue
        if isinstance(child, ast.AnnAssign):
            if child.value is not None:
                yield from _expressions(ast.Expression(child.value), function)
            continue
        if function and isinstance(child, ast.expr):
            yield function, child
        yield from _expressions(child, function)


def _is_words(node: ast.AST) -> bool:
    """Docstrings, texts, and what a guard in front of a refusal asks for: those are pinned by tests of refusals."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.FunctionDef):
        return node.name in {"__repr__", "__str__"}
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _changes(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    match node:
        case ast.Constant(value=bool(value)):
            yield "the other truth", ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield "off by one", ast.Constant(value + 1)
        case ast.BinOp(left=left, op=op, right=right) if not _joins(node):
            if type(op) in SIGNS:
                kind = "wrong sign" if isinstance(op, ast.Add | ast.Sub) else "wrong scale"
                yield kind, ast.BinOp(left, SIGNS[type(op)](), right)
            if isinstance(op, ast.Add | ast.Sub | ast.Mult | ast.Div):
                yield ("dropped term" if isinstance(op, ast.Add | ast.Sub) else "dropped factor"), left
            if isinstance(op, UNORDERED):
                yield "swapped operands", ast.BinOp(right, op, left)
            if isinstance(op, ast.FloorDiv):
                rounded = ast.UnaryOp(ast.USub(), ast.BinOp(ast.UnaryOp(ast.USub(), left), op, right))
                yield "wrong rounding", rounded
        case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.BinOp):
            yield "wrong sign", operand
        case ast.BoolOp(op=op, values=values):
            for i in range(len(values)):
                rest = [v for j, v in enumerate(values) if j != i]
                yield "dropped condition", rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
        case ast.Compare(ops=[op], left=left, comparators=right) if type(op) in COMPARISONS:
            yield "other comparison", ast.Compare(left, [COMPARISONS[type(op)]()], right)
        case ast.IfExp(test=_, body=body, orelse=orelse):
            yield "dropped condition", body
            yield "dropped condition", orelse
        case ast.Attribute(attr="zero_point"):
            yield "dropped zero point", ast.Constant(0)
        case ast.Call():
            yield from _call_changes(node)


def _call_changes(node: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    function_name = (
        node.func.id if isinstance(node.func, ast.Name) else node.func.attr if isinstance(node.func, ast.Attribute) else ""
    )
    if function_name in NAMES:
        yield (
            f"{NAMES[function_name]} for {function_name}",
            ast.Call(_rename(node.func, NAMES[function_name]), node.args, node.keywords),
        )
    if function_name in ROUNDINGS and isinstance(node.func, ast.Attribute):
        yield "wrong rounding", ast.Call(_rename(node.func, ROUNDINGS[function_name]), node.args, node.keywords)
    if function_name == "range" and len(node.args) == 1:
        yield "off by one", ast.Call(node.func, [ast.BinOp(node.args[0], ast.Sub(), ast.Constant(1))], [])
    if function_name == "clip" and len(node.args) == 3:
        yield "dropped bounds", node.args[0]
    for i, keyword in enumerate(node.keywords):
        if keyword.arg and keyword.arg.endswith("zero_point") and not isinstance(keyword.value, ast.Constant):
            changed = deepcopy(node)
            changed.keywords[i].value = ast.Constant(0)
            yield "dropped zero point", changed


def _rename(function: ast.expr, name: str) -> ast.expr:
    if isinstance(function, ast.Attribute):
        return ast.Attribute(function.value, name)
    return ast.Name(name)


def _joins(node: ast.BinOp) -> bool:
    """Texts, tuples and lists put together, and types: no arithmetic."""
    parts = [node.left, node.right]
    return any(
        isinstance(p, ast.Tuple | ast.List | ast.JoinedStr | ast.Starred)
        or (isinstance(p, ast.Constant) and not _number(p.value))
        for p in parts
    )


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
