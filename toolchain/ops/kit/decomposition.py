"""Define how one ONNX operator is decomposed into steps: other ONNX operators, in canonical form, that the chip has.

`passes.decompose` runs the `Decomposition` of a node's operator, which adds steps to a `DecompositionBuilder`.
The steps replace the node in the model, so that the chip runs them and onnxruntime computes them to calibrate.
Each tensor between steps is a tensor of the model with a range of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, OnnxGraph, OnnxNode
from toolchain.ir.range_constraints import ClippedRange, Inner
from toolchain.ir.step_builder import Operand, StepBuilder
from toolchain.ops.kit.operator import Array
from toolchain.ops.kit.selection_context import NotSelected

POSITIVE = ClippedRange(0.0, float(np.finfo(np.float32).max))
TABLE_BITS = 8  # codes of more are too many for an entry each
_DATA_MOVEMENT_OPS = ("Reshape", "Slice", "Transpose")


@dataclass
class DecompositionBuilder(StepBuilder):
    """A builder of the steps of one decomposition. A tensor is named after the node's first output and its description.

    `node`: the node to decompose, with its constant parameters as attributes.
    `graph`: the model's, in canonical form.
    `bits`: of the codes that the steps' tensors have: of the machine's widest type, or of its first.
    `inner`: by tensor between steps, where its range is from if not from calibration of it alone.
    `finest`: whether the steps' tensors have the machine's finest codes where the user sets no type.
    `moved`: other tensors that have them then, since steps move them.
    `repeated`: by tensor of one step of a sequence, its name for all steps.
    `made_of`: by constant of steps, the node's constant that it is a part of.
    `taken_in`: names of other nodes of the model whose work the node's own output has done.
    `error`: how far the steps are from the operator in float, as a share of each number.
    """

    node: OnnxNode
    graph: OnnxGraph
    bits: int
    inner: dict[str, Inner] = field(default_factory=dict[str, Inner])
    finest: bool = False
    moved: set[str] = field(default_factory=set[str])
    repeated: dict[str, str] = field(default_factory=dict[str, str])
    made_of: dict[str, str] = field(default_factory=dict[str, str])
    taken_in: tuple[str, ...] = ()
    error: float = 0.0

    def shape(self, name: str) -> tuple[int, ...]:
        return self.graph.types[name].shape

    def all(self, name: str, number: float) -> bool:
        """Return whether the tensor is a constant whose elements all equal this number."""
        value = self.graph.constants.get(name)
        return value is not None and bool((value == number).all())

    def reshape(self, name: str, shape: tuple[int, ...]) -> Operand:
        """Return a constant's value in another shape, or the tensor of a new Reshape step for a tensor that is no constant."""
        value = self.graph.constants.get(name)
        return self.add("Reshape", name, shape, what=f"{name}, reshaped") if value is None else value.reshape(shape)

    def moves(self, name: str) -> None:
        """Record that a step moves this tensor: it, and what it was moved from in the model, joins `moved`."""
        producers = self.graph.producers()
        self.moved.add(name)
        while name in producers and producers[name].op.op_type in _DATA_MOVEMENT_OPS:
            name = producers[name].inputs[0]
            self.moved.add(name)

    def refuse(self, reason: str) -> NoReturn:
        """Leave the node undivided: raise NotSelected with the reason, which the user is shown."""
        raise NotSelected(reason)

    @property
    def interpolates(self) -> bool:
        """True where functions are interpolated between entries of a table, as of codes of more than 8 bits."""
        return self.bits > TABLE_BITS

    @property
    def lost_exponent(self) -> float:
        """The exponent below which exp rounds to zero where 1 is the largest code.

        It is a code below the one whose exp is half a code.
        That one may round up and give its value to all lower ones.
        The result is a float32, since measured ranges are.
        """
        return float(np.float32(-math.log(2 * (2**self.bits - 1)) * (1 + 2.0**-self.bits)))

    def add(
        self,
        op_type: str,
        *inputs: Operand,
        what: str,
        output: int | None = None,
        range: Inner | None = None,
        **attributes: Any,
    ) -> str:
        """Add a step and return the name of its tensor. Raise NotSelected where the model or a step has a tensor of this
        name.

        `inputs`: names of tensors, or values of constants; None for an absent one.
        `what`: the tensor in words; they are part of its name, which reports and files show.
        `output`: the node's output that this is, which keeps its name if it has a reader; None for a tensor between steps.
        `range`: where the tensor's range is from, if not from calibration of it alone.
        `attributes`: those that are not the operator's defaults.
        """
        name = self.get_tensor_name(what)
        if name in self.graph.types or any(name in n.outputs for n in self.nodes):
            self.refuse(f"its step would make tensor {name!r}, which the model has already; rename that")
        if output is not None and self.reads(output):
            name = self.node.outputs[output]
        if range is not None:
            self.inner[name] = range
        named = [self._input_name(f"{name}/{i}", x) for i, x in enumerate(inputs)]
        node_name = self.node.name if output == 0 else f"{self.node.name}: {what}"
        sources = (*(self.node.sources or (self.node.name,)), *(self.taken_in if output == 0 else ()))
        self.append(node_name, op_type, named, (name,), attributes, sources)
        return name

    def takes_in(self, *nodes: OnnxNode) -> None:
        """Record in `taken_in` that steps do the work of these nodes too.

        A node counts only where nothing else reads its outputs: the decomposed node and the nodes before it in this list
        alone.
        """
        consumers, absorbed = self.graph.consumers(), {self.node.name}
        for node in nodes:
            readers = [n.name for y in node.outputs for n in consumers.get(y, ())]
            if absorbed.issuperset(readers) and not set(node.outputs).intersection(self.graph.outputs):
                absorbed.add(node.name)
                self.taken_in += node.sources or (node.name,)

    def get_tensor_name(self, what: str) -> str:
        """Return the name of the tensor that is described by `what`: the node's first output, a colon, and the description."""
        return f"{next(filter(None, self.node.outputs))}: {what}"

    def of_a_sequence(self, what: str) -> str:
        """Return the name that tensors described by `what` share at all steps of a sequence.

        Raise NotSelected where the model has a tensor of this name.
        """
        name = self.get_tensor_name(what)
        if name in self.graph.types:
            self.refuse(f"tensors of its steps would be called {name!r}, as one of the model's is already; rename that")
        return name

    def constant(self, what: str, value: Array) -> str:
        """Define a constant that several steps read, and return its name."""
        return self.define_constant(self.get_tensor_name(what), value)

    def reads(self, output: int) -> bool:
        """Return whether this output of the node has a reader."""
        return output < len(self.node.outputs) and bool(self.node.outputs[output])


@dataclass(frozen=True)
class Decomposition:
    """A decomposition of one ONNX operator, and the machines that use it.

    `add_steps`: adds the steps of a node, or none, which leaves the node as it is. It refuses by
    `DecompositionBuilder.refuse`.
    `find_missing_support`: returns why a machine does not run a node natively, which then decomposes it, or None.
    Without this function, machines decompose the operator whose `limits.decompose` names it.
    """

    add_steps: Callable[[DecompositionBuilder], None]
    find_missing_support: Callable[[OnnxNode, Graph, Chip], str | None] | None = None

    @property
    def is_by_request(self) -> bool:
        """Return whether only machines whose limits.decompose names the operator decompose it."""
        return self.find_missing_support is None
