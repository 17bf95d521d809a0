"""Define rounding rules by name, on exact products: y = round(x * m / 2**s).

Here x is an accumulator (int32 or int64), m a multiplier below 2**31, s a right shift. Every rule is defined on the exact
rational x * m / 2**s. So results do not depend on which of two functions computes them.

`round_shift`: the product fits int64 (always so for int32 accumulators).
`round_shift_wide`: it does not (int64 accumulators), and is kept in two limbs of 31 and 64 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_LIMB_BITS = 31
_LIMB_MASK = (1 << _LIMB_BITS) - 1
_INT64_MAX = (1 << 63) - 1


class Rounding(StrEnum):
    """A rounding rule of a requantization. p = x * m exact, s the right shift, `>>` arithmetic (floor).

    SINGLE_HALF_UP  (p + 2**(s-1)) >> s. TOSA 1.0 SINGLE_ROUND, TFLite single rounding, CMSIS-NN single.
    DOUBLE_ROUND    s > 31: (p + 2**(s-1) + (x >= 0 ? 2**30 : -2**30)) >> s, else as SINGLE_HALF_UP.
                    Used by gemmlowp, TFLite and TFLite Micro by default, TOSA 1.0 DOUBLE_ROUND.
    HALF_AWAY       to nearest, ties away from zero. NVDLA converters, TVM TONEAREST.
    HALF_EVEN       to nearest, ties to even.
    TRUNCATE        toward zero. Ethos-U TRUNCATE.
    FLOOR           toward minus infinity.
    FP32_RNE        rint(float32(x) * float32(scale)), ties to even. ONNX QLinearConv, QLinearMatMul.
    SCALE16         x wraps to 48 bits, m is at most 15 bits: (p + 2**(s-1)) >> s. TOSA 1.0 RESCALE, scale32 off.
    REDUCED16       m (31 bits) is cut to m16 = m < 0x7FFF0000 ? (m + 2**15) >> 16 : 0x7FFF; then
                    (x m16 + 2**(s-17)) >> (s-16). TFLite, CMSIS-NN: int16 activations with int64 accumulators.
    POW2            no multiplier: (x + 2**(s-1)) >> s; s < 0 shifts left.
    """

    SINGLE_HALF_UP = "single_half_up"
    DOUBLE_ROUND = "double_round"
    HALF_AWAY = "half_away"
    HALF_EVEN = "half_even"
    TRUNCATE = "truncate"
    FLOOR = "floor"
    FP32_RNE = "fp32_rne"
    POW2 = "pow2"
    SCALE16 = "scale16"
    REDUCED16 = "reduced16"


# p / 2**s to an integer, p = x m exact: how manuals write it.
RULES: Mapping[Rounding, str] = {
    Rounding.SINGLE_HALF_UP: "floor((p + 2^(s-1)) / 2^s), for s = 0 p",
    Rounding.DOUBLE_ROUND: (
        "s > 31: floor((p + 2^(s-1) + n) / 2^s) with n = 2^30 where x >= 0, else -2^30; s <= 31: floor((p + 2^(s-1)) / 2^s), "
        "for s = 0 p"
    ),
    Rounding.HALF_AWAY: "p / 2^s to the nearest integer, halves away from zero",
    Rounding.HALF_EVEN: "p / 2^s to the nearest integer, halves to the even one",
    Rounding.TRUNCATE: "p / 2^s without its fraction, towards zero: sign(p) floor(|p| / 2^s)",
    Rounding.FLOOR: "floor(p / 2^s)",
    Rounding.FP32_RNE: (
        "rint(float32(x) m): x to the nearest float32, the product to the nearest float32, that to the nearest integer, each "
        "time halves to even"
    ),
    Rounding.SCALE16: "x wraps to 48 bits first, m < 2^15: floor((p + 2^(s-1)) / 2^s), for s = 0 p",
    Rounding.REDUCED16: (
        "m' = floor((m + 2^15) / 2^16), or 32767 where m >= 0x7FFF0000: floor((x m' + 2^(s-17)) / 2^(s-16)), for s = 16 x m'"
    ),
    Rounding.POW2: "floor((x + 2^(s-1)) / 2^s), for s = 0 x",
}

HALF_UP_RULES = frozenset({Rounding.SINGLE_HALF_UP, Rounding.SCALE16, Rounding.REDUCED16, Rounding.POW2})


def reduce_multiplier(multiplier: Array) -> Array:
    """Return the 16-bit form of 31-bit multipliers int64[...], saturated at 0x7FFF. TFLite `MultiplyByQuantizedMultiplier`."""
    return np.where(multiplier < 0x7FFF0000, (multiplier + (1 << 15)) >> 16, 0x7FFF)


def round_shift(p: Array, shift: Array, rounding: Rounding, x: Array | None = None) -> Array:
    """Return p / 2**shift rounded, int64[...], for p: int64[...], |p| < 2**62, and shift: int64, 0..62, broadcasts.

    `x`: the accumulator, for its sign (DOUBLE_ROUND only; p where the multiplier is positive).

    REDUCED16 and FP32_RNE are no rules of a shift alone. The caller has changed multiplier and shift (REDUCED16), or computes
    in float.
    """
    half = np.where(shift > 0, np.left_shift(np.int64(1), np.maximum(shift, 1) - 1), 0)
    if rounding in HALF_UP_RULES:
        return (p + half) >> shift
    if rounding is Rounding.DOUBLE_ROUND:
        nudge = np.where(shift > 31, np.int64(1 << 30), np.int64(0))
        sign = p if x is None else x
        return (p + np.where(sign >= 0, half + nudge, half - nudge)) >> shift
    if rounding is Rounding.FLOOR:
        return p >> shift
    if rounding is Rounding.HALF_AWAY:
        return (p + half - ((p < 0) & (shift > 0))) >> shift
    if rounding is Rounding.TRUNCATE:
        return (p + ((p >> 63) & (np.left_shift(np.int64(1), shift) - 1))) >> shift
    if rounding is Rounding.HALF_EVEN:
        odd = (p >> shift) & 1
        return (p + np.where(shift > 0, half - 1 + odd, 0)) >> shift
    raise ValueError(f"rounding {rounding.value!r} is not a rule of a shift; see Rounding")


def round_shift_wide(x: Array, multiplier: Array, shift: Array, rounding: Rounding) -> Array:
    """Return round(x * multiplier / 2**shift) as int64[...], saturated to int64, for any x: int64[...].

    `multiplier`: int64, 0 <= m < 2**31.
    `shift`: int64, 0..62.

    x * m is kept as high * 2**31 + low, 0 <= low < 2**31. The quotient's floor, and the remainder's order against one half,
    decide every rule.
    """
    low = (x & _LIMB_MASK) * multiplier
    high = (x >> _LIMB_BITS) * multiplier + (low >> _LIMB_BITS)
    low = low & _LIMB_MASK
    if rounding is Rounding.DOUBLE_ROUND:
        # +-2**30 of the first rounding, where the shift has a second one
        nudge = np.where(shift > 31, np.where(x >= 0, np.int64(1 << 30), np.int64(-(1 << 30))), np.int64(0))
        low = low + nudge
        high = high + (low >> _LIMB_BITS)
        low = low & _LIMB_MASK
    quotient, compared = _floor_and_half(high, low, shift)
    return _saturating_increment(quotient, _rounds_up(quotient, compared, x, rounding))


def _floor_and_half(high: Array, low: Array, shift: Array) -> tuple[Array, Array]:
    """Return floor((high 2**31 + low) / 2**shift), saturated to int64, and where the remainder stands.

    The second is 0 for no remainder, 1 below one half, 2 for one half, 3 above.
    """
    below = np.minimum(shift, _LIMB_BITS)
    above = np.maximum(shift - _LIMB_BITS, 0)
    left_shift = _LIMB_BITS - below
    limit = np.right_shift(np.int64(_INT64_MAX), left_shift)
    clamped = np.clip(high, -limit - 1, limit)
    fits = clamped == high
    small = (np.left_shift(clamped, left_shift)) + np.where(fits, low >> below, 0)
    small = np.where(fits, small, np.where(high < 0, np.int64(-_INT64_MAX - 1), np.int64(_INT64_MAX)))
    quotient = np.where(above > 0, high >> above, small)
    # remainder over 2**shift: its upper part from `high` (shift > 31), its lower part from `low`
    upper = high & (np.left_shift(np.int64(1), above) - 1)
    lower = low & (np.left_shift(np.int64(1), below) - 1)
    half_upper = np.where(above > 0, np.left_shift(np.int64(1), np.maximum(above, 1) - 1), 0)
    half_lower = np.where((above == 0) & (below > 0), np.left_shift(np.int64(1), np.maximum(below, 1) - 1), 0)
    is_zero = (upper == 0) & (lower == 0)
    greater = (upper > half_upper) | ((upper == half_upper) & (lower > half_lower))
    equal = (upper == half_upper) & (lower == half_lower)
    compared = np.where(is_zero, 0, np.where(greater, 3, np.where(equal, 2, 1)))
    return quotient, compared


def _rounds_up(quotient: Array, compared: Array, x: Array, rounding: Rounding) -> Array:
    """Return bool[...]: whether the rule takes the quotient's successor. Raise ValueError for a rule that is not one of a shift.

    `compared`: the second result of `_floor_and_half`.
    `x`: accumulators, for their signs.
    """
    if rounding in HALF_UP_RULES or rounding is Rounding.DOUBLE_ROUND:
        return compared >= 2
    if rounding is Rounding.HALF_AWAY:
        return (compared == 3) | ((compared == 2) & (x >= 0))
    if rounding is Rounding.HALF_EVEN:
        return (compared == 3) | ((compared == 2) & ((quotient & 1) == 1))
    if rounding is Rounding.TRUNCATE:
        return (compared > 0) & (x < 0)
    if rounding is Rounding.FLOOR:
        return compared < 0
    raise ValueError(f"rounding {rounding.value!r} is not a rule of a shift; see Rounding")


def _saturating_increment(quotient: Array, up: Array) -> Array:
    return quotient + (up & (quotient < _INT64_MAX))
