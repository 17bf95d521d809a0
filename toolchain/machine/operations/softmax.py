"""Softmax of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.q31 import Q31_MULTIPLIER
from quant.fixed_point.core.scale import choose_scale
from toolchain.hw.chip import Chip
from toolchain.machine.access import Access
from toolchain.machine.codes import code_bytes
from toolchain.machine.operation import MachineOp
from toolchain.machine.parameters.addresses import operand_address, operand_base_of, operand_stride
from toolchain.machine.parameters.codes import code_type
from toolchain.machine.parameters.description import Need, parameter
from toolchain.machine.parameters.extents import extent
from toolchain.machine.parameters.numbers import unit_number
from toolchain.machine.traffic import Demand, traffic
from toolchain.machine.units.vector import needed_functions, rate_of, vector_demand

PASSES = 3  # over a row: its maximum, the sum of exponentials, the quotients
MOST_COLUMNS_OF_BYTES = 4095  # whose sum the arithmetic of 8 bits holds
_NAME = "softmax"
_SCALE_BITS = 26
_LEAST_OF_BYTES = 2.0**-25  # the arithmetic of 8 bits takes none of 2**-26; every output is 1 / n here already


def scale_fields(scale: float, codes: CodeType) -> tuple[int, int]:
    """input_multiplier and input_shift of an input of this scale, which TFLite takes in float32."""
    least = _LEAST_OF_BYTES if codes.bits == 8 else 0.0
    found = choose_scale(max(float(np.float32(scale)), least) * 2.0**_SCALE_BITS, Q31_MULTIPLIER)
    return int(found.multiplier[0]), int(found.shift[0])


def scale_of(multiplier: int, shift: int) -> float:
    """The inverse."""
    return multiplier * 2.0 ** (-shift - _SCALE_BITS)


def _of_scale(high: int) -> Any:
    """Of the input's scale, in its own bits whatever the machine's other scales have."""
    return parameter("", lambda operation, chip: Need(0, high, "the scale of a softmax's input"))


@dataclass(frozen=True, slots=True)
class Softmax(MachineOp):
    """out[r, :] = softmax(in[r, :]), codes of element_type, integers only. Input: scale input_multiplier 2**(-input_shift - 26),
    any zero point. Output: of 8 bits scale 1/256 and the least code for 0, as TFLite's SOFTMAX, rows of at most 4,095; of 16 bits
    scale 1/32768 and zero point 0, as its SOFTMAX of int16.
    """

    NAME = _NAME
    ENGINE = "vector"
    FUNCTIONS = (_NAME,)
    rows: int = extent()
    columns: int = extent()
    input_address: int = operand_address("input")
    input_row_stride: int = operand_stride("input")
    output_address: int = operand_address("output")
    output_row_stride: int = operand_stride("output")
    input_multiplier: int = _of_scale((1 << 31) - 1)
    input_shift: int = _of_scale(62)
    unit: int = unit_number()
    input_base: int = operand_base_of("input_address")
    output_base: int = operand_base_of("output_address")
    element_type: int = code_type()

    @classmethod
    def needed(cls, chip: Chip) -> str | None:
        return needed_functions(cls.FUNCTIONS, chip)

    def ranges(self, chip: Chip) -> tuple[Access, ...]:
        roles, inner = self.unit_in(chip).roles, self.columns * code_bytes(self.element_type, chip)
        return (
            Access(roles["input"], self.input_address, (self.rows,), (self.input_row_stride,), inner, False),
            Access(roles["output"], self.output_address, (self.rows,), (self.output_row_stride,), inner, True),
        )

    def demand(self, chip: Chip) -> Demand:
        unit, elements = self.unit_in(chip), self.rows * self.columns
        size_bytes = elements * code_bytes(self.element_type, chip)
        moved = traffic(unit, ("input", PASSES * size_bytes, 0), ("output", 0, size_bytes))
        return vector_demand(unit, chip, rate_of(unit, chip, self.FUNCTIONS, types=(self.element_type,)), elements, moved, PASSES)

    def broken(self, chip: Chip) -> Iterator[str]:
        unit, codes = self.unit_in(chip), chip.code_types[int(self.element_type)]
        if _NAME not in unit.vector.functions:
            yield f"{unit.key}.functions has no {_NAME}"
        if codes.is_wide:
            yield f"element_type={self.element_type}, a softmax has codes of 8 or 16 bits, not {codes}"
        if codes.bits == 8 and self.columns > MOST_COLUMNS_OF_BYTES:
            yield f"columns={self.columns}, a softmax of {codes} has at most {MOST_COLUMNS_OF_BYTES}"
