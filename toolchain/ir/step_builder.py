"""Build the steps of a decomposition: ONNX nodes, in order, that take the place of one, and the constants that they read.

Every decomposition is written with this builder: those of the frontend, those of the chip's operators and those of plug-ins.
Each of the three has a subclass, which names the steps and their tensors, and gives a rule what else it may ask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from toolchain.ir.graph import Node, OnnxNode, OnnxOp

Array: TypeAlias = np.ndarray
Operand: TypeAlias = str | float | Sequence[float] | Array | None


def to_array(value: float | Sequence[float] | Array) -> Array:
    """Return the value of a constant. Integers in a list or tuple are int64, all other Python numbers float32.

    So a number alone, a `range` and bools are float32; an empty list is int64. An array keeps its type, except float64, which
    becomes float32.
    """
    array = np.asarray(value)
    if isinstance(value, (list, tuple)) and (array.dtype.kind == "i" or not array.size):
        return array.astype(np.int64)
    return array.astype(np.float32) if array.dtype == np.float64 or not isinstance(value, np.ndarray | np.generic) else array


@dataclass
class StepBuilder:
    """A builder of steps. Subclasses have a method `add(op_type, *inputs, **attributes)`, which names a step and its tensor.

    A decomposition that adds no step leaves the operator as it is.
    `nodes`: the steps so far, in order.
    `constants`: by name, the constants that steps read.
    """

    nodes: list[OnnxNode] = field(default_factory=list[OnnxNode], init=False)
    constants: dict[str, Array] = field(default_factory=dict[str, Array], init=False)

    def append(
        self,
        name: str,
        op_type: str,
        inputs: Sequence[Operand],
        outputs: tuple[str, ...],
        attributes: Mapping[str, Any],
        sources: tuple[str, ...] = (),
    ) -> None:
        """Append a step.

        `name`: of the node; constants given by value become `name/i`, with the number of the input.
        `inputs`: names of tensors, or values of constants (`to_array`); None for an absent one.
        `outputs`: names of the tensors that it makes.
        `sources`: the model's nodes whose work it does.
        """
        names = tuple(self._input_name(f"{name}/{i}", x) for i, x in enumerate(inputs))
        self.nodes.append(Node(name, OnnxOp(op_type, dict(attributes)), names, outputs, sources))

    def define_constant(self, name: str, value: float | Sequence[float] | Array) -> str:
        """Define a constant that steps read, and return its name."""
        self.constants[name] = to_array(value)
        return name

    def _input_name(self, name: str, x: Operand) -> str:
        """Return the tensor that a step reads: the given one, or a constant of this name."""
        return x if isinstance(x, str) else "" if x is None else self.define_constant(name, x)
