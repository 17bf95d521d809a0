"""LogSoftmax of matrices over their rows, on machines that have the function."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from toolchain.machine.operations.row_log_softmax import RowLogSoftmax  # type: ignore[import-not-found]

from quant.fixed_point import log_softmax8
from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.q31 import Q31_MULTIPLIER
from quant.fixed_point.core.scale import choose_scale
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, Node, Quant
from toolchain.machine import MachineOp
from toolchain.ops.kit.box_tiles import box_nest, box_orders
from toolchain.ops.kit.loops import LoopOrder
from toolchain.ops.kit.nest import Nest
from toolchain.ops.kit.operator import Array, FloatOp, Layer, TiledOp
from toolchain.ops.kit.quant_context import QuantContext
from toolchain.ops.kit.rule import Rule
from toolchain.ops.kit.selection_context import SelectionContext
from toolchain.ops.kit.tile import Box, BoxLocation, Extent, TileTask, Tiling, halvings


@dataclass(frozen=True)
class LogSoftmax(FloatOp):
    """y[r, :] = log(softmax(x[r, :]))."""

    def find_unsupported_reason(self, node: Node, graph: Graph, chip: Chip) -> str | None:
        return None if "row_log_softmax" in chip.functions else f"{chip.key('vector')}.functions has no row_log_softmax"

    def own_scale(self, codes: CodeType) -> Quant:
        return Quant(1 / 16, 127)

    def quantize(self, node: Node, scope: QuantContext) -> list[Node]:
        real = choose_scale(float(np.float32(scope.quant(node.inputs[0]).scale)) * 2.0**26, Q31_MULTIPLIER)
        op = IntegerLogSoftmax(int(real.multiplier[0]), int(real.shift[0]))
        return [Node(node.name, op, node.inputs, node.outputs, node.sources)]


@dataclass(frozen=True)
class IntegerLogSoftmax(TiledOp):
    """int8[r, c] -> int8[r, c], scale 1/16, zero point 127; scale of the input: multiplier 2**(-shift - 26)."""

    NAME = "RowLogSoftmax"
    VERSION = 1
    multiplier: int
    shift: int

    def reference(self, inputs: Sequence[Array]) -> Array:
        return log_softmax8(inputs[0], self.multiplier * 2.0 ** (-self.shift - 26))

    def tilings(self, layer: Layer) -> Iterable[Tiling]:
        rows, columns = layer.output.shape
        return (Tiling(1, part, columns, 0) for part in halvings(rows))

    def loop_orders(self, layer: Layer) -> tuple[LoopOrder, ...]:
        return box_orders(layer, full_reason="the sum over a row is of all of it")

    def nest(self, layer: Layer, tiling: Tiling, extent: Extent | None = None) -> Nest:
        return box_nest(layer.output.shape, tiling, lambda start, size: self._make_task(layer, start, size))

    def _make_task(self, layer: Layer, start: tuple[int, ...], size: tuple[int, ...]) -> TileTask:
        def emit(sites: Sequence[BoxLocation], blocks: Sequence[int], out: BoxLocation | None) -> tuple[MachineOp, ...]:
            assert out is not None
            (source,) = sites
            rows = (*size, source.address, source.strides[0], out.address, out.strides[0])
            return (RowLogSoftmax(*rows, self.multiplier, self.shift),)

        return TileTask((Box(layer.node.inputs[0], start, size),), (), Box(layer.node.outputs[0], start, size), emit)


def log_softmax(scope: SelectionContext) -> None:
    x = scope.node.inputs[0]
    if len(scope.shape(x)) != 2 or scope.attributes["axis"] not in (-1, 1):
        return scope.refuse("LogSoftmax of something else than the rows of a matrix")
    return scope.emit(LogSoftmax(), (scope.read(x, "plain"),), "plain")


RULES = {"LogSoftmax": Rule(log_softmax)}
