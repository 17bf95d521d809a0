"""Build the nodes, in order, that replace an expanded operator, and the constants they name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from toolchain.frontend.errors import refuse_node
from toolchain.ir.graph import Node, OnnxNode, OnnxOp, TensorType

CONTRIB = "com.microsoft"
MASKED = -1e30  # what a masked score is: beside any other
NONE: Mapping[str, Any] = MappingProxyType({})
CONSTANT = "export it with constant scales and zero points"


def _kind(value: Any) -> str:
    return {int: "INT", float: "FLOAT", str: "STRING", tuple: "a list"}.get(type(value), type(value).__name__)


@dataclass
class ExpansionBuilder:
    """A builder of what replaces one node: nodes in order, and the constants they name."""

    node: OnnxNode
    types: Mapping[str, TensorType]
    known_constants: Mapping[str, np.ndarray]
    nodes: list[OnnxNode] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)

    def input(self, index: int) -> str:
        """The name of an input; '' when it is absent."""
        return self.node.inputs[index] if index < len(self.node.inputs) else ""

    def value(self, index: int, what: str) -> np.ndarray:
        """A constant input. CompileError where it is absent or computed."""
        value = self.known_constants.get(self.input(index))
        if value is None:
            raise refuse_node(self.node, f"its {what} is computed or missing, not constant", CONSTANT)
        return value

    def shape(self, index: int, *ranks: int) -> tuple[int, ...]:
        """Return the shape of an input. Raise CompileError where the input is absent or has another number of
        dimensions.
        """
        input_shape = self.types[self.input(index)].shape if self.input(index) else ()
        if len(input_shape) not in ranks:
            rank_text, has = (
                " or ".join(map(str, ranks)),
                f"has {len(input_shape)} dimensions" if self.input(index) else "is missing",
            )
            raise refuse_node(self.node, f"its input {index} {has}; {rank_text} are needed")
        return input_shape

    def attribute(self, name: str, default: Any) -> Any:
        """CompileError where it is of another kind than its default, if that is not None."""
        value = self.node.op.attributes.get(name, default)
        if default is not None and type(value) is not type(default):
            raise refuse_node(
                self.node, f'its attribute "{name}" is {_kind(value)}, {self.node.op.op_type} takes {_kind(default)}'
            )
        return value

    def constant(self, suffix: str, value: np.ndarray) -> str:
        name = f"{self.node.name}/{suffix}"
        self.constants[name] = value
        return name

    def add(
        self, suffix: str, op_type: str, inputs: Sequence[str], output: str = "", attributes: Mapping[str, Any] = NONE
    ) -> str:
        """A node; the name of what it makes."""
        name = f"{self.node.name}/{suffix}" if suffix else self.node.name
        output_name = output or f"{name}_output"
        self.nodes.append(Node(name, OnnxOp(op_type, dict(attributes)), tuple(inputs), (output_name,), self.node.sources))
        return output_name

    def cut(self, suffix: str, x: str, first: int, last: int, axis: int) -> str:
        """x from `first` to `last` of a dimension."""
        numbers = [self.constant(f"{suffix}/{i}", np.array([n], np.int64)) for i, n in enumerate((first, last, axis))]
        return self.add(suffix, "Slice", [x, *numbers])

    def heads(self, suffix: str, x: str, count: int) -> str:
        """[batch, length, count depth] as [batch, count, length, depth]."""
        shape = self.constant(f"{suffix}/shape", np.array([0, 0, count, -1], np.int64))
        split_heads = self.add(f"{suffix}/apart", "Reshape", [x, shape])
        return self.add(f"{suffix}/heads", "Transpose", [split_heads], "", {"perm": (0, 2, 1, 3)})

    def join_heads(self, x: str, output: str) -> str:
        """[batch, heads, length, depth] as [batch, length, heads depth]."""
        back = self.add("back", "Transpose", [x], "", {"perm": (0, 2, 1, 3)})
        return self.add("joined", "Reshape", [back, self.constant("joined/shape", np.array([0, 0, -1], np.int64))], output)

    def real(self, index: int, axis: int = 0) -> str:
        """Return the tensor of real numbers that input `index` stands for, by the scale and zero point after that input.

        Several scales are one for each index of `axis`.
        """
        scale = self.value(index + 1, f"scale (input {index + 1})")
        triple = self.node.inputs[index : index + 3]
        inputs = [n for n in triple if n]
        if scale.ndim and scale.size == 1:  # one number, whatever its shape
            inputs = [triple[0], self.constant(f"scale_{index}", scale.reshape(()))]
            if self.input(index + 2):
                inputs.append(self.constant(f"zero_point_{index}", self.value(index + 2, "zero point").reshape(())))
            scale = scale.reshape(())
        attributes = {"axis": axis % len(self.types[triple[0]].shape)} if scale.ndim else {}
        return self.add(f"real_{index}", "DequantizeLinear", inputs, attributes=attributes)

    def codes(self, y: str, index: int) -> None:
        """The node's output: `y` in codes of the scale and zero point that are inputs `index` and the next."""
        inputs = [y, self.constant("scale", self.value(index, "output's scale").reshape(()))]
        if self.input(index + 1):
            inputs.append(self.constant("zero_point", self.value(index + 1, "output's zero point").reshape(())))
        self.add("codes", "QuantizeLinear", inputs, self.node.outputs[0])

    def bias(self, name: str, scale: np.ndarray) -> str:
        """int32 sums of products to real numbers."""
        attributes = {"axis": 0} if scale.ndim else {}
        return self.add("bias", "DequantizeLinear", [name, self.constant("bias_scale", scale)], attributes=attributes)

    def product_scale(self, a: int, b: int) -> np.ndarray:
        scale = np.asarray(self.value(a, "scale"), np.float32) * np.asarray(self.value(b, "scale"), np.float32)
        return scale.reshape(()) if scale.size == 1 else scale.reshape(-1)
