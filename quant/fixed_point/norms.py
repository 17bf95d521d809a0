"""LayerNorm and RMSNorm over the last axis in integers only, parametrized by the chip's tables and widths.

Sums are exact: with d_i = n x_i - sum(x) the zero point drops out, and (x - mean) / sqrt(variance + eps) equals
d_i / sqrt(p + n**2 eps / S**2) with p = sum(d**2) / n = n sum(x**2) - sum(x)**2. One inverse square root a row, then one product and one shift an element.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import DTypeLike

from quant.fixed_point.errors import FixedPointError
from quant.fixed_point.requant import Requant, requantize
from quant.fixed_point.rounding import Rounding, round_shift
from quant.fixed_point.tables import Array, CurveTable, inverse_sqrt

_SUM_LIMIT_BITS = 62


@dataclass(frozen=True)
class NormUnit:
    """A chip's normalisation: inverse_sqrt is its table, fraction_bits those of the normalised value, rounded by rounding.

    The normalised value is at most sqrt(n), so it needs fraction_bits + log2(n) / 2 + 1 bits.
    """

    inverse_sqrt: CurveTable = field(default_factory=lambda: CurveTable(7, 16, 8))
    fraction_bits: int = 12
    rounding: Rounding = Rounding.SINGLE_HALF_UP

    def __post_init__(self) -> None:
        if not 2 <= self.fraction_bits <= 24:
            raise FixedPointError(f"NormUnit: fraction_bits={self.fraction_bits}; must be 2..24")


def layer_norm(
    x: Array,
    gamma: Array | None,
    beta: Array | None,
    input_scale: float,
    epsilon: float,
    unit: NormUnit,
    r: Requant,
    dtype: DTypeLike = np.int8,
) -> Array:
    """x: int8, uint8 or int16[..., n] -> dtype[..., n], (x - mean) / sqrt(variance + epsilon) * gamma + beta.

    gamma: int8 or int16[n] or None (1), beta: int32[n] in units of S_gamma / 2**fraction_bits, or None.
    r scales by S_gamma / (2**fraction_bits S_o) (S_gamma = 1 without gamma). Error: at most 1 step for int8 with the
    default unit (docs/nonlinear.md).
    """
    n = _row_length(x)
    value = x.astype(np.int64)
    total = value.sum(axis=-1, keepdims=True)
    power = n * (value * value).sum(axis=-1, keepdims=True) - total * total + _epsilon(epsilon, n, input_scale)
    return requantize(_scale(_normalise(n * value - total, power, unit), gamma, beta), r, dtype)


def rms_norm(
    x: Array,
    gamma: Array | None,
    beta: Array | None,
    input_scale: float,
    input_zero_point: int,
    epsilon: float,
    unit: NormUnit,
    r: Requant,
    dtype: DTypeLike = np.int8,
) -> Array:
    """x: int8, uint8 or int16[..., n] -> dtype[..., n], x / sqrt(mean(x**2) + epsilon) * gamma + beta.

    gamma, beta, r and error as in `layer_norm`.
    """
    n = _row_length(x)
    value = x.astype(np.int64) - input_zero_point
    power = n * (value * value).sum(axis=-1, keepdims=True) + _epsilon(epsilon, n, input_scale)
    return requantize(_scale(_normalise(n * value, power, unit), gamma, beta), r, dtype)


def _row_length(x: Array) -> int:
    """n, so small that the sum of squares of n x fits 62 bits."""
    if x.ndim == 0 or x.shape[-1] == 0:
        raise FixedPointError(f"norm: shape {x.shape} has no elements on its last axis")
    n = x.shape[-1]
    bits = 8 * x.dtype.itemsize
    if x.dtype.kind not in "iu" or bits > 16:
        raise FixedPointError(f"norm: input is {x.dtype}; must be int8, uint8 or int16")
    most = 1 << (_SUM_LIMIT_BITS // 2 - bits)
    if n > most:
        raise FixedPointError(f"norm: {n} elements of {x.dtype} on the last axis; sums of squares in 62 bits hold {most}")
    return n


def _epsilon(epsilon: float, n: int, input_scale: float) -> int:
    """n**2 epsilon / S**2, nearest whole number: epsilon on the scale of sum(d**2) / n."""
    scaled = round(n * n * epsilon / (input_scale * input_scale))
    if scaled.bit_length() > _SUM_LIMIT_BITS - 1:
        raise FixedPointError(f"norm: epsilon={epsilon} at input_scale={input_scale} is too large for {n} elements")
    return scaled


def _normalise(centred: Array, power: Array, unit: NormUnit) -> Array:
    """centred: int64[..., n] d, power: int64[..., 1] -> int64[..., n], d / sqrt(power) with unit.fraction_bits.

    |d| <= sqrt(n power): the product has at most value_bits + log2(n) / 2 bits more than the shift takes away.
    """
    mantissa, shift = inverse_sqrt(power, unit.inverse_sqrt)
    cut = shift - unit.fraction_bits
    product = np.left_shift(centred * mantissa, np.maximum(-cut, 0))
    return round_shift(product, np.clip(cut, 0, 62), unit.rounding)


def _scale(normalised: Array, gamma: Array | None, beta: Array | None) -> Array:
    acc = normalised if gamma is None else normalised * gamma.astype(np.int64)
    return acc if beta is None else acc + beta
