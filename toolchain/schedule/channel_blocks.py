"""Choose the tensors that lie in channel blocks (granules), on machines whose `layout.feature_maps` has them.

`schedule.layer_by_layer` asks before it plans. Feature maps [n, h, w, c] can. Matrices lie densely, whatever their
rank: their rows are no pixels, and a Reshape of one stays free. Operations name the layout of each operand by strides,
so both kinds may meet in one.
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
    """Return the activations of a region that lie in channel blocks; none on machines without them.

    `nodes`: in order. `ports`: inputs and outputs of the region, blocked where the machine says so. `states`: tensors
    that lie densely, since the next run reads them as this one leaves them.
    """
    maps = chip.layout.feature_maps
    if maps is None:
        return frozenset()
    blocked = _Maps(nodes, graph, chip).find_blocked().difference(states)
    return blocked if maps.ports == "granules" else blocked.difference(ports)


class _Maps:
    """The four-dimensional tensors of a region, of which those that must lie densely are dropped one by one."""

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
        """Return the tensors that lie in channel blocks."""
        for node in self._nodes:
            self._maps -= set(self._dense(node))
        self._maps -= {name for name in self._maps if self._is_matrix(name)}
        for node in self._nodes:
            self._follow(node)
        return frozenset(self._maps)

    def _dense(self, node: Node) -> Iterator[str]:
        """Yield the tensors of an operator whose operations cannot address channel blocks, or would begin inside one."""
        if isinstance(node.op, TiledOp) and not node.op.reads_granules(self._layers[node.name]):
            yield from (*node.inputs, *node.outputs)

    def _is_matrix(self, name: str) -> bool:
        """Return whether the tensor is a matrix: a Reshape gives it another rank, and it is one row, or is only moved."""
        touching = self._touching[name]
        joined = any(isinstance(n.op, Reshape) and len(self._other(n, name)) != 4 for n in touching)
        batch, height, _, _ = self._types[name].shape
        return joined and (batch * height == 1 or all(isinstance(n.op, MoveOp) for n in touching))

    def _other(self, node: Node, name: str) -> tuple[int, ...]:
        """Return the shape on the other side of a Reshape."""
        return self._types[node.outputs[0] if node.inputs[0] == name else node.inputs[0]].shape

    def _follow(self, node: Node) -> None:
        """Drop the output of a pointwise operator whose inputs of the same shape are all dense."""
        (out,) = node.outputs
        shape = self._types[out].shape
        same_shape = [n for n in self._layers[node.name].activations if self._types[n].shape == shape]
        pointwise = isinstance(node.op, TiledOp) and node.op.is_pointwise
        if pointwise and same_shape and not self._maps.intersection(same_shape):
            self._maps.discard(out)
