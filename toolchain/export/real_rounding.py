"""Express how a machine rounds sums to codes, as one formula of real numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.core.requant import Requant
from quant.fixed_point.core.rounding import HALF_UP_RULES, Rounding

Array = NDArray[Any]
_FIRST_BITS = 31  # behind them DOUBLE_ROUND rounds a first time


@dataclass(frozen=True)
class RealRounding:
    """A rounding rule: a sum's code, before zero point and clamp, is floor(sum * factor + offset + sign(sum) * away).

    The rule is exact in float64 where factor's shift and the codes have 52 bits together.
    Otherwise it is exact but for sums that are within 2^-36 of the next code.
    `factor`, `away`: float64[1] or [c].
    """

    factor: Array
    offset: float
    away: Array


def real_rounding(requant: Requant) -> RealRounding | None:
    """Return the rounding rule, or None for rules that wrap and for the roundings to even."""
    multiplier, shift = requant.integer_form
    tie = np.ldexp(0.5, -shift)  # half of what products of whole numbers differ by
    offset, away = 0.5, np.zeros(shift.shape)
    match requant.rounding:
        case Rounding.DOUBLE_ROUND:
            away = np.where(shift > _FIRST_BITS, np.ldexp(0.5, _FIRST_BITS - shift), 0)
        case Rounding.HALF_AWAY:
            away = tie
        case Rounding.TRUNCATE:
            away = tie - 0.5
        case Rounding.FLOOR:
            offset = 0.0
        case rounding if rounding not in HALF_UP_RULES:
            return None
    factor = np.ldexp(multiplier.astype(np.float64), -shift)
    return None if requant.wrap else RealRounding(factor, offset, away)
