"""Compose chains of pointwise operators over one tensor into one function: SiLU, HardSwish, GELU, affine scalings, powers.

The pass takes ONNX operators and makes one `Unary` node of each chain, which later becomes one lookup table or kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from toolchain.ir.graph import Graph, Node, OnnxGraph, OnnxNode, OnnxOp
from toolchain.ops.function_names import FUNCTION_NAMES, get_onnx_name
from toolchain.ops.scalar_functions import ONNX_UNARY, Function, X, substitute
from toolchain.ops.unary import Unary

_SHORT = 4  # nodes of a chain that may be one of ONNX's functions, spelled out
_BINARY = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Pow": "pow", "Min": "min", "Max": "max"}


@dataclass(frozen=True)
class Chain:
    """A tensor as a function of another.

    `root`: the tensor that the function reads. `nodes`: the nodes between in a topological order; the last makes the tensor.
    """

    root: str
    function: Function
    nodes: tuple[OnnxNode, ...]

    @property
    def name(self) -> str | None:
        """The name of the single function that this is, by its node or spelled out; None where there is none."""
        kinds = [node.op.op_type for node in self.nodes]
        if len(kinds) == 1 and kinds[0] in FUNCTION_NAMES:
            return FUNCTION_NAMES[kinds[0]]
        return get_onnx_name(self.function) if len(kinds) <= _SHORT else None


def compose(
    graph: OnnxGraph,
    rounded: Collection[str] = (),
    one_for_all: Callable[[Function, str | None], bool] = lambda function, name: True,
) -> Graph:
    """Return the graph with every longest chain of pointwise nodes as one `Unary`, where nothing else uses its inner tensors.

    A single pointwise node is a chain too.
    `rounded`: tensors that the model itself rounds; no chain goes through them.
    `one_for_all`: takes a function and its name; False: a chain of several nodes may not become it, so a shorter one is
    tried.
    """
    consumers = {n: readers for n, readers in graph.consumers().items() if n not in rounded}
    unary_by_node: dict[str, Node] = {}
    absorbed: set[str] = set()
    for node, candidates in _list_chains(graph, consumers):
        value = next((v for v in candidates if len(v.nodes) == 1 or one_for_all(v.function, v.name)), None)
        if value is None:
            continue
        sources = tuple(dict.fromkeys(s for n in value.nodes for s in n.sources or (n.name,)))
        unary_by_node[node.name] = Node(node.name, Unary(value.function, value.name), (value.root,), node.outputs, sources)
        absorbed.update(n.name for n in value.nodes[:-1])
    return graph.with_nodes(unary_by_node.get(n.name, n) for n in graph.nodes if n.name not in absorbed)


def find_chains(graph: OnnxGraph) -> dict[str, Chain]:
    """Return, by tensor, the longest chain of pointwise nodes that makes it; nothing else uses its inner tensors.

    Tensors that no pointwise node makes are left out. Chains of inner tensors are there too.
    """
    return {node.outputs[0]: candidates[0] for node, candidates in _list_chains(graph, graph.consumers())}


def _list_chains(graph: OnnxGraph, consumers: dict[str, list[OnnxNode]]) -> Iterator[tuple[OnnxNode, list[Chain]]]:
    """Yield each node that ends chains, with these chains, the longest first."""
    chains: dict[str, Chain] = {}
    for node in graph.nodes:
        candidates = list(_values(node, graph, chains, consumers))
        if candidates:
            chains[node.outputs[0]] = candidates[0]
            yield node, candidates


def _values(node: OnnxNode, graph: OnnxGraph, values: dict[str, Chain], consumers: dict[str, list[OnnxNode]]) -> Iterator[Chain]:
    """Yield the chains that end in the node, the longest first."""
    # A composed graph has other operators.
    if not isinstance(node.op, OnnxOp) or node.op.domain not in ("", "ai.onnx"):  # pyright: ignore[reportUnnecessaryIsInstance]
        return
    if any(graph.types[n].dtype != "float32" for n in (*node.inputs, *node.outputs) if n):
        return
    kind = node.op.op_type
    if kind in ONNX_UNARY and len(node.inputs) == 1:
        for inner in _choices(node.inputs[0], node, graph, values, consumers):
            function = substitute(ONNX_UNARY[kind](X, node.op.attributes), inner.function)
            yield Chain(inner.root, function, (*inner.nodes, node))
    if kind in _BINARY and len(node.inputs) == 2:
        yield from _binary(node, _BINARY[kind], graph, values, consumers)


def _binary(
    node: OnnxNode, kind: str, graph: OnnxGraph, values: dict[str, Chain], consumers: dict[str, list[OnnxNode]]
) -> Iterator[Chain]:
    """Yield the chains that end in an operator of two operands: one is a scalar, or both are functions of one tensor."""
    a, b = (_scalar(n, other, node, graph) for n, other in (node.inputs, node.inputs[::-1]))
    if a is not None and b is not None:
        return
    if a is not None or b is not None:
        for inner in _choices(node.inputs[1 if a is not None else 0], node, graph, values, consumers):
            function = (kind, a, inner.function) if a is not None else (kind, inner.function, b)
            yield Chain(inner.root, function, (*inner.nodes, node))
        return
    if any(n in graph.constants for n in node.inputs):
        return
    options = [_choices(n, node, graph, values, consumers) for n in node.inputs]
    for left, right in product(*options):
        if left.root == right.root:
            nodes = tuple({n.name: n for n in (*left.nodes, *right.nodes)}.values())
            yield Chain(left.root, (kind, left.function, right.function), (*nodes, node))


def _choices(
    name: str, node: OnnxNode, graph: OnnxGraph, values: dict[str, Chain], consumers: dict[str, list[OnnxNode]]
) -> list[Chain]:
    """Return the ways to read the operand `name`: as a chain, if only `node` uses it, and as itself."""
    itself = Chain(name, X, ())
    return [values[name], itself] if name in values and graph.read_once(name, consumers) else [itself]


def _scalar(name: str, other: str, node: OnnxNode, graph: OnnxGraph) -> float | None:
    """Return the number that a constant operand is, where the result has the other operand's shape; else None."""
    value = graph.constants.get(name)
    if value is None or value.size != 1 or graph.types[other].shape != graph.types[node.outputs[0]].shape:
        return None
    return float(np.asarray(value).reshape(()))
