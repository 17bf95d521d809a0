"""Define where the range of a tensor between the steps of a decomposed operator is from, if not from calibration alone.

The frontend's `NormalModel.inner` holds one by tensor; tensors without one are calibrated as any other.
"""

from __future__ import annotations

from dataclasses import dataclass

from toolchain.ir.graph import Quant


@dataclass(frozen=True)
class FixedRange:
    """A range that follows from the operator, whatever the data, such as 0 to 1 for exp of what is at most 0. It is not
    calibrated.
    """

    low: float
    high: float


@dataclass(frozen=True)
class ClippedRange:
    """A calibrated range, clipped to `low` and `high`.

    Values beyond do not count, such as a difference whose exp rounds to zero.
    `as_one`: tensors with the same text here share one range that covers them all; "" shares with none.
    `reaches`: a value that the range always includes, although no sample may show it; None adds none.
    """

    low: float
    high: float
    as_one: str = ""
    reaches: float | None = None


# A Quant: the operator that makes the tensor does so at this scale and no other.
Inner = FixedRange | ClippedRange | Quant
