"""Trilu of matrices: the part on one side of the diagonal, zeros elsewhere. A whole operator in one file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, Node
from toolchain.ops.kit.operator import Array, FloatOp, Layer, MoveOp
from toolchain.ops.kit.quant_context import QuantContext
from toolchain.ops.kit.rule import Rule
from toolchain.ops.kit.selection_context import SelectionContext
from toolchain.ops.kit.tile import FillBox, Loop, Move


@dataclass(frozen=True)
class Triangle(FloatOp):
    """y[i, j] = x[i, j] where j >= i, else 0."""

    keeps_scale = True

    def find_unsupported_reason(self, node: Node, graph: Graph, chip: Chip) -> str | None:
        return None

    def quantize(self, node: Node, scope: QuantContext) -> list[Node]:
        integer = IntegerTriangle(scope.quant(node.inputs[0]).zero_point)
        return [Node(node.name, integer, node.inputs, node.outputs, node.sources)]


@dataclass(frozen=True)
class IntegerTriangle(MoveOp):
    """The same on codes; `code` is that of zero."""

    NAME = "Triangle"
    VERSION = 1
    code: int
    keeps_scale = True

    def reference(self, inputs: Sequence[Array]) -> Array:
        x = inputs[0]
        return np.where(np.triu(np.ones(x.shape, bool)), x, x.dtype.type(self.code))

    def moves(self, layer: Layer) -> tuple[list[FillBox], list[Move]]:
        rows, columns = layer.output.shape
        fills = [FillBox((i, 0), (1, min(i, columns)), self.code) for i in range(1, rows)]
        copies = [
            Move(0, (i, i), (i, i), (Loop(1, 0, 1, 0, 1), Loop(columns - i, 1, 1, 1, 1))) for i in range(min(rows, columns))
        ]
        return fills, copies


def triangle(scope: SelectionContext) -> None:
    x, *diagonal = scope.node.inputs
    if diagonal or not scope.attributes.get("upper", 1) or len(scope.shape(x)) != 2:
        return scope.refuse("a triangle that is not the upper one of a matrix")
    return scope.emit(Triangle(), (scope.read(x, "plain"),), "plain")


RULES = {"Trilu": Rule(triangle)}
