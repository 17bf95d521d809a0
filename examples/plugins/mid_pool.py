"""MidPool of the domain my.org: the middle between the largest and the least of a window, with tiles and a machine operation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.semantics.context import Context
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, Node
from toolchain.machine import MachineOp
from toolchain.machine.access import Access
from toolchain.machine.columns import code_bytes
from toolchain.machine.parameters.addresses import operand_address, operand_stride
from toolchain.machine.parameters.codes import code_type
from toolchain.machine.parameters.extents import extent
from toolchain.machine.parameters.numbers import unit_number
from toolchain.machine.traffic import Demand, traffic
from toolchain.machine.units.vector import find_function_key, rate_of, vector_demand
from toolchain.ops.kit.box_tiles import box_nest, box_orders, box_tilings
from toolchain.ops.kit.loops import LoopOrder
from toolchain.ops.kit.nest import Nest
from toolchain.ops.kit.operator import FloatOp, Layer, TiledOp
from toolchain.ops.kit.quant_context import QuantContext
from toolchain.ops.kit.rule import Rule
from toolchain.ops.kit.selection_context import SelectionContext
from toolchain.ops.kit.tile import Box, BoxLocation, Extent, TileTask, Tiling
from toolchain.plugin import Array, Example, Operator, Plugin, Steps, TensorType

FUNCTION = "mid_pool"


@dataclass(frozen=True)
class MidPool(Operator):
    """y[n, c, i, j] = (largest + least) / 2 over the window of `size` rows and columns; windows do not overlap."""

    DOMAIN = "my.org"
    size: int = 2

    def infer(self, x: TensorType) -> TensorType:
        n, c, h, w = x.shape
        return TensorType((n, c, h // self.size, w // self.size), x.dtype)

    def compute(self, x: Array) -> Array:
        windows = _windows(x.transpose(0, 2, 3, 1), self.size)
        return (windows.max(3) / 2 + windows.min(3) / 2).transpose(0, 3, 1, 2)

    def steps(self, build: Steps, x: str) -> str:
        window = [self.size, self.size]
        largest = build.add("MaxPool", x, kernel_shape=window, strides=window)
        least = build.add("Neg", build.add("MaxPool", build.add("Neg", x), kernel_shape=window, strides=window))
        return build.add("Mul", build.add("Add", largest, least), 0.5)


def _windows(x: Array, size: int) -> Array:
    """[n, h, w, c] -> [n, oh, ow, size * size, c]."""
    n, h, w, c = x.shape[0], x.shape[1] // size, x.shape[2] // size, x.shape[3]
    cut = x[:, : h * size, : w * size].reshape(n, h, size, w, size, c)
    return cut.transpose(0, 1, 3, 2, 4, 5).reshape(n, h, w, size * size, c)


def mid_of_windows(x: Array, size: int) -> Array:
    """Codes [n, h, w, c] -> codes of the same type; halves are rounded to the even code."""
    windows = _windows(x, size).astype(np.int32)
    total = windows.max(3) + windows.min(3)
    return ((total + ((total >> 1) & 1)) >> 1).astype(x.dtype)


@dataclass(frozen=True)
class FloatMidPool(FloatOp):
    """y[n, i, j, c], channels last. Codes keep their scale."""

    keeps_scale = True
    size: int

    def find_unsupported_reason(self, node: Node, graph: Graph, chip: Chip) -> str | None:
        return None if FUNCTION in chip.functions else f"{chip.key('vector')}.functions has no {FUNCTION}"

    def quantize(self, node: Node, scope: QuantContext) -> list[Node]:
        return [Node(node.name, IntegerMidPool(self.size), node.inputs, node.outputs, node.sources)]


@dataclass(frozen=True)
class IntegerMidPool(TiledOp):
    """Codes [n, h, w, c] -> codes [n, oh, ow, c] of the same scale."""

    NAME = "my.org.MidPool"
    VERSION = 1
    size: int

    def reference(self, inputs: Sequence[Array]) -> Array:
        return mid_of_windows(inputs[0], self.size)

    def tilings(self, layer: Layer) -> Iterable[Tiling]:
        return box_tilings(layer, layer.chip.lanes)

    def loop_orders(self, layer: Layer) -> tuple[LoopOrder, ...]:
        return box_orders(layer)

    def nest(self, layer: Layer, tiling: Tiling, extent: Extent | None = None) -> Nest:
        return box_nest(layer.output.shape, tiling, lambda start, size: self._make_task(layer, start, size))

    def _make_task(self, layer: Layer, start: tuple[int, ...], size: tuple[int, ...]) -> TileTask:
        (n, y, x, c), (_, rows, columns, channels), k = start, size, self.size
        read = Box(layer.node.inputs[0], (n, y * k, x * k, c), (1, rows * k, columns * k, channels))

        def emit(sites: Sequence[BoxLocation], blocks: Sequence[int], out: BoxLocation | None) -> tuple[MachineOp, ...]:
            assert out is not None
            source, target = ((site.address, site.strides[1], site.strides[2]) for site in (sites[0], out))
            return (MidPoolOp(rows, columns, channels, k, *source, *target, layer.output_number),)

        return TileTask((read,), (), Box(layer.node.outputs[0], start, size), emit)


@dataclass(frozen=True, slots=True)
class MidPoolOp(MachineOp):
    """The middle between the largest and the least of each window of size x size."""

    NAME = "mid_pool"
    ENGINE = "vector"
    FUNCTIONS = (FUNCTION,)
    rows: int = extent()
    columns: int = extent()
    channels: int = extent()
    size: int = extent()
    input_address: int = operand_address("input")
    input_row_stride: int = operand_stride("input")
    input_column_stride: int = operand_stride("input")
    output_address: int = operand_address("output")
    output_row_stride: int = operand_stride("output")
    output_column_stride: int = operand_stride("output")
    element_type: int = code_type()
    unit: int = unit_number()

    @classmethod
    def meaning(cls, chip: Chip) -> Iterator[str]:
        yield "out[y, x, c] = (largest + least) / 2 of in over the window; halves are rounded to the even code."

    @classmethod
    def find_required_key(cls, chip: Chip) -> str | None:
        return find_function_key(cls.FUNCTIONS, chip)

    def ranges(self, chip: Chip) -> tuple[Access, ...]:
        roles, run = self.unit_in(chip).roles, self.channels * code_bytes(self.element_type, chip)
        read = (self.rows * self.size, self.columns * self.size), (self.input_row_stride, self.input_column_stride)
        written = (self.rows, self.columns), (self.output_row_stride, self.output_column_stride)
        return (
            Access(roles["input"], self.input_address, *read, run, False),
            Access(roles["output"], self.output_address, *written, run, True),
        )

    def demand(self, chip: Chip) -> Demand:
        unit, elements = self.unit_in(chip), self.rows * self.columns * self.channels
        size_bytes, taps = elements * code_bytes(self.element_type, chip), self.size * self.size
        moved = traffic(unit, ("input", taps * size_bytes, 0), ("output", 0, size_bytes))
        return vector_demand(unit, chip, rate_of(unit, chip, self.FUNCTIONS), elements, moved, taps)

    def broken(self, chip: Chip) -> Iterator[str]:
        if FUNCTION not in self.unit_in(chip).vector.functions:
            yield f"{self.unit_in(chip).key}.functions has no {FUNCTION}"


def run(op: MidPoolOp, context: Context) -> None:
    """Compute the operation on the simulator."""
    shape = (1, op.rows * op.size, op.columns * op.size, op.channels)
    strides = (0, op.input_row_stride, op.input_column_stride)
    x = context.feature_map(op, "input", op.input_address, shape, strides, op.element_type)
    target, strides = (op.rows, op.columns, op.channels), (op.output_row_stride, op.output_column_stride)
    y = context.feature_map(op, "output", op.output_address, target, strides, op.element_type)
    y[...] = mid_of_windows(x, op.size)[0]


def select(scope: SelectionContext) -> None:
    """Select MidPool of a feature map."""
    x = scope.node.inputs[0]
    if len(scope.shape(x)) != 4:
        return scope.refuse("MidPool of something else than a feature map [n, c, h, w]")
    return scope.emit(FloatMidPool(scope.attributes["size"]), (scope.read(x, "nhwc"),), "nhwc")


PLUGIN = Plugin(
    "mid_pool",
    "1.0",
    (MidPool,),
    examples=(
        Example(MidPool(), ((2, 20, 12, 16),)),
        Example(MidPool(size=3), ((1, 8, 9, 10),)),
    ),
    rules={MidPool: Rule(select, "nhwc")},
    values={MidPoolOp: run},
    rates={FUNCTION: {"lanes": 8, "startup": 8}},
)
