"""The operation emit of a vector engine: sums in a memory of accumulators are requantized and written as activations.

Members are those of `machine.operation.MachineOp`: `meaning` yields the manual's text, `ranges` returns the touched
bytes. `demand` returns cycles and traffic, and `broken` yields the reasons why a machine cannot run it.
`find_required_key` returns the machine file's key because of which programs use the operation, None where they do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from toolchain.hw.chip import Chip
from toolchain.hw.unit_map import SUMS
from toolchain.machine.access import Access, read_of
from toolchain.machine.accumulator_access import broken_sums_address, sums_role
from toolchain.machine.channel_blocks import count_stored_channels, extent_of
from toolchain.machine.columns import IntOrColumn, code_bytes, table_bytes, where
from toolchain.machine.layout import parameter_bytes
from toolchain.machine.manual_text import formula, lies
from toolchain.machine.operation import MachineOp
from toolchain.machine.operations.addend import WithAddend, broken_post
from toolchain.machine.operations.window import broken_table
from toolchain.machine.parameters.addresses import (
    block_address,
    operand_address,
    operand_stride,
    parameter_address,
    sums_address,
    surface_stride,
)
from toolchain.machine.parameters.codes import code, code_type, multiplier, shift, zero_point
from toolchain.machine.parameters.extents import extent
from toolchain.machine.parameters.modes import only_with, post_flag, sums_kind
from toolchain.machine.parameters.numbers import unit_number
from toolchain.machine.traffic import Demand, traffic
from toolchain.machine.units.vector import find_function_key, rate_of, vector_demand


class EmitKind(IntEnum):
    """The kind of operation that made the sums, which decides where their requantization comes from."""

    CONVOLUTION = 0
    MATRIX_PRODUCT = 1


@dataclass(frozen=True, slots=True)
class _SumsOperand(MachineOp):
    """A base with the parameters that come before the addend in the constructor: the sums, and where results go."""

    ABSTRACT: ClassVar[bool] = True
    ENGINE = "vector"
    kind: EmitKind = sums_kind(EmitKind)
    height: int = extent()
    width: int = extent()
    channels: int = extent()
    sums_address: int = sums_address(choice=False)
    output_address: int = operand_address("output")
    output_row_stride: int = operand_stride("output")
    output_column_stride: int = operand_stride("output")
    parameter_address: int = parameter_address("tables")
    output_zero_point: int = zero_point("output_type")
    clamp_low: int = code("output_type")
    clamp_high: int = code("output_type")
    use_table: int = post_flag("table")
    table_address: int = only_with("table", block_address("tables"))


@dataclass(frozen=True, slots=True)
class Emit(WithAddend, _SumsOperand):
    """Requantizes the sums that an array left in its memory of accumulators, and writes the results. The sums stay.

    CONVOLUTION: bias, multiplier and shift of each channel are at `parameter_address`.
    MATRIX_PRODUCT: `multiplier` and `shift` are the operation's own, and there is no bias.
    `unit`: the number of the vector engine that runs it.
    """

    NAME = "emit"
    FUNCTIONS = ("emit",)
    multiplier: int = multiplier()
    shift: int = shift()
    unit: int = unit_number()
    output_type: int = code_type()
    addend_type: int = code_type()
    output_surface_stride: int = surface_stride("output")
    addend_surface_stride: int = only_with("add", surface_stride("input"))

    @classmethod
    def meaning(cls, chip: Chip) -> Iterator[str]:
        size, entry = chip.array.accumulators.sum_bytes, chip.layout.parameters.size_bytes
        yield "Makes results of an array's sums, for 0 <= y < height, 0 <= x < width, 0 <= o < channels, in this order:"
        limits = "output_zero_point, clamp_low, clamp_high"
        steps = [
            f"sum[y, x, o] lies at  sums_address + ((y width + x) channels + o) {size}",
            "CONVOLUTION:     a = wrap(sum[y, x, o] + bias[o])",
            f"                 q = requantize(a, multiplier[o], shift[o], {limits})",
            f"MATRIX_PRODUCT:  q = requantize(sum[y, x, o], multiplier, shift, {limits})",
        ]
        steps += ["where use_table = 1:  q = table[q], the table at table_address"] if cls.need("use_table", chip).high else []
        yield formula(
            *steps, *cls.describe_sum(chip), "out[y, x, o] = q", lies("out", "y, x, o", "output_address", chip, "output_type")
        )
        yield (
            "`kind`: 0 CONVOLUTION, sums of convolution or depthwise: bias[o], multiplier[o] and shift[o] are entry o of the "
            f"parameters, {entry} bytes from parameter_address + {entry} o on ([Layout of constants](#layout-of-constants)); 1 "
            "MATRIX_PRODUCT: the operation's own multiplier and shift, rounded as matrix_product. wrap and requantize: "
            "[Arithmetic](#arithmetic). The sums stay as they are."
        )
        if cls.describe_sum(chip):
            yield formula(lies("addend", "y, x, o", "addend_address", chip, "addend_type"))

    @classmethod
    def find_required_key(cls, chip: Chip) -> str | None:
        return find_function_key(cls.FUNCTIONS, chip)

    def ranges(self, chip: Chip) -> tuple[Access, ...]:
        unit, size, counts = self.unit_in(chip), code_bytes(self.output_type, chip), (self.height, self.width)
        strides = (self.output_row_stride, self.output_column_stride)
        parameters, looked_up, _ = self._read_bytes(chip)
        return (
            read_of(unit, sums_role(unit), self.sums_address, (), (), self._elements() * chip.array.accumulators.sum_bytes),
            read_of(unit, "tables", self.parameter_address, (), (), parameters),
            read_of(unit, "tables", self.table_address, (), (), looked_up),
            *self.addend_accesses(unit, counts, self.channels, chip),
            Access(
                unit.roles["output"],
                self.output_address,
                *extent_of(counts, strides, self.channels, self.output_surface_stride, size, chip),
                True,
            ),
        )

    def addend(self) -> tuple[IntOrColumn, IntOrColumn]:
        return self.addend_type, self.addend_surface_stride

    def _elements(self) -> IntOrColumn:
        return self.height * self.width * self.channels

    def _read_bytes(self, chip: Chip) -> tuple[IntOrColumn, IntOrColumn, IntOrColumn]:
        """Return the bytes read of parameters, of the table, and of the addend of one pixel."""
        each = where(self.kind == EmitKind.CONVOLUTION, parameter_bytes(self.channels, chip), 0)
        return (
            each,
            where(self.use_table, table_bytes(self.output_type, chip), 0),
            self.addend_bytes(self.channels, chip),
        )

    def demand(self, chip: Chip) -> Demand:
        unit, elements = self.unit_in(chip), self._elements()
        sums = sums_role(unit)
        parameters, looked_up, added = self._read_bytes(chip)
        written = self.height * self.width * count_stored_channels(self.channels, self.output_surface_stride, chip)
        moved = traffic(
            unit,
            (sums, elements * chip.array.accumulators.sum_bytes, 0),
            ("tables", parameters + looked_up, 0),
            ("input", self.height * self.width * added, 0),
            ("output", 0, written * code_bytes(self.output_type, chip)),
        )
        return vector_demand(
            unit,
            chip,
            rate_of(unit, chip, self.FUNCTIONS, types=(self.output_type,)),
            elements,
            moved,
            roles=(sums, "tables", "input"),
        )

    def broken(self, chip: Chip) -> Iterator[str]:
        unit = self.unit_in(chip)
        if "emit" not in unit.vector.functions:
            yield f"{unit.key}.functions has no emit"
            return
        if SUMS not in unit.roles:
            yield f"{unit.key}.memories names no sums"
            return
        yield from broken_sums_address(self.sums_address, chip.array.accumulators.sum_bytes)
        if self.use_table:
            yield from broken_table("output_type", self.output_type, chip)
        posts = [post for array in chip.of_kind("mac_array") for post in array.array.post]
        yield from broken_post(chip.key("mac_array"), [("table", self.use_table), ("add", self.use_add)], posts)
