"""Define Reshape and Transpose: the same codes under another shape, or in another order. `MoveOp` says what the methods mean."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from quant.fixed_point.core.device_arrays import as_contiguous
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, Node
from toolchain.ops.kit.operator import (
    Array,
    FloatOp,
    Layer,
    MoveOp,
    NpuOp,
    PerSample,
    sample_axis,
    sample_shape,
    split_per_sample,
)
from toolchain.ops.kit.quant_context import QuantContext
from toolchain.ops.kit.tile import FillBox, Loop, Move

Shape = tuple[int, ...]


class ScalePreserving(FloatOp, NpuOp):
    """The base of operators whose float and integer form are one: codes move, scales stay, and every machine runs them."""

    keeps_scale = True

    def find_unsupported_reason(self, node: Node, graph: Graph, chip: Chip) -> str | None:
        return None

    def quantize(self, node: Node, scope: QuantContext) -> list[Node]:
        return [node]


@dataclass(frozen=True)
class Reshape(ScalePreserving, MoveOp):
    """The same codes under another shape.

    It costs nothing where both shapes lie the same in memory. It moves codes where one side lies in granules of channels.
    """

    NAME = "Reshape"
    VERSION = 1
    takes_device_arrays = True
    shape: Shape

    def per_sample(self, layer: Layer, axis: int, count: int) -> PerSample | None:
        """Return the Reshape of one sample; on both sides a sample must be a contiguous run."""
        source = layer.input_type(0).shape
        where = sample_axis(source)
        divides = where is not None and source[where] % count == 0
        return PerSample(Reshape(sample_shape(self.shape, count)), layer.activations) if divides else None

    def reference(self, inputs: Sequence[Array]) -> Array:
        return inputs[0].reshape(self.shape)

    def moves(self, layer: Layer) -> tuple[list[FillBox], list[Move]]:
        source, target = layer.input_type(0).shape, layer.output.shape
        in_granules = [name in layer.feature_maps for name in (layer.node.inputs[0], layer.node.outputs[0])]
        return [], list(reshaping(source, target, *in_granules))


@dataclass(frozen=True)
class Transpose(ScalePreserving, MoveOp):
    """An operator whose output dimension i is x's dimension perm[i]."""

    NAME = "Transpose"
    VERSION = 1
    takes_device_arrays = True
    perm: Shape

    def per_sample(self, layer: Layer, axis: int, count: int) -> PerSample | None:
        return split_per_sample(self, layer, axis, self.perm[axis])

    def reference(self, inputs: Sequence[Array]) -> Array:
        return as_contiguous(inputs[0].transpose(self.perm))

    def moves(self, layer: Layer) -> tuple[list[FillBox], list[Move]]:
        shape = layer.output.shape
        loops = tuple(Loop(n, p, 1, i, 1) for i, (n, p) in enumerate(zip(shape, self.perm)))
        zero = (0,) * len(shape)
        return [], [Move(0, zero, zero, loops)]


def permutation(shape: tuple[int, ...], perm: tuple[int, ...]) -> Reshape | Transpose:
    """Return a Transpose by `perm`, or the Reshape that does the same where only dimensions of size one move."""
    long_dims = [p for p in perm if shape[p] != 1]
    if long_dims == sorted(long_dims):
        return Reshape(tuple(shape[p] for p in perm))
    return Transpose(perm)


def reshaping(source: Shape, target: Shape, cut_source: bool, cut_target: bool) -> Iterator[Move]:
    """Yield the moves of a Reshape between two layouts in memory.

    `cut_source`, `cut_target`: whether that side lies in granules of channels. With one such side its dimensions are the
    loops. With both, the loops go over factors of both, or, where sizes do not divide, over runs that lie in one row on each
    side.
    """
    start, begin = (0,) * len(source), (0,) * len(target)
    if not (cut_source and cut_target):
        shape = target if cut_target else source
        steps = [(n, d, math.prod(shape[d + 1 :])) for d, n in enumerate(shape)]
        flat = len(source if cut_target else target) - 1
        loops = (Loop(n, flat, step, d, 1) if cut_target else Loop(n, d, 1, flat, step) for n, d, step in steps)
        yield Move(0, start, begin, tuple(loops))
        return
    bounds = sorted({math.prod(shape[d:]) for shape in (source, target) for d in range(len(shape) + 1)})
    if all(b % a == 0 for a, b in pairwise(bounds)):
        loops = (Loop(b // a, *_along(source, a), *_along(target, a)) for a, b in pairwise(bounds))
        yield Move(0, start, begin, tuple(loops))
        return
    total, rows = math.prod(source), (source[-1], target[-1])
    cuts = sorted({*range(0, total, rows[0]), *range(0, total, rows[1]), total})
    for first, end in pairwise(cuts):
        at, to = (tuple(int(i) for i in np.unravel_index(first, shape)) for shape in (source, target))
        yield Move(0, at, to, (Loop(end - first, len(source) - 1, 1, len(target) - 1, 1),))


def _along(shape: Shape, stride: int) -> tuple[int, int]:
    """Return the dimension along which elements are `stride` apart in row-major order, and how many of its steps that is."""
    inner = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    dimension = next(d for d, n in enumerate(shape) if inner[d] <= stride < inner[d] * n)
    return dimension, stride // inner[dimension]
