"""The operation elementwise of a vector engine: sums, differences, products, rescalings and PRelu, with broadcasting.

Members are those of `machine.operation.MachineOp`: `meaning` yields the manual's text, `ranges` returns the touched
bytes. `demand` returns cycles and traffic, and `broken` yields the reasons why a machine cannot run it.
`find_required_key` returns the machine file's key because of which programs use the operation, None where they do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from toolchain.hw.chip import Chip
from toolchain.machine.access import Access
from toolchain.machine.channel_blocks import Extent, extent_of
from toolchain.machine.columns import IntOrColumn, code_bytes, where
from toolchain.machine.manual_text import describe_base_registers, formula, kinds_text, lies
from toolchain.machine.operation import MachineOp
from toolchain.machine.operations.addend import sum_lines
from toolchain.machine.parameters.addresses import operand_address, operand_base_of, operand_stride, surface_stride
from toolchain.machine.parameters.codes import code, code_type, make_left_shift, multiplier, shift, zero_point
from toolchain.machine.parameters.extents import extent
from toolchain.machine.parameters.modes import function
from toolchain.machine.parameters.numbers import unit_number
from toolchain.machine.traffic import Demand, traffic
from toolchain.machine.units.vector import find_function_key, rate_of, vector_demand


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
    """An elementwise function of one or two operands, by `kind`. A stride of 0 broadcasts an operand's dimension."""

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
    left_shift: int = make_left_shift()
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
    def meaning(cls, chip: Chip) -> Iterator[str]:
        yield (
            f"Element by element, by `kind` ({kinds_text(ELEMENTWISE, chip)}), for 0 <= y < height, 0 <= x < width, 0 <= c < "
            "channels."
        )
        yield formula(
            lies("a", "y, x, c", "a_address", chip, "a_type", "a_channel_stride"),
            lies("b", "y, x, c", "b_address", chip, "b_type", "b_channel_stride"),
            lies("out", "y, x, c", "output_address", chip, "output_type"),
        )
        yield (
            "A stride of 0 broadcasts: all indices of that dimension see one element. a_channel_stride and b_channel_stride "
            "are 0 or the bytes of an element. The result may lie exactly where an operand lies, with the same strides."
        )
        limits = "output_zero_point, clamp_low, clamp_high"
        lines: list[str] = []
        for kind in (ElementwiseKind.ADD, ElementwiseKind.SUB):
            lines += [
                f"{kind.name}:",
                *(f"    {line}" for line in sum_lines("a", "b", ("a", "b", "output"), "", kind.name.lower(), chip)),
            ]
        if chip.numerics.sums_in_float32("mul"):
            product = (
                "q = clamp(rint(float32((a - a_zero_point) (b - b_zero_point)) output_multiplier + output_zero_point), "
                "clamp_low, clamp_high)"
            )
        else:
            product = f"q = requantize((a - a_zero_point) (b - b_zero_point), output_multiplier, output_shift, {limits})"
        lines += [
            "MUL:",
            f"    {product}",
            "RESCALE:",
            f"    q = requantize(a - a_zero_point, output_multiplier, output_shift, {limits})",
        ]
        lines += ["PRELU:    v = a - a_zero_point", f"    v >= 0:  q = requantize(v, a_multiplier, a_shift, {limits})"]
        lines += [f"    v < 0:   q = requantize(v (b - b_zero_point), b_multiplier, b_shift, {limits})", "out = q"]
        yield formula(*lines)
        yield (
            "RESCALE reads no b. Of parameters that a kind's formula does not name it reads none. requantize and inner: "
            "[Arithmetic](#arithmetic). Sums and products are exact before their rounding."
        )
        if chip.numerics.sums_in_float32("add") or chip.numerics.sums_in_float32("mul"):
            yield (
                "In float32 every step rounds to the nearest, ties to even; fma(x, y, z) = x y + z is one step, rint rounds "
                "to the nearest integer, ties to even; `fixed` is made once for the operation. From left to right."
            )
        yield from describe_base_registers(cls.pair_bases_with_addresses(), chip, operands=True)

    @classmethod
    def find_required_key(cls, chip: Chip) -> str | None:
        return find_function_key(cls.FUNCTIONS, chip)

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

    def _operand(
        self, strides: tuple[IntOrColumn, IntOrColumn, IntOrColumn, IntOrColumn], used: IntOrColumn, size: IntOrColumn, chip: Chip
    ) -> Extent:
        """Return the extent of an operand. Broadcast dimensions touch the same bytes, which count once.

        `strides`: of rows, columns, channels, granules. `used`: 1, or 0 where the operand is not read.
        """
        row, column, channel, surface = strides
        counts = (where(row, self.height, 1), where(column, self.width, 1))
        return extent_of(counts, (row, column), used * where(channel, self.channels, 1), surface, size, chip)

    def demand(self, chip: Chip) -> Demand:
        """Return its demand. A broadcast operand is read once."""
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
