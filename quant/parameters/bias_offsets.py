"""What makes a machine that floors or truncates round to nearest: offsets on its biases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.core.numerics import Numerics
from quant.fixed_point.core.rounding import Rounding
from toolchain.errors import CompileError
from toolchain.ir.graph import Quant

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Compensation:
    """offsets: int64[oc], to be added to the bias codes; output_zero_point: to be given to the machine in the place of the
    tensor's. With both, rounding is to nearest, halves up: exactly so where `exact` (bool[oc]), else off by at most half an
    accumulator step. `complete`: False where this machine cannot be brought to round to nearest."""

    offsets: Array
    output_zero_point: int
    exact: Array
    complete: bool


def bias_compensation(
    scale: Array,
    output: Quant,
    numerics: Numerics,
    *,
    clamp_low: int | None = None,
    operation: Literal["convolution", "matrix_product"] = "convolution",
    peak: Array | None = None,
    name: str = "bias",
) -> Compensation:
    """What makes a machine that rounds by `floor` or `truncate` round to nearest, through the bias alone.

    scale: float64[oc], the requantization (multiplier / 2**shift, exact); clamp_low: the least output code that is let through.
    floor: half an output step, in accumulator units. truncate is toward zero, so the sum is moved to where no value that
    survives the clamp is negative, and the output zero point moves back. Machines without zero points can do so only for outputs
    clamped at zero (after Relu); for others no offset is taken.
    Other roundings need nothing. Raises CompileError where the offset overflows.
    """
    scale = np.atleast_1d(np.asarray(scale, np.float64))
    rounding = numerics.rounding_of(operation)
    clamp_low = numerics.activation.low if clamp_low is None else clamp_low
    unchanged = np.zeros(scale.shape, np.int64)
    if rounding not in (Rounding.FLOOR, Rounding.TRUNCATE):
        return Compensation(unchanged, output.zero_point, np.ones(scale.shape, bool), True)
    lift = output.zero_point - clamp_low if rounding is Rounding.TRUNCATE else 0
    power = np.frexp(scale)[0] == 0.5
    whole = power & (scale >= 1)  # a left shift rounds nothing
    complete = not (lift and numerics.symmetric_activations)
    if complete:
        steps = lift + np.where(whole, 0.0, 0.5)
    else:
        # truncation errs alike on both sides of zero: an offset that mends one worsens the other
        lift, steps = 0, np.zeros(scale.shape)
    wanted = steps / scale
    offsets = np.rint(wanted)
    if peak is not None:
        # An offset is half a step of the output: where that outgrows the accumulators, every sum rounds to nothing anyway.
        room = numerics.largest_sum - peak
        offsets = offsets if lift else np.clip(offsets, -room, room)
        _refuse_overflow(np.abs(offsets) + peak, numerics, name)
    exact = power & (offsets == wanted) & (complete | whole)
    return Compensation(offsets.astype(np.int64), output.zero_point - lift, exact, complete)


def _refuse_overflow(sums: Array, numerics: Numerics, name: str) -> None:
    limit, accumulator_bits = numerics.largest_sum, numerics.accumulator_bits
    if (sums > limit).any():
        c = int(np.argmax(sums))
        raise CompileError(
            f"{name}: output channel {c} reaches {int(sums[c])} with its rounding offset, {accumulator_bits}-bit accumulators "
            f"{limit} (engines.mac.accumulators.bits); wider accumulators would do, or another rounding"
        )
