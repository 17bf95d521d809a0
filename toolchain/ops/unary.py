"""Select and quantize functions of one number: any chain of pointwise operators with scalar constants is one table on the
chip.

`passes.compose` makes `Unary` nodes. `quantize` picks the cheapest exact form: a view, a change of scale, a product, steps, a
table.

A function is looked at on _LOOKED_AT numbers over a range, and for _ROUNDS rounds on ever smaller parts. Where its effective
range is sought, _BEYOND of the range is added at each end. An effective range of less than _SMALL_PART is looked at anew, up to
_MASK_ROUNDS times. Each look makes a part 2,048 times smaller, and a mask is down to -3.4e38. A part less than _STEP times its
ends is a step. A function bends at zero where slopes at _NEAR_ZERO on both sides differ by
more than _BENT of the larger. Slopes of a curve differ only by the distance times its curvature.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.fixed_point_errors import ScaleRangeError
from quant.fixed_point.core.numerics import Numerics
from quant.fixed_point.core.scale import choose_scale
from quant.observe import Range
from quant.parameters import product_scale, quant_range
from toolchain import machine
from toolchain.hw.chip import Chip
from toolchain.ir.graph import INNER, Graph, Node, Quant, step_name
from toolchain.ops.elementwise.integer_elementwise import IntegerBinary
from toolchain.ops.function_names import find_name_fault
from toolchain.ops.interpolated_tables import TableReadout, make_table
from toolchain.ops.kit.operator import Array, FloatOp, clamp_codes
from toolchain.ops.kit.quant_context import QuantContext
from toolchain.ops.kit.rule import Rule
from toolchain.ops.kit.selection_context import SelectionContext
from toolchain.ops.lookup import Lookup
from toolchain.ops.permutation import Reshape
from toolchain.ops.rescale import Rescale, make_rescale_node
from toolchain.ops.scalar_functions import (
    SIGN,
    SQUARE,
    Bounds,
    Function,
    affine_bounds,
    clip_bounds,
    evaluate,
    find_function_fault,
    find_scaled_bounds,
    multiple,
)
from toolchain.ops.step_functions import find_step_decomposition

_LOOKED_AT = 1 << 12
_BEYOND = 1 / 64
_SMALL_PART = 1 / 64  # 64 of the numbers looked at: its ends are known to 1/64
_ROUNDS = 8
_MASK_ROUNDS, _STEP = 16, 2.0**-20
_NEAR_ZERO, _BENT = 2.0**-20, 2.0**-8


@dataclass(frozen=True)
class Unary(FloatOp):
    """A float operator y = function(x), element by element.

    `name`: the function's name among the machine's functions; None where it is no single one of them.
    """

    function: Function
    name: str | None = None

    def find_own_fault(self) -> str | None:
        """Return why the function or its name is none, or None."""
        if fault := find_function_fault(self.function):
            return f"Unary: function {fault}"
        fault = find_name_fault(self.name)
        return fault and f"Unary: name {fault}"

    def find_unsupported_reason(self, node: Node, graph: Graph, chip: Chip) -> str | None:
        """Return the reason, or None: the machine needs a rate for the function or for tables, or a rescale where that is
        enough.
        """
        if (self._rescales(chip) or self._is_step(chip)) and "rescale" in chip.functions:
            return None
        if machine.find_function_rate(self.name, chip.functions):
            return None
        missing = machine.find_missing_table("rescale" if clip_bounds(self.function) is not None else self.name)
        return f"{chip.key('vector')}.functions has {missing}"

    def reads_wide(self, node: Node, graph: Graph, chip: Chip) -> bool:
        """Return whether the input may have 32-bit codes: where the function only changes the scale."""
        return self._rescales(chip)

    def makes_wide(self, node: Node, graph: Graph, chip: Chip) -> bool:
        """Return whether the output may have 32-bit codes: where the function only changes the scale."""
        return self._rescales(chip)

    def get_effective_range(self, input_range: Range, y: Quant, codes: CodeType) -> Range:
        """Return the part of the input's range beyond whose ends the function gives the code that it gives there."""
        part = first_part = self._find_effective_part(input_range, y, codes)
        before = input_range
        for _ in range(_MASK_ROUNDS):  # beside a mask all of it lies between two of the numbers looked at
            if part.span > before.span * _SMALL_PART:
                return part
            if part.span < _STEP * max(abs(part.low), abs(part.high)):
                break
            part, before = self._find_effective_part(part, y, codes), part
        return first_part  # of a step no part is small enough

    def _find_effective_part(self, input_range: Range, y: Quant, codes: CodeType) -> Range:
        """Return the effective range to within one of the _LOOKED_AT numbers."""
        beyond = input_range.span * _BEYOND  # where a function is about to leave a code at an end, it has not stopped there
        x = np.linspace(input_range.low - beyond, input_range.high + beyond, _LOOKED_AT)
        with np.errstate(all="ignore"):
            output_codes = np.rint(evaluate(self.function, x) / y.scale) + y.zero_point
        output_codes = np.clip(output_codes, *codes.limits)
        others, before = np.flatnonzero(output_codes != output_codes[0]), np.flatnonzero(output_codes != output_codes[-1])
        if np.isnan(output_codes).any() or not others.size:
            return input_range
        return Range(*np.clip((x[others[0] - 1], x[before[-1] + 1]), input_range.low, input_range.high).tolist())

    @property
    def bends_at_zero(self) -> bool:
        """True where the slope changes at zero, as that of LeakyRelu does; False for clamps, which no table computes."""
        if affine_bounds(self.function) is not None:
            return False
        near = _NEAR_ZERO * np.array([-1, -0.5, 0, 0.5, 1])
        with np.errstate(all="ignore"):
            slopes = np.diff(evaluate(self.function, near)) / np.diff(near)
            jump, nearer_jump = slopes[2:].sum() / 2 - slopes[:2].sum() / 2, slopes[2] - slopes[1]
        is_bent = abs(jump) > _BENT * np.abs(slopes).max() and abs(nearer_jump) > 0.75 * abs(jump)  # of a curve it halves
        return bool(is_bent and np.isfinite(jump))

    def reach(self, x: Range) -> Bounds:
        """Return the least and largest value over the range `x`; None for both where one is not finite."""
        with np.errstate(all="ignore"):
            values = evaluate(self.function, np.linspace(x.low, x.high, _LOOKED_AT))
        return (float(values.min()), float(values.max())) if np.isfinite(values).all() else (None, None)

    def quantize(self, node: Node, scope: QuantContext) -> list[Node]:
        """Return the integer nodes: one in most cases, more where the input is rescaled for a table or the function steps."""
        x, y = scope.quant(node.inputs[0]), scope.quant(node.outputs[0])
        read, output_codes = scope.codes(node.inputs[0]), scope.codes(node.outputs[0])
        if read == output_codes and self._renames(x, y, read):
            return [replace(node, op=Reshape(scope.graph.types[node.outputs[0]].shape))]
        tabled = machine.find_function_rate(self.name, scope.chip.functions) and not (read.is_wide or output_codes.is_wide)
        exact = tabled and not (read.interpolates or output_codes.interpolates)
        if not exact and self._is_step(scope.chip) and "rescale" in scope.chip.functions:
            return [self._step(node, x, y, scope)]
        rescales_separately = (
            read != output_codes and clip_bounds(self.function) is not None and "rescale" in scope.chip.functions
        )
        if not tabled or rescales_separately:
            return [self._make_rescale(node, *(find_scaled_bounds(self.function) or (1.0, (None, None))), scope)]
        steps = find_step_decomposition(node, self.function, scope) if read.interpolates else None
        if steps is not None:
            return steps
        exact = self._exact(node, scope) if output_codes.interpolates and read == output_codes else None
        if exact is not None:
            return [exact]
        return self._lookup(node, x, y, scope) if read == output_codes else self._between(node, x, y, scope)

    def _renames(self, x: Quant, y: Quant, codes: CodeType) -> bool:
        """Return whether each code already stands for its result.

        The function is then a multiple at as many times the scale, to half a code at the last.
        """
        factor = multiple(self.function)
        if factor is None or x.zero_point != y.zero_point:
            return False
        return abs(x.scale * factor / y.scale - 1) * 2.0**codes.bits < 0.5

    def _exact(self, node: Node, scope: QuantContext) -> Node | None:
        """Return the function as a product or a change of scale, in place of an interpolated table; None where neither is
        exact.

        A square is a product. A multiple, shifted or not, clamped or not, is a change of scale where the machine has it to
        half a code.
        """
        operations = scope.chip.functions
        if self.function == SQUARE and "mul" in operations:
            return self._square(node, scope.quant(node.inputs[0]), scope.quant(node.outputs[0]), scope)
        factor_and_bounds, y, numerics = (
            affine_bounds(self.function),
            scope.quant(node.outputs[0]),
            scope.numerics(node.outputs[0]),
        )
        if factor_and_bounds is None or factor_and_bounds[0] < 0 or "rescale" not in operations:
            return None
        factor, offset, bounds = factor_and_bounds
        zero_point, ends = y.zero_point + round(offset / y.scale), clamp_codes(bounds, y, numerics.activation)
        if zero_point and numerics.symmetric_activations:
            return None  # the machine has no zero points to say an offset by
        if not numerics.activation.low <= zero_point <= numerics.activation.high:
            return None
        try:
            error = choose_scale(scope.quant(node.inputs[0]).scale * factor / y.scale, numerics.scale).relative_error
        except ScaleRangeError:
            return None
        off = abs(float(error[0])) * max(abs(end - zero_point) for end in ends)
        return self._make_rescale(node, factor, bounds, scope, offset) if off <= 0.5 else None

    def _square(self, node: Node, x: Quant, y: Quant, scope: QuantContext) -> Node:
        """Return the square as a product, which is exact.

        Between two entries a table of it is always above it, which a mean of many shows.
        """
        codes = scope.codes(node.outputs[0])
        scale = product_scale(x.scale, x.scale, y.scale, scope.chip.numerics)
        requant = scope.requant(scale, "mul", codes, y.zero_point, *codes.limits, where=node.name)
        op = IntegerBinary("mul", x.zero_point, x.zero_point, 0, None, None, requant)
        return Node(node.name, op, node.inputs * 2, node.outputs, node.sources)

    def _lookup(self, node: Node, x: Quant, y: Quant, scope: QuantContext) -> list[Node]:
        """Return the lookup nodes.

        `x`: qparams at which its input would be read if no others gained anything, in codes of the type of its output.
        `y`: qparams of its output.
        """
        (source,), (target,), numerics = node.inputs, node.outputs, scope.numerics(node.outputs[0])
        codes, source_qparams = numerics.activation, (scope.quant(source), scope.codes(source))
        read = self._read_at(source, target, x, y, scope) if codes.interpolates else x
        op = Lookup(make_table(self._at, read, y, numerics), self.name)
        if (read, codes) == source_qparams:
            return [Node(node.name, op, node.inputs, node.outputs, node.sources)]
        inner = scope.own_name(f"{source}@{node.name}")
        before = make_rescale_node(step_name(node.name, "rescale"), source, inner, read, codes, scope)
        return [before, Node(node.name, op, (inner,), node.outputs, node.sources)]

    def _read_at(self, source: str, target: str, x: Quant, y: Quant, scope: QuantContext) -> Quant:
        """Return the qparams at which an interpolated table reads its input; the output is widened where entries need it."""
        input_range = scope.find_calibrated_range(source) if scope.graph.origins[source].layout != INNER else None
        reading = TableReadout(self._at, x, y, input_range, scope.find_calibrated_range(target), scope.numerics(target))
        read = (
            x
            if "rescale" not in scope.chip.functions
            else reading.finest(self._get_effective_input(x, y, scope.numerics(target)))
        )
        output_range = reading.ends(read)
        if output_range is not None:
            scope.widen(target, output_range)
        return read

    def _get_effective_input(self, x: Quant, y: Quant, numerics: Numerics) -> Range:
        """Return the part of the input's codes beyond which the function gives the code that it gives there."""
        part = quant_range(x, numerics)
        for _ in range(_ROUNDS):  # each looks more closely
            part, before = self.get_effective_range(part, y, numerics.activation), part
            if part.span > before.span / 2:
                break
        return part

    def _at(self, real: Array) -> Array:
        return evaluate(self.function, real)

    def _between(self, node: Node, x: Quant, y: Quant, scope: QuantContext) -> list[Node]:
        """Return a lookup between two types: the table has that of more bits, from or to which the other is rescaled."""
        (source,), (target,) = node.inputs, node.outputs
        read, output_codes = scope.codes(source), scope.codes(target)
        if output_codes.bits > read.bits:
            return self._lookup(node, _in_type(x, read, output_codes), y, scope)
        fine, inner = _in_type(y, output_codes, read), scope.own_name(f"{target}@{node.name}")
        scope.inner(inner, fine, read)
        after = make_rescale_node(step_name(node.name, "rescale"), inner, target, y, output_codes, scope)
        return [*self._lookup(replace(node, outputs=(inner,)), x, fine, scope), after]

    def _rescales(self, chip: Chip) -> bool:
        """Return whether the function is a change of scale, clamped or not, that the machine supports whatever the codes'
        scales are.
        """
        factor, _ = find_scaled_bounds(self.function) or (0.0, None)
        return factor > 0 and (chip.numerics.scale.kind != "pow2" or math.frexp(factor)[0] == 0.5)

    def _is_step(self, chip: Chip) -> bool:
        """Return whether it is a Sign, which is exactly a clamp of one code or more.

        An interpolated table bends between two entries. Sums that wrap do so before the clamp, so these machines are excluded.
        """
        return self.function == SIGN and not chip.numerics.wraps

    def _step(self, node: Node, x: Quant, y: Quant, scope: QuantContext) -> Node:
        """Return a Sign as a change of scale so large that one code of x reaches the code of 1, clamped."""
        codes, zero = scope.codes(node.outputs[0]), y.zero_point
        low, high = clamp_codes((-1.0, 1.0), y, codes)
        reach = 2.0 ** np.ceil(np.log2(max(high - zero, zero - low, 1)))
        most = scope.numerics(node.outputs[0]).scale.extremes[1]
        requant = scope.requant(min(reach, most), "rescale", codes, zero, low, high, where=node.name)
        return Node(node.name, Rescale(x.zero_point, requant), node.inputs, node.outputs, node.sources)

    def _make_rescale(self, node: Node, factor: float, bounds: Bounds, scope: QuantContext, offset: float = 0.0) -> Node:
        """Return the function factor x + offset, clamped, as a change of scale.

        `factor`: positive. `offset`: a real number, rounded to a code.
        """
        x, y, codes = scope.quant(node.inputs[0]), scope.quant(node.outputs[0]), scope.codes(node.outputs[0])
        (low, high), zero_point = clamp_codes(bounds, y, codes), y.zero_point + round(offset / y.scale)
        requant = scope.requant(x.scale * factor / y.scale, "rescale", codes, zero_point, low, high, where=node.name)
        return Node(node.name, Rescale(x.zero_point, requant), node.inputs, node.outputs, node.sources)


def _in_type(quant: Quant, codes: CodeType, wider: CodeType) -> Quant:
    """Return the qparams at which codes of `wider`, of at least as many bits, hold the same numbers."""
    step = 2 ** (wider.bits - codes.bits)
    return Quant(quant.scale / step, (quant.zero_point - codes.low) * step + wider.low)


def unary(scope: SelectionContext) -> None:
    """Select a composed function in the layout of its input."""
    x = scope.node.inputs[0]
    layout = scope.layout(x)
    assert isinstance(scope.node.op, Unary)
    return scope.emit(scope.node.op, (scope.read(x, layout),), layout)


RULES = {"Unary": Rule(unary, "any")}
