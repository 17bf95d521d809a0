"""Compute TFLite's activations in integers: hard swish of 8 bits, logistic and tanh of 16.

The toolchain does not call these functions; they are for comparison with TFLite.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.core.fixed_point_errors import FixedPointError, require_type
from quant.fixed_point.core.q31 import INT32_MAX, Q31_MULTIPLIER, divide_by_power
from quant.fixed_point.core.rounding import Rounding, round_shift
from quant.fixed_point.core.scale import choose_scale
from quant.fixed_point.pointwise.real_functions import round_half_away

Array = NDArray[Any]
_INT16_MIN, _INT16_MAX = -(1 << 15), (1 << 15) - 1


@dataclass(frozen=True)
class HardSwish:
    """A set of parameters of TFLite's 8-bit hard swish: two 15-bit multipliers with the exponents of their real scales.

    S is the input's scale, S_o the output's.
    `output_multiplier`, `output_exponent`: of S / (128 S_o); the exponent is at most 0.
    `reluish_multiplier`, `reluish_exponent`: of S / 128 * 32768 / 3.
    """

    input_zero_point: int
    output_zero_point: int
    output_multiplier: int
    output_exponent: int
    reluish_multiplier: int
    reluish_exponent: int


def hard_swish_parameters(input_scale: float, input_zero_point: int, output_scale: float, output_zero_point: int) -> HardSwish:
    """Return the parameters for these scales and zero points. Source: TFLite HARD_SWISH.

    Raise FixedPointError where input_scale / output_scale is 128 or more.
    """
    hires = np.float32(1 / 128) * np.float32(input_scale)
    output, output_exponent = _multiplier16(float(hires / np.float32(output_scale)))
    reluish, reluish_exponent = _multiplier16(float(hires / (np.float32(3) / np.float32(32768))))
    if output_exponent > 0:
        raise FixedPointError(
            f"hard swish: input_scale / output_scale = {input_scale / output_scale:.6g}; must be below 128; "
            "choose a larger output scale"
        )
    return HardSwish(input_zero_point, output_zero_point, output, output_exponent, reluish, reluish_exponent)


def _multiplier16(real: float) -> tuple[int, int]:
    """Return a multiplier below 2**15 and an exponent: real = multiplier / 2**15 * 2**exponent, rounded.

    Source: TFLite QuantizeMultiplier, then DownScaleInt32ToInt16Multiplier.
    """
    s = choose_scale(real, Q31_MULTIPLIER)
    multiplier = int(s.multiplier[0])
    if multiplier >= INT32_MAX - (1 << 15):
        return _INT16_MAX, 31 - int(s.shift[0])
    return (multiplier + (1 << 15)) >> 16, 31 - int(s.shift[0])


def hard_swish8(x: Array, p: HardSwish) -> Array:
    """Return x * relu6(x + 3) / 6 as codes of x's type, computed in 16-bit integers as TFLite does.

    `x`: int8 or uint8[...], codes.
    The error is at most 1 step against float64 where the output scale is no finer than the input's (docs/nonlinear.md).
    Source: TFLite HARD_SWISH, reference.
    """
    require_type(x, "hard_swish8", np.int8, np.uint8)
    limits = np.iinfo(x.dtype)
    hires = (x.astype(np.int64) - p.input_zero_point) << 7
    value = _multiply_q15(hires, p.output_multiplier)
    gate = hires
    if p.reluish_exponent > 0:
        gate = np.clip(gate << (p.reluish_exponent - 1), _INT16_MIN, _INT16_MAX)
    gate = _multiply_q15(gate, p.reluish_multiplier)
    if p.reluish_exponent > 0:
        gate = np.clip(gate << 1, _INT16_MIN, _INT16_MAX)
    if p.reluish_exponent < 0:
        gate = divide_by_power(gate, np.asarray(-p.reluish_exponent))
    gate = (gate + (1 << 15)) >> 1
    y = round_shift(gate * value, np.asarray(15), Rounding.TRUNCATE)
    y = divide_by_power(y, np.asarray(-p.output_exponent)) + p.output_zero_point
    return np.clip(y, limits.min, limits.max).astype(x.dtype)


def _multiply_q15(a: Array, b: int) -> Array:
    """Return a * b / 2**15, rounded half up, at most 32767."""
    return np.minimum(round_shift(a * b, np.asarray(15), Rounding.SINGLE_HALF_UP), _INT16_MAX)


@cache
def _sigmoid_table() -> Array:
    """Return sigmoid(i / 24) for i of 0 to 255, with 16 fraction bits: int64[256], sigmoid_table_uint16 of TFLite's common.h.

    Each entry is shifted by half of the interpolation error at the midpoint to the next. The last entry is 65535.
    """
    i = np.arange(256.0)
    here, middle, after = (65536 / (1 + np.exp(-x / 24)) for x in (i, i + 0.5, i + 1))
    table = round_half_away(here - ((here + after) / 2 - middle) / 2).astype(np.int64)
    table[-1] = 65535
    table.flags.writeable = False
    return table


def _logistic_argument(x: Array, input_scale: float, exact_shifts: tuple[int, ...]) -> Array:
    """Return x as int64 codes of scale 1 / (3 * 4096), from codes of scale `input_scale`.

    A multiplier of 15 bits, rounded down, and a shift do it. It is exact where the scale is 2**(e - 12), e of `exact_shifts`.
    """
    scale = float(np.float32(input_scale))
    log2 = round(np.log2(scale))
    if scale == 2.0**log2 and 12 + log2 in exact_shifts:
        return x.astype(np.int64) * (3 << (12 + log2))
    multiplier, shift = scale * 4096 * 3, 0
    while multiplier <= 32767 / 2 and shift <= 30:
        shift, multiplier = shift + 1, multiplier * 2
    return round_shift(x.astype(np.int64) * int(multiplier), np.asarray(shift), Rounding.SINGLE_HALF_UP)


def logistic16(x: Array, input_scale: float) -> Array:
    """Return the sigmoid as int16[...] with scale 1 / 32768, zero point 0.

    `x`: int16[...] with scale `input_scale`, zero point 0.
    A table of 256 entries over [0, 10.67) is interpolated; its symmetry gives the negative half. docs/nonlinear.md has the
    largest error. Source: TFLite LOGISTIC, int16 (reference_integer_ops).
    """
    require_type(x, "logistic16", np.int16)
    argument = _logistic_argument(x, input_scale, (0,))
    distance = np.abs(argument)
    i = np.minimum(distance >> 9, 254)
    table = _sigmoid_table()
    base = table[i]
    result = np.where(distance >> 9 >= 255, 0x7FFF << 10, (base << 9) + (distance & 0x1FF) * (table[i + 1] - base))
    result = np.where(argument >= 0, result + (1 << 9), (1 << 25) - result + (1 << 9) - 1)
    return (result >> 10).astype(np.int16)


def tanh16(x: Array, input_scale: float) -> Array:
    """Return tanh as int16[...] with scale 1 / 32768, zero point 0, computed as 2 sigmoid(2 x) - 1.

    `x`: int16[...] with scale `input_scale`, zero point 0.
    docs/nonlinear.md has the largest error. Source: TFLite TANH, int16 (reference_integer_ops).
    """
    require_type(x, "tanh16", np.int16)
    argument = _logistic_argument(x, input_scale, (0, 1))
    distance = np.abs(argument)
    i = np.minimum(distance >> 8, 254)
    table = _sigmoid_table()
    base = table[i]
    result = np.where(distance >> 8 >= 255, 0xFFFF << 8, (base << 8) + (distance & 0xFF) * (table[i + 1] - base))
    result = np.where(argument >= 0, result - (1 << 23) + (1 << 7), -result + (1 << 23) + (1 << 7) - 1)
    return (result >> 8).astype(np.int16)
