"""Softmax of matrices over their rows, on machines that have the function."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from toolchain.machine.operations.row_softmax import RowSoftmax  # type: ignore[import-not-found]

from quant.fixed_point import softmax8
from quant.fixed_point.core.q31 import Q31_MULTIPLIER
from quant.fixed_point.core.scale import choose_scale
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, Node, Quant
from toolchain.machine import MachineOp
from toolchain.ops.kit.box import box_nest
from toolchain.ops.kit.nest import Nest
from toolchain.ops.kit.operator import Array, FloatOp, Layer, QuantScope, TiledOp
from toolchain.ops.kit.rule import Rule
from toolchain.ops.kit.scope import Scope
from toolchain.ops.kit.tile import Box, Site, Tiling, Work, halvings

PROBABILITIES = Quant(1 / 256, -128)  # the only scale that the operation makes


@dataclass(frozen=True)
class Softmax(FloatOp):
    """y[r, :] = softmax(x[r, :])."""

    def unsupported(self, node: Node, graph: Graph, chip: Chip) -> str | None:
        return None if "row_softmax" in chip.functions else f"{chip.key('vector')}.functions has no row_softmax"

    def quantize(self, node: Node, scope: QuantScope) -> list[Node]:
        real = choose_scale(float(np.float32(scope.quant(node.inputs[0]).scale)) * 2.0**26, Q31_MULTIPLIER)
        op = IntegerSoftmax(int(real.multiplier[0]), int(real.shift[0]))
        return [Node(node.name, op, node.inputs, node.outputs, node.sources)]


@dataclass(frozen=True)
class IntegerSoftmax(TiledOp):
    """int8[r, c] -> int8[r, c], scale 1/256, zero point -128; scale of the input: multiplier 2**(-shift - 26)."""

    NAME = "RowSoftmax"
    VERSION = 1
    multiplier: int
    shift: int

    def reference(self, inputs: Sequence[Array]) -> Array:
        return softmax8(inputs[0], self.multiplier * 2.0 ** (-self.shift - 26))

    def tilings(self, layer: Layer) -> Iterable[Tiling]:
        rows, columns = layer.output.shape
        return (Tiling(1, part, columns, 0) for part in halvings(rows))

    def nest(self, layer: Layer, tiling: Tiling) -> Nest:
        return box_nest(layer.output.shape, tiling, lambda start, size: self._work(layer, start, size))

    def _work(self, layer: Layer, start: tuple[int, ...], size: tuple[int, ...]) -> Work:
        def emit(sites: Sequence[Site], blocks: Sequence[int], out: Site | None) -> tuple[MachineOp, ...]:
            assert out is not None
            (source,) = sites
            rows = (*size, source.address, source.strides[0], out.address, out.strides[0])
            return (RowSoftmax(*rows, self.multiplier, self.shift),)

        return Work((Box(layer.node.inputs[0], start, size),), (), Box(layer.node.outputs[0], start, size), emit)


def softmax(scope: Scope) -> None:
    x = scope.node.inputs[0]
    if len(scope.shape(x)) != 2 or scope.attributes["axis"] not in (-1, 1):
        return scope.refuse("Softmax of something else than the rows of a matrix")
    return scope.emit(Softmax(), (scope.read(x, "plain"),), "plain", quant=PROBABILITIES)


RULES = {"Softmax": Rule(softmax)}
