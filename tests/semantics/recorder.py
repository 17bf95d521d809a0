"""Record which rules and operators a build went through, by patching them; no case claims them itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from toolchain.frontend import canonicalize, upgrade
from toolchain.ir.graph import Graph, OnnxOp
from toolchain.ops.kit import registry
from toolchain.ops.kit.operator import NpuOp, operator_of
from toolchain.ops.scalar_functions import ONNX_UNARY, PRIMITIVES
from toolchain.ops.unary import Unary
from toolchain.passes import compose, select

Coverage = set[tuple[str, str]]  # what it is, its name
REFUSALS = {("upgrade", "GroupNormalization")}  # a rule that only refuses
# Of machines with keys of their own: held to the file's float by tests/quantized/test_blocks.py. Of layers that
# onnxruntime has not: held to those that it has by test_recurrence.py.
# Of states, which are several runs: tests/passes/test_rings.py.
ELSEWHERE = {
    ("optional part", "Convolution.weight_groups"),
    ("integer operator", "TakeRows"),
    *(("upgrade", op) for op in ("GRU", "LSTM", "RNN")),
}


def everything() -> Coverage:
    """All that the registries hold."""
    coverage: Coverage = {("upgrade", op) for op in upgrade.RULES}
    coverage |= {("rewrite", _rule_name(op, rule)) for op, rules in canonicalize.LATE.items() for rule in rules}
    coverage |= {("select", op) for op in registry.RULES}
    coverage |= {("function", op) for op in ONNX_UNARY} | {("primitive", name) for name in PRIMITIVES}
    coverage |= {("float operator", name) for name in float_operators()}
    for name, kind in registry.INTEGER_OPERATORS.items():
        coverage |= {("integer operator", name)} | {("optional part", f"{name}.{p}") for p in _optional(kind)}
    return coverage - REFUSALS - ELSEWHERE


def float_operators() -> list[str]:
    operator_classes = [
        c for m in registry._MODULES for c in vars(m).values() if isinstance(c, type) and c.__module__ == m.__name__
    ]
    return sorted(c.__name__ for c in operator_classes if dataclasses.is_dataclass(c) and hasattr(c, "quantize"))


def _optional(kind: type) -> list[str]:
    return [f.name for f in dataclasses.fields(kind) if "| None" in str(f.type)]


def _rule_name(op: str, rule: Callable[..., Any]) -> str:
    return f"{op}: {rule.__module__.rpartition('.')[2]}.{rule.__name__}"


@contextmanager
def record_coverage() -> Iterator[Coverage]:
    """Record what the frontend and the selection do in this block; add `operators` of what was built."""
    coverage: Coverage = set()
    with ExitStack() as stack:
        for table in ("RULES", "LATE"):
            tables = getattr(canonicalize, table).items()
            rewrites = {op: tuple(_rewrite(op, rule, coverage) for rule in rules) for op, rules in tables}
            stack.enter_context(patch.object(canonicalize, table, rewrites))
        stack.enter_context(patch.object(upgrade, "RULES", {op: _upgrade(op, r, coverage) for op, r in upgrade.RULES.items()}))
        functions = {op: _record_calls(("function", op), make, coverage) for op, make in ONNX_UNARY.items()}
        stack.enter_context(patch.object(compose, "ONNX_UNARY", functions))
        selections = {op: dataclasses.replace(r, select=_selection(op, r.select, coverage)) for op, r in registry.RULES.items()}
        stack.enter_context(patch.object(select, "RULES", selections))
        yield coverage


def _record_calls(what: tuple[str, str], make: Callable[..., Any], coverage: Coverage) -> Callable[..., Any]:
    def recording_make(*arguments: Any) -> Any:
        coverage.add(what)
        return make(*arguments)

    return recording_make


def _rewrite(op: str, rule: Callable[..., Any], coverage: Coverage) -> Callable[..., Any]:
    def applied(*arguments: Any) -> Any:
        rewritten = rule(*arguments)
        if rewritten is not None:
            coverage.add(("rewrite", _rule_name(op, rule)))
        return rewritten

    return applied


def _upgrade(op: str, rule: Callable[..., Any], coverage: Coverage) -> Callable[..., Any]:
    def applied(old: Any) -> Any:
        upgraded = rule(old)
        if upgraded.nodes != [old.node]:
            coverage.add(("upgrade", op))
        return upgraded

    return applied


def _selection(op: str, rule: Callable[..., Any], coverage: Coverage) -> Callable[..., Any]:
    def applied(scope: Any) -> Any:
        rule(scope)  # a refusal is an exception
        full_graph = dataclasses.replace(scope.graph, types=scope.types, constants=scope.constants)
        if all(n.op.find_unsupported_reason(n, full_graph, scope.chip) is None for n in scope.nodes):
            coverage.add(("select", op))

    return applied


def operators(selected: Graph, integer: Graph) -> Coverage:
    """The chip's operators of both forms, the optional parts that are there, the functions inside."""
    coverage: Coverage = set()
    for node in selected.nodes:
        if isinstance(node.op, OnnxOp):
            continue
        coverage.add(("float operator", type(node.op).__name__))
        if isinstance(node.op, Unary):
            coverage |= {("primitive", name) for name in _primitives(node.op.function)}
    for node in integer.nodes:
        if isinstance(node.op, OnnxOp):
            continue
        kind = operator_of(node, NpuOp).NAME
        coverage.add(("integer operator", kind))
        coverage |= {("optional part", f"{kind}.{p}") for p in _optional(type(node.op)) if getattr(node.op, p) is not None}
    return coverage


def _primitives(function: Any) -> Iterator[str]:
    if isinstance(function, tuple) and function[0] != "x":
        yield function[0]
        for argument in function[1:]:
            yield from _primitives(argument)


def missing(coverage_by_case: Mapping[str, Coverage]) -> list[str]:
    """Return a sentence for each rule and operator that no case went through."""
    every = set().union(*coverage_by_case.values())
    return [f"{what} {name}" for what, name in sorted(everything() - every)]
