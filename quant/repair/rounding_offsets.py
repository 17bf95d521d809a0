"""Finds zero points by which a machine that rounds sums and means down, or toward zero, rounds them to nearest on average.

The zero points are those that an operator without a bias gets for its operands and output (`choices.Offset`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quant.fixed_point.core.rounding import Rounding
from quant.repair.choices import Offset

_REACH = 64  # codes to either side of the middle that are tried
_NEAR = 0.02  # of a step of the output: nearer costs larger offsets and gains nothing
_WORTH = 0.25  # what is left of the half step must be less, or nothing is gained for sure


def sum_offset(
    rounding: Rounding,
    steps: Sequence[float],
    zero_points: Sequence[int],
    output_zero_point: int,
    low: int,
    codes: tuple[int, int],
) -> Offset | None:
    """Return the offset of y = a + b, to be added to the zero points; None where there is no gain.

    The machine computes the code of y less its zero point as rounding(sum over operands of step (code - zero point)).

    `rounding`: FLOOR or TRUNCATE.
    `steps`: of the two operands, scale over the output's, negative where it is subtracted, 0 for one whose zero point must stay.
    `zero_points`: of the two operands.
    `low`: the least code that y's clamp lets through.
    `codes`: least and largest zero point.

    Rounding down loses half a step on average, so the operands' zero points move until the sum grows by that. With rounding
    toward zero, the sum first moves until no code that survives the clamp is negative. Then the output's zero point moves back as
    far.
    """
    lift = output_zero_point - low if rounding is Rounding.TRUNCATE else 0
    target, size = lift + 0.5, sum(abs(s) for s in steps)
    if not size:
        return None
    tried = [_codes(target * np.sign(s) / size if s else 0.0, s, z, codes) for s, z in zip(steps, zero_points, strict=True)]
    first, second = np.meshgrid(*tried, indexing="ij")
    remainder = np.abs(first * steps[0] + second * steps[1] - target)
    far = np.abs(first - np.median(tried[0])) + np.abs(second - np.median(tried[1]))
    nearest = int(np.lexsort((far.ravel(), np.maximum(remainder, _NEAR).ravel()))[0])
    at = np.unravel_index(nearest, remainder.shape)
    if remainder[at] > _WORTH:
        return None
    return Offset((-int(first[at]), -int(second[at])), -lift)


def mean_offset(
    rounding: Rounding,
    step: float,
    zero_point: int,
    output_zero_point: int,
    low: int,
    codes: tuple[int, int],
    output_codes: tuple[int, int],
) -> Offset | None:
    """Return the offset of y, a mean of x or x at another scale; None where there is no gain.

    The machine computes the code of y less its zero point as rounding(step (mean of codes - zero point)). The zero point of x
    moves so that y grows by half a step and some whole steps. The zero point of y takes the whole steps back.

    `rounding`: FLOOR or TRUNCATE.
    `step`: the scale of x over that of y.
    `codes`, `output_codes`: least and largest zero point of x, and of y; all else is as in `sum_offset`.
    """
    lift = output_zero_point - low if rounding is Rounding.TRUNCATE else 0
    grown = np.arange(zero_point - codes[1], zero_point - codes[0] + 1)
    integer_steps = np.rint(grown * step - 0.5)
    remainder = np.abs(grown * step - 0.5 - integer_steps)
    possible = (rounding is Rounding.FLOOR) | (integer_steps >= lift)
    possible &= (
        (output_zero_point - integer_steps >= output_codes[0])
        & (output_zero_point - integer_steps <= output_codes[1])
        & (remainder <= _WORTH)
    )
    if not possible.any():
        return None
    at = np.lexsort((np.abs(grown), np.maximum(remainder, _NEAR), ~possible))[0]
    return Offset((-int(grown[at]),), -int(integer_steps[at]))


def _codes(middle: float, step: float, zero_point: int, codes: tuple[int, int]) -> np.ndarray:
    """Return the numbers of codes by which an operand may grow, so that its zero point less them is still a code.

    They lie within 64 of `middle`, in ascending order; [0] where `step` is 0.
    """
    if not step:
        return np.zeros(1, np.int64)
    least, most = zero_point - codes[1], zero_point - codes[0]
    centre = min(max(round(middle), least), most)
    return np.arange(max(centre - _REACH, least), min(centre + _REACH, most) + 1)
