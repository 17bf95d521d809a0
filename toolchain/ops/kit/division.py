"""What a mean divides by: the requantization's scale, or weights where that cannot say it."""

from __future__ import annotations

import math

from toolchain.hw.chip import Numerics


def divides(count: int, numerics: Numerics) -> bool:
    """True where a requantization can divide by `count`: a scale that is a power of two is up to 41 % off otherwise."""
    return numerics.scale.kind != "pow2" or count & (count - 1) == 0


def mean_weight(count: int, numerics: Numerics, accumulator_bits: int) -> tuple[int, float]:
    """The code of each element's weight 1 / count, and the step of the sum.

    Ones where the requantization divides; else the largest code whose sums fit the accumulators, by a power of two.
    """
    if divides(count, numerics):
        return 1, 1 / count
    widest = 2 ** (16 if numerics.activation == "int16" else 8)  # a code less its zero point
    room = (2 ** (accumulator_bits - 1) - 1) // (count * widest)
    most = max(1, min(127 if numerics.weight == "int8" else 7, room))
    step = 2.0 ** -math.floor(math.log2((most + 0.5) * count))
    return max(1, round(1 / (step * count))), step
