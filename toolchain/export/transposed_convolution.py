"""Rewrite ConvTranspose for the QDQ export as the chip computes it: one convolution for all phases, then interleaving and a
cut.

Its weights have a scale for each channel of each phase, which the ConvTranspose of other tools does not have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from toolchain.ir.graph import Graph, Node, OnnxGraph, OnnxNode, OnnxOp, TensorType, fresh_name, step_name
from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.ops.convolution.select_convolution import Convolution
from toolchain.ops.kit.layout import NCHW
from toolchain.ops.space_to_depth import Phases, both_phases

Shape = tuple[int, ...]


@dataclass(frozen=True)
class PhasedModel:
    """A model's graph in which ConvTranspose nodes are convolutions and moves, where the chip runs each as one convolution.

    `chip_tensor_by_name`: for tensors that only this graph has, the chip's tensor with the same codes.
    """

    graph: OnnxGraph
    chip_tensor_by_name: Mapping[str, str]


def split_phases(graph: OnnxGraph, chosen: Graph, integer: Graph) -> PhasedModel:
    """Return the graph with each ConvTranspose replaced that is one convolution on the chip; others stay.

    `graph`: the model's in canonical form. `chosen`: the chip's operators in float, clamps fused.
    `integer`: the same in integers, nothing fused after layers.
    """
    layers = {n.name: n for n in integer.nodes if isinstance(n.op, IntegerConvolution)}
    products = [n for n in chosen.nodes if isinstance(n.op, Convolution) and n.name in layers]
    by_source = {source: n for n in products for source in n.sources}
    steps, nodes = _Steps(graph, chosen), list[OnnxNode]()
    for node in graph.nodes:
        source_products = (by_source.get(s) for s in (node.sources or (node.name,)))
        product = next((n for n in source_products if n is not None), None) if node.op.op_type == "ConvTranspose" else None
        if product is None:
            nodes.append(node)
        else:
            nodes += steps.of(node, product, layers[product.name].outputs[0])
    return PhasedModel(graph.with_nodes(nodes, steps.types, steps.constants), steps.chip_tensor_by_name)


@dataclass
class _Steps:
    """The nodes that replace one ConvTranspose after another, and the types and constants that they add."""

    graph: OnnxGraph
    chosen: Graph
    types: dict[str, TensorType] = field(default_factory=dict[str, TensorType])
    constants: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    chip_tensor_by_name: dict[str, str] = field(default_factory=dict[str, str])

    def of(self, node: OnnxNode, product: Node, chip_tensor: str) -> list[OnnxNode]:
        """Return the nodes that replace a ConvTranspose.

        `product`: the convolution that replaces it.
        `chip_tensor`: the chip's tensor of its codes; a clamp after the moves may be fused into it.
        """
        (x, weights), y, a = node.inputs[:2], node.outputs[0], node.op.attributes
        size, out = self.graph.types[x].shape, self.graph.types[y].shape
        rows, columns = both_phases(a, self.graph.types[weights].shape, size, out)
        kernel = np.ascontiguousarray(self.chosen.constants[product.inputs[1]].transpose(NCHW))
        chain = _Chain(self, node, chip_tensor)
        before, after = (rows.before, columns.before), (rows.after, columns.after)
        if min(*before, *after) < 0:
            first, last = ([max(-p, 0) for p in ends] for ends in (before, after))
            cut_shape = (*size[:2], *(n - f - z for n, f, z in zip(size[2:], first, last, strict=True)))
            x = chain.cut("kept", x, first, cut_shape)
            self.chip_tensor_by_name[x] = product.inputs[0]
        attributes = {
            "kernel_shape": kernel.shape[2:],
            "strides": (1, 1),
            "dilations": (1, 1),
            "pads": tuple(max(p, 0) for p in (*before, *after)),
            "group": int(a["group"]),
        }
        inputs = [x, self.constant(f"{node.name}/phases", kernel)]
        if len(product.inputs) > 2 and product.inputs[2]:
            inputs.append(self.constant(f"{node.name}/biases", self.chosen.constants[product.inputs[2]]))
        shape = (out[0], kernel.shape[0], rows.count, columns.count)
        made_here = chain.step(product.name, OnnxOp("Conv", attributes), tuple(inputs), shape)
        chain.interleave(made_here, int(a["group"]), rows, columns, out)
        return chain.finish(y)

    def constant(self, name: str, value: np.ndarray) -> str:
        name = self.fresh(name)
        self.constants[name], self.types[name] = value, TensorType(value.shape, str(value.dtype))
        return name

    def fresh(self, name: str) -> str:
        return fresh_name(name, self.graph.types, self.types)


@dataclass
class _Chain:
    """Nodes in a row that replace `node`. `chip_tensor`: as in `_Steps.of`."""

    steps: _Steps
    node: OnnxNode
    chip_tensor: str
    nodes: list[OnnxNode] = field(default_factory=list[OnnxNode])

    def step(self, name: str, op: OnnxOp, inputs: tuple[str, ...], shape: Shape) -> str:
        """Add a node whose output has this shape and the codes of `chip_tensor`; return the output."""
        output = self.steps.fresh(f"{self.node.outputs[0]}/{op.op_type}")
        self.steps.types[output] = TensorType(shape, "float32")
        self.steps.chip_tensor_by_name[output] = self.chip_tensor
        self.nodes.append(Node(name, op, inputs, (output,), self.node.sources or (self.node.name,)))
        return output

    def _add_move(self, what: str, op: OnnxOp, x: str, shape: Shape, parameters: Mapping[str, Sequence[int]]) -> str:
        name = step_name(self.node.name, what)
        constants = (self.steps.constant(f"{name}/{key}", np.array(value)) for key, value in parameters.items())
        return self.step(name, op, (x, *constants), shape)

    def cut(self, what: str, x: str, first: Sequence[int], shape: Shape) -> str:
        """Add a Slice of rows and columns from `first` on, to `shape`."""
        ends = [f + n for f, n in zip(first, shape[2:], strict=True)]
        return self._add_move(what, OnnxOp("Slice"), x, shape, {"starts": first, "ends": ends, "axes": (2, 3)})

    def _add_view(self, what: str, x: str, shape: Shape) -> str:
        return self._add_move(what, OnnxOp("Reshape"), x, shape, {"shape": shape})

    def interleave(self, x: str, groups: int, rows: Phases, columns: Phases, out: Shape) -> None:
        """Add the interleaving of the phases, and the cut to the output's size.

        `x`: [n, groups (row phase) (column phase) o/g, groups of rows, groups of columns].
        `out`: the shape of the ConvTranspose's output.
        """
        n, channels, h, w = self.steps.types[x].shape
        r, c = rows.stride, columns.stride
        full_shape = (n, out[1], h * r, w * c)
        if r * c > 1:
            inner = channels // (groups * r * c)
            x = self._add_view("view", x, (n, groups, r, c, inner, h, w))
            interleaving = OnnxOp("Transpose", {"perm": (0, 1, 4, 5, 2, 6, 3)})
            x = self._add_move("moved", interleaving, x, (n, groups, inner, h, r, w, c), {})
            x = self._add_view("uncut", x, full_shape)
        if full_shape != out:
            self.cut("cut", x, [rows.cut, columns.cut], out)

    def finish(self, name: str) -> list[OnnxNode]:
        """Return the nodes, of which the last makes the model's tensor `name`."""
        last = self.nodes[-1]
        self.steps.chip_tensor_by_name[name] = self.steps.chip_tensor_by_name.pop(last.outputs[0])
        return [*self.nodes[:-1], Node(last.name, last.op, last.inputs, (name,), last.sources)]
