"""Computes offsets on bias codes by which a machine that floors or truncates its requantization rounds to nearest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.core.numerics import Numerics
from quant.fixed_point.core.rounding import Rounding
from toolchain.errors import CompileError
from toolchain.ir.graph import Quant

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Compensation:
    """A compensation of a machine's rounding: with the offsets and the zero point, it rounds to nearest, halves up.

    `offsets`: int64[oc], to be added to the bias codes.
    `output_zero_point`: to be passed to the machine in the place of the tensor's.
    `exact`: bool[oc], True where the result is exactly rounded to nearest. This needs a scale that is a power of two and a whole
    offset. It is True too where the machine's rounding needs no offset.
    `complete`: False where this machine cannot be brought to round to nearest.
    """

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
    peak: Array | None = None,
    name: str = "bias",
) -> Compensation:
    """Return what makes convolutions round to nearest on a machine that rounds them by `floor` or `truncate`.

    `scale`: float64[oc], the requantization (multiplier / 2**shift, exact).
    `output`: qparams of the output tensor.
    `clamp_low`: the least output code that the clamp lets through; None: that of the machine's activations.
    `peak`: float64[oc], the largest magnitude that a channel's sum reaches without the offset; None: overflow is not checked.
    `name`: of the layer, in the error.

    With `floor`, the sum is raised by half an output step. Where the scale is a power of two of at least 1, the offset is 0.
    Where `peak` is given, the offset stays within the room of the accumulators.
    With `truncate` (toward zero), the sum is raised by k output steps more, and the output zero point is lowered by k. Here k is
    the zero point minus `clamp_low`, so no value that survives the clamp is negative. Machines without zero points can do so only
    where k is 0, as after Relu. Their other outputs get no offset, and `complete` is False.
    Other roundings get offsets of 0. Raise CompileError where `peak` plus an offset exceeds the accumulators.
    """
    scale = np.atleast_1d(np.asarray(scale, np.float64))
    rounding = numerics.rounding_of("convolution")
    clamp_low = numerics.activation.low if clamp_low is None else clamp_low
    unchanged = np.zeros(scale.shape, np.int64)
    if rounding not in (Rounding.FLOOR, Rounding.TRUNCATE):
        return Compensation(unchanged, output.zero_point, np.ones(scale.shape, bool), True)
    lift = output.zero_point - clamp_low if rounding is Rounding.TRUNCATE else 0
    power = np.frexp(scale)[0] == 0.5
    is_left_shift = power & (scale >= 1)  # a left shift rounds nothing
    complete = not (lift and numerics.symmetric_activations)
    if complete:
        steps = lift + np.where(is_left_shift, 0.0, 0.5)
    else:
        # truncation errs alike on both sides of zero: an offset that mends one worsens the other
        lift, steps = 0, np.zeros(scale.shape)
    real_offsets = steps / scale
    offsets = np.rint(real_offsets)
    if peak is not None:
        # An offset is half a step of the output: where that outgrows the accumulators, every sum rounds to nothing anyway.
        room = numerics.largest_sum - peak
        offsets = offsets if lift else np.clip(offsets, -room, room)
        _refuse_overflow(np.abs(offsets) + peak, numerics, name)
    exact = power & (offsets == real_offsets) & (complete | is_left_shift)
    return Compensation(offsets.astype(np.int64), output.zero_point - lift, exact, complete)


def _refuse_overflow(sums: Array, numerics: Numerics, name: str) -> None:
    """Raise CompileError where a sum (float64[oc], magnitudes) exceeds the accumulators."""
    limit, accumulator_bits = numerics.largest_sum, numerics.accumulator_bits
    if (sums > limit).any():
        c = int(np.argmax(sums))
        raise CompileError(
            f"{name}: output channel {c} reaches {int(sums[c])} with its rounding offset, {accumulator_bits}-bit accumulators "
            f"{limit} (engines.mac.accumulators.bits); wider accumulators would do, or another rounding"
        )
