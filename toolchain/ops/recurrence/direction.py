"""Build the steps of one direction of a recurrent layer from its inputs, as operations that cells call.

A state is a tensor [batch, units], or a constant.
Results of constants alone are computed here, and zeros add no steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from toolchain.ir.range_constraints import ClippedRange, FixedRange, Inner
from toolchain.ops.kit.decomposition import DecompositionBuilder
from toolchain.ops.kit.operator import Array
from toolchain.ops.recurrence.activations import Activation

Value = str | Array


@dataclass(frozen=True)
class Direction:
    """A direction of a recurrent layer. Methods add steps to `steps` and return tensors, or constants where all is constant.

    `gates`: by name, in the order of the weights.
    `functions`: activations of this direction.
    `index`: among the directions. `backwards`: whether it goes from the last step to the first.
    `rows`: the tensor of inputs, [steps x batch, inputs].
    `initial`: the initial value of the state that is the output.
    `weights`, `recurrent`: [gates x units, inputs or units].
    `biases`: of both, one after the other.
    `peepholes`: of the gates i, o, f; None without.
    """

    steps: DecompositionBuilder
    gates: str
    functions: tuple[Activation, ...]
    index: int
    backwards: bool
    rows: str
    initial: Value
    weights: Array
    recurrent: Array
    biases: Array
    peepholes: Array | None

    @property
    def units(self) -> int:
        """The number of units of a state."""
        return self.recurrent.shape[1]

    @property
    def batch(self) -> int:
        """The number of samples."""
        return self.steps.shape(self.steps.node.inputs[0])[1]

    @property
    def length(self) -> int:
        """The number of steps of the sequence."""
        return self.steps.shape(self.steps.node.inputs[0])[0]

    def get_tensor_name(self, what: str) -> str:
        """Return `what` as a name of this direction: the second direction of a layer ends in `, backwards`."""
        return f"{what}, backwards" if self.index else what

    def of(self, values: Array, gates: str) -> Array:
        """Return the rows of these gates out of `values`, [gates x units, ...]."""
        each = values.reshape(len(self.gates), self.units, *values.shape[1:])
        return np.concatenate([each[self.gates.index(g)] for g in gates])

    def bias(self, gates: str, recurrent: bool) -> Array:
        """Return the biases of these gates, [gates x units]: those of the recurrent products, or those of the inputs."""
        return self.of(np.split(self.biases, 2)[int(recurrent)], gates)

    def peephole(self, gate: str) -> Array | None:
        """Return the peephole weights [units] of the gate i, o or f; None for a layer without peepholes."""
        return None if self.peepholes is None else np.split(self.peepholes, 3)["iof".index(gate)]

    def project_inputs(self, gates: str, recurrent_bias: bool = True) -> str:
        """Add the products of the inputs of all steps for these gates, with their biases: [steps x batch, gates x units]."""
        bias = self.bias(gates, False) + (self.bias(gates, True) if recurrent_bias else 0)
        what = self.get_tensor_name(f"inputs of {gates}")
        weights = self._once(f"weights of {gates}", self.of(self.weights, gates), 1)
        return self.steps.add("Gemm", self.rows, weights, bias.astype(np.float32), what=what, transB=1)

    def product(self, gates: str, state: Value, t: int, bias: bool = False) -> Value:
        """Return the product of a state with the recurrent weights of these gates: [batch, gates x units].

        A constant state gives a constant. Else the weights are constants that all steps share.
        `t`: the step. `bias`: whether the recurrent biases are added.
        """
        weights, added = self.of(self.recurrent, gates), self.bias(gates, True)
        if not isinstance(state, str):
            return (state @ weights.T + (added if bias else 0)).astype(np.float32)
        inputs = [self._once(f"recurrent weights of {gates}", weights, 2)]
        inputs += [self._once(f"recurrent biases of {gates}", added, 3)] if bias and added.any() else []
        return self.make(f"state of {gates}", t, "Gemm", state, *inputs, transB=1)

    def _once(self, what: str, value: Array, index: int) -> str:
        """Return the name of a constant that all steps share, a part of that input of the layer. It is added once."""
        name = self.steps.get_tensor_name(self.get_tensor_name(what))
        self.steps.made_of[name] = self.steps.node.inputs[index]
        return name if name in self.steps.constants else self.steps.constant(self.get_tensor_name(what), value)

    def at(self, t: int, rows: str, gates: str) -> str:
        """Return the rows of step t of a tensor [steps x batch, ...]. `gates`: for the name of the result."""
        if self.length == 1:
            return rows
        return self.cut(f"inputs of {gates}", t, rows, 0, t * self.batch, self.batch)

    def part(self, t: int, x: str, gates: str, gate: str) -> str:
        """Return one gate of `gates`, which lie side by side in x: [batch, gates x units]."""
        return x if gates == gate else self.cut(gate, t, x, 1, gates.index(gate) * self.units, self.units)

    def cut(self, what: str, t: int, x: str, axis: int, start: int, size: int) -> str:
        """Return `size` elements of x from `start` on, along `axis`."""
        return self.make(what, t, "Slice", x, (start,), (start + size,), (axis,), (1,))

    def make(self, what: str, t: int, op_type: str, *inputs: Any, range: Inner | None = None, **attributes: Any) -> str:
        """Add an operator for step t of the sequence and return its output.

        The output's range is calibrated over all steps together, unless `range` fixes it.
        """
        one = self.steps.of_a_sequence(self.get_tensor_name(what))
        if range is None or isinstance(range, ClippedRange):
            low, high = (-math.inf, math.inf) if range is None else (range.low, range.high)
            range = ClippedRange(low, high, one)
        tensor = self.steps.add(op_type, *inputs, what=f"{self.get_tensor_name(what)}, step {t}", range=range, **attributes)
        self.steps.repeated[tensor] = one
        return tensor

    def sum(self, what: str, t: int, x: Value, y: Value, range: Inner | None = None) -> Value:
        """Return x + y: a constant of constants, x where y is zero."""
        x, y = (x, y) if isinstance(x, str) else (y, x)
        if not isinstance(x, str):
            return x + y
        nothing = not isinstance(y, str) and not y.any()
        return x if nothing else self.make(what, t, "Add", x, y, range=range)

    def times(self, what: str, t: int, x: Value, y: Value, range: Inner | None = None) -> Value:
        """Return x y: a constant of constants, and zeros where one of them is zero."""
        x, y = (x, y) if isinstance(x, str) else (y, x)
        if not isinstance(x, str):
            return x * y
        nothing = not isinstance(y, str) and not y.any()
        return np.zeros((self.batch, self.units), np.float32) if nothing else self.make(what, t, "Mul", x, y, range=range)

    def less(self, what: str, t: int, x: Value, y: Value, range: Inner | None = None) -> Value:
        """Return x - y."""
        if not isinstance(y, str):
            return self.sum(what, t, x, -y, range)
        return self.make(what, t, "Sub", x, y, range=range)

    def function(self, which: int, what: str, t: int, x: Value, clip: bool = True) -> str:
        """Add the layer's function number `which`, of x, which is clipped first where the node has a `clip` and `clip` is
        true.
        """
        assert isinstance(x, str)
        bound, function = self.steps.node.op.attributes.get("clip"), self.functions[which]
        if bound is not None and clip:
            x = self.make(f"{what}, clipped", t, "Clip", x, float(-bound), float(bound), range=self.get_effective_range(which))

        def make(what: str, op_type: str, *inputs: str | float, range: FixedRange | None, **attributes: float) -> str:
            return self.make(what, t, op_type, *inputs, range=range, **attributes)

        return function.make_steps(make, what, x)

    def clip_to_effective(self, which: int, what: str, t: int, x: Value) -> Value:
        """Clip x to the effective range of that function, whose table would otherwise span all that a state may be."""
        reads = self.functions[which].read("", self.steps.interpolates)
        if math.isinf(reads.high):
            return x
        return self.make(what, t, "Clip", x, reads.low, reads.high, range=FixedRange(reads.low, reads.high))

    def get_effective_range(self, which: int) -> Inner:
        """Return the effective range of that function's input."""
        return self.functions[which].read("", self.steps.interpolates)

    @property
    def bounds(self) -> FixedRange | None:
        """The bounds of a step's output, whatever the data; None where it is calibrated.

        It is calibrated where no bounds are known, or where codes are so few that all of them are needed for the actual
        values.
        A GRU's output lies between its old value and a function's value.
        """
        value_bounds = product_bounds(*(self.functions[f] for f in {"GRU": (1,), "LSTM": (0, 2), "RNN": (0,)}[self._kind]))
        return value_bounds if self.steps.interpolates and (self._kind != "GRU" or self._holds(value_bounds)) else None

    @property
    def kept_bounds(self) -> FixedRange | None:
        """The bounds of a step's output and of the initial state together; None where there are none."""
        return self.bounds if self._holds(self.bounds) else None

    @property
    def _kind(self) -> str:
        return self.steps.node.op.op_type

    def _holds(self, bounds: FixedRange | None) -> bool:
        """Return whether the initial state is a constant within the bounds."""
        return bounds is not None and not isinstance(self.initial, str) and bool((np.abs(self.initial) <= bounds.high).all())


def product_bounds(*functions: Activation) -> FixedRange | None:
    """Return bounds of a product of values of these functions; None where one of them has none."""
    factor_bounds = [f.bounds for f in functions]
    size = math.prod(max(abs(b.low), abs(b.high)) for b in factor_bounds if b is not None)
    return None if None in factor_bounds else FixedRange(-size, size)


def concat_parts(what: str, steps: DecompositionBuilder, parts: Sequence[str], bounds: FixedRange | None) -> str:
    """Return the parts joined along axis 0; a single part is returned as it is. bounds: of the result; None: calibrated."""
    return parts[0] if len(parts) == 1 else steps.add("Concat", *parts, what=what, range=bounds, axis=0)
