"""Computes softmax and log softmax over the last axis: TFLite's int8 and int16, ONNX's table, and one for chips without float.

`softmax` and `log_softmax` are the chip's, by a `SoftmaxUnit`; the others serve comparison with those implementations. All
numbers are integers at run time, but for `qlinear_softmax`, which imitates a float kernel. Move another axis to the end first.
All raise FixedPointError for rows that are empty, or longer than the sum of exponentials holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import DTypeLike

from quant.fixed_point.core.fixed_point_errors import FixedPointError, require_type
from quant.fixed_point.core.q31 import (
    INT32_MAX,
    INT32_MIN,
    Q31_MULTIPLIER,
    count_leading_zeros32,
    divide_by_power,
    exp_q31,
    log_q31,
    multiply_by_multiplier,
    multiply_q31,
    reciprocal_q31,
)
from quant.fixed_point.core.requant import make_requant
from quant.fixed_point.core.requantization import requantize
from quant.fixed_point.core.rounding import Rounding, round_shift
from quant.fixed_point.core.scale import ScaleForm, choose_scale
from quant.fixed_point.curves.curve_tables import CurveTable, exp2_negative, log2_positive, reciprocal
from quant.fixed_point.pointwise.tables import Array, build_table16, lookup16

_SCALED_BITS = 5  # the scaled difference is Q5.26
_SUM_BITS = 12  # the sum of exponentials is Q12.19: at most 4096 elements
_INT16_MIN, _INT16_MAX = -(1 << 15), (1 << 15) - 1


@dataclass(frozen=True)
class _ScaledDifference:
    """Scaling of differences to the row's maximum to Q5.26, d * multiplier / 2**31 * 2**left_shift; below `least` they count
    as 0."""

    multiplier: int
    left_shift: int
    least: int


def _scale_difference(input_scale: float, beta: float) -> _ScaledDifference:
    """Return TFLite's scaling of differences (PreprocessSoftmaxScaling, CalculateInputRadius). Raise FixedPointError for tiny
    scales."""
    real = min(beta * float(np.float32(input_scale)) * (1 << (31 - _SCALED_BITS)), 2.0**31 - 1)
    if real <= 1:
        raise FixedPointError(
            f"softmax: beta * input_scale = {beta * input_scale:.6g}; must be above 2**-26, else every output is 1 / n"
        )
    s = choose_scale(real, Q31_MULTIPLIER)
    left_shift = 31 - int(s.shift[0])
    radius = ((1 << _SCALED_BITS) - 1) * (1 << (31 - _SCALED_BITS)) >> left_shift
    return _ScaledDifference(int(s.multiplier[0]), left_shift, -radius)


@cache
def _exponentials(scaled: _ScaledDifference) -> tuple[Array, Array]:
    """Return int64[256] each, for differences 0, -1 .. -255: the difference as Q5.26, its exponential as Q0.31 (0: dropped)."""
    difference = -np.arange(256, dtype=np.int64)
    in_range = difference >= scaled.least
    shift = np.asarray(scaled.left_shift)
    q5 = multiply_by_multiplier(np.where(in_range, difference, 0), np.asarray(scaled.multiplier), shift)
    exponential = np.where(in_range, exp_q31(q5, _SCALED_BITS), 0)
    q5.flags.writeable = exponential.flags.writeable = False
    return q5, exponential


def _differences(x: Array, limit: int) -> Array:
    """Return the maximum of the row minus x as int64[..., n], for x: [..., n].

    `limit`: longest row. Raise FixedPointError for a longer or empty one.
    """
    if x.ndim == 0 or x.shape[-1] == 0:
        raise FixedPointError(f"softmax: shape {x.shape} has no elements on its last axis")
    if x.shape[-1] > limit:
        raise FixedPointError(f"softmax: {x.shape[-1]} elements on the last axis; the sum of exponentials holds {limit}")
    wide = x.astype(np.int64)
    return wide.max(axis=-1, keepdims=True) - wide


def softmax8(x: Array, input_scale: float, beta: float = 1.0, dtype: DTypeLike | None = None) -> Array:
    """Return the softmax of x: int8 or uint8[..., n], n <= 4095, as dtype (of x, or int16)[..., n].
    Its scale is 1/256 (int16: 1/65536), its zero point the type's lowest.

    Differences to the maximum as Q5.26, exponentials Q0.31, their sum Q12.19, its reciprocal by three Newton steps.
    Error: at most 1 step (docs/nonlinear.md). Source: TFLite SOFTMAX, reference_ops::Softmax. LiteRT's optimized kernel
    computes in float and differs.
    """
    require_type(x, "softmax8", np.int8, np.uint8)
    limits = np.iinfo(np.dtype(dtype or x.dtype).name)
    difference = _differences(x, 4095)
    exponential = _exponentials(_scale_difference(input_scale, beta))[1]
    total = divide_by_power(exponential, np.asarray(_SUM_BITS))[difference].sum(axis=-1, keepdims=True)
    scale, bits_over_unit = reciprocal_q31(total, _SUM_BITS)
    y = divide_by_power(multiply_q31(exponential[difference], scale), bits_over_unit + 31 - limits.bits) + limits.min
    return np.clip(y, limits.min, limits.max).astype(limits.dtype)


@cache
def softmax16_tables(precision: type[np.floating] = np.float64) -> tuple[Array, Array]:
    """Return the tables of exp over [-10, 0], and of 1 / (1 + x) over [0, 1], both int16[513]."""
    unit = 2.0 / 65535
    exponential = build_table16(np.exp, 10.0 / 65535, unit, form="tflite", input_zero_point=_INT16_MAX, precision=precision)
    inverse = build_table16(
        lambda x: 1 / (1 + x), 1.0 / 65535, unit, form="tflite", input_zero_point=_INT16_MIN, precision=precision
    )
    return exponential, inverse


def softmax16(x: Array, input_scale: float, beta: float = 1.0, *, precision: type[np.floating] = np.float64) -> Array:
    """Return the softmax of x: int16[..., n], n <= 65535, as int16[..., n], scale 1/32768, zero point 0, in [0, 32767].

    Interpolated tables of 513 give exp and 1 / (1 + x); differences below -10 count as exp(-10). The tables are built in
    `precision`: float64 as LiteRT does, float32 as TFLite Micro; two entries of 513 differ by 1. Error in docs/nonlinear.md.
    Source: TFLite SOFTMAX, reference_ops::SoftmaxInt16.
    """
    require_type(x, "softmax16", np.int16)
    exp_table, inverse_table = softmax16_tables(precision)
    difference = -_differences(x, 65535)
    real = float(np.float32(input_scale) * np.float32(beta)) / (10.0 / 65535.0)
    rescale = make_requant(real, Q31_MULTIPLIER, Rounding.DOUBLE_ROUND, low=INT32_MIN, high=INT32_MAX)
    scaled = requantize(difference.astype(np.int32), rescale, np.int32).astype(np.int64) + _INT16_MAX
    exponential = lookup16(np.clip(scaled, _INT16_MIN, _INT16_MAX).astype(np.int16), exp_table, "tflite")
    exponential = exponential.astype(np.int64)
    total = exponential.sum(axis=-1, keepdims=True)
    headroom = count_leading_zeros32(total)
    mantissa = (np.left_shift(total, headroom - 1) + (1 << 13)) >> 14
    argument = np.clip(mantissa - (1 << 15) - (1 << 16), _INT16_MIN, _INT16_MAX).astype(np.int16)
    inverse = lookup16(argument, inverse_table, "tflite").astype(np.int64)
    y = round_shift(exponential * inverse, 31 - headroom, Rounding.SINGLE_HALF_UP)
    return np.clip(y, 0, _INT16_MAX).astype(np.int16)


def log_softmax8(x: Array, input_scale: float) -> Array:
    """Return the log softmax of x: int8 or uint8[..., n], n <= 4095, in the same type, scale 1/16, zero point the type's highest.

    Exponentials are as in `softmax8`, the logarithm of their sum is Q5.26. Error: at most 1 step (docs/nonlinear.md).
    Source: TFLite LOG_SOFTMAX, reference_ops::LogSoftmaxQuantized.
    """
    require_type(x, "log_softmax8", np.int8, np.uint8)
    limits = np.iinfo(x.dtype)
    difference = _differences(x, 4095)
    scaled = _scale_difference(input_scale, 1.0)
    q5, exponential = _exponentials(scaled)
    total = divide_by_power(exponential, np.asarray(_SUM_BITS))[difference].sum(axis=-1, keepdims=True)
    log_sum = log_q31(total, _SUM_BITS, _SCALED_BITS)
    reverse = choose_scale((1 << (31 - scaled.left_shift)) / scaled.multiplier, Q31_MULTIPLIER)
    reverse_shift = 31 - reverse.shift[0]
    least = multiply_by_multiplier(log_sum + INT32_MIN, reverse.multiplier[0], reverse_shift)
    least = np.maximum(scaled.least - 1, least)
    y = divide_by_power(q5[difference] - log_sum, np.asarray(31 - _SCALED_BITS - 4)) + limits.max
    y = np.where(-difference > least, y, limits.min)
    return np.clip(y, limits.min, limits.max).astype(x.dtype)


def qlinear_softmax(x: Array, input_scale: float, output_scale: float, output_zero_point: int) -> Array:
    """Return the softmax of x: int8 or uint8[..., n], in the same type.

    Source: ONNX QLinearSoftmax (com.microsoft), as onnxruntime 1.31 computes it.
    A float32 table of exponentials, summed in order in float32, y = rint(e floor(1 / S_o) / sum) + z_o in float32.
    A row of one element overflows float32 in onnxruntime (its result is undefined); here it gives 1.0.
    """
    require_type(x, "qlinear_softmax", np.int8, np.uint8)
    limits = np.iinfo(x.dtype)
    difference = _differences(x, 1 << 30)
    n = x.shape[-1]
    scale = float(np.float32(input_scale))
    room = float(np.log(np.float32(np.finfo(np.float32).max) / np.float32(n)))
    offset = max(0.0, room - 5.0) / scale
    table = np.exp((offset - np.arange(256.0)) * scale).astype(np.float32)
    exponential = table[difference]
    total = np.add.accumulate(exponential, axis=-1)[..., -1:]
    steps = np.floor(np.float32(1) / np.float32(output_scale))
    with np.errstate(over="ignore"):
        real: Array = np.rint(exponential * steps / total)
    y = np.where(np.isfinite(real), real, steps).astype(np.int64) + output_zero_point
    return np.clip(y, limits.min, limits.max).astype(x.dtype)


@dataclass(frozen=True)
class SoftmaxUnit:
    """A softmax unit of a chip: tables, and widths in bits.

    `exponential`: table of 2**-t.
    `inverse`: table of 1 / x.
    `logarithm`: table of log2(x), for log softmax.
    `argument_bits`: fraction bits of t = (max - x) S log2(e).
    `multiplier_bits`: bits of the multiplier that makes t.
    `guard_bits`: bits of an exponential below the last bit of its table, for rows with many small ones.
    `sum_bits`: width of the sum of exponentials.
    """

    exponential: CurveTable = field(default_factory=lambda: CurveTable(6, 16, 8))
    inverse: CurveTable = field(default_factory=lambda: CurveTable(6, 16, 8))
    logarithm: CurveTable = field(default_factory=lambda: CurveTable(6, 16, 8))
    argument_bits: int = 12
    multiplier_bits: int = 15
    guard_bits: int = 4
    sum_bits: int = 32

    def __post_init__(self) -> None:
        limits = (("argument_bits", 4, 24), ("multiplier_bits", 4, 31), ("guard_bits", 0, 16), ("sum_bits", 8, 48))
        for name, low, high in limits:
            if not low <= getattr(self, name) <= high:
                raise FixedPointError(f"SoftmaxUnit: {name}={getattr(self, name)}; must be {low}..{high}")
        if self.sum_bits <= self.exponential_bits:
            raise FixedPointError(
                f"SoftmaxUnit: sum_bits={self.sum_bits}; must be above the exponential's {self.exponential_bits} "
                "(exponential.value_bits + guard_bits)"
            )

    @property
    def exponential_bits(self) -> int:
        """The fraction bits of an exponential."""
        return self.exponential.value_bits + self.guard_bits

    @property
    def max_elements(self) -> int:
        """The length of the longest row whose sum cannot overflow."""
        return 1 << (self.sum_bits - self.exponential_bits)

    def exponentials(self, t: Array) -> Array:
        """Return 2**-t as int64[...] with exponential_bits, for t: int64[...] with argument_bits."""
        return exp2_negative(t, self.argument_bits, self.exponential, self.guard_bits)


def _argument(x: Array, input_scale: float, beta: float, unit: SoftmaxUnit) -> Array:
    """Return t = (max - x) S beta log2(e) as int64[..., n] with unit.argument_bits fraction bits, rounded half up."""
    difference = _differences(x, unit.max_elements)
    real = input_scale * beta * np.log2(np.e) * (1 << unit.argument_bits)
    scale = choose_scale(real, ScaleForm("multiplier", unit.multiplier_bits, 0, 62))
    return round_shift(difference * scale.multiplier[0], scale.shift, Rounding.SINGLE_HALF_UP)


def softmax(
    x: Array,
    input_scale: float,
    output_scale: float,
    output_zero_point: int,
    unit: SoftmaxUnit,
    *,
    beta: float = 1.0,
    dtype: DTypeLike = np.int8,
) -> Array:
    """Return the softmax of x: int8, uint8 or int16[..., n], as dtype[..., n], in integers only, by a chip's unit.

    The formula is y = clip(round(e_i / sum(e) / S_o) + z_o), rounded half up once. Errors of the usual units are in
    docs/nonlinear.md: at most 1 step for int8 with the default unit.
    `output_scale`: S_o, a power of two; FixedPointError otherwise.
    `beta`: factor of the input.
    """
    output_bits = round(-np.log2(output_scale))
    if 2.0**-output_bits != output_scale:
        raise FixedPointError(f"softmax: output_scale={output_scale}; must be a power of two (1/256 for 8 bits)")
    limits = np.iinfo(np.dtype(dtype).name)
    exponential = unit.exponentials(_argument(x, input_scale, beta, unit))
    mantissa, shift = reciprocal(exponential.sum(axis=-1, keepdims=True), unit.inverse)
    y = round_shift(exponential * mantissa, shift - output_bits, Rounding.SINGLE_HALF_UP) + output_zero_point
    return np.clip(y, limits.min, limits.max).astype(limits.dtype)


def log_softmax(
    x: Array,
    input_scale: float,
    output_scale: float,
    output_zero_point: int,
    unit: SoftmaxUnit,
    *,
    dtype: DTypeLike = np.int8,
) -> Array:
    """Return (-t - log2(sum 2**-t)) ln(2) / S_o + z_o as dtype[..., n], in integers only, for x: int8, uint8 or int16[..., n].

    The result is rounded half up once at the end. Errors of the usual units are in docs/nonlinear.md.
    """
    limits = np.iinfo(np.dtype(dtype).name)
    t = _argument(x, input_scale, 1.0, unit)
    log_sum = log2_positive(unit.exponentials(t).sum(axis=-1, keepdims=True), unit.logarithm)
    fraction_bits = unit.logarithm.value_bits
    log_sum = log_sum - (unit.exponential_bits << fraction_bits)
    # The argument has its own fraction bits; the sum of both keeps the finer of the two.
    bits = max(fraction_bits, unit.argument_bits)
    value = -(t << (bits - unit.argument_bits)) - (log_sum << (bits - fraction_bits))
    form = ScaleForm("multiplier", unit.multiplier_bits, 0, 62)
    rescale = make_requant(
        float(np.log(2)) / output_scale / (1 << bits),
        form,
        Rounding.SINGLE_HALF_UP,
        zero_point=output_zero_point,
        low=int(limits.min),
        high=int(limits.max),
    )
    return requantize(value, rescale, limits.dtype)
