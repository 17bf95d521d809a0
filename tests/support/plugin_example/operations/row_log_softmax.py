"""Logarithm of the softmax of rows: a machine operation that the tests add."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from toolchain.hw.chip import Chip
from toolchain.machine.access import Access
from toolchain.machine.operation import MachineOp
from toolchain.machine.parameters.addresses import operand_address, operand_stride
from toolchain.machine.parameters.codes import multiplier, shift
from toolchain.machine.parameters.extents import extent
from toolchain.machine.parameters.numbers import unit_number
from toolchain.machine.traffic import Demand, traffic
from toolchain.machine.units.vector import find_function_key, rate_of, vector_demand

PASSES = 3  # over a row: its maximum, the sum of exponentials, the quotients


@dataclass(frozen=True, slots=True)
class RowLogSoftmax(MachineOp):
    """An operation for log softmax of rows: out[r, :] = log(softmax(in[r, :])), in integers only, as TFLite's LOG_SOFTMAX.

    The input is int8 of scale multiplier 2**(-shift - 26), the output of scale 1/16 and zero point 127.
    """

    NAME = "row_log_softmax"
    ENGINE = "vector"
    FUNCTIONS = ("row_log_softmax",)
    rows: int = extent()
    columns: int = extent()
    input_address: int = operand_address("input")
    input_row_stride: int = operand_stride("input")
    output_address: int = operand_address("output")
    output_row_stride: int = operand_stride("output")
    multiplier: int = multiplier()
    shift: int = shift()
    unit: int = unit_number()

    @classmethod
    def meaning(cls, chip: Chip) -> Iterator[str]:
        yield "The logarithm of the softmax of each row, as TFLite's LOG_SOFTMAX: out has scale 1/16 and zero point 127."

    @classmethod
    def find_required_key(cls, chip: Chip) -> str | None:
        return find_function_key(cls.FUNCTIONS, chip)

    def ranges(self, chip: Chip) -> tuple[Access, ...]:
        roles, counts = self.unit_in(chip).roles, (self.rows,)
        return (
            Access(roles["input"], self.input_address, counts, (self.input_row_stride,), self.columns, False),
            Access(roles["output"], self.output_address, counts, (self.output_row_stride,), self.columns, True),
        )

    def demand(self, chip: Chip) -> Demand:
        unit, elements = self.unit_in(chip), self.rows * self.columns
        moved = traffic(unit, ("input", PASSES * elements, 0), ("output", 0, elements))
        return vector_demand(unit, chip, rate_of(unit, chip, self.FUNCTIONS), elements, moved, PASSES)

    def broken(self, chip: Chip) -> Iterator[str]:
        unit = self.unit_in(chip)
        if "row_log_softmax" not in unit.vector.functions:
            yield f"{unit.key}.functions has no row_log_softmax"
        if chip.code_types[0].bits != 8:
            yield f"row_log_softmax takes int8, numerics.activation is {chip.numerics.activation}"
