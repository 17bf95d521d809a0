"""Requantization in exact rational arithmetic, one value at a time: the definition that the fast forms are held to."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor, trunc

from quant.fixed_point import Rounding

HALF = Fraction(1, 2)


def half_away(v: Fraction) -> int:
    return floor(v + HALF) if v >= 0 else ceil(v - HALF)


def float32(v: Fraction) -> Fraction:
    """The float32 nearest to v, ties to even (normal range)."""
    if v == 0:
        return v
    exponent = 0
    magnitude = abs(v)
    while magnitude >= 1 << 24:
        magnitude /= 2
        exponent += 1
    while magnitude < 1 << 23:
        magnitude *= 2
        exponent -= 1
    return (1 if v > 0 else -1) * round(magnitude) * Fraction(2) ** exponent


def scale_exactly(x: int, m: int, s: int, rounding: Rounding) -> int:
    """x m / 2**s, rounded. DOUBLE_ROUND in its two steps, REDUCED16 from the 31-bit multiplier."""
    if rounding is Rounding.DOUBLE_ROUND:
        exponent = 31 - s
        first = floor(Fraction((x << max(exponent, 0)) * m, 1 << 31) + HALF)
        return half_away(Fraction(first, 1 << max(-exponent, 0)))
    if rounding is Rounding.SCALE16:
        x = (x + (1 << 47)) % (1 << 48) - (1 << 47)
    if rounding is Rounding.REDUCED16:
        m, s = ((m + (1 << 15)) >> 16 if m < 0x7FFF0000 else 0x7FFF), s - 16
    v = Fraction(x * m) / Fraction(2) ** s
    if rounding is Rounding.HALF_AWAY:
        return half_away(v)
    if rounding is Rounding.HALF_EVEN:
        return round(v)
    if rounding is Rounding.TRUNCATE:
        return trunc(v)
    if rounding is Rounding.FLOOR:
        return floor(v)
    return floor(v + HALF) if s > 0 else floor(v)


def scale_float32(x: int, scale: Fraction) -> int:
    return round(float32(float32(Fraction(x)) * scale))


def finish_exactly(y: int, zero_point: int, low: int, high: int, wrap_bits: int | None = None, signed: bool = True) -> int:
    y += zero_point
    if wrap_bits is not None:
        y %= 1 << wrap_bits
        if signed and y >= 1 << (wrap_bits - 1):
            y -= 1 << wrap_bits
    return min(max(y, low), high)
