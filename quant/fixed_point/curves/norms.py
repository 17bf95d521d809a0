"""Computes LayerNorm and RMSNorm over the last axis in integers only, parametrized by the chip's tables and widths.

Sums are exact. The zero point drops out of d_i = n x_i - sum(x).
`(x - mean) / sqrt(variance + eps)` equals d_i / sqrt(p + n**2 eps / S**2).
Here p is sum(d**2) / n = n sum(x**2) - sum(x)**2. It carries 2 g guard bits for eps, g at most 8
and as many as keep it in 62 bits. A row takes one inverse square root, an element then one product and one shift.
These bounds of 8 and 62 are _MAX_GUARD_BITS and _POWER_BITS.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from quant.fixed_point.core.fixed_point_errors import FixedPointError
from quant.fixed_point.core.requant import Requant
from quant.fixed_point.core.requantization import requantize
from quant.fixed_point.core.rounding import Rounding, round_shift
from quant.fixed_point.curves.curve_tables import CurveTable, inverse_sqrt

Array = NDArray[Any]
_POWER_BITS = 62
_MAX_GUARD_BITS = 8


@dataclass(frozen=True)
class NormUnit:
    """A chip's unit for norms.

    `inverse_sqrt`: its table.
    `fraction_bits`: those of the normalised value, 2..24; it is at most sqrt(n), so it needs fraction_bits + log2(n) / 2 + 1
    bits.
    `rounding`: rounding of the normalised value.
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
    """Return (x - mean) / sqrt(variance + epsilon) * gamma + beta as dtype[..., n], for x: int8, uint8 or int16[..., n].

    `gamma`: int8 or int16[n]; None: 1.
    `beta`: int32 or int64[n] in units of S_gamma / 2**fraction_bits; None: 0.
    `epsilon`: in real units, squared.
    `r`: scales by S_gamma / (2**fraction_bits S_o) (S_gamma = 1 without gamma).

    Error: at most 1 step for int8 with the default unit (docs/nonlinear.md).
    Raise FixedPointError: another type, an empty row, or one so long that sums exceed 62 bits.
    """
    n = _row_length(x)
    value = x.astype(np.int64)
    total = value.sum(axis=-1, keepdims=True)
    power = n * (value * value).sum(axis=-1, keepdims=True) - total * total
    normalised = _normalise(n * value - total, power, _guard_bits(x), epsilon / input_scale**2, unit)
    return requantize(_scale(normalised, gamma, beta), r, dtype)


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
    """Return x / sqrt(mean(x**2) + epsilon) * gamma + beta as dtype[..., n], for x: int8, uint8 or int16[..., n].

    `gamma`, `beta`, `r`: as in `layer_norm`, whose errors this has too.
    """
    n = _row_length(x)
    value = x.astype(np.int64) - input_zero_point
    power = n * (value * value).sum(axis=-1, keepdims=True)
    normalised = _normalise(n * value, power, _guard_bits(x), epsilon / input_scale**2, unit)
    return requantize(_scale(normalised, gamma, beta), r, dtype)


def _row_length(x: Array) -> int:
    """Return n, the elements of a row. Raise FixedPointError where n**2 (2**bits)**2 does not fit 62 bits, or x is no code
    array."""
    if x.ndim == 0 or x.shape[-1] == 0:
        raise FixedPointError(f"norm: shape {x.shape} has no elements on its last axis")
    if x.dtype.kind not in "iu" or x.dtype.itemsize > 2:
        raise FixedPointError(f"norm: input is {x.dtype}; must be int8, uint8 or int16")
    most = 1 << (_POWER_BITS // 2 - 8 * x.dtype.itemsize)
    if x.shape[-1] > most:
        raise FixedPointError(f"norm: {x.shape[-1]} elements of {x.dtype} on the last axis; sums in 62 bits hold {most}")
    return x.shape[-1]


def _guard_bits(x: Array) -> int:
    """Return the guard bits that keep the power of a row in 62 bits, at most 8."""
    spare = _POWER_BITS // 2 - 8 * x.dtype.itemsize - (x.shape[-1] - 1).bit_length()
    return min(_MAX_GUARD_BITS, spare)


def _normalise(centred: Array, power: Array, guard_bits: int, epsilon: float, unit: NormUnit) -> Array:
    """Return d / sqrt(p + n**2 epsilon) as int64[..., n] with fraction_bits.

    `centred`: d, int64[..., n].
    `power`: p, int64[..., 1].
    `epsilon`: in units of S**2.

    Since |d| <= sqrt(n p), the product has at most value_bits (of the table) + log2(n) / 2 bits more than the
    shift takes away.
    """
    n = centred.shape[-1]
    added = round(n * n * epsilon * (1 << (2 * guard_bits)))
    if added.bit_length() > _POWER_BITS - 1:
        raise FixedPointError(f"norm: epsilon is {epsilon:.6g} steps of the input squared, too large for {n} elements")
    mantissa, shift = inverse_sqrt((power << (2 * guard_bits)) + added, unit.inverse_sqrt)
    cut = shift - guard_bits - unit.fraction_bits
    product = np.left_shift(centred * mantissa, np.maximum(-cut, 0))
    return round_shift(product, np.clip(cut, 0, 62), unit.rounding)


def _scale(normalised: Array, gamma: Array | None, beta: Array | None) -> Array:
    """Return normalised gamma + beta as int64[..., n]; None: 1 and 0."""
    acc = normalised if gamma is None else normalised * gamma.astype(np.int64)
    return acc if beta is None else acc + beta
