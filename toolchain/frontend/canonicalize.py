"""Bring a float graph into canonical form: apply all rewrite rules of the frontend to the fixed point.

Each rule file has a table `RULES`, or `DECOMPOSITIONS` that become rules. `LATE_DECOMPOSITIONS` are tried in a second round,
once norms that are written out in primitives are recognised.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np

from toolchain.frontend import (
    arithmetic_rules,
    convolution_rules,
    decompose_rules,
    einsum_rules,
    linear_rules,
    match_activations,
    match_norms,
    matmul_rules,
    reduction_rules,
    reshape_sinking_rules,
    scatter_rules,
    shape_rules,
    slice_rules,
    where_rules,
    window_rules,
)
from toolchain.frontend.errors import unusable
from toolchain.frontend.infer import RANDOM
from toolchain.frontend.rewrite import Decomposition, Rule, as_rule, eliminate_dead_code, rewrite
from toolchain.frontend.source_names import map_source_names
from toolchain.ir.graph import Node, OnnxGraph, OnnxNode, OnnxOp


def merge_rule_tables(*tables: Mapping[str, Sequence[Rule]]) -> dict[str, tuple[Rule, ...]]:
    """Return the rules of each operator, in the order of the tables."""
    keys = dict.fromkeys(key for table in tables for key in table)
    return {key: tuple(rule for table in tables for rule in table.get(key, ())) for key in keys}


def rule_tables(module: ModuleType) -> tuple[Mapping[str, Sequence[Rule]], ...]:
    """Return the tables of a file: its rewrite rules, and rules of its decompositions."""
    decompositions: Mapping[str, Decomposition] = getattr(module, "DECOMPOSITIONS", {})
    return getattr(module, "RULES", {}), {name: (as_rule(decompose),) for name, decompose in decompositions.items()}


def late_rules(module: ModuleType) -> dict[str, tuple[Rule, ...]]:
    """Return the rules of decompositions that are tried late, by operator, several of one operator in order."""
    return {name: tuple(map(as_rule, each)) for name, each in module.LATE_DECOMPOSITIONS.items()}


TABLES = (
    shape_rules,
    slice_rules,
    window_rules,
    linear_rules,
    arithmetic_rules,
    where_rules,
    match_activations,
    match_norms,
    reduction_rules,
    decompose_rules,
    einsum_rules,
    matmul_rules,
    scatter_rules,
    reshape_sinking_rules,
)
LATE_TABLES = (decompose_rules, convolution_rules)  # once norms that are written out are found
RULES = merge_rule_tables(*(table for module in TABLES for table in rule_tables(module)))
LATE = merge_rule_tables(RULES, *map(late_rules, LATE_TABLES))
FACTORS = frozenset(
    ("Conv", "ConvTranspose", "Div", "Einsum", "Gemm", "LayerNormalization", "MatMul", "Mul", "PRelu", "RMSNormalization")
)
SMALL = 4096  # elements; constants up to this size are compared by value


def canonicalize(graph: OnnxGraph, opset: int, source_tensors: Collection[str]) -> tuple[OnnxGraph, dict[str, str]]:
    """Return the graph in canonical form, and by tensor that has another shape in the file, its name there.

    Dead code and common subexpressions are eliminated too, and an output that is a constant gets an Identity.
    `source_tensors`: the file's tensors (see `map_source_names`).
    Raise CompileError where a weight that is a factor holds Inf.
    """
    moved: dict[tuple[str, str], None] = {}
    graph = eliminate_dead_code(graph)
    check_factors(graph)
    graph = rewrite(graph, RULES, opset, moved)
    graph = rewrite(eliminate_common_subexpressions(graph), LATE, opset, moved)
    graph = with_constant_outputs(graph)
    return graph, map_source_names(graph, moved, source_tensors)


def check_factors(graph: OnnxGraph) -> None:
    """Raise CompileError where a constant that is a factor holds Inf, which gives NaN. As an addend, mask or bound it may."""
    for node in graph.nodes:
        for name in node.inputs[:2] if node.op.op_type in FACTORS and not node.op.domain else ():
            value = graph.constants.get(name)
            if value is not None and value.dtype.kind == "f" and value.size > 1 and np.isinf(value).any():
                raise unusable(name, value, np.isinf(value), "Inf")


def eliminate_common_subexpressions(graph: OnnxGraph) -> OnnxGraph:
    """Return the graph with the first of nodes that compute the same from the same inputs. Random operators stay."""
    first: dict[tuple[Any, ...], OnnxNode] = {}
    same: dict[str, str] = {}
    nodes: list[OnnxNode] = []
    for old in graph.nodes:
        node = replace(old, inputs=tuple(same.get(n, n) for n in old.inputs))
        inputs = tuple(identity(n, graph) for n in node.inputs)
        key = (node.op.op_type, node.op.domain, inputs, attributes_key(node))
        twin = first.get(key)
        if twin is None or len(node.outputs) != 1 or node.outputs[0] in graph.outputs or node.op.op_type in RANDOM:
            first.setdefault(key, node)
            nodes.append(node)
            continue
        same[node.outputs[0]] = twin.outputs[0]
    return eliminate_dead_code(replace(graph, nodes=tuple(nodes)))


def attributes_key(node: OnnxNode) -> str:
    """Return a key that is equal for equal attributes; with tensors among them it is the node's own."""
    values = node.op.attributes.values()
    return node.name if any(isinstance(v, np.ndarray) for v in values) else repr(sorted(node.op.attributes.items()))


def identity(name: str, graph: OnnxGraph) -> str | bytes:
    """Return a key of an input: the value of a constant of at most `SMALL` elements, else its name."""
    value = graph.constants.get(name)
    if value is None or value.size > SMALL:
        return name
    return f"{value.dtype} {value.shape} ".encode() + value.tobytes()


def with_constant_outputs(graph: OnnxGraph) -> OnnxGraph:
    """Return the graph with an Identity behind each constant that is an output, so that a node makes it."""
    constant = [name for name in graph.outputs if name in graph.constants]
    if not constant:
        return graph
    values = {f"{name}/value": graph.constants[name] for name in constant}
    types = {f"{name}/value": graph.types[name] for name in constant}
    nodes = [Node(f"{name}/constant", OnnxOp("Identity"), (f"{name}/value",), (name,)) for name in constant]
    constants = {n: v for n, v in graph.constants.items() if n not in constant}
    moved = {name: f"{name}/value" for name in constant}
    users = [replace(n, inputs=tuple(moved.get(i, i) for i in n.inputs)) for n in graph.nodes]
    return replace(graph, constants=constants).with_nodes([*users, *nodes], types, values)
