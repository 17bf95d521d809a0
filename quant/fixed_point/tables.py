"""Table lookup: 256 entries for 8 bits, 513 interpolated entries for 16 bits, and one octave of a curve for any width.

A table is built once, in float64, and is then data; looking up is integer only. Where the function has no value that
fits, the entry saturates: +inf and everything above gives `high`, -inf and everything below gives `low`, and nan (the
function is not defined there, say sqrt of a negative input) gives `low` too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from quant.fixed_point.errors import FixedPointError
from quant.fixed_point.rounding import Rounding, round_shift
from quant.fixed_point.scale import ScaleForm, choose_scale

Array = NDArray[Any]
RealFunction = Callable[[NDArray[np.float64]], NDArray[np.float64]]
TableForm = Literal["tosa", "tflite"]

TABLE8_ENTRIES = 256
TABLE16_ENTRIES = 513
TABLE16_STEP_BITS = 7
_INT16_LOW, _INT16_HIGH = -32768, 32767


def round_half_away(x: Array) -> Array:
    """x: float[...] -> same type, to the nearest whole number, ties away from zero, as C's `round`; nan stays nan."""
    whole = np.trunc(x)
    with np.errstate(invalid="ignore"):
        up = np.abs(x - whole) >= 0.5
    return whole + np.copysign(up.astype(x.dtype), x)


def build_table8(
    f: RealFunction,
    input_scale: float,
    input_zero_point: int,
    output_scale: float,
    output_zero_point: int,
    *,
    signed: bool = True,
    low: int | None = None,
    high: int | None = None,
    rounding: Rounding = Rounding.HALF_AWAY,
) -> Array:
    """f on every 8-bit code -> int8[256] (uint8[256] if not signed), entry i for input code i - 128 (code i).

    t = clip(round(f(S (q - z)) / S_o) + z_o, low, high), computed in float64; low and high default to the limits of
    the type. rounding: HALF_AWAY (TFLite, TOSA) or HALF_EVEN (ONNX QLinearSigmoid, QLinearLeakyRelu).
    Error: half an output step, where it does not saturate. inf and nan saturate (see the module).
    Source: TFLite LUTPopulateInt8, which computes in float32 and so may differ where f / S_o is within 1e-6 of a tie.
    """
    if rounding not in (Rounding.HALF_AWAY, Rounding.HALF_EVEN):
        raise FixedPointError(f"rounding={rounding}: a table is rounded half_away or half_even")
    _check_scale("input_scale", input_scale)
    _check_scale("output_scale", output_scale)
    dtype = np.dtype(np.int8 if signed else np.uint8)
    low, high = _check_limits(low, high, dtype)
    codes = np.arange(TABLE8_ENTRIES, dtype=np.float64) + np.iinfo(dtype).min
    real = _evaluate(f, float(input_scale) * (codes - input_zero_point))
    nearest = np.rint if rounding is Rounding.HALF_EVEN else round_half_away
    return _saturate(nearest(real / float(output_scale)) + output_zero_point, low, high, dtype)


def lookup8(x: Array, table: Array) -> Array:
    """x: int8[...] or uint8[...], table: [256] as `build_table8` orders it for the type of x -> table's type[...]."""
    if table.shape != (TABLE8_ENTRIES,):
        raise FixedPointError(f"table for 8-bit lookup: shape {table.shape}, must be (256,); build it with build_table8")
    if x.dtype == np.uint8:
        return np.take(table, x)
    if x.dtype != np.int8:
        raise FixedPointError(f"lookup8: input is {x.dtype}, must be int8 or uint8; 16-bit inputs go through lookup16")
    return np.take(np.roll(table, TABLE8_ENTRIES // 2), x.view(np.uint8))


def build_table16(
    f: RealFunction,
    input_scale: float,
    output_scale: float,
    *,
    form: TableForm,
    input_zero_point: int = 0,
    output_zero_point: int = 0,
    precision: type[np.floating] = np.float32,
) -> Array:
    """f sampled over all of int16 -> int16[513], to be interpolated by `lookup16`.

    'tosa': t[i] = clip(half_away(f(S (128 (i - 256) - z)) / S_o) + z_o), the plain samples; the last one is at 32768.
    'tflite': LUTPopulateInt16 in `precision`: 512 steps over [-32768, 32767] (a step is 127.998 codes), each entry moved
    by half the error of the interpolation at the midpoint, values scaled by 65536 / 65535; no output zero point.
    Both saturate to int16; inf and nan saturate (see the module).
    """
    _check_scale("input_scale", input_scale)
    _check_scale("output_scale", output_scale)
    if form == "tflite":
        if output_zero_point != 0:
            raise FixedPointError(f"output_zero_point={output_zero_point}: TFLite's 16-bit table has none; use 0 or 'tosa'")
        return _build_table16_tflite(f, input_scale, output_scale, input_zero_point, precision)
    if form != "tosa":
        raise FixedPointError(f"form={form!r}: no such 16-bit table; use 'tosa' or 'tflite'")
    codes = (np.arange(TABLE16_ENTRIES, dtype=np.float64) - 256) * (1 << TABLE16_STEP_BITS)
    real = _evaluate(f, float(input_scale) * (codes - input_zero_point))
    t = round_half_away(real / float(output_scale)) + output_zero_point
    return _saturate(t, _INT16_LOW, _INT16_HIGH, np.dtype(np.int16))


def _build_table16_tflite(
    f: RealFunction, input_scale: float, output_scale: float, input_zero_point: int, precision: type[np.floating]
) -> Array:
    """LUTPopulateInt16 of tensorflow/lite/kernels/internal/common.h, step by step in `precision`."""
    real = precision
    low = real(input_scale) * real(_INT16_LOW - input_zero_point)
    high = real(input_scale) * real(_INT16_HIGH - input_zero_point)
    step = (high - low) / real(TABLE16_ENTRIES - 1)
    inverse = real(65536) / (real(output_scale) * real(_INT16_HIGH) - real(output_scale) * real(_INT16_LOW))
    i = np.arange(TABLE16_ENTRIES - 1, dtype=real)

    def sample(x: Array) -> Array:
        return _evaluate(f, x.astype(np.float64)).astype(real) * inverse

    start, middle, end = sample(low + i * step), sample(low + i * step + step / real(2)), sample(low + (i + 1) * step)
    with np.errstate(invalid="ignore", over="ignore"):
        here = round_half_away(start)
        bias = round_half_away((round_half_away((end + here) / real(2)) - round_half_away(middle)) / real(2))
        # Beside an infinite sample the midpoint has no meaning: the sample alone counts.
        corrected = np.where(np.isfinite(bias), here - bias, here)
    last = round_half_away(sample(np.array([high])))
    return _saturate(np.concatenate([corrected, last]), _INT16_LOW, _INT16_HIGH, np.dtype(np.int16))


def interpolate16(x: Array, table: Array) -> Array:
    """x: int16[...], table: int16[513] -> int32[...] = 128 t[i] + (t[i+1] - t[i]) f, i = (x + 32768) >> 7, f = x & 127.

    Seven fraction bits, nothing rounded. Source: TOSA 1.0 TABLE, int16; it leaves steps beyond int16 undefined.
    """
    base, slope, rest = _segment16(x, table)
    return (base << TABLE16_STEP_BITS) + slope * rest


def lookup16(x: Array, table: Array, form: TableForm) -> Array:
    """x: int16[...], table: int16[513] -> int16[...], interpolated between two entries, rounded half up.

    'tosa': TABLE followed by RESCALE by 2^-7 with single rounding, (128 t[i] + (t[i+1] - t[i]) f + 64) >> 7.
    'tflite': t[i] + (((t[i+1] - t[i]) f + 64) >> 7), with the step t[i+1] - t[i] and the sum wrapped to int16.
    The two give the same numbers for a table whose steps fit int16; they differ in how the table is built. The 32-bit
    result of TOSA itself: `interpolate16`.
    """
    if form not in ("tosa", "tflite"):
        raise FixedPointError(f"form={form!r}: no such 16-bit table; use 'tosa' or 'tflite'")
    if x.size > 1 << 16 and x.dtype == np.int16:
        # Cheaper: every code once, then one gather.
        codes = np.arange(1 << 16, dtype=np.uint16).view(np.int16)
        return np.take(lookup16(codes, table, form), x.view(np.uint16))
    base, slope, rest = _segment16(x, table)
    if form == "tflite":
        slope = slope.astype(np.int16)
    half = 1 << (TABLE16_STEP_BITS - 1)
    return (base + ((slope * rest + half) >> TABLE16_STEP_BITS)).astype(np.int16)


def _segment16(x: Array, table: Array) -> tuple[Array, Array, Array]:
    """int32[...] each: the entry below x, the step to the next, and x's position between them, 0..127."""
    if x.dtype != np.int16:
        raise FixedPointError(f"16-bit lookup: input is {x.dtype}, must be int16")
    if table.shape != (TABLE16_ENTRIES,) or table.dtype != np.int16:
        raise FixedPointError(f"table for 16-bit lookup: {table.dtype}{table.shape}, must be int16(513,); use build_table16")
    position = x.astype(np.int32) + 32768
    i = position >> TABLE16_STEP_BITS
    base = np.take(table, i).astype(np.int32)
    return base, np.take(table, i + 1).astype(np.int32) - base, position & 127


Curve = Literal["exp2", "reciprocal", "inverse_sqrt", "log2"]


@dataclass(frozen=True)
class CurveTable:
    """A chip's table of a curve over one octave: 2**index_bits segments, unsigned entries of value_bits.

    interpolation_bits: fraction bits behind the index that the linear interpolation uses; 0: none, then an entry is the
    curve at the middle of its segment.
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
        """Fraction bits of the argument that the table uses."""
        return self.index_bits + self.interpolation_bits


def exp2_negative(t: Array, fraction_bits: int, table: CurveTable, guard_bits: int = 0) -> Array:
    """t: int64[...] >= 0 with fraction_bits -> int64[...], 2**-t with table.value_bits + guard_bits fraction bits.

    t is rounded half up to table.position_bits (down where the table is not interpolated: its entries are of the middles),
    its fraction goes through the table, its whole part shifts right, rounding half up; guard_bits below
    the entry's last keep what small results would lose. 1.0 saturates to 2**value_bits - 1. Error: docs/nonlinear.md.
    """
    spare = fraction_bits - table.position_bits
    if spare > 0:
        t, fraction_bits = round_shift(t, np.asarray(spare), _position_rounding(table)), table.position_bits
    whole = np.minimum(t >> fraction_bits, 62)
    position = (t & ((1 << fraction_bits) - 1)) << (table.position_bits - fraction_bits)
    entry = _read(_curve("exp2", table), position, table) << guard_bits
    return round_shift(entry, whole, Rounding.SINGLE_HALF_UP)


def _position_rounding(table: CurveTable) -> Rounding:
    return Rounding.SINGLE_HALF_UP if table.interpolation_bits else Rounding.FLOOR


def reciprocal(x: Array, table: CurveTable) -> tuple[Array, Array]:
    """x: int64[...] > 0, below 2**62 -> (mantissa, shift): int64[...], 1 / x = mantissa / 2**shift.

    x is normalised to [1, 2); the mantissa has value_bits bits, relative error as stated in docs/nonlinear.md. 0 counts
    as 1.
    """
    x = np.maximum(x, 1)
    exponent = floor_log2(x)
    position = _fraction(x, exponent, table)
    return _read(_curve("reciprocal", table), position, table), exponent + table.value_bits


def inverse_sqrt(x: Array, table: CurveTable) -> tuple[Array, Array]:
    """x: int64[...] > 0, below 2**62 -> (mantissa, shift): int64[...], 1 / sqrt(x) = mantissa / 2**shift.

    x is normalised to [1, 4); half of the segments serve [1, 2), half [2, 4). 0 counts as 1.
    """
    x = np.maximum(x, 1)
    exponent = floor_log2(x)
    odd = exponent & 1
    position = (_fraction(x, exponent, table) >> 1) + (odd << (table.position_bits - 1))
    return _read(_curve("inverse_sqrt", table), position, table), (exponent >> 1) + table.value_bits


def log2_positive(x: Array, table: CurveTable) -> Array:
    """x: int64[...] > 0, below 2**62 -> int64[...], log2(x) with table.value_bits fraction bits. 0 counts as 1.

    The whole part is the highest set bit, the fraction through the table.
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
    """x: int8, uint8 or int16[...] -> dtype[...], exp in integers only; above the range it saturates.

    S log2(e) and 1 / S_o are multipliers of `form`; rounded at the argument (as in `exp2_negative`), in the table, and half
    up at the end.
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
    """x: int8, uint8 or int16[...] -> dtype[...], 1 / x in integers only; x at its zero point gives the highest."""
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
    """x: int8, uint8 or int16[...] -> dtype[...], 1 / sqrt(x) in integers only; x <= zero point gives the highest."""
    value = x.astype(np.int64) - input_zero_point
    mantissa, shift = inverse_sqrt(value, table)
    y = _to_output(mantissa, shift, 1 / (np.sqrt(input_scale) * output_scale), output_zero_point, form, dtype)
    return np.where(value <= 0, np.iinfo(y.dtype).max, y)


def _to_output(mantissa: Array, shift: Array, real_scale: float, zero_point: int, form: ScaleForm, dtype: DTypeLike) -> Array:
    """clip(round(mantissa / 2**shift * real_scale) + zero_point), rounded half up once, int8 or int16."""
    limits = np.iinfo(np.dtype(dtype).name)
    fraction, exponent = np.frexp(real_scale)
    scale = choose_scale(fraction, form)
    product, total = mantissa * scale.multiplier, shift + scale.shift - exponent
    right = round_shift(product, np.clip(total, 0, 62), Rounding.SINGLE_HALF_UP)
    # past 16 bits on either side it only saturates
    left = np.left_shift(np.clip(product, -(1 << 32), 1 << 32), np.clip(-total, 0, 24))
    return np.clip(np.where(total < 0, left, right) + zero_point, limits.min, limits.max).astype(limits.dtype)


def floor_log2(x: Array) -> Array:
    """x: int64[...] > 0 -> int64[...], position of the highest set bit."""
    x = np.asarray(x, np.int64)
    exponent = np.frexp(x.astype(np.float64))[1].astype(np.int64) - 1
    # Above 2**53 the conversion may round up to the next power of two.
    return exponent - (np.left_shift(np.int64(1), np.minimum(exponent, 62)) > x)


def _fraction(x: Array, exponent: Array, table: CurveTable) -> Array:
    """The bits behind the leading one, as position_bits bits, the rest dropped."""
    rest = x - np.left_shift(np.int64(1), exponent)
    return np.where(
        exponent > table.position_bits,
        rest >> np.maximum(exponent - table.position_bits, 0),
        np.left_shift(rest, np.maximum(table.position_bits - exponent, 0)),
    )


def _read(entries: Array, position: Array, table: CurveTable) -> Array:
    if table.interpolation_bits == 0:
        return np.take(entries, position)
    i = position >> table.interpolation_bits
    rest = position & ((1 << table.interpolation_bits) - 1)
    base = np.take(entries, i)
    slope = (np.take(entries, i + 1) - base) * rest
    return base + round_shift(slope, np.asarray(table.interpolation_bits), Rounding.SINGLE_HALF_UP)


@cache
def _curve(curve: Curve, table: CurveTable) -> Array:
    """int64[2**index_bits + 1], samples at the segments' ends, or without interpolation [2**index_bits], the middles."""
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


def _evaluate(f: RealFunction, x: Array) -> Array:
    with np.errstate(all="ignore"):
        real = np.asarray(f(x), dtype=np.float64)
    if real.shape != x.shape:
        raise FixedPointError(f"function of the table returned shape {real.shape} for {x.shape}; it must work per element")
    return real


def _saturate(t: Array, low: int, high: int, dtype: np.dtype) -> Array:
    return np.clip(np.where(np.isnan(t), low, t), low, high).astype(dtype)


def _check_scale(name: str, scale: float) -> None:
    if not (np.isfinite(scale) and scale > 0):
        raise FixedPointError(f"{name}={scale}: a scale must be positive and finite")


def _check_limits(low: int | None, high: int | None, dtype: np.dtype) -> tuple[int, int]:
    info = np.iinfo(dtype)
    low, high = info.min if low is None else low, info.max if high is None else high
    if not info.min <= low <= high <= info.max:
        raise FixedPointError(f"low={low}, high={high}: must satisfy {info.min} <= low <= high <= {info.max} for {dtype}")
    return int(low), int(high)
