"""Choose the divisor of a mean: the requantization's scale, or weights where that cannot express it."""

from __future__ import annotations

import math

from quant.fixed_point.core.numerics import Numerics


def divides(count: int, numerics: Numerics) -> bool:
    """True where a requantization can divide by `count`: a scale that is a power of two is up to 41 % off otherwise."""
    return numerics.scale.kind != "pow2" or count & (count - 1) == 0


def mean_weight(count: int, numerics: Numerics) -> tuple[int, float]:
    """The code of each element's weight 1 / count, and the step of the sum.

    Ones where the requantization divides; else the largest code whose sums fit the accumulators, by a power of two.
    """
    if divides(count, numerics):
        return 1, 1 / count
    widest = 1 << max(t.bits for t in numerics.types)  # a code less its zero point
    room = numerics.largest_sum // (count * widest)
    most = max(1, min(numerics.weight.high, room))
    step = 2.0 ** -math.floor(math.log2((most + 0.5) * count))
    return max(1, round(1 / (step * count))), step
