"""Reshape and Transpose: the same codes under another shape, or in another order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, Node
from toolchain.ops.kit.operator import (
    Array,
    FloatOp,
    Layer,
    MoveOp,
    NpuOp,
    PerSample,
    QuantScope,
    alike_per_sample,
    of_sample,
    sample_axis,
)
from toolchain.ops.kit.tile import FillBox, Loop, Move

Shape = tuple[int, ...]


class Keeping(FloatOp, NpuOp):
    """Float and integer form are one: codes move, scales stay."""

    keeps_scale = True

    def unsupported(self, node: Node, graph: Graph, chip: Chip) -> str | None:
        return None

    def quantize(self, node: Node, scope: QuantScope) -> list[Node]:
        return [node]


@dataclass(frozen=True)
class Reshape(Keeping):
    """The same bytes under another shape: costs nothing."""

    NAME = "Reshape"
    VERSION = 1
    shape: Shape

    def per_sample(self, layer: Layer, axis: int, count: int) -> PerSample | None:
        """A sample is a run of its own on both sides."""
        source = layer.input_type(0).shape
        where = sample_axis(source)
        held = where is not None and source[where] % count == 0
        return PerSample(Reshape(of_sample(self.shape, count)), layer.activations) if held else None

    def reference(self, inputs: Sequence[Array]) -> Array:
        return inputs[0].reshape(self.shape)


@dataclass(frozen=True)
class Transpose(Keeping, MoveOp):
    """y's dimension i is x's dimension perm[i]."""

    NAME = "Transpose"
    VERSION = 1
    perm: Shape

    def per_sample(self, layer: Layer, axis: int, count: int) -> PerSample | None:
        return alike_per_sample(self, layer, axis, self.perm[axis])

    def reference(self, inputs: Sequence[Array]) -> Array:
        return np.asarray(inputs[0].transpose(self.perm), order="C")

    def moves(self, layer: Layer) -> tuple[list[FillBox], list[Move]]:
        shape = layer.output.shape
        loops = tuple(Loop(n, p, 1, i, 1) for i, (n, p) in enumerate(zip(shape, self.perm)))
        zero = (0,) * len(shape)
        return [], [Move(0, zero, zero, loops)]


def permutation(shape: tuple[int, ...], perm: tuple[int, ...]) -> Reshape | Transpose:
    """A Transpose, or the Reshape it amounts to when only dimensions of size one move."""
    kept = [p for p in perm if shape[p] != 1]
    if kept == sorted(kept):
        return Reshape(tuple(shape[p] for p in perm))
    return Transpose(perm)
