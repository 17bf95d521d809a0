"""The softmax as the manual has it, in plain integers, gives what the vectors of instructions give."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import numpy as np
import pytest

from toolchain.isa import load_machine
from toolchain.isa.manual import manual
from toolchain.machine import Softmax
from toolchain.vectors import load_draws
from toolchain.vectors.case import Draw, run_case

MACHINE = load_machine("transformer64")
TEXT = manual(MACHINE)


def mul(a: int, b: int) -> int:
    return min((a * b + (1 << 30)) >> 31, (1 << 31) - 1)


def div(x: int, n: int) -> int:
    return x if n == 0 else (abs(x) + (1 << n - 1) >> n) * (1 if x >= 0 else -1)


def shl(x: int, n: int) -> int:
    return div(x, -n) if n < 0 else max(-(1 << 31), min((1 << 31) - 1, x << n))


def q(v: float) -> int:
    return round(v * 2**31)


def exponential(z: int) -> int:
    if z == 0:
        return (1 << 31) - 1
    low = z % (1 << 24) - (1 << 24)
    a = shl(low, 5) + (1 << 28)
    a2 = mul(a, a)
    a3, a4 = mul(a2, a), mul(a2, a2)
    s = shl(mul(shl(a4, -2) + a3, q(1 / 3)) + a2, -1)
    e = q(math.exp(-1 / 8)) + mul(a + s, q(math.exp(-1 / 8)))
    for k in range(-2, 5):
        if (low - z) >> 26 + k & 1:
            e = mul(e, q(math.exp(-(2.0**k))))
    return e


def of_bytes(row: list[int], m: int, s: int, least: int) -> list[int]:
    edge = 31 - s
    d = [x - max(row) for x in row]
    z = [div(mul(x << max(edge, 0), m), max(-edge, 0)) for x in d]
    dropped = -((31 << 26) >> edge)
    e = [0 if x < dropped else exponential(v) for x, v in zip(d, z)]
    t = sum(div(v, 12) for v in e)
    h = 32 - t.bit_length()
    v = div((t << h) - 1, 1)
    y = q(12 / 17) + mul(v, -q(8 / 17))
    for _ in range(3):
        y = y + shl(mul(y, (1 << 29) - mul(v, y)), 2)
    y = shl(y, 1)
    return [max(least, min(least + 255, div(mul(x, y), 12 - h + 31 - 8) + least)) for x in e]


def table(name: str) -> list[int]:
    """Return the table as the manual prints it."""
    return [int(v) for v in re.findall(r"-?\d+", TEXT.partition(f"{name}, 513 entries:\n")[2].partition("\n```")[0])]


def look_up(x: int, entries: list[int]) -> int:
    i, f = (x + 32768) // 128, (x + 32768) % 128
    return entries[i] + ((entries[i + 1] - entries[i]) * f + 64) // 128


def of_16_bits(row: list[int], m: int, s: int) -> list[int]:
    scale = Fraction(m, 1 << s + 26) * 65535 / 10
    shift = 31
    while scale * (1 << shift) < 1 << 30:
        shift += 1
    while scale * (1 << shift) >= 1 << 31:
        shift -= 1
    factor = math.floor(scale * (1 << shift) + Fraction(1, 2))
    e = []
    for x in row:
        d = x - max(row)
        nudge = 0 if shift <= 31 else (1 << 30) * (1 if d >= 0 else -1)
        z = (d * factor + (1 << shift - 1) + nudge >> shift) + 32767
        e.append(look_up(max(-32768, min(32767, z)), table("exp_table")))
    t = sum(e)
    h = 32 - t.bit_length()
    mantissa = (t << h - 1) + (1 << 13) >> 14
    y = look_up(max(-32768, min(32767, mantissa - (1 << 15) - (1 << 16))), table("inverse_table"))
    return [max(0, min(32767, v * y + (1 << 30 - h) >> 31 - h)) for v in e]


DRAWN = [pytest.param(*drawn, id=drawn[0]) for drawn in load_draws()[Softmax](Softmax, MACHINE.chip)]


@pytest.mark.parametrize(("name", "draw"), DRAWN)
def test_rows_are_those_of_the_text(name: str, draw: Draw) -> None:
    case = run_case(MACHINE, "softmax", name, draw)
    assert case is not None
    op = case.ops[0]
    assert isinstance(op, Softmax)
    sram_case, kind = case.memory["sram"], np.dtype("<i2" if op.element_type else "<i1")
    images = [np.zeros(1 << 16, np.uint8), np.zeros(1 << 16, np.uint8)]
    at = 0
    for address, size in sram_case.ranges.tolist():
        for memory, values in zip(images, (sram_case.before, sram_case.after)):
            memory[address : address + size] = values[at : at + size]
        at += size
    m, s = op.input_multiplier, op.input_shift
    for r in range(op.rows):
        first = op.input_address + r * op.input_row_stride
        row = images[0][first : first + op.columns * kind.itemsize].view(kind).tolist()
        first = op.output_address + r * op.output_row_stride
        output_row = images[1][first : first + op.columns * kind.itemsize].view(kind).tolist()
        assert output_row == (of_16_bits(row, m, s) if op.element_type else of_bytes(row, m, s, -128))
