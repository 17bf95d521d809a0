"""The manual's sections on codes, arithmetic and lookup tables, by the machine's `Numerics`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from quant.fixed_point import FixedPointError, Rounding, requantize
from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.numerics import ROUNDED_OPERATIONS, Numerics
from quant.fixed_point.core.rounding import RULES
from quant.fixed_point.core.scale import choose_scale
from toolchain.hw import Chip
from toolchain.isa.machine import Machine
from toolchain.isa.manual.figures import ChainFigure, Figure
from toolchain.machine import TABLE_FUNCTIONS
from toolchain.machine.manual_text import BETWEEN, SEGMENT, formula

EXAMPLES = (-1000, -21, -20, -13, -12, -11, -4, -1, 0, 1, 3, 4, 5, 11, 12, 13, 20, 21, 1000)


def codes(machine: Machine) -> Iterator[str | Figure]:
    """Yield the section on the types of activations and weights."""
    chip = machine.chip
    first, *others = chip.code_types
    yield "## Codes"
    text = (
        f"All numbers are integers. Activations are {first}, {first.low} to {first.high}: so are zero points, clamps and "
        f"values of fills. Weights are {chip.numerics.weight}. "
    )
    yield text + _code_text(first, chip)
    if len(chip.weight_types) > 1:
        weight_types = ", ".join(f"{i} {codes}" for i, codes in enumerate(chip.weight_types))
        yield (
            "Where an operation says so (`weight_type`), its weights are of another type. Types of weights by their numbers: "
            f"{weight_types}."
        )
    if others:
        yield (
            "Where an operation says so (parameters that end in `_type`), an operand's codes are of another type, with its "
            "own ends; `size(..._type)` in a formula is its number of bytes. Types by their numbers:"
        )
        yield "\n".join(
            f"- {i} {codes}, {codes.low} to {codes.high}. {_code_text(codes, chip)}" for i, codes in enumerate(chip.code_types)
        )
    if chip.numerics.symmetric_activations:
        yield "The machine is symmetric: zero points are 0 in every program."


def _code_text(codes: CodeType, chip: Chip) -> str:
    sign = "" if codes.low == 0 else ", two's complement"
    size = "1 byte" if codes.size_bytes == 1 else f"{codes.size_bytes} bytes"
    return f"A code of {codes} takes {size}{sign}." + (f" {_table_of(codes)}" if has_tables(chip) else "")


def _table_of(codes: CodeType) -> str:
    if not codes.table_entries:
        return f"Functions have no table of {codes}."
    entries = "the least code's first" if not codes.interpolates else "the ends of its segments from the least code on"
    return f"A function's table has {codes.table_entries} entries of {codes}, {entries}."


def arithmetic(machine: Machine) -> Iterator[str | Figure]:
    """Yield the sections on sums, requantization and lookup tables."""
    chip, numerics = machine.chip, machine.chip.numerics
    bits = numerics.accumulator_bits
    yield "## Arithmetic"
    yield (
        f"**Accumulators** have {bits} bits, two's complement. Products and their sums are exact, and what passes the ends "
        "wraps: wrapping after every step and once at the end are the same. So does the bias when it is added. An array's "
        f"operation makes at most {chip.array.accumulators.entries:,} sums (output pixels times output channels; rows times "
        "columns of a matrix product)."
    )
    yield formula(
        "wrap(v) = ((v + 2^(n-1)) mod 2^n) - 2^(n-1),   n = " + str(bits), "clamp(v, low, high) = min(max(v, low), high)"
    )
    yield from _requantization(numerics)
    posts = [name for name in ("table", "add") if any(name in unit.array.post for unit in chip.of_kind("mac_array"))]
    post_steps = [{"table": "table", "add": "sum with an addend"}[name] for name in posts]
    steps = (
        "sum",
        ("+ bias"),
        "wrap",
        "x multiplier",
        "round by shift",
        "+ zero point",
        *(["wrap"] if numerics.wraps else []),
        "clamp",
    )
    yield ChainFigure("From an array's sums to codes.", (*steps, *post_steps, "memory"))
    if numerics.scale.kind != "float32":
        yield from _examples(numerics)
    if has_tables(chip):
        yield from _tables(chip)


def has_tables(chip: Chip) -> bool:
    """Return whether some engine that programs use looks codes up in tables."""
    return bool(chip.functions & {*TABLE_FUNCTIONS}) or any("table" in unit.array.post for unit in chip.of_kind("mac_array"))


def _requantization(numerics: Numerics) -> Iterator[str]:
    scale = numerics.scale
    yield (
        "**Requantization** brings a sum to codes: multiply, round, add the zero point, fit, clamp, in this order, rounded "
        "once. x is any integer, m a multiplier, s a shift, z a zero point:"
    )
    fit = "v" if not numerics.wraps else "v modulo 2^b, b the bits of the result's type, with its sign"
    yield formula(
        "p = x m" + ("" if scale.kind == "float32" else ",  exact"),
        "requantize(x, m, s, z, low, high) = clamp(fit(round(x, m, s) + z), low, high)",
        f"fit(v) = {fit}" + ("" if numerics.wraps else "      nothing wraps here: the clamp saturates"),
        "inner(x, m, s) = requantize(x, m, s, 0, -2^31, 2^31 - 1)" + (", fit to 32 bits" if numerics.wraps else ""),
    )
    if scale.kind == "pow2":
        yield (
            "Scales are powers of two: m is 1 wherever a formula takes it, and its fields hold 1 there and 0 or 1 elsewhere. "
            f"s goes from {scale.shift_min} to {scale.shift_max}. Where s is negative nothing is rounded: round(x, 1, s) = x "
            "2^(-s), exact."
        )
    elif scale.kind == "float32":
        yield (
            "Scales are float32: the multiplier's 32 bits are those of an IEEE 754 number m, not negative; there is no shift "
            "(s = 0)."
        )
    else:
        yield (
            f"m has at most {scale.multiplier_bits} bits and is not negative; s goes from {scale.shift_min} to "
            f"{scale.shift_max}: the scale is m / 2^s."
        )
    by_rule: dict[Rounding, list[str]] = {}
    for operation in ROUNDED_OPERATIONS:
        by_rule.setdefault(numerics.rounding_of(operation), []).append(operation)
    for rule, operations in by_rule.items():
        where = "" if len(by_rule) == 1 else f" in {', '.join(operations)}"
        yield f"Rounding{where} is `{rule.value}`:"
        exact = " (m / 2^s the exact value of the float32)" if scale.kind == "float32" and rule is not Rounding.FP32_RNE else ""
        yield formula(f"round(x, m, s) = {RULES[rule]}{exact}")
    if len(by_rule) > 1:
        yield "Depthwise rounds as convolution; the sum behind an array, and its inner steps, as add."


def _examples(numerics: Numerics) -> Iterator[str]:
    """Yield a table of sums requantized at a scale of 1/8, computed by the machine's own rule; nothing where it lacks
    that scale.
    """
    try:
        eighth_scale = choose_scale(0.125, numerics.scale)
        codes = numerics.activation
        sums = np.array(EXAMPLES, np.int64)
        m, s = int(eighth_scale.multiplier[0]), int(eighth_scale.shift[0])
        result_codes = requantize(
            sums, numerics.requant("convolution", m, s, zero_point=0, low=codes.low, high=codes.high, codes=codes), codes.dtype
        )
    except FixedPointError:
        return
    yield f"For m = {m}, s = {s} (a scale of 1/8), z = 0, low = {codes.low}, high = {codes.high}, in a convolution:"
    yield "\n".join(
        [
            "| x | " + " | ".join(str(v) for v in EXAMPLES) + " |",
            "|---" * (len(EXAMPLES) + 1) + "|",
            "| q | " + " | ".join(str(v) for v in result_codes.tolist()) + " |",
        ]
    )


def _tables(chip: Chip) -> Iterator[str]:
    yield "## Tables"
    for codes in chip.code_types:
        if not codes.table_entries:
            continue
        if not codes.interpolates:
            offset = "q" if codes.low == 0 else f"(q + {-codes.low})"
            yield (
                f"A table of {codes} has {codes.table_entries} bytes, an entry for each code: table[q] is the code at "
                f"table_address + {offset}."
            )
            continue
        yield (
            f"A table of {codes} has {codes.table_entries} entries T[0] to T[{codes.table_entries - 1}] of 2 bytes each, from "
            "table_address on: the ends of 512 segments of 128 codes. Between them it is interpolated:"
        )
        yield formula(SEGMENT, BETWEEN[chip.numerics.interpolation])
