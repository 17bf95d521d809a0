"""Define where the range of a tensor between an operator's steps comes from, if not from calibration of it
alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from toolchain.ir.graph import Quant


@dataclass(frozen=True)
class FixedRange:
    """A range that follows from what a tensor is, whatever the data (a power of e up to 0 lies in 0..1).

    Nobody measures it.
    """

    low: float
    high: float


@dataclass(frozen=True)
class ClippedRange:
    """A calibrated range clipped to these limits; values beyond say nothing, such as a difference whose exp rounds
    to zero.

    `as_one`: tensors with the same text share one range, which covers them all, as a state that goes from step to
    step.
    `reaches`: a value that the range holds although no sample may show it.
    """

    low: float
    high: float
    as_one: str = ""
    reaches: float | None = None


Inner = FixedRange | ClippedRange | Quant  # a Quant: an operator makes it at this scale
