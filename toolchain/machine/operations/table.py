"""Functions of one tensor, by a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from toolchain.hw.chip import Chip
from toolchain.machine.operation import Access, Demand, MachineOp
from toolchain.machine.operations.window import broken_table, sram_access, table_bytes
from toolchain.machine.parameter import Space, extent, sram_address, sram_stride
from toolchain.machine.units.vector import needed_functions, vector_demand


@dataclass(frozen=True, slots=True)
class Table(MachineOp):
    """out[y, x, c] = table[in[y, x, c]]; the table of `chip.numerics.table` lies in SRAM: int8[256], the entry for code -128
    first, or int16[513].
    """

    NAME = "table"
    ENGINE = "vector"
    height: int = extent()
    width: int = extent()
    channels: int = extent()
    input_address: int = sram_address()
    input_row_stride: int = sram_stride()
    input_column_stride: int = sram_stride()
    output_address: int = sram_address()
    output_row_stride: int = sram_stride()
    output_column_stride: int = sram_stride()
    table_address: int = sram_address(1)

    @classmethod
    def needed(cls, chip: Chip) -> str | None:
        return needed_functions(("table",), chip)

    def ranges(self, chip: Chip) -> tuple[Access, ...]:
        counts, inner = (self.height, self.width), self.channels * chip.activation_bytes
        source, target = (self.input_row_stride, self.input_column_stride), (self.output_row_stride, self.output_column_stride)
        return (
            Access(Space.SRAM, self.input_address, counts, source, inner, False, in_step=True),
            sram_access(self.table_address, (), (), table_bytes(chip)),
            Access(Space.SRAM, self.output_address, counts, target, inner, True),
        )

    def demand(self, chip: Chip) -> Demand:
        elements = self.height * self.width * self.channels
        return vector_demand(chip, elements, elements * chip.activation_bytes + table_bytes(chip))

    def broken(self, chip: Chip) -> Iterator[str]:
        if "table" not in chip.engines.vector.operations:
            yield "engines.vector.operations has no table"
        yield from broken_table(chip)
