"""Take convolutions of a graph that was quantized before into another quantization where they come out the same.

Trials of advice quantize a network that differs from the written one in few nodes. The weights of all others, which take most of
the time, are the same codes. `passes.quantize` asks `QuantizedGraph.find` before it lowers a node.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from quant.repair.choices import Quantization
from toolchain.ir.graph import Graph, Node
from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.ops.convolution.select_convolution import Convolution
from toolchain.passes.quantize_context import QuantizeContext


@dataclass(frozen=True, eq=False)
class QuantizedGraph:
    """A graph and what it was quantized to.

    `graph`: as selected and clamped. `integer`: what `passes.quantize.quantize` made of it, with `quantization`.
    """

    graph: Graph
    integer: Graph
    quantization: Quantization

    @cached_property
    def _nodes(self) -> dict[str, Node]:
        return {node.name: node for node in self.graph.nodes}

    @cached_property
    def _integer_nodes(self) -> dict[str, Node]:
        return {node.name: node for node in self.integer.nodes}

    def find(self, node: Node, scope: QuantizeContext) -> Node | None:
        """Return the integer node that `lower_node` would make of a chip node, and add its constants to the context.

        None where it may make another: the node is no convolution, has changed or is several, or its tensors, constants or
        parameters have. Constants are the same where they are the same objects.
        """
        integer = self._integer_nodes.get(node.name)
        if integer is None or node != self._nodes.get(node.name) or not self._comes_out_equal(node, integer, scope):
            return None
        constants = integer.inputs[1:]
        if any(name in scope.graph.types for name in constants):
            return None
        scope.constants.update((name, self.integer.constants[name]) for name in constants)
        return integer

    def _comes_out_equal(self, node: Node, integer: Node, scope: QuantizeContext) -> bool:
        """Return whether a node of both graphs is one convolution, and all that its integers depend on is as it was."""
        if not isinstance(node.op, Convolution) or not isinstance(integer.op, IntegerConvolution):
            return False
        x, y, before = node.inputs[0], node.outputs[0], self.quantization
        return (
            (integer.inputs[0], integer.outputs) == (x, (y,))
            and all(self._has_codes(name, scope) for name in (x, y))
            and all(scope.graph.constants[n] is self.graph.constants[n] for n in node.inputs[1:] if n)
            and scope.layers.get(node.name) is before.layers.get(node.name)
            and scope.weight_types.get(node.name) == before.weight_types.get(node.name)
            and (node.name in scope.compiler_weights) == (node.name in before.compiler_weights)
            and scope.file_weights is before.file_weights
        )

    def _has_codes(self, tensor: str, scope: QuantizeContext) -> bool:
        """Return whether a tensor has the type and the scale that it had before. Wide types are rescaled or cut, so no."""
        kind, codes = self.integer.types[tensor], scope.codes(tensor)
        return kind.dtype == codes.value and not codes.is_wide and kind.quant == scope.quant(tensor)
