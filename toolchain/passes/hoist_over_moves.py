"""Move functions and sums in front of the data movement that follows a convolution, so that they can be fused into it.

Both passes run on the float graph while nodes are selected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from types import UnionType

from toolchain.ir.graph import INNER, Graph, Node, Origin, TensorType, fresh_name, step_name
from toolchain.ops.convolution.select_convolution import Convolution
from toolchain.ops.data_movement import Slice
from toolchain.ops.elementwise.select_elementwise import Binary
from toolchain.ops.matrix_product import MatrixProduct
from toolchain.ops.permutation import Reshape, Transpose
from toolchain.ops.scalar_functions import multiple
from toolchain.ops.unary import Unary


class _MovedGraph:
    """A graph while its nodes are moved. One step takes time for the nodes that it changes, not for all.

    `types`, `origins`: as in `Graph`, with those of added tensors. `producers`: the node that makes each tensor.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph, self._added = graph, dict[str, TensorType]()
        self.types, self.origins, self.producers = dict(graph.types), dict(graph.origins), graph.producers()
        self._reader_counts = Counter(name for node in graph.nodes for name in set(node.inputs))
        self._slots = [[node] for node in graph.nodes]  # what stands in the place of each node
        self._slot_of = {name: slot for slot, node in zip(self._slots, graph.nodes) for name in node.outputs}

    def is_read_once(self, tensor: str) -> bool:
        """Return whether exactly one node reads the tensor and it is no output of the graph."""
        return self._reader_counts[tensor] == 1 and tensor not in self._graph.outputs

    def add_tensor(self, name: str, kind: TensorType, origin: Origin) -> None:
        """Define a tensor that a step adds."""
        self.types[name] = self._added[name] = kind
        self.origins[name] = origin

    def put(self, new: Sequence[Node], old: Node) -> None:
        """Put nodes in the place of one."""
        slot = self._slot_of[old.outputs[0]]
        at = next(i for i, node in enumerate(slot) if node is old)
        slot[at : at + 1] = new
        self._reader_counts.subtract(set(old.inputs))
        for node in new:
            self._reader_counts.update(set(node.inputs))
            self._slot_of.update(dict.fromkeys(node.outputs, slot))
            self.producers.update(dict.fromkeys(node.outputs, node))

    def finish(self) -> Graph:
        """Return the graph, itself where nothing was moved."""
        if not self._added:
            return self._graph
        return self._graph.with_nodes(chain.from_iterable(self._slots), self._added, origins=self.origins)


def hoist_sums(graph: Graph) -> Graph:
    """Return the graph with each convolution, Reshapes, sum as convolution, sum, Reshape.

    Both operands of the sum have the output's shape and are no constants, and nothing else reads the tensors between.
    """
    moved = _MovedGraph(graph)
    for node in graph.nodes:
        if not isinstance(node.op, Binary) or not graph.constants.keys().isdisjoint(node.inputs):
            continue
        for i, name in enumerate(node.inputs):
            moves = _moves_behind(Convolution, name, moved)
            has_same_type = graph.types[node.inputs[1 - i]] == graph.types[node.outputs[0]] == graph.types[name]
            if moves and has_same_type and all(isinstance(move.op, Reshape) for move in moves):
                _lift_sum(node, i, moves[0].inputs[0], moved)
                break
    return moved.finish()


def _lift_sum(node: Node, index: int, product: str, graph: _MovedGraph) -> None:
    """Put the sum in front of the moves.

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
    graph.add_tensor(early, kind, Origin(graph.origins[y].tensor, INNER))
    graph.add_tensor(view, kind, Origin(graph.origins[other].tensor, INNER))
    graph.put(steps, node)


def lift_functions(graph: Graph) -> Graph:
    """Return the graph with each convolution, moves, function as convolution, function, moves.

    A multiplication by a constant moves in front of the moves of any product, where it becomes part of the product's scale.
    Nothing else reads the tensors between. A Slice among the moves keeps at least half.
    """
    moved = _MovedGraph(graph)
    for node in graph.nodes:
        if not isinstance(node.op, Unary):
            continue
        products = Convolution if multiple(node.op.function) is None else Convolution | MatrixProduct
        moves = _moves_behind(products, node.inputs[0], moved)
        if moves:
            _lift_function(node, moves, moved)
    return moved.finish()


def _moves_behind(products: type | UnionType, name: str, graph: _MovedGraph) -> list[Node]:
    """Return the moves between the output of one of these operators and the tensor `name`, first to last.

    The list is empty where there is no such operator or no move between.
    It is empty too where something else reads one of the tensors, or a move keeps less than half of the elements.
    """
    moves: list[Node] = []
    while graph.is_read_once(name):
        before = graph.producers.get(name)
        if before is None:
            return []
        if isinstance(before.op, products):
            return moves
        if not isinstance(before.op, Reshape | Transpose | Slice) or not _keeps_half(before, graph):
            return []
        moves.insert(0, before)
        name = before.inputs[0]
    return []


def _keeps_half(node: Node, graph: _MovedGraph) -> bool:
    return 2 * graph.types[node.outputs[0]].elements >= graph.types[node.inputs[0]].elements


def _lift_function(node: Node, moves: list[Node], graph: _MovedGraph) -> None:
    """Put the function in front of the moves."""
    x, y = moves[0].inputs[0], node.outputs[0]
    early = fresh_name(f"{y}@early", graph.types)
    inner = Origin(graph.origins[y].tensor, INNER)
    function = Node(node.name, node.op, (x,), (early,), node.sources)
    moves_behind = [replace(moves[0], inputs=(early,)), *moves[1:]]
    moves_behind[-1] = replace(moves_behind[-1], outputs=(y,))
    graph.put([], node)
    for old, new in zip(moves, moves_behind):
        graph.put([new] if old is not moves[0] else [function, new], old)
    graph.add_tensor(early, graph.types[x], inner)
    graph.origins.update(dict.fromkeys((move.outputs[0] for move in moves_behind[:-1]), inner))
