"""Functions of one tensor, by a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from toolchain.hw.chip import Chip
from toolchain.machine.operation import Access, Demand, MachineOp, traffic
from toolchain.machine.operations.window import broken_table, read_of, table_bytes
from toolchain.machine.parameter import extent, operand_address, operand_stride, unit_number
from toolchain.machine.units.vector import needed_functions, rate_of, vector_demand


@dataclass(frozen=True, slots=True)
class Table(MachineOp):
    """out[y, x, c] = table[in[y, x, c]]; the table of `chip.numerics.table`: int8[256], the entry for code -128
    first, or int16[513].
    """

    NAME = "table"
    ENGINE = "vector"
    FUNCTIONS = ("table",)
    height: int = extent()
    width: int = extent()
    channels: int = extent()
    input_address: int = operand_address("input")
    input_row_stride: int = operand_stride("input")
    input_column_stride: int = operand_stride("input")
    output_address: int = operand_address("output")
    output_row_stride: int = operand_stride("output")
    output_column_stride: int = operand_stride("output")
    table_address: int = operand_address("tables", 1)
    unit: int = unit_number()

    @classmethod
    def needed(cls, chip: Chip) -> str | None:
        return needed_functions(cls.FUNCTIONS, chip)

    def ranges(self, chip: Chip) -> tuple[Access, ...]:
        unit = self.unit_in(chip)
        counts, inner = (self.height, self.width), self.channels * chip.activation_bytes
        source, target = (self.input_row_stride, self.input_column_stride), (self.output_row_stride, self.output_column_stride)
        return (
            Access(unit.roles["input"], self.input_address, counts, source, inner, False, in_step=True),
            read_of(unit, "tables", self.table_address, (), (), table_bytes(chip)),
            Access(unit.roles["output"], self.output_address, counts, target, inner, True),
        )

    def demand(self, chip: Chip) -> Demand:
        unit, elements = self.unit_in(chip), self.height * self.width * self.channels
        size_bytes = elements * chip.activation_bytes
        moved = traffic(unit, ("input", size_bytes, 0), ("tables", table_bytes(chip), 0), ("output", 0, size_bytes))
        return vector_demand(unit, chip, rate_of(unit, self.FUNCTIONS), elements, moved)

    def broken(self, chip: Chip) -> Iterator[str]:
        unit = self.unit_in(chip)
        if "table" not in unit.vector.functions:
            yield f"{unit.key}.functions has no table"
        yield from broken_table(chip)
