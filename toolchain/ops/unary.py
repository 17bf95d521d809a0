"""Functions of one number: any chain of pointwise operators with scalar constants is one table on the chip."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.errors import ScaleRangeError
from quant.fixed_point.core.numerics import Numerics
from quant.fixed_point.core.rounding import Rounding
from quant.fixed_point.core.scale import choose_scale
from quant.fixed_point.pointwise.tables import TableForm, around16, build_table8, build_table16, entries16
from quant.observe import Range
from quant.parameters import product_scale
from toolchain import machine
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, Node, Quant, step_name
from toolchain.ops.elementwise.integer import IntegerBinary
from toolchain.ops.functions import SIGN, SQUARE, Function, clip_bounds, evaluate
from toolchain.ops.kit.box import box_nest, box_orders, box_tilings, row_column, row_windows, three
from toolchain.ops.kit.loops import LoopOrder
from toolchain.ops.kit.nest import Nest
from toolchain.ops.kit.operator import Array, FloatOp, Layer, PerSample, RowWindows, TiledOp, alike_per_sample, clamp_codes
from toolchain.ops.kit.quant_scope import QuantScope
from toolchain.ops.kit.requants import LookupTable
from toolchain.ops.kit.rule import Rule
from toolchain.ops.kit.scope import Scope
from toolchain.ops.kit.tile import Block, Box, Extent, Site, Tiling, Work
from toolchain.ops.rescale import Rescale, rescaled

# What an entry may saturate by, in codes, and of the output at the end of the range in use. Less than this is left: tensors
# that share a scale would part, and be rescaled, for the last few numbers of one.
BENT_CODES, BENT = 2.0, 2.0**-7
FARTHEST = 16.0  # times an output's range: what a wider one would cost is more than an end that is bent
_LOOKED_AT = 1 << 12  # numbers over the range of what a function reads
_BEYOND = 1 / 64  # of what was seen


@dataclass(frozen=True)
class Unary(FloatOp):
    """y = function(x), element by element. name: of the machine's functions, None where no single one is meant."""

    function: Function
    name: str | None = None

    def unsupported(self, node: Node, graph: Graph, chip: Chip) -> str | None:
        if (clip_bounds(self.function) is not None or self._is_step(chip)) and "rescale" in chip.functions:
            return None
        if machine.rated_as(self.name, chip.functions):
            return None
        missing = machine.lacking("rescale" if clip_bounds(self.function) is not None else self.name)
        return f"{chip.key('vector')}.functions has {missing}"

    def reads_wide(self, node: Node, graph: Graph, chip: Chip) -> bool:
        return clip_bounds(self.function) is not None

    def makes_wide(self, node: Node, graph: Graph, chip: Chip) -> bool:
        return clip_bounds(self.function) is not None

    def telling(self, seen: Range, y: Quant, codes: CodeType) -> Range:
        beyond = seen.span * _BEYOND  # where a function is about to leave a code at an end, it has not stopped there
        x = np.linspace(seen.low - beyond, seen.high + beyond, _LOOKED_AT)
        with np.errstate(all="ignore"):
            made = np.rint(evaluate(self.function, x) / y.scale) + y.zero_point
        made = np.clip(made, *codes.limits)
        others, before = np.flatnonzero(made != made[0]), np.flatnonzero(made != made[-1])
        if np.isnan(made).any() or not others.size:
            return seen
        return Range(*np.clip((x[others[0] - 1], x[before[-1] + 1]), seen.low, seen.high).tolist())

    def quantize(self, node: Node, scope: QuantScope) -> list[Node]:
        x, y = scope.quant(node.inputs[0]), scope.quant(node.outputs[0])
        read, made = scope.codes(node.inputs[0]), scope.codes(node.outputs[0])
        tabled = machine.rated_as(self.name, scope.chip.functions) and not (read.is_wide or made.is_wide)
        exact = tabled and not (read.interpolates or made.interpolates)
        if not exact and self._is_step(scope.chip) and "rescale" in scope.chip.functions:
            return [self._step(node, x, y, scope)]
        apart = read != made and clip_bounds(self.function) is not None and "rescale" in scope.chip.functions
        if not tabled or apart or self._is_finer_as_clamp(node, x, y, scope):
            return [self._clamp(node, x, y, scope)]
        if made.interpolates and read == made and self.function == SQUARE and "mul" in scope.chip.functions:
            return [self._square(node, x, y, scope)]
        if made.interpolates and read == made:
            self._hold_ends(node, x, y, scope)
        return self._lookup(node, x, y, scope) if read == made else self._between(node, x, y, scope)

    def _square(self, node: Node, x: Quant, y: Quant, scope: QuantScope) -> Node:
        """A product is exact; between two entries of a table a square is always above itself, which a mean of many shows."""
        codes = scope.codes(node.outputs[0])
        scale = product_scale(x.scale, x.scale, y.scale, scope.chip.numerics)
        requant = scope.requant(scale, "mul", codes, y.zero_point, *codes.limits, where=node.name)
        op = IntegerBinary("mul", x.zero_point, x.zero_point, 0, None, None, requant)
        return Node(node.name, op, node.inputs * 2, node.outputs, node.sources)

    def _lookup(self, node: Node, x: Quant, y: Quant, scope: QuantScope) -> list[Node]:
        op = Lookup(make_table(self.function, x, y, scope.numerics(node.outputs[0])), self.name)
        return [Node(node.name, op, node.inputs, node.outputs, node.sources)]

    def _between(self, node: Node, x: Quant, y: Quant, scope: QuantScope) -> list[Node]:
        """A table has one type: that of more bits, from or to which the other is rescaled."""
        (source,), (target,) = node.inputs, node.outputs
        read, made = scope.codes(source), scope.codes(target)
        if made.bits > read.bits:
            fine, inner = _in_type(x, read, made), scope.own_name(f"{source}@{node.name}")
            before = rescaled(step_name(node.name, "rescale"), source, inner, fine, made, scope)
            return [before, *self._lookup(replace(node, inputs=(inner,)), fine, y, scope)]
        fine, inner = _in_type(y, made, read), scope.own_name(f"{target}@{node.name}")
        scope.inner(inner, fine, read)
        after = rescaled(step_name(node.name, "rescale"), inner, target, y, made, scope)
        return [*self._lookup(replace(node, outputs=(inner,)), x, fine, scope), after]

    def _hold_ends(self, node: Node, x: Quant, y: Quant, scope: QuantScope) -> None:
        """The first and the last code in use lie between entries of which one is beyond the range in use: an entry that
        saturates there bends what is interpolated. So the output's codes hold it, where it is a number and not far off."""
        seen, held = scope.seen(node.inputs[0]), scope.seen(node.outputs[0])
        if seen is None or held is None:
            return
        numerics, zero = scope.numerics(node.outputs[0]), y.zero_point
        (least, most), form = numerics.activation.limits, _form(y, numerics)
        entries = entries16(self._at, x.scale, y.scale, form=form, input_zero_point=x.zero_point, output_zero_point=zero)
        wanted, span = held.with_zero(), held.with_zero().span
        for end in (seen.low, seen.high):
            code = int(np.clip(np.rint(end / x.scale) + x.zero_point, least, most))
            with np.errstate(all="ignore"):
                bent = max(BENT_CODES, BENT * abs(float(self._at(np.array(end))) / y.scale))
            beside = [float(t) for t in entries[around16(code)] if np.isfinite(t) and not least - bent <= t <= most + bent]
            for value in (y.scale * (t - zero) for t in beside):
                wider = wanted.union(Range(value, value))
                wanted = wider if wider.span <= FARTHEST * span else wanted
        if wanted != held.with_zero():
            scope.widen(node.outputs[0], wanted)

    def _at(self, real: Array) -> Array:
        return evaluate(self.function, real)

    def _is_finer_as_clamp(self, node: Node, x: Quant, y: Quant, scope: QuantScope) -> bool:
        """An interpolated table bends between two of its entries; a clamp bends where it should, if the machine has the scale
        to half a code."""
        numerics, operations = scope.numerics(node.outputs[0]), scope.chip.functions
        if not numerics.activation.interpolates or "rescale" not in operations or clip_bounds(self.function) is None:
            return False
        low, high = numerics.activation.limits
        try:
            error = choose_scale(x.scale / y.scale, numerics.scale).relative_error
        except ScaleRangeError:
            return False
        return abs(float(error[0])) * (high - low) <= 0.5

    def _is_step(self, chip: Chip) -> bool:
        """Whether it is a Sign, which a clamp of one code or more is exactly, where a table that is interpolated bends between
        two entries. What wraps does so before it is clamped."""
        return self.function == SIGN and not chip.numerics.wraps

    def _step(self, node: Node, x: Quant, y: Quant, scope: QuantScope) -> Node:
        """One code of x reaches the code of 1. A power of two is a scale of every machine, where it reaches as far."""
        codes, zero = scope.codes(node.outputs[0]), y.zero_point
        low, high = clamp_codes((-1.0, 1.0), y, codes)
        reach = 2.0 ** np.ceil(np.log2(max(high - zero, zero - low, 1)))
        most = scope.numerics(node.outputs[0]).scale.extremes[1]
        requant = scope.requant(min(reach, most), "rescale", codes, zero, low, high, where=node.name)
        return Node(node.name, Rescale(x.zero_point, requant), node.inputs, node.outputs, node.sources)

    def _clamp(self, node: Node, x: Quant, y: Quant, scope: QuantScope) -> Node:
        bounds = clip_bounds(self.function) or (None, None)
        codes = scope.codes(node.outputs[0])
        low, high = clamp_codes(bounds, y, codes)
        requant = scope.requant(x.scale / y.scale, "rescale", codes, y.zero_point, low, high, where=node.name)
        return Node(node.name, Rescale(x.zero_point, requant), node.inputs, node.outputs, node.sources)


def _in_type(quant: Quant, codes: CodeType, wider: CodeType) -> Quant:
    """The scale at which codes of at least as many bits hold what these hold."""
    step = 2 ** (wider.bits - codes.bits)
    return Quant(quant.scale / step, (quant.zero_point - codes.low) * step + wider.low)


def make_table(function: Function, x: Quant, y: Quant, numerics: Numerics) -> LookupTable:
    """The table of function from codes of scale x to codes of scale y, both of the type of `numerics`."""

    def f(real: Array) -> Array:
        return evaluate(function, real)

    if not numerics.activation.interpolates:
        signed = numerics.activation.low < 0
        half = Rounding.HALF_EVEN if numerics.rounding is Rounding.FP32_RNE else Rounding.HALF_AWAY
        table = build_table8(f, x.scale, x.zero_point, y.scale, y.zero_point, signed=signed, rounding=half)
        return LookupTable(table, "none")
    entries = build_table16(
        f, x.scale, y.scale, form=_form(y, numerics), input_zero_point=x.zero_point, output_zero_point=y.zero_point
    )
    return LookupTable(entries, numerics.interpolation)


def _form(y: Quant, numerics: Numerics) -> TableForm:
    """TFLite's table knows no output zero point; its samples differ from TOSA's, its interpolation does not."""
    return "tflite" if numerics.interpolation == "tflite" and y.zero_point == 0 else "tosa"


@dataclass(frozen=True, eq=False)
class Lookup(TiledOp):
    """y = table[x]: an entry for each code of 8 bits from the least on, or int16[513] interpolated. function: as of `Unary`, for
    its rate only."""

    NAME = "Lookup"
    VERSION = 2
    is_pointwise = True
    table: LookupTable
    function: str | None = None

    def reference(self, inputs: Sequence[Array]) -> Array:
        return self.table.apply(inputs[0])

    def reads_granules(self, layer: Layer) -> bool:
        return True

    def per_sample(self, layer: Layer, axis: int, count: int) -> PerSample | None:
        return alike_per_sample(self, layer, axis)

    def tiling_key(self) -> Hashable:
        return self.function

    def tilings(self, layer: Layer) -> Iterable[Tiling]:
        return box_tilings(layer, layer.chip.lanes)

    def loop_orders(self, layer: Layer) -> tuple[LoopOrder, ...]:
        return box_orders(layer)

    def row_windows(self, layer: Layer) -> RowWindows:
        return row_windows(layer)

    def nest(self, layer: Layer, tiling: Tiling, extent: Extent | None = None) -> Nest:
        block = self.table.block(layer.node.name, "tables")
        return box_nest(layer.output.shape, tiling, lambda start, size: self._work(layer, start, size, block), extent)

    def _work(self, layer: Layer, start: tuple[int, ...], size: tuple[int, ...], block: Block) -> Work:
        rate = machine.rated_as(self.function, layer.chip.functions)
        assert rate is not None, layer.node.name

        def emit(sites: Sequence[Site], blocks: Sequence[int], out: Site | None) -> tuple[machine.MachineOp, ...]:
            assert out is not None
            height, width, channels = three(size)[-3:]
            x_row, x_column = row_column(sites[0])
            y_row, y_column = row_column(out)
            return (
                machine.Table(
                    height=height,
                    width=width,
                    channels=channels,
                    input_address=sites[0].address,
                    input_row_stride=x_row,
                    input_column_stride=x_column,
                    input_surface_stride=sites[0].strides.surface_bytes,
                    output_address=out.address,
                    output_row_stride=y_row,
                    output_column_stride=y_column,
                    output_surface_stride=out.strides.surface_bytes,
                    table_address=blocks[0],
                    function=machine.TABLE_FUNCTIONS[rate],
                    element_type=layer.output_number,
                ),
            )

        reads = (Box(layer.node.inputs[0], start, size),)
        return Work(reads, (block,), Box(layer.node.outputs[0], start, size), emit)


def unary(scope: Scope) -> None:
    x = scope.node.inputs[0]
    layout = scope.layout(x)
    assert isinstance(scope.node.op, Unary)
    return scope.emit(scope.node.op, (scope.read(x, layout),), layout)


RULES = {"Unary": Rule(unary, "any")}  # what passes.compose makes of ONNX_UNARY and chains of them
