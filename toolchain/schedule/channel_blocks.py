"""Feature maps [n, h, w, c] lie in channel blocks on machines whose `layout.feature_maps` has them.

Matrices lie dense, whatever their rank: their rows are no pixels, and a Reshape of one stays free. Operations name the order of
each operand by its surface stride, so that both kinds may meet in one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, Node
from toolchain.ops.kit.operator import Layer, MoveOp, TiledOp
from toolchain.ops.permutation import Reshape


def find_blocked_tensors(
    nodes: Sequence[Node], graph: Graph, ports: Collection[str], chip: Chip, states: Collection[str] = ()
) -> frozenset[str]:
    """The activations of a region's nodes, in order, that lie in granules; none on machines without them. `states`: that lie
    dense, since what is read of one and what is left of it have one order."""
    maps = chip.layout.feature_maps
    if maps is None:
        return frozenset()
    blocked = _Maps(nodes, graph, chip).find_blocked().difference(states)
    return blocked if maps.ports == "granules" else blocked.difference(ports)


class _Maps:
    def __init__(self, nodes: Sequence[Node], graph: Graph, chip: Chip):
        self._nodes, self._types, self._graph = nodes, graph.types, graph
        names = dict.fromkeys(n for node in nodes for n in (*node.inputs, *node.outputs) if n and n not in graph.constants)
        self._maps = {n for n in names if len(self._types[n].shape) == 4}
        self._layers = {node.name: Layer(node, graph.types, graph.constants, chip) for node in nodes}
        self._touching: dict[str, list[Node]] = {}
        for node in nodes:
            for name in dict.fromkeys((*node.inputs, *node.outputs)):
                self._touching.setdefault(name, []).append(node)

    def find_blocked(self) -> frozenset[str]:
        for node in self._nodes:
            self._maps -= set(self._dense(node))
        self._maps -= {name for name in self._maps if self._is_matrix(name)}
        for node in self._nodes:
            self._follow(node)
        return frozenset(self._maps)

    def _dense(self, node: Node) -> Iterator[str]:
        """The tensors of an operator whose operations do not know granules, or would have to begin inside one."""
        if isinstance(node.op, TiledOp) and not node.op.reads_granules(self._layers[node.name]):
            yield from (*node.inputs, *node.outputs)

    def _is_matrix(self, name: str) -> bool:
        """True where a Reshape joins the tensor to one of other rank, and it is one row, or only data movement touches it."""
        touching = self._touching[name]
        joined = any(isinstance(n.op, Reshape) and len(self._other(n, name)) != 4 for n in touching)
        batch, height, _, _ = self._types[name].shape
        return joined and (batch * height == 1 or all(isinstance(n.op, MoveOp) for n in touching))

    def _other(self, node: Node, name: str) -> tuple[int, ...]:
        """The shape on the other side of a Reshape."""
        return self._types[node.outputs[0] if node.inputs[0] == name else node.inputs[0]].shape

    def _follow(self, node: Node) -> None:
        """Drop the output of a pointwise operator whose inputs are all matrices."""
        (out,) = node.outputs
        shape = self._types[out].shape
        same_shape = [n for n in self._layers[node.name].activations if self._types[n].shape == shape]
        pointwise = isinstance(node.op, TiledOp) and node.op.is_pointwise
        if pointwise and same_shape and not self._maps.intersection(same_shape):
            self._maps.discard(out)
