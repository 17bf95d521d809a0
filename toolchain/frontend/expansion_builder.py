"""Build the nodes that replace one operator which is expanded during import: contrib operators, ai.onnx.ml, row updates.

MASKED is what a masked score is, low beside any other. CONSTANT is the way out of a refusal of computed qparams.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from toolchain.frontend.errors import refuse_node
from toolchain.ir.graph import OnnxNode, TensorType
from toolchain.ir.step_builder import Operand, StepBuilder

CONTRIB = "com.microsoft"
MASKED = -1e30
CONSTANT = "export it with constant scales and zero points"


def _kind(value: Any) -> str:
    kind: type[Any] = value.__class__
    return {int: "INT", float: "FLOAT", str: "STRING", tuple: "a list"}.get(kind, kind.__name__)


@dataclass
class ExpansionBuilder(StepBuilder):
    """A builder of the nodes that replace one node, in order, and the constants that they read.

    `types`: of the graph so far. `known_constants`: values of the graph's constants so far.
    """

    node: OnnxNode
    types: Mapping[str, TensorType]
    known_constants: Mapping[str, np.ndarray]

    def input(self, index: int) -> str:
        """Return the name of an input; "" when it is absent."""
        return self.node.inputs[index] if index < len(self.node.inputs) else ""

    def value(self, index: int, what: str) -> np.ndarray:
        """Return the value of a constant input. Raise NodeFault where it is absent or computed."""
        value = self.known_constants.get(self.input(index))
        if value is None:
            raise refuse_node(self.node, f"its {what} is computed or missing, not constant", CONSTANT)
        return value

    def shape(self, index: int, *ranks: int) -> tuple[int, ...]:
        """Return the shape of an input. Raise NodeFault where the input is absent or its number of dimensions is not in
        `ranks`.
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
        """Return an attribute's value. Raise NodeFault where it is of another type than its default, unless that is None."""
        value = self.node.op.attributes.get(name, default)
        if default is not None and type(value) is not type(default):
            raise refuse_node(
                self.node, f'its attribute "{name}" is {_kind(value)}, {self.node.op.op_type} takes {_kind(default)}'
            )
        return value

    def constant(self, suffix: str, value: np.ndarray) -> str:
        """Define a constant named after the node and `suffix`, and return its name."""
        return self.define_constant(f"{self.node.name}/{suffix}", value)

    def has_output(self, index: int) -> bool:
        """Return whether the node has this output."""
        return index < len(self.node.outputs) and bool(self.node.outputs[index])

    def add(self, op_type: str, *inputs: Operand, what: str = "", output: int | None = None, **attributes: Any) -> str:
        """Add a step and return the name of its tensor.

        `inputs`: names of tensors, or values of constants; None for an absent one.
        `what`: the tensor in words, for names; "" for the step that does the main work, which has the node's name.
        `output`: which of the node's outputs it is, where the node has that one; None for a tensor between steps.
        """
        name = f"{self.node.name}/{what}" if what else self.node.name
        tensor = self.node.outputs[output] if output is not None and self.has_output(output) else f"{name}_output"
        self.append(name, op_type, inputs, (tensor,), attributes, self.node.sources)
        return tensor

    def cut(self, suffix: str, x: str, first: int, last: int, axis: int) -> str:
        """Add a Slice of x from `first` up to `last` of a dimension."""
        return self.add("Slice", x, (first,), (last,), (axis,), what=suffix)

    def heads(self, suffix: str, x: str, count: int) -> str:
        """Add the split of [batch, length, count * depth] into heads, [batch, count, length, depth]."""
        split_heads = self.add("Reshape", x, (0, 0, count, -1), what=f"{suffix}/apart")
        return self.add("Transpose", split_heads, what=f"{suffix}/heads", perm=(0, 2, 1, 3))

    def join_heads(self, x: str) -> None:
        """Make the node's output [batch, length, heads depth] of x, [batch, heads, length, depth]."""
        back = self.add("Transpose", x, what="back", perm=(0, 2, 1, 3))
        self.add("Reshape", back, (0, 0, -1), what="joined", output=0)

    def real(self, index: int, axis: int = 0) -> str:
        """Return the tensor of real numbers that input `index` stands for, by the scale and zero point after that input.

        Several scales are one for each index of `axis`. Raise NodeFault where they are computed.
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
        return self.add("DequantizeLinear", *inputs, what=f"real_{index}", **attributes)

    def codes(self, y: str, index: int) -> None:
        """Make the node's output: `y` in codes of the scale and zero point that are inputs `index` and the next."""
        inputs = [y, self.constant("scale", self.value(index, "output's scale").reshape(()))]
        if self.input(index + 1):
            inputs.append(self.constant("zero_point", self.value(index + 1, "output's zero point").reshape(())))
        self.add("QuantizeLinear", *inputs, what="codes", output=0)

    def bias(self, name: str, scale: np.ndarray) -> str:
        """Add a DequantizeLinear of an int32 bias and return the real numbers."""
        attributes = {"axis": 0} if scale.ndim else {}
        return self.add("DequantizeLinear", name, self.constant("bias_scale", scale), what="bias", **attributes)

    def product_scale(self, a: int, b: int) -> np.ndarray:
        """Return the scale of products of two operands whose scales are inputs `a` and `b`: a scalar, or one for each channel."""
        scale = np.asarray(self.value(a, "scale"), np.float32) * np.asarray(self.value(b, "scale"), np.float32)
        return scale.reshape(()) if scale.size == 1 else scale.reshape(-1)


Expansion: TypeAlias = Callable[[ExpansionBuilder], None]
