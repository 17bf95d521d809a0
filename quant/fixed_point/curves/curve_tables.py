"""Computes exp, 1 / x, 1 / sqrt(x) and log2(x) in integers from a chip's table of one octave, for any width of arguments.

`quant.fixed_point.curves.softmax` and `norms` are built on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from quant.fixed_point.core.fixed_point_errors import FixedPointError
from quant.fixed_point.core.rounding import Rounding, round_shift
from quant.fixed_point.core.scale import ScaleForm, choose_scale
from quant.fixed_point.pointwise.real_functions import round_half_away

Array = NDArray[Any]
Curve = Literal["exp2", "reciprocal", "inverse_sqrt", "log2"]


@dataclass(frozen=True)
class CurveTable:
    """A chip's table of a curve over one octave: 2**index_bits segments, unsigned entries of value_bits.

    `index_bits`: 1..12.
    `value_bits`: 4..30.
    `interpolation_bits`: fraction bits after the index that the linear interpolation uses, 0..16. With 0, an entry is the curve
    at the middle of its segment.
    """

    index_bits: int = 6
    value_bits: int = 16
    interpolation_bits: int = 8

    def __post_init__(self) -> None:
        for name, low, high in (("index_bits", 1, 12), ("value_bits", 4, 30), ("interpolation_bits", 0, 16)):
            if not low <= getattr(self, name) <= high:
                raise FixedPointError(f"CurveTable: {name}={getattr(self, name)}; must be {low}..{high}")

    @property
    def position_bits(self) -> int:
        """The fraction bits of the argument that the table uses."""
        return self.index_bits + self.interpolation_bits


def exp2_negative(t: Array, fraction_bits: int, table: CurveTable, guard_bits: int = 0) -> Array:
    """Return 2**-t as int64[...] with table.value_bits + guard_bits fraction bits, for t: int64[...] >= 0 with fraction_bits.

    The argument t is rounded half up to table.position_bits. It is rounded down where the table is not interpolated, since its
    entries are of the middles. The fraction of t goes through the table, and its integer part shifts right, rounding half up. The
    guard_bits below the entry's last bit keep what small results would lose. The value 1.0 saturates to 2**value_bits - 1. Error:
    docs/nonlinear.md.
    """
    spare = fraction_bits - table.position_bits
    if spare > 0:
        t, fraction_bits = round_shift(t, np.asarray(spare), _position_rounding(table)), table.position_bits
    integer_part = np.minimum(t >> fraction_bits, 62)
    position = (t & ((1 << fraction_bits) - 1)) << (table.position_bits - fraction_bits)
    entry = _read(_curve("exp2", table), position, table) << guard_bits
    return round_shift(entry, integer_part, Rounding.SINGLE_HALF_UP)


def _position_rounding(table: CurveTable) -> Rounding:
    return Rounding.SINGLE_HALF_UP if table.interpolation_bits else Rounding.FLOOR


def reciprocal(x: Array, table: CurveTable) -> tuple[Array, Array]:
    """Return (mantissa, shift), int64[...] each, with 1 / x = mantissa / 2**shift, for x: int64[...] > 0, below 2**62.

    `x` is normalised to [1, 2); 0 counts as 1. The mantissa has value_bits bits, relative error as stated in docs/nonlinear.md.
    """
    x = np.maximum(x, 1)
    exponent = floor_log2(x)
    position = _fraction(x, exponent, table)
    return _read(_curve("reciprocal", table), position, table), exponent + table.value_bits


def inverse_sqrt(x: Array, table: CurveTable) -> tuple[Array, Array]:
    """Return (mantissa, shift), int64[...] each, with 1 / sqrt(x) = mantissa / 2**shift, for x: int64[...] > 0, below 2**62.

    `x` is normalised to [1, 4); half of the segments serve [1, 2), half [2, 4). Zero counts as 1.
    """
    x = np.maximum(x, 1)
    exponent = floor_log2(x)
    odd = exponent & 1
    position = (_fraction(x, exponent, table) >> 1) + (odd << (table.position_bits - 1))
    return _read(_curve("inverse_sqrt", table), position, table), (exponent >> 1) + table.value_bits


def log2_positive(x: Array, table: CurveTable) -> Array:
    """Return log2(x) as int64[...] with table.value_bits fraction bits, for x: int64[...] > 0, below 2**62. 0 counts as 1.

    The integer part is the highest set bit; the fraction comes from the table.
    """
    x = np.maximum(x, 1)
    exponent = floor_log2(x)
    position = _fraction(x, exponent, table)
    return (exponent << table.value_bits) + _read(_curve("log2", table), position, table)


def exp_quantized(
    x: Array,
    input_scale: float,
    input_zero_point: int,
    output_scale: float,
    output_zero_point: int,
    table: CurveTable,
    form: ScaleForm,
    dtype: DTypeLike,
) -> Array:
    """Return exp as dtype[...] in integers only, for x: int8, uint8 or int16[...]; above the range it saturates.

    The factors input_scale log2(e) and 1 / output_scale are multipliers of `form`. The result is rounded at the argument (as in
    `exp2_negative`), in the table, and half up at the end.
    """
    bits = table.position_bits
    argument = choose_scale(input_scale * np.log2(np.e) * (1 << bits), form)
    difference = input_zero_point - x.astype(np.int64)
    t = round_shift(difference * argument.multiplier[0], argument.shift, _position_rounding(table))
    mantissa = _read(_curve("exp2", table), t & ((1 << bits) - 1), table)
    return _to_output(mantissa, (t >> bits) + table.value_bits, 1 / output_scale, output_zero_point, form, dtype)


def reciprocal_quantized(
    x: Array,
    input_scale: float,
    input_zero_point: int,
    output_scale: float,
    output_zero_point: int,
    table: CurveTable,
    form: ScaleForm,
    dtype: DTypeLike,
) -> Array:
    """Return 1 / x as dtype[...] in integers only, for x: int8, uint8 or int16[...]; x at its zero point gives the highest code.

    Scales and zero points are those of x and of the result. Results beyond dtype saturate.
    """
    value = x.astype(np.int64) - input_zero_point
    mantissa, shift = reciprocal(np.abs(value), table)
    mantissa = np.where(value < 0, -mantissa, mantissa)
    y = _to_output(mantissa, shift, 1 / (input_scale * output_scale), output_zero_point, form, dtype)
    return np.where(value == 0, np.iinfo(y.dtype).max, y)


def rsqrt_quantized(
    x: Array,
    input_scale: float,
    input_zero_point: int,
    output_scale: float,
    output_zero_point: int,
    table: CurveTable,
    form: ScaleForm,
    dtype: DTypeLike,
) -> Array:
    """Return 1 / sqrt(x) as dtype[...] in integers only, for x: int8, uint8 or int16[...].

    Codes at or below the zero point give the highest code; results beyond dtype saturate.
    """
    value = x.astype(np.int64) - input_zero_point
    mantissa, shift = inverse_sqrt(value, table)
    y = _to_output(mantissa, shift, 1 / (np.sqrt(input_scale) * output_scale), output_zero_point, form, dtype)
    return np.where(value <= 0, np.iinfo(y.dtype).max, y)


def _to_output(mantissa: Array, shift: Array, real_scale: float, zero_point: int, form: ScaleForm, dtype: DTypeLike) -> Array:
    """Return clip(round(mantissa / 2**shift * real_scale) + zero_point), rounded half up once, as int8, uint8 or int16."""
    limits = np.iinfo(np.dtype(dtype).name)
    fraction, exponent = np.frexp(real_scale)
    scale = choose_scale(fraction, form)
    product, total = mantissa * scale.multiplier, shift + scale.shift - exponent
    right = round_shift(product, np.clip(total, 0, 62), Rounding.SINGLE_HALF_UP)
    # past 16 bits on either side it only saturates
    left = np.left_shift(np.clip(product, -(1 << 32), 1 << 32), np.clip(-total, 0, 24))
    return np.clip(np.where(total < 0, left, right) + zero_point, limits.min, limits.max).astype(limits.dtype)


def floor_log2(x: Array) -> Array:
    """Return the position of the highest set bit as int64[...], for x: int64[...] > 0."""
    x = np.asarray(x, np.int64)
    exponent = np.frexp(x.astype(np.float64))[1].astype(np.int64) - 1
    # Above 2**53 the conversion may round up to the next power of two.
    return exponent - (np.left_shift(np.int64(1), np.minimum(exponent, 62)) > x)


def _fraction(x: Array, exponent: Array, table: CurveTable) -> Array:
    """Return the bits behind the leading one, as position_bits bits, the rest dropped."""
    rest = x - np.left_shift(np.int64(1), exponent)
    return np.where(
        exponent > table.position_bits,
        rest >> np.maximum(exponent - table.position_bits, 0),
        np.left_shift(rest, np.maximum(table.position_bits - exponent, 0)),
    )


def _read(entries: Array, position: Array, table: CurveTable) -> Array:
    """Return the table's values at these positions (int64[...], position_bits), interpolated where the table is."""
    if table.interpolation_bits == 0:
        return np.take(entries, position)
    i = position >> table.interpolation_bits
    rest = position & ((1 << table.interpolation_bits) - 1)
    base = np.take(entries, i)
    slope = (np.take(entries, i + 1) - base) * rest
    return base + round_shift(slope, np.asarray(table.interpolation_bits), Rounding.SINGLE_HALF_UP)


@cache
def _curve(curve: Curve, table: CurveTable) -> Array:
    """Return the entries of a curve: int64[2**index_bits + 1], samples at the segments' ends.

    Without interpolation they are int64[2**index_bits], at the segments' middles.
    """
    segments = 1 << table.index_bits
    i = np.arange(segments) + 0.5 if table.interpolation_bits == 0 else np.arange(segments + 1.0)
    u = i / segments
    if curve == "exp2":
        real = np.exp2(-u)
    elif curve == "reciprocal":
        real = 1 / (1 + u)
    elif curve == "log2":
        real = np.log2(1 + u)
    else:
        real = 1 / np.sqrt(np.where(u < 0.5, 1 + 2 * u, 4 * u))
    entries = round_half_away(real * (1 << table.value_bits)).astype(np.int64)
    entries = np.minimum(entries, (1 << table.value_bits) - 1)
    entries.flags.writeable = False
    return entries
