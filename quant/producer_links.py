"""Links of a float ONNX graph: producers and readers of tensors, and walks along paths that leave values unchanged.

Analyses of ranges use it, such as `quant.structural_ranges` and `quant.masks`. HANDED_ON are operators that pass the values of
their first input on, whatever they do to the shape. SHAPE_OPS has Concat besides.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    import onnx

# Operators that hand values on unchanged, whatever they do to shapes.
SHAPE_OPS = frozenset(
    {"Concat", "Expand", "Flatten", "Gather", "Identity", "Pad", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)
LINEAR_OPS = frozenset({"Add", "Div", "Mul", "Pow", "Sub"})
HANDED_ON = SHAPE_OPS - {"Concat"}  # a Concat holds others too


class Links:
    """An index of a graph's nodes by the tensors that they make and read; built on first use, for a graph that does not
    change."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph = graph

    @property
    def nodes(self) -> Iterable[onnx.NodeProto]:
        return self.graph.node

    @cached_property
    def _producers(self) -> dict[str, onnx.NodeProto]:
        return {output: node for node in self.graph.node for output in node.output if output}

    @cached_property
    def _readers(self) -> dict[str, list[onnx.NodeProto]]:
        readers_by_tensor: dict[str, list[onnx.NodeProto]] = {}
        for node in self.graph.node:
            for name in dict.fromkeys(node.input):
                readers_by_tensor.setdefault(name, []).append(node)
        return readers_by_tensor

    @cached_property
    def _outputs(self) -> frozenset[str]:
        return frozenset(o.name for o in self.graph.output)

    def ends_in(self, name: str, ends: Collection[str], through: Collection[str]) -> bool:
        """Return whether all paths from `name` through operators of `through` end in operators of `ends`, none in an output.

        It is True for a tensor that nothing reads and that is no output.
        """
        pending, visited = [name], set[str]()
        while pending:
            name = pending.pop()
            readers = [n for n in self._readers.get(name, ()) if n.op_type not in ends]
            if name in self._outputs or any(n.op_type not in through for n in readers):
                return False
            visited.add(name)
            pending.extend(o for n in readers for o in n.output if o and o not in visited)
        return True

    @cached_property
    def _initializers(self) -> dict[str, onnx.TensorProto]:
        return {i.name: i for i in self.graph.initializer}

    def constant(self, name: str) -> NDArray[Any] | None:
        """Return the value of an initializer; None for any other tensor, also for the output of a Constant node."""
        initializer = self._initializers.get(name)
        if initializer is None:
            return None
        from onnx import numpy_helper

        return numpy_helper.to_array(initializer)

    def producer(self, name: str) -> onnx.NodeProto | None:
        """Return the node that makes a tensor; None for inputs and initializers."""
        return self._producers.get(name)

    def find_reached_outputs(self, name: str, constants: frozenset[str]) -> tuple[str, ...]:
        """Return the outputs of the model that `name` reaches through operators of SHAPE_OPS and LINEAR_OPS.

        Other operands of the latter may be `constants` (names) or scores, which are outputs of a Sigmoid or Softmax. The order is
        the model's.
        """
        reached = {name}
        # the score of a box is often the product of two
        factors = {n.output[0] for n in self.graph.node if n.op_type in ("Sigmoid", "Softmax")} | constants
        for node in self.graph.node:
            used = any(i in reached for i in node.input)
            linear = node.op_type in LINEAR_OPS and all(i in reached or i in factors for i in node.input)
            if used and (node.op_type in SHAPE_OPS or linear):
                reached.update(node.output)
        return tuple(o.name for o in self.graph.output if o.name in reached)

    def find_unchanged(self, name: str) -> set[str]:
        """Return `name` and the tensors that it becomes through operators of HANDED_ON; a Concat ends the walk."""
        same = {name}
        for node in self.graph.node:
            if node.input and node.input[0] in same and node.op_type in HANDED_ON:
                same.update(node.output)
        return same
