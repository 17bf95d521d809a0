"""Define sum, difference, product and PRelu of two tensors of codes, in tiles of the vector engine.

They are TFLite's ADD, SUB, MUL (see quant.fixed_point.pointwise.elementwise), with the roundings of `numerics.per_op`.
Methods follow `TiledOp` in `ops.kit.operator`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

from quant.fixed_point.core.requant import Requant
from quant.fixed_point.pointwise.elementwise import add, mul, prelu
from toolchain import machine
from toolchain.machine import ElementwiseKind
from toolchain.ops.kit.box_tiles import PointwiseOp, box_nest, broadcast_strides, constant_block, operand_box
from toolchain.ops.kit.elementwise import elementwise
from toolchain.ops.kit.nest import Nest
from toolchain.ops.kit.operator import Array, Layer, PerSample
from toolchain.ops.kit.requants import pair
from toolchain.ops.kit.tile import Box, BoxLocation, Extent, TileTask, Tiling

Kind = Literal["add", "sub", "mul", "prelu"]


@dataclass(frozen=True, eq=False)
class IntegerBinary(PointwiseOp):
    """An integer operator of two tensors of codes, which broadcast as in numpy.

    `kind`: one of add, sub, mul, prelu.
    `add`, `sub`: out(a << s) +- out(b << s), or in float32, a's product added last.
    `mul`: out((a - za)(b - zb)); a_requant and b_requant are None.
    `prelu`: a_requant where a >= za, else b_requant.
    `left_shift`: s, the bits by which operands of a sum are shifted first; 0 for other kinds and sums in float32.
    """

    NAME = "Binary"
    VERSION = 2
    takes_device_arrays = True
    kind: Kind
    a_zero_point: int
    b_zero_point: int
    left_shift: int
    a_requant: Requant | None
    b_requant: Requant | None
    out_requant: Requant

    def reference(self, inputs: Sequence[Array]) -> Array:
        """Compute the output's codes by `kind`, as the class says."""
        a, b = inputs
        za, zb = self.a_zero_point, self.b_zero_point
        if self.kind == "mul":
            return mul(a, b, self.out_requant, a_zero_point=za, b_zero_point=zb, dtype=self.out_requant.dtype)
        assert self.a_requant is not None and self.b_requant is not None
        if self.kind == "prelu":
            return prelu(
                a,
                b,
                self.a_requant,
                self.b_requant,
                x_zero_point=za,
                alpha_zero_point=zb,
                dtype=self.out_requant.dtype,
            )
        return add(
            a,
            b,
            self.a_requant,
            self.b_requant,
            self.out_requant,
            left_shift=self.left_shift,
            subtract=self.kind == "sub",
            a_zero_point=za,
            b_zero_point=zb,
            dtype=self.out_requant.dtype,
        )

    def per_sample(self, layer: Layer, axis: int, count: int) -> PerSample | None:
        """Return the operator itself for one sample along `axis`; None where a constant holds a part for each sample.

        An operand with one element along the samples, or without that dimension, serves them all.
        """
        counted: list[str] = []
        for name in layer.node.inputs:
            shape = layer.types[name].shape
            operand_axis = axis - (len(layer.output.shape) - len(shape))
            if operand_axis >= 0 and shape[operand_axis] > 1:
                counted.append(name)
        return None if any(n in layer.constants for n in counted) else PerSample(self, tuple(counted))

    def tiling_key(self) -> Hashable:
        return self.kind

    def nest(self, layer: Layer, tiling: Tiling, extent: Extent | None = None) -> Nest:
        return box_nest(layer.output.shape, tiling, lambda start, size: self._make_task(layer, start, size), extent)

    def _make_task(self, layer: Layer, start: tuple[int, ...], size: tuple[int, ...]) -> TileTask:
        boxes = [operand_box(n, layer.types[n].shape, start, size) for n in layer.node.inputs]
        constant = [n in layer.constants for n in layer.node.inputs]
        reads = tuple(r for r, c in zip(boxes, constant) if not c)
        blocks = tuple(constant_block(layer, r) for r, c in zip(boxes, constant) if c)

        def emit(
            sites: Sequence[BoxLocation], addresses: Sequence[int], out: BoxLocation | None
        ) -> tuple[machine.MachineOp, ...]:
            assert out is not None
            moving, fixed = iter(sites), iter(addresses)
            at = [BoxLocation(next(fixed), layer.strides(r)) if c else next(moving) for r, c in zip(boxes, constant)]
            a = broadcast_strides(boxes[0], at[0], len(size))
            b = broadcast_strides(boxes[1], at[1], len(size))
            numbers = [layer.type_number(n) for n in (*layer.node.inputs, *layer.node.outputs)]
            surfaces = at[0].strides.surface_bytes, at[1].strides.surface_bytes
            return (self._instruction(at, a, b, size, out, numbers, surfaces),)

        return TileTask(reads, blocks, Box(layer.node.outputs[0], start, size), emit)

    def _instruction(
        self,
        at: list[BoxLocation],
        a: Sequence[int],
        b: Sequence[int],
        size: tuple[int, ...],
        out: BoxLocation,
        types: Sequence[int],
        surfaces: tuple[int, int],
    ) -> machine.Elementwise:
        r = self.out_requant
        first = pair(self.a_requant) if self.a_requant is not None else (0, 0)
        second = pair(self.b_requant) if self.b_requant is not None else (0, 0)
        last = pair(r) if self.kind != "prelu" else (0, 0)
        return elementwise(
            ElementwiseKind[self.kind.upper()],
            size,
            out,
            a=(at[0].address, *a, self.a_zero_point, *first),
            b=(at[1].address, *b, self.b_zero_point, *second),
            output=(r.zero_point, *last, r.low, r.high),
            left_shift=self.left_shift,
            types=types,
            surfaces=surfaces,
        )
