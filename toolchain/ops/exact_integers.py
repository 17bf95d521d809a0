"""Build the sums, differences and products of codes of which logic, comparisons and choices are made.

Where scales fit each other, nothing is rounded.
`FINE` is the factor by which a comparison magnifies a difference of codes; `TRUTH` are the qparams of bools.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.requant import Requant
from toolchain.ir.graph import Node, Quant, step_name
from toolchain.ops.elementwise.integer_elementwise import IntegerBinary, Kind
from toolchain.ops.kit.operator import Array, NpuOp
from toolchain.ops.kit.quant_context import QuantContext

FINE = 64  # parts of a code that a comparison counts: less than half of one, as what is left of unlike scales, is no difference
TRUTH = Quant(1.0, 0)  # of bool tensors: false is code 0, true is code 1
Bounds = tuple[int, int]  # of what an operation makes, counted from its zero point


def counting(codes: CodeType, most: int) -> Quant:
    """Return qparams at which codes of this type are the integers 0 to `most` in ones. The caller checks that they fit
    (`counts_to`).
    """
    return Quant(1.0, 0 if most <= codes.high else codes.low)


def counts_to(codes: CodeType, symmetric: bool) -> int:
    """Return the largest `most` that `counting` can take. `symmetric`: whether zero points are all 0."""
    return codes.high - (0 if symmetric else codes.low)


@dataclass(frozen=True)
class CodeOperand:
    """An operand of a step: a tensor's name, qparams, type and shape.

    `value`: the codes of a constant; None for a computed tensor. `name` "": not made yet.
    """

    name: str
    quant: Quant
    codes: CodeType
    shape: tuple[int, ...]
    value: Array | None = None


@dataclass
class CodeSteps:
    """A builder of the integer nodes that one node of the chip becomes; the last of `new_nodes` makes its output.

    Each method that adds a node takes its result's qparams and type from the operand `y`, whose name and shape do not count.
    """

    node: Node
    scope: QuantContext
    new_nodes: list[Node] = field(default_factory=list[Node])

    @property
    def output(self) -> CodeOperand:
        """The node's output as an operand."""
        return self.read(self.node.outputs[0])

    def read(self, tensor: str) -> CodeOperand:
        """Return an activation as an operand."""
        scope = self.scope
        return CodeOperand(tensor, scope.quant(tensor), scope.codes(tensor), scope.graph.types[tensor].shape)

    def constant(self, what: str, codes: Array, quant: Quant, like: CodeType) -> CodeOperand:
        """Return a constant operand; the constant is registered when a step reads it.

        `codes`: integers within those of the type `like`.
        """
        value = np.asarray(codes)
        return CodeOperand(f"{self.node.name}.{what}", quant, like, value.shape, value.astype(like.dtype))

    def sum(
        self, what: str, kind: Kind, a: CodeOperand, b: CodeOperand, y: CodeOperand, bounds: Bounds | None, parts: float = 1
    ) -> CodeOperand:
        """Add a sum or difference and return it. Its operands meet at the larger of their scales.

        The result is exact where the scales are equal. A code of `y` is 1 / `parts` of the larger scale.
        `what`: the tensor in words, "" for the node's output.
        `bounds`: of the result, counted from its zero point; None: the ends of its codes.
        """
        numerics, operation = self.scope.chip.numerics, kind
        common, floats = max(a.quant.scale, b.quant.scale), numerics.sums_in_float32(operation)
        # A bit less than where operands meet at twice the larger scale: so their difference has no more bits.
        shift = 0 if floats else max(numerics.headroom(max(a.codes, b.codes, key=lambda t: t.bits)) - 1, 0)
        inner = (parts if floats else 1) / common
        first, second = (self.scope.inner_requant(q.quant.scale * inner, operation, where=self.node.name) for q in (a, b))
        out = self._requant(parts * 2.0**-shift, operation, y, bounds)
        op = IntegerBinary(kind, a.quant.zero_point, b.quant.zero_point, shift, first, second, out)
        return self._step(what, op, (a, b), y)

    def product(self, what: str, a: CodeOperand, b: CodeOperand, y: CodeOperand, bounds: Bounds | None = None) -> CodeOperand:
        """Add a product, rounded once to the codes of y, and return it.

        It is exact where one operand counts in ones and the other has y's scale.
        """
        scale = a.quant.scale * b.quant.scale / y.quant.scale
        out = self._requant(scale, "mul", y, bounds)
        op = IntegerBinary("mul", a.quant.zero_point, b.quant.zero_point, 0, None, None, out)
        return self._step(what, op, (a, b), y)

    def opposite(self, what: str, truth: CodeOperand, y: CodeOperand) -> CodeOperand:
        """Add 1 - truth, the logical not, and return it."""
        one = self.constant(f"{what or 'not'}/1", np.ones((), np.int64), TRUTH, truth.codes)
        return self.sum(what, "sub", one, truth, y, (0, 1))

    def _requant(self, scale: float, operation: Kind, y: CodeOperand, bounds: Bounds | None) -> Requant:
        zero, (low, high) = y.quant.zero_point, y.codes.limits
        if bounds is not None:
            low, high = zero + bounds[0], zero + bounds[1]
        return self.scope.requant(scale, operation, y.codes, zero, low, high, where=self.node.name)

    def _step(self, what: str, op: IntegerBinary, operands: tuple[CodeOperand, CodeOperand], y: CodeOperand) -> CodeOperand:
        shape = np.broadcast_shapes(*(o.shape for o in operands))
        return self.add(what, op, tuple(self._operand(o, shape) for o in operands), y, shape)

    def add(self, what: str, op: NpuOp, names: tuple[str, ...], y: CodeOperand, shape: tuple[int, ...]) -> CodeOperand:
        """Add a node that makes codes of y's scale and type in a tensor of this shape, and return that.

        `what`: as in `sum`. `names`: of its inputs.
        """
        node, scope = self.node, self.scope
        if not what:
            self.new_nodes.append(Node(node.name, op, names, node.outputs, node.sources))
            return y
        name = scope.inner(scope.own_name(f"{node.outputs[0]}@{what}"), y.quant, y.codes, shape)
        self.new_nodes.append(Node(step_name(node.name, what), op, names, (name,), node.sources))
        return CodeOperand(name, y.quant, y.codes, shape)

    def _operand(self, operand: CodeOperand, shape: tuple[int, ...]) -> str:
        if operand.value is None:
            return operand.name
        value = operand.value if self.scope.chip.limits.elementwise.broadcast else np.broadcast_to(operand.value, shape)
        return self.scope.constant(operand.name, np.ascontiguousarray(value).reshape(value.shape))
