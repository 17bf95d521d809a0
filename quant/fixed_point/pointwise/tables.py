"""Builds and applies lookup tables: 256 entries for 8 bits, 513 interpolated entries for 16 bits.

A table is built once, in float64 (TFLite's 16-bit form in the precision asked for), and is then data; looking up is integer only.
Where the function has no value that fits, the entry saturates. Positive infinity and everything above gives `high`, negative
infinity and everything below gives `low`. NaN gives `low` too; there the function is not defined, say sqrt of a negative input.
Scales must be positive and finite; FixedPointError otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.device_arrays import as_like
from quant.fixed_point.core.fixed_point_errors import FixedPointError
from quant.fixed_point.core.rounding import Rounding
from quant.fixed_point.pointwise.real_functions import round_half_away

Array = NDArray[Any]
RealFunction = Callable[[NDArray[np.float64]], NDArray[np.float64]]
TableForm = Literal["tosa", "tflite", "midpoint"]

TABLE8_ENTRIES = CodeType.INT8.table_entries
TABLE16_ENTRIES = CodeType.INT16.table_entries
TABLE16_STEP_BITS = 7
_INT16_LOW, _INT16_HIGH = -32768, 32767


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
    """Return int8[256] (uint8[256] if not signed) of f on every 8-bit code, entry i for input code i - 128 (code i).

    An entry is clip(round(f(S (q - z)) / S_o) + z_o, low, high), computed in float64. The defaults of low and high are the limits
    of the type. Rounding is HALF_AWAY (TFLite, TOSA) or HALF_EVEN (ONNX QLinearSigmoid, QLinearLeakyRelu).
    Error: half an output step, where it does not saturate. Infinity and NaN saturate (see the module).
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
    """Return the table's entries for x: int8[...] or uint8[...].

    `table`: [256] in the order of `build_table8` for the type of x, of any type.

    Raise FixedPointError for another shape or type.
    """
    if table.shape != (TABLE8_ENTRIES,):
        raise FixedPointError(f"table for 8-bit lookup: shape {table.shape}, must be (256,); build it with build_table8")
    table = as_like(table, x)
    if x.dtype == np.uint8:
        return np.take(table, x)
    if x.dtype != np.int8:
        raise FixedPointError(f"lookup8: input is {x.dtype}, must be int8 or uint8; 16-bit inputs go through lookup16")
    half = TABLE8_ENTRIES // 2  # np.roll takes as long as many look-ups
    return np.take(np.concatenate((table[half:], table[:half])), x.view(np.uint8))


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
    """Return int16[513] of f sampled over all of int16, to be interpolated by `lookup16`.

    'tosa': t[i] = clip(half_away(f(S (128 (i - 256) - z)) / S_o) + z_o), the plain samples; the last one is at 32768. 'tflite':
    LUTPopulateInt16 in `precision`: 512 steps over [-32768, 32767] (a step is 127.998 codes). Each entry is moved by half the
    error of the interpolation at the midpoint, values scaled by 65536 / 65535; no output zero point. 'midpoint': the samples of
    'tosa' moved so, rounded once. All saturate to int16; inf and nan saturate (see the module). Raise FixedPointError for
    another form, or an output zero point with 'tflite'.
    """
    t = entries16(
        f,
        input_scale,
        output_scale,
        form=form,
        input_zero_point=input_zero_point,
        output_zero_point=output_zero_point,
        precision=precision,
    )
    return _saturate(t, _INT16_LOW, _INT16_HIGH, np.dtype(np.int16))


def entries16(
    f: RealFunction,
    input_scale: float,
    output_scale: float,
    *,
    form: TableForm,
    input_zero_point: int = 0,
    output_zero_point: int = 0,
    precision: type[np.floating] = np.float32,
) -> Array:
    """Return the entries that `build_table16` saturates, float [513]: whole numbers, inf or nan."""
    _check_scale("input_scale", input_scale)
    _check_scale("output_scale", output_scale)
    if form == "tflite":
        if output_zero_point != 0:
            raise FixedPointError(f"output_zero_point={output_zero_point}: TFLite's 16-bit table has none; use 0 or 'tosa'")
        return _entries16_tflite(f, input_scale, output_scale, input_zero_point, precision)
    if form not in ("tosa", "midpoint"):
        raise FixedPointError(f"form={form!r}: no such 16-bit table; use 'tosa', 'tflite' or 'midpoint'")
    codes = (np.arange(TABLE16_ENTRIES, dtype=np.float64) - 256) * (1 << TABLE16_STEP_BITS)
    samples = _evaluate(f, float(input_scale) * (codes - input_zero_point)) / float(output_scale)
    if form == "midpoint":
        between = codes[:-1] + (1 << TABLE16_STEP_BITS) / 2
        middle = _evaluate(f, float(input_scale) * (between - input_zero_point)) / float(output_scale)
        with np.errstate(invalid="ignore"):
            bias = ((samples[1:] + samples[:-1]) / 2 - middle) / 2
        samples[:-1] -= np.where(np.isfinite(bias), bias, 0)
    return round_half_away(samples) + output_zero_point


def _entries16_tflite(
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
        with np.errstate(over="ignore"):  # beyond float32 is beyond the output's codes
            return _evaluate(f, x.astype(np.float64)).astype(real) * inverse

    start, middle, end = sample(low + i * step), sample(low + i * step + step / real(2)), sample(low + (i + 1) * step)
    with np.errstate(invalid="ignore", over="ignore"):
        here = round_half_away(start)
        bias = round_half_away((round_half_away((end + here) / real(2)) - round_half_away(middle)) / real(2))
        # Beside an infinite sample the midpoint has no meaning: the sample alone counts.
        corrected = np.where(np.isfinite(bias), here - bias, here)
    last = round_half_away(sample(np.array([high])))
    return np.concatenate([corrected, last])


def neighbour_entries16(code: int) -> Array:
    """Return the indices of the entries between which an int16 code is interpolated; one where it is an entry's own."""
    position, step = code + 32768, 1 << TABLE16_STEP_BITS
    return np.unique([position // step, -(-position // step)])


def interpolate16(x: Array, table: Array) -> Array:
    """Return 128 t[i] + (t[i+1] - t[i]) f as int32[...], i = (x + 32768) >> 7, f = x & 127.

    `x`: int16[...].
    `table`: int16[513].

    Seven fraction bits, nothing rounded. Source: TOSA 1.0 TABLE, int16; it leaves steps beyond int16 undefined.
    """
    base, slope, rest = _segment16(x, table)
    return (base << TABLE16_STEP_BITS) + slope * rest


def lookup16(x: Array, table: Array, form: Literal["tosa", "tflite"]) -> Array:
    """Return int16[...], interpolated between two entries of `table`: int16[513], rounded half up, for x: int16[...].

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
        return np.take(as_like(lookup16(codes, table, form), x), x.view(np.uint16))
    base, slope, rest = _segment16(x, table)
    if form == "tflite":
        slope = slope.astype(np.int16)
    half = 1 << (TABLE16_STEP_BITS - 1)
    return (base + ((slope * rest + half) >> TABLE16_STEP_BITS)).astype(np.int16)


def _segment16(x: Array, table: Array) -> tuple[Array, Array, Array]:
    """Return int32[...] each: the entry below x, the step to the next, and x's position between them, 0..127."""
    if x.dtype != np.int16:
        raise FixedPointError(f"16-bit lookup: input is {x.dtype}, must be int16")
    if table.shape != (TABLE16_ENTRIES,) or table.dtype != np.int16:
        raise FixedPointError(f"table for 16-bit lookup: {table.dtype}{table.shape}, must be int16(513,); use build_table16")
    position = x.astype(np.int32) + 32768
    i, table = position >> TABLE16_STEP_BITS, as_like(table, x)
    base = np.take(table, i).astype(np.int32)
    return base, np.take(table, i + 1).astype(np.int32) - base, position & 127


def _evaluate(f: RealFunction, x: Array) -> Array:
    """Return f(x) as float64 in the shape of x. Raise FixedPointError where f returns another shape."""
    with np.errstate(all="ignore"):
        real = np.asarray(f(x), dtype=np.float64)
    if real.shape != x.shape:
        raise FixedPointError(f"function of the table returned shape {real.shape} for {x.shape}; it must work per element")
    return real


def _saturate(t: Array, low: int, high: int, dtype: np.dtype) -> Array:
    """Return t clipped to low..high, NaN as low, in dtype."""
    return np.clip(np.where(np.isnan(t), low, t), low, high).astype(dtype)


def _check_scale(name: str, scale: float) -> None:
    """Raise FixedPointError unless the scale is positive and finite."""
    if not (np.isfinite(scale) and scale > 0):
        raise FixedPointError(f"{name}={scale}: a scale must be positive and finite")


def _check_limits(low: int | None, high: int | None, dtype: np.dtype) -> tuple[int, int]:
    """Return low and high, the type's where they are None. Raise FixedPointError where they lie outside the type or cross."""
    info = np.iinfo(dtype)
    low, high = info.min if low is None else low, info.max if high is None else high
    if not info.min <= low <= high <= info.max:
        raise FixedPointError(f"low={low}, high={high}: must satisfy {info.min} <= low <= high <= {info.max} for {dtype}")
    return int(low), int(high)
