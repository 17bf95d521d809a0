"""The operation softmax of a vector engine: the softmax of each row of a matrix, in integers.

Members are those of `machine.operation.MachineOp`: `meaning` yields the manual's text, `ranges` returns the touched
bytes. `demand` returns cycles and traffic, and `broken` yields the reasons why a machine cannot run it.
`find_required_key` returns the machine file's key because of which programs use the operation, None where they do not.

PASSES are those over a row: its maximum, the sum of exponentials, the quotients. MOST_COLUMNS_OF_BYTES is the longest row whose
sum the arithmetic of 8 bits holds. An input's scale is at most _MOST, where exp of one code less is nothing in 16 bits. For codes
of 8 bits it is at least _LEAST_OF_BYTES: their arithmetic takes none of 2**-26, and every output is 1 / columns here already.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.q31 import Q31_MULTIPLIER
from quant.fixed_point.core.scale import choose_scale
from quant.fixed_point.curves.softmax import softmax16_tables
from toolchain.hw.chip import Chip
from toolchain.machine.access import Access
from toolchain.machine.columns import IntOrColumn, code_bytes
from toolchain.machine.manual_text import BETWEEN, SEGMENT, describe_base_registers, formula, scale_index
from toolchain.machine.operation import MachineOp
from toolchain.machine.parameters.addresses import operand_address, operand_base_of, operand_stride
from toolchain.machine.parameters.codes import code_type
from toolchain.machine.parameters.description import Need, parameter
from toolchain.machine.parameters.extents import extent
from toolchain.machine.parameters.numbers import unit_number
from toolchain.machine.traffic import Demand, traffic
from toolchain.machine.units.vector import find_function_key, rate_of, vector_demand

PASSES = 3
MOST_COLUMNS_OF_BYTES = 4095
_NAME = "softmax"
_SCALE_BITS = 26
_LEAST_OF_BYTES = 2.0**-25
_MOST = 31.0


def scale_fields(scale: float, codes: CodeType) -> tuple[int, int]:
    """Return (input_multiplier, input_shift) of an input scale, rounded to float32 as TFLite does and clamped to what
    `codes` take.
    """
    least = _LEAST_OF_BYTES if codes.bits == 8 else 0.0
    chosen_scale = choose_scale(min(max(float(np.float32(scale)), least), _MOST) * 2.0**_SCALE_BITS, Q31_MULTIPLIER)
    return int(chosen_scale.multiplier[0]), int(chosen_scale.shift[0])


def scale_of(multiplier: int, shift: int) -> float:
    """Return the scale of these fields: the inverse of `scale_fields`, for scales that it did not clamp."""
    return multiplier * 2.0 ** (-shift - _SCALE_BITS)


def _of_scale(high: int) -> Any:
    """Make a parameter of the input's scale, which has its own bits whatever the machine's other scales have."""
    return parameter("", lambda operation, chip: Need(0, high, "the scale of a softmax's input"))


_HELPERS = (
    "mul(a, b) = min(floor((a b + 2^30) / 2^31), 2^31 - 1)",
    "div(x, n) = x / 2^n to the nearest integer, halves away from zero",
    "shl(x, n) = x 2^n cut to -2^31 .. 2^31 - 1;  of n < 0 div(x, -n)",
    "q(v) = the integer nearest to v 2^31",
)
_OF_BYTES = (
    "d[c] = in[r, c] - largest in[r, :]",
    "E = 31 - S;  z = div(mul(d 2^max(E, 0), M), max(-E, 0));  dropped where d < -floor((2^5 - 1) 2^26 / 2^E)",
    "e[c] = 0 where dropped, 2^31 - 1 where z = 0, else:",
    "    low = z mod 2^24 - 2^24;  a = shl(low, 5) + 2^28;  a2 = mul(a, a);  a3 = mul(a2, a);  a4 = mul(a2, a2)",
    "    s = shl(mul(shl(a4, -2) + a3, q(1/3)) + a2, -1);  e = q(exp(-1/8)) + mul(a + s, q(exp(-1/8)))",
    "    for k = -2 to 4: where bit 26 + k of (low - z) is 1, e = mul(e, q(exp(-2^k)))",
    "t = sum of div(e[c], 12);  h = leading zeros of t in 32 bits",
    "v = div(t 2^h - 1, 1);  y = q(12/17) + mul(v, -q(8/17))",
    "three times: y = y + shl(mul(y, 2^29 - mul(v, y)), 2);  then y = shl(y, 1)",
    "out[r, c] = clamp(div(mul(e[c], y), 12 - h + 31 - 8) + least code, least code, largest code)",
)
_OF_16_BITS = (
    "d[c] = in[r, c] - largest in[r, :]",
    "M', S' = the nearest multiplier (31 bits, bit 30 set) and shift of the scale M 2^(-S - 26) / (10 / 65535)",
    "z = floor((d M' + 2^(S' - 1) + n) / 2^S') + 32767, cut to -32768 .. 32767;  e[c] = exp_table[z]",
    "    n = 0 where S' <= 31, else 2^30 where d = 0 and -2^30 where d < 0",
    "t = sum of e[c];  h = leading zeros of t in 32 bits",
    "m = floor((t 2^(h - 1) + 2^13) / 2^14);  y = inverse_table[clamp(m - 2^15 - 2^16, -32768, 32767)]",
    "out[r, c] = clamp(floor((e[c] y + 2^(30 - h)) / 2^(31 - h)), 0, 32767)",
)


@dataclass(frozen=True, slots=True)
class Softmax(MachineOp):
    """The softmax of each row, in integers, bit for bit as TFLite's SOFTMAX of 8 or 16 bits."""

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
    def meaning(cls, chip: Chip) -> Iterator[str]:
        place = scale_index("c", "element_type", chip)
        yield "The softmax of each row, in integers, for 0 <= r < rows, 0 <= c < columns:"
        yield formula(
            f"in[r, c] lies at   input_address + r input_row_stride + {place}",
            f"out[r, c] lies at  output_address + r output_row_stride + {place}",
            "the input's scale is input_multiplier 2^(-input_shift - 26), of 24 significant bits; any zero point",
        )
        yield (
            "M, S are input_multiplier and input_shift with bit 30 of M set (M doubled as often as needed, S one more each "
            "time). With"
        )
        yield formula(*_HELPERS)
        if any(codes.bits == 8 for codes in chip.code_types):
            yield f"codes of 8 bits, rows of at most {MOST_COLUMNS_OF_BYTES:,}; out has scale 1/256, and its least code for 0:"
            yield formula(*_OF_BYTES)
        if any(codes.bits == 16 for codes in chip.code_types):
            yield (
                "Codes of 16 bits; out has scale 1/32768 and zero point 0. exp_table and inverse_table, T below, belong to the "
                "operation and are read by:"
            )
            yield formula(SEGMENT, BETWEEN["tflite"])
            yield "With these:"
            yield formula(*_OF_16_BITS)
            for name, entries in zip(("exp_table", "inverse_table"), softmax16_tables()):
                rows = [" ".join(map(str, entries[at : at + 19].tolist())) for at in range(0, entries.size, 19)]
                yield formula(f"{name}, 513 entries:", *rows)

        yield from describe_base_registers(cls.pair_bases_with_addresses(), chip, operands=True)

    @classmethod
    def find_required_key(cls, chip: Chip) -> str | None:
        return find_function_key(cls.FUNCTIONS, chip)

    def ranges(self, chip: Chip) -> tuple[Access, ...]:
        roles, inner = self.unit_in(chip).roles, self.columns * code_bytes(self.element_type, chip)
        return (
            Access(roles["input"], self.input_address, (self.rows,), (self.input_row_stride,), inner, False),
            Access(roles["output"], self.output_address, (self.rows,), (self.output_row_stride,), inner, True),
        )

    def list_moved_operands(self, chip: Chip) -> Iterator[tuple[Access, IntOrColumn]]:
        source, target = self.ranges(chip)
        yield from ((source, PASSES * source.bytes), (target, target.bytes))

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
