"""The operation table of a vector engine: a function of each code, looked up in a table of codes.

Members are those of `machine.operation.MachineOp`: `meaning` yields the manual's text, `ranges` returns the touched
bytes. `demand` returns cycles and traffic, and `broken` yields the reasons why a machine cannot run it.
`find_required_key` returns the machine file's key because of which programs use the operation, None where they do not.

TABLE_FUNCTIONS are the functions by their names in a vector engine's `functions`, in the order of their codes. ANY is the
function that stands for all that an engine does not name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import IntEnum

from toolchain.hw.chip import Chip
from toolchain.machine.access import Access, read_of
from toolchain.machine.channel_blocks import extent_of
from toolchain.machine.columns import code_bytes, table_bytes
from toolchain.machine.manual_text import describe_base_registers, formula, lies
from toolchain.machine.operation import MachineOp
from toolchain.machine.operations.window import broken_table
from toolchain.machine.parameters.addresses import block_address, operand_address, operand_base_of, operand_stride, surface_stride
from toolchain.machine.parameters.codes import code_type
from toolchain.machine.parameters.extents import extent
from toolchain.machine.parameters.modes import function
from toolchain.machine.parameters.numbers import unit_number
from toolchain.machine.traffic import Demand, traffic
from toolchain.machine.units.vector import find_function_key, rate_of, vector_demand


class TableFunction(IntEnum):
    """The function that a table holds, which decides its time alone: TABLE for any, or one ONNX operator's."""

    TABLE = 0
    ABS = 1
    ACOS = 2
    ACOSH = 3
    ASIN = 4
    ASINH = 5
    ATAN = 6
    ATANH = 7
    CEIL = 8
    CELU = 9
    CLIP = 10
    COS = 11
    COSH = 12
    ELU = 13
    ERF = 14
    EXP = 15
    FLOOR = 16
    GELU = 17
    HARD_SIGMOID = 18
    HARD_SWISH = 19
    LEAKY_RELU = 20
    LOG = 21
    MISH = 22
    NEG = 23
    RECIPROCAL = 24
    RELU = 25
    ROUND = 26
    SELU = 27
    SIGMOID = 28
    SIGN = 29
    SIN = 30
    SINH = 31
    SOFTPLUS = 32
    SOFTSIGN = 33
    SQRT = 34
    SWISH = 35
    TAN = 36
    TANH = 37
    THRESHOLDED_RELU = 38


TABLE_FUNCTIONS = {function.name.lower(): function for function in TableFunction}
ANY = "table"


def find_function_rate(function: str | None, names: Collection[str]) -> str | None:
    """Return the name in `names` by which a vector engine runs a table of this function: its own, else `table`.

    None: the engine has neither. `function`: None for a chain of functions.
    """
    return function if function in names else ANY if ANY in names else None


def find_missing_table(function: str | None) -> str:
    """Return the words for what a machine lacks that cannot run a table of this function."""
    return f"no {ANY}" if function in (None, ANY) else f"neither {function} nor {ANY}"


@dataclass(frozen=True, slots=True)
class Table(MachineOp):
    """A function of each code by a lookup table at table_address. Wide codes interpolate between entries."""

    NAME = "table"
    ENGINE = "vector"
    FUNCTIONS = tuple(TABLE_FUNCTIONS)
    height: int = extent()
    width: int = extent()
    channels: int = extent()
    input_address: int = operand_address("input")
    input_row_stride: int = operand_stride("input")
    input_column_stride: int = operand_stride("input")
    output_address: int = operand_address("output")
    output_row_stride: int = operand_stride("output")
    output_column_stride: int = operand_stride("output")
    table_address: int = block_address("tables")
    function: TableFunction = function(TableFunction, TABLE_FUNCTIONS, chosen=True)
    unit: int = unit_number()
    input_base: int = operand_base_of("input_address")
    output_base: int = operand_base_of("output_address")
    table_base: int = operand_base_of("table_address")
    element_type: int = code_type()
    input_surface_stride: int = surface_stride("input")
    output_surface_stride: int = surface_stride("output")

    @classmethod
    def meaning(cls, chip: Chip) -> Iterator[str]:
        yield "A function of each code, for 0 <= y < height, 0 <= x < width, 0 <= c < channels:"
        yield formula(
            "out[y, x, c] = table[in[y, x, c]]",
            lies("in", "y, x, c", "input_address", chip, "element_type"),
            lies("out", "y, x, c", "output_address", chip, "element_type"),
        )
        yield (
            "The table lies at table_address; how it is read: [Tables](#tables). The result may lie exactly where the input lies."
        )
        if cls.need("function", chip).high:
            rated = [
                f"{TABLE_FUNCTIONS[n].value} {n}"
                for n in sorted(chip.functions & {*TABLE_FUNCTIONS}, key=TABLE_FUNCTIONS.__getitem__)
            ]
            yield f"`function` says what the table holds ({', '.join(rated)}); the time hangs on it, no value does."
        yield from describe_base_registers(cls.pair_bases_with_addresses(), chip, operands=True)

    @classmethod
    def find_required_key(cls, chip: Chip) -> str | None:
        return find_function_key(cls.FUNCTIONS, chip)

    def ranges(self, chip: Chip) -> tuple[Access, ...]:
        unit = self.unit_in(chip)
        counts, item_bytes = (self.height, self.width), code_bytes(self.element_type, chip)
        strides = (self.input_row_stride, self.input_column_stride), (self.output_row_stride, self.output_column_stride)
        source, target = (
            extent_of(counts, along, self.channels, surface, item_bytes, chip)
            for along, surface in zip(strides, (self.input_surface_stride, self.output_surface_stride))
        )
        return (
            Access(unit.roles["input"], self.input_address, *source, False, in_step=True),
            read_of(unit, "tables", self.table_address, (), (), table_bytes(self.element_type, chip)),
            Access(unit.roles["output"], self.output_address, *target, True),
        )

    def demand(self, chip: Chip) -> Demand:
        unit, elements = self.unit_in(chip), self.height * self.width * self.channels
        source, looked_up, target = self.ranges(chip)
        moved = traffic(unit, ("input", source.bytes, 0), ("tables", looked_up.bytes, 0), ("output", 0, target.bytes))
        rate = rate_of(unit, chip, self.FUNCTIONS, self.function, ANY, (self.element_type,))
        return vector_demand(unit, chip, rate, elements, moved)

    def broken(self, chip: Chip) -> Iterator[str]:
        unit = self.unit_in(chip)
        name = next((name for name, code in TABLE_FUNCTIONS.items() if code == self.function), None)
        if name is None:
            yield f"function={self.function} is no function of a table"
        elif find_function_rate(name, unit.vector.functions) is None:
            yield f"{unit.key}.functions has {find_missing_table(name)}"
        yield from broken_table("element_type", self.element_type, chip)
