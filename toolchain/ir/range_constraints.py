"""Where a tensor between the steps of an operator has its range from, if not from what calibration sees of it alone."""

from __future__ import annotations

from dataclasses import dataclass

from toolchain.ir.graph import Quant


@dataclass(frozen=True)
class FixedRange:
    """From what it is: it holds these values whatever the data, and nobody measures it (a power of e up to 0 lies in 0..1)."""

    low: float
    high: float


@dataclass(frozen=True)
class ClippedRange:
    """Measured, of what lies between these: values beyond say nothing, as of a difference whose exp rounds to zero. as_one: all
    tensors of which this is said have one range, what any of them holds, as a state that goes from step to step."""

    low: float
    high: float
    as_one: str = ""


Inner = FixedRange | ClippedRange | Quant  # a Quant: an operator makes it at this scale
