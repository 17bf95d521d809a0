"""Move functions and sums in front of the data movement that follows a convolution, so that they can be fused into it.

Both passes run on the float graph while nodes are selected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import UnionType

from toolchain.ir.graph import INNER, Graph, Node, Origin, fresh_name, step_name
from toolchain.ops.convolution.select_convolution import Convolution
from toolchain.ops.data_movement import Slice
from toolchain.ops.elementwise.select_elementwise import Binary
from toolchain.ops.matrix_product import MatrixProduct
from toolchain.ops.permutation import Reshape, Transpose
from toolchain.ops.scalar_functions import multiple
from toolchain.ops.unary import Unary


def hoist_sums(graph: Graph) -> Graph:
    """Return the graph with each convolution, Reshapes, sum as convolution, sum, Reshape.

    Both operands of the sum have the output's shape and are no constants, and nothing else reads the tensors between.
    """
    producers, consumers = graph.producers(), graph.consumers()
    for node in graph.nodes:
        if not isinstance(node.op, Binary) or graph.constants.keys() & set(node.inputs):
            continue
        for i, name in enumerate(node.inputs):
            moves = _moves_behind(Convolution, name, graph, producers, consumers)
            has_same_type = graph.types[node.inputs[1 - i]] == graph.types[node.outputs[0]] == graph.types[name]
            if moves and has_same_type and all(isinstance(move.op, Reshape) for move in moves):
                graph = _sum_lifted(node, i, moves[0].inputs[0], graph)
                producers, consumers = graph.producers(), graph.consumers()
                break
    return graph


def _sum_lifted(node: Node, index: int, product: str, graph: Graph) -> Graph:
    """Return the graph with the sum in front of the moves.

    `index`: of the operand that is `product` in another shape.
    """
    y, other, kind = node.outputs[0], node.inputs[1 - index], graph.types[product]
    early, view = (fresh_name(f"{y}@{what}", graph.types) for what in ("early", "other"))
    operands = (product, view) if index == 0 else (view, product)
    steps = [
        Node(step_name(node.name, "other"), Reshape(kind.shape), (other,), (view,), ()),
        replace(node, inputs=operands, outputs=(early,)),
        Node(step_name(node.name, "shape"), Reshape(graph.types[y].shape), (early,), (y,), ()),
    ]
    origins = {early: Origin(graph.origins[y].tensor, INNER), view: Origin(graph.origins[other].tensor, INNER)}
    nodes = [new for old in graph.nodes for new in (steps if old.name == node.name else (old,))]
    return graph.with_nodes(nodes, {early: kind, view: kind}, origins=origins)


def lift_functions(graph: Graph) -> Graph:
    """Return the graph with each convolution, moves, function as convolution, function, moves.

    A multiplication by a constant moves in front of the moves of any product, where it becomes part of the product's scale.
    Nothing else reads the tensors between. A Slice among the moves keeps at least half.
    """
    producers, consumers = graph.producers(), graph.consumers()
    for node in graph.nodes:
        if not isinstance(node.op, Unary):
            continue
        products = Convolution if multiple(node.op.function) is None else Convolution | MatrixProduct
        chain = _moves_behind(products, node.inputs[0], graph, producers, consumers)
        if chain:
            graph = _lift_node(node, chain, graph)
            producers, consumers = graph.producers(), graph.consumers()
    return graph


def _moves_behind(
    products: type | UnionType, name: str, graph: Graph, producers: Mapping[str, Node], consumers: Mapping[str, list[Node]]
) -> list[Node]:
    """Return the moves between the output of one of these operators and the tensor `name`, first to last.

    The list is empty where there is no such operator or no move between.
    It is empty too where something else reads one of the tensors, or a move keeps less than half of the elements.
    """
    chain: list[Node] = []
    while graph.read_once(name, consumers):
        before = producers.get(name)
        if before is None:
            return []
        if isinstance(before.op, products):
            return chain
        if not isinstance(before.op, Reshape | Transpose | Slice) or not _keeps_half(before, graph):
            return []
        chain.insert(0, before)
        name = before.inputs[0]
    return []


def _keeps_half(node: Node, graph: Graph) -> bool:
    return 2 * graph.types[node.outputs[0]].elements >= graph.types[node.inputs[0]].elements


def _lift_node(node: Node, chain: list[Node], graph: Graph) -> Graph:
    """Return the graph with the function in front of the moves `chain`."""
    x, y = chain[0].inputs[0], node.outputs[0]
    early = fresh_name(f"{y}@early", graph.types)
    inner = Origin(graph.origins[y].tensor, INNER)
    function = Node(node.name, node.op, (x,), (early,), node.sources)
    moved = [replace(chain[0], inputs=(early,)), *chain[1:]]
    moved[-1] = replace(moved[-1], outputs=(y,))
    origins = dict.fromkeys((early, *(step.outputs[0] for step in moved[:-1])), inner)
    places = {old.name: new for old, new in zip(chain, moved)}
    nodes: list[Node] = []
    for old in graph.nodes:
        if old.name == node.name:
            continue
        if old.name == chain[0].name:
            nodes.append(function)
        nodes.append(places.get(old.name, old))
    return graph.with_nodes(nodes, {early: graph.types[x]}, origins=origins)
