"""Element by element: sums, differences, products, rescalings, PRelu."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from toolchain.hw.chip import Chip
from toolchain.machine.access import Access
from toolchain.machine.codes import code_bytes
from toolchain.machine.columns import Whole, where
from toolchain.machine.granules import Extent, extent_of
from toolchain.machine.operation import MachineOp
from toolchain.machine.parameters.addresses import operand_address, operand_base_of, operand_stride, surface_stride
from toolchain.machine.parameters.codes import code, code_type, left_shift, multiplier, shift, zero_point
from toolchain.machine.parameters.extents import extent
from toolchain.machine.parameters.modes import function
from toolchain.machine.parameters.numbers import unit_number
from toolchain.machine.traffic import Demand, traffic
from toolchain.machine.units.vector import needed_functions, rate_of, vector_demand


class ElementwiseKind(IntEnum):
    ADD = 0
    SUB = 1
    MUL = 2
    RESCALE = 3
    PRELU = 4


# By the names of a vector engine's functions.
ELEMENTWISE = {kind.name.lower(): kind for kind in ElementwiseKind}


@dataclass(frozen=True, slots=True)
class Elementwise(MachineOp):
    """out[y, x, c] from a[y, x, c] and b[y, x, c]; a stride of 0 broadcasts, a surface stride of 0 says that channels lie
    together; out is contiguous along c, or along those of a granule.

    ADD/SUB: clamp(req_out(req_a((a - za) << left_shift) +- req_b((b - zb) << left_shift)) + zo). req_a and req_b do not clamp.
    MUL: clamp(req_out((a - za) (b - zb)) + zo). RESCALE: clamp(req_out(a - za) + zo), b unused.
    PRELU: b holds the slopes; v = a - za; v >= 0 ? req_a(v) : req_b(v (b - zb)), + zo, clamp.

    Where they round fp32_rne, sums and products are of float32 numbers, every step rounded to the nearest, ties to even; fma
    is one step. ADD/SUB: clamp(rint(fma(a, ra, fma(b, rb, fixed)))) with ra = a_multiplier, rb = b_multiplier (SUB: its
    negative), fixed = zo - fma(za, ra, zb rb), once for the operation; left_shift and output_multiplier are not read.
    MUL: clamp(rint(float32((a - za) (b - zb)) output_multiplier + zo)), three steps.
    """

    NAME = "elementwise"
    ENGINE = "vector"
    FUNCTIONS = tuple(ELEMENTWISE)
    kind: ElementwiseKind = function(ElementwiseKind, ELEMENTWISE)
    height: int = extent()
    width: int = extent()
    channels: int = extent()
    a_address: int = operand_address("input")
    a_row_stride: int = operand_stride("input")
    a_column_stride: int = operand_stride("input")
    a_channel_stride: int = operand_stride("input")
    b_address: int = operand_address("input")
    b_row_stride: int = operand_stride("input")
    b_column_stride: int = operand_stride("input")
    b_channel_stride: int = operand_stride("input")
    output_address: int = operand_address("output")
    output_row_stride: int = operand_stride("output")
    output_column_stride: int = operand_stride("output")
    a_zero_point: int = zero_point("a_type")
    b_zero_point: int = zero_point("b_type")
    output_zero_point: int = zero_point("output_type")
    left_shift: int = left_shift()
    a_multiplier: int = multiplier()
    a_shift: int = shift()
    b_multiplier: int = multiplier()
    b_shift: int = shift()
    output_multiplier: int = multiplier()
    output_shift: int = shift()
    clamp_low: int = code("output_type")
    clamp_high: int = code("output_type")
    unit: int = unit_number()
    a_base: int = operand_base_of("a_address")
    b_base: int = operand_base_of("b_address")
    output_base: int = operand_base_of("output_address")
    a_type: int = code_type()
    b_type: int = code_type()
    output_type: int = code_type()
    a_surface_stride: int = surface_stride("input")
    b_surface_stride: int = surface_stride("input")
    output_surface_stride: int = surface_stride("output")

    @classmethod
    def needed(cls, chip: Chip) -> str | None:
        return needed_functions(cls.FUNCTIONS, chip)

    def ranges(self, chip: Chip) -> tuple[Access, ...]:
        roles = self.unit_in(chip).roles
        a_bytes, b_bytes, size = (code_bytes(t, chip) for t in (self.a_type, self.b_type, self.output_type))
        a_strides = (self.a_row_stride, self.a_column_stride, self.a_channel_stride, self.a_surface_stride)
        b_strides = (self.b_row_stride, self.b_column_stride, self.b_channel_stride, self.b_surface_stride)
        used = where(self.kind == ElementwiseKind.RESCALE, 0, 1)
        a = Access(roles["input"], self.a_address, *self._operand(a_strides, 1, a_bytes, chip), False, in_step=True)
        b = Access(roles["input"], self.b_address, *self._operand(b_strides, used, b_bytes, chip), False, in_step=True)
        counts, strides = (self.height, self.width), (self.output_row_stride, self.output_column_stride)
        written = extent_of(counts, strides, self.channels, self.output_surface_stride, size, chip)
        return (a, b, Access(roles["output"], self.output_address, *written, True))

    def _operand(self, strides: tuple[Whole, Whole, Whole, Whole], used: Whole, size: Whole, chip: Chip) -> Extent:
        """Broadcast dimensions touch the same bytes: they are counted once. strides: of rows, columns, channels, granules."""
        row, column, channel, surface = strides
        counts = (where(row, self.height, 1), where(column, self.width, 1))
        return extent_of(counts, (row, column), used * where(channel, self.channels, 1), surface, size, chip)

    def demand(self, chip: Chip) -> Demand:
        """A broadcast operand is read once."""
        a, b, written = self.ranges(chip)
        unit = self.unit_in(chip)
        moved = traffic(unit, ("input", a.bytes + b.bytes, 0), ("output", 0, written.bytes))
        b_type = where(self.kind == ElementwiseKind.RESCALE, self.a_type, self.b_type)
        rate = rate_of(unit, chip, self.FUNCTIONS, self.kind, types=(self.a_type, b_type, self.output_type))
        return vector_demand(unit, chip, rate, self.height * self.width * self.channels, moved)

    def broken(self, chip: Chip) -> Iterator[str]:
        name = next((name for name, kind in ELEMENTWISE.items() if kind == self.kind), None)
        if name is None:
            yield f"kind={self.kind} is no elementwise operation"
            return
        if name not in self.unit_in(chip).vector.functions:
            yield f"{self.unit_in(chip).key}.functions has no {name}"
        for operand, stride, number in (("a", self.a_channel_stride, self.a_type), ("b", self.b_channel_stride, self.b_type)):
            size = code_bytes(number, chip)
            unused = operand == "b" and self.kind == ElementwiseKind.RESCALE
            if self.channels > 1 and stride not in (0, size) and not unused:
                yield f"{operand}_channel_stride={stride}, must be 0 (broadcast) or {size} (one element)"
