"""Select and quantize Add, Sub, Mul and PRelu of two tensors with broadcasting, on the vector engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from quant.file_qparams import get_file_codes
from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.pointwise.float32 import adds_right_last
from quant.parameters import product_scale, quant_range
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, Node, Quant
from toolchain.ops.elementwise.integer_elementwise import IntegerBinary, Kind
from toolchain.ops.kit.layout import NHWC
from toolchain.ops.kit.operator import Array, FloatOp, clamp_codes
from toolchain.ops.kit.quant_context import QuantContext
from toolchain.ops.kit.requants import shift_zero_points
from toolchain.ops.kit.residual import Residual
from toolchain.ops.kit.rule import Rule
from toolchain.ops.kit.selection_context import SelectionContext

Bounds = tuple[float | None, float | None]


@dataclass(frozen=True)
class Binary(FloatOp):
    """A float operator y = act(a `kind` b) with numpy broadcasting; for prelu b holds the slopes. `activation`: bounds on the
    output.
    """

    kind: Kind
    activation: Bounds = (None, None)

    @property
    def takes_clamp(self) -> bool:
        return self.kind != "prelu" and self.activation == (None, None)

    def find_unsupported_reason(self, node: Node, graph: Graph, chip: Chip) -> str | None:
        """Return why the chip cannot run it: the function is missing, or computed operands need a broadcast. None: it can."""
        if self.kind not in chip.functions:
            return f"{chip.key('vector')}.functions has no {self.kind}"
        shapes = [graph.types[n].shape for n in node.inputs]
        if not chip.limits.elementwise.broadcast and shapes[0] != shapes[1] and not graph.constants.keys() & set(node.inputs):
            return "operands of unequal shape need limits.elementwise.broadcast: true"
        return None

    def reads_wide(self, node: Node, graph: Graph, chip: Chip) -> bool:
        """Return True: operands may have 32-bit codes."""
        return True

    def makes_wide(self, node: Node, graph: Graph, chip: Chip) -> bool:
        """Return True: the output may have 32-bit codes."""
        return True

    def quantize(self, node: Node, scope: QuantContext) -> list[Node]:
        """Return one `IntegerBinary`. Constant operands are registered as codes."""
        names, quants = zip(*(self._operand(i, node, scope) for i in range(2)))
        a, b = quants
        y = scope.quant(node.outputs[0])
        codes = scope.codes(node.outputs[0])
        low, high = clamp_codes(self.activation, y, codes)

        if self.kind in ("add", "sub"):
            r = sum_requants(node, (a, b, y), self.kind, low, high, scope)
            zeros = shift_zero_points((a.zero_point, b.zero_point, y.zero_point), node, scope)
            requants = r.q_requant, r.r_requant, replace(r.out_requant, zero_point=zeros[2])
            op = IntegerBinary(self.kind, zeros[0], zeros[1], r.left_shift, *requants)
        elif self.kind == "mul":
            scale = product_scale(a.scale, b.scale, y.scale, scope.chip.numerics)
            requant = scope.requant(scale, "mul", codes, y.zero_point, low, high, where=node.name)
            op = IntegerBinary("mul", a.zero_point, b.zero_point, 0, None, None, requant)
        else:
            scales = a.scale / y.scale, a.scale * b.scale / y.scale
            positive, negative = (scope.requant(s, "prelu", codes, y.zero_point, low, high, where=node.name) for s in scales)
            op = IntegerBinary("prelu", a.zero_point, b.zero_point, 0, positive, negative, positive)
        return [Node(node.name, op, names, node.outputs, node.sources)]

    def _operand(self, index: int, node: Node, scope: QuantContext) -> tuple[str, Quant]:
        """Return the tensor and qparams of an operand: an activation as it is, a constant in its file's codes or by its own
        range.
        """
        name = node.inputs[index]
        value = scope.graph.constants.get(name)
        if value is None:
            return name, scope.quant(name)
        numerics = scope.numerics(node.outputs[0])
        file_codes = get_file_codes(value, scope.find_file_weights(node), numerics)
        if self.kind in ("add", "sub"):
            clipped = self._clip_to_effective(value, index, node, scope)
            # A step of the file that minus infinity chose is so wide that the other operand loses its bits in the sum.
            value, file_codes = (
                (clipped, None) if file_codes is None or np.ptp(clipped) < np.ptp(value) / 2 else (value, file_codes)
            )
        codes, quant = file_codes or self._codes(value, node, scope)
        shape = scope.graph.types[node.outputs[0]].shape
        if not scope.chip.limits.elementwise.broadcast:
            codes = np.broadcast_to(codes, shape)
        return scope.constant(f"{node.name}.{name}", codes.astype(numerics.activation.dtype)), quant

    def _codes(self, value: Array, node: Node, scope: QuantContext) -> tuple[Array, Quant]:
        """Return the codes of a constant, by its own range."""
        quant, limits = scope.constant_quant(value, node.outputs[0]), scope.codes(node.outputs[0]).limits
        return np.clip(np.rint(value.astype(np.float64) / quant.scale) + quant.zero_point, *limits), quant

    def _clip_to_effective(self, value: Array, index: int, node: Node, scope: QuantContext) -> Array:
        """Return a constant operand of a sum, clipped to what outputs can tell: beyond it every sum saturates.

        A mask's minus infinity ends there, and leaves its codes to the other values.
        """
        other, out = node.inputs[1 - index], node.outputs[0]
        x, y = (quant_range(scope.quant(name), scope.numerics(name)) for name in (other, out))
        if self.kind == "add":
            low, high = y.low - x.high, y.high - x.low
        elif index == 0:
            low, high = y.low + x.low, y.high + x.high
        else:
            low, high = x.low - y.high, x.high - y.low
        return np.clip(value.astype(np.float64), low, high)


def sum_requants(node: Node, quants: tuple[Quant, Quant, Quant], kind: str, low: int, high: int, scope: QuantContext) -> Residual:
    """Return the requantizations of a sum or difference as a `Residual`: of a, of b, and of the sum.

    As in TFLite's ADD, both operands come to S2 = 2 max(S_a, S_b) with left_shift bits of headroom, then S2 / (2^left_shift
    S_y).
    Where codes have 32 bits there is no headroom, and S2 is the least at which the sum has 32 bits.
    For a sum in float32 both come to S_y at once.
    `quants`: of a, b and the output. `low`, `high`: clamp of the output's codes.
    """
    (a, b, y), where = quants, node.name
    codes = scope.codes(node.outputs[0])
    read = [codes if n in scope.graph.constants else scope.codes(n) for n in node.inputs]
    widest = max((codes, *read), key=lambda t: t.bits)
    shift = scope.chip.numerics.headroom(widest)
    common = _finest(a, b, read, scope) if widest.is_wide else 2 * max(a.scale, b.scale)
    if scope.chip.numerics.sums_in_float32(kind):
        shift, common = 0, y.scale
    q = scope.inner_requant(a.scale / common, kind, where=where)
    r = scope.inner_requant(b.scale / common, kind, where=where)
    out = scope.requant(common / (2.0**shift * y.scale), kind, codes, y.zero_point, low, high, where=where)
    return Residual(a.zero_point, b.zero_point, shift, q, r, out)


def _finest(a: Quant, b: Quant, types: Sequence[CodeType], scope: QuantContext) -> float:
    """Return the least common scale at which two operands of at most 2**29 each have a sum of 32 bits, and which the machine
    has.
    """
    form = scope.chip.numerics.scale
    reach = max(q.scale * 2.0 ** (t.bits - t.is_wide - 29) for q, t in zip((a, b), types, strict=True))
    least = max(reach, max(a.scale, b.scale) / form.extremes[1])
    return 2.0 ** math.ceil(math.log2(least)) if form.kind == "pow2" else least


def _rule(kind: Kind) -> Callable[[SelectionContext], None]:
    """Return the rule of an operator of two tensors. Refuse a PRelu whose slope has more dimensions than its input."""

    def rule(scope: SelectionContext) -> None:
        names = list(scope.node.inputs)
        rank = len(scope.shape(scope.node.outputs[0]))
        if _exchange_operands(kind, names, scope):
            names.reverse()
        layout = scope.layout(*names) if rank == 4 else "plain"
        if scope.shape(names[0]) != scope.shape(scope.node.outputs[0]) and kind == "prelu":
            return scope.refuse("its slope has more dimensions than its input")
        operands = tuple(laid_out(scope, n, layout, rank) for n in names)
        return scope.emit(Binary(kind), operands, layout)

    return rule


def _exchange_operands(kind: Kind, names: list[str], scope: SelectionContext) -> bool:
    """Return whether the operands are exchanged: a constant of a sum or product goes second.

    In a sum in float32 the order decides as QLinearAdd has it.
    """
    if kind == "add" and scope.chip.numerics.sums_in_float32("add"):
        return adds_right_last(*(scope.shape(n) for n in names))
    return kind in ("add", "mul") and names[0] in scope.graph.constants


def laid_out(scope: SelectionContext, name: str, layout: str, rank: int) -> str:
    """Return the chip's tensor, or a new constant, of an operand in this layout. `rank`: of the result."""
    value = scope.value(name)
    if value is None:
        return scope.read(name, layout)
    if layout == "nhwc":
        value = value.reshape((1,) * (rank - value.ndim) + value.shape).transpose(NHWC)
    return scope.constant(f"{name}@{layout}", np.asarray(value, order="C"))


RULES = {
    "Add": Rule(_rule("add"), "any"),
    "Sub": Rule(_rule("sub"), "any"),
    "Mul": Rule(_rule("mul"), "any"),
    "PRelu": Rule(_rule("prelu"), "any"),
}
