"""Corrects biases: finds codes that make a layer's mean output, channel by channel, equal float's on the machine's arithmetic.

Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction" (2019), 3.3, describe the shift of means.
There it follows by formula from the weights' rounding alone. Here the mean is that of the requantized, clamped codes themselves.
So the machine's rounding, its clamps and the error of the inputs are all in it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.core.requant import Requant
from quant.fixed_point.core.requantization import requantize

Array = NDArray[Any]

_STEPS = 4
_LEAST_SHARE = 0.05  # of rows that answer to the bias: below it a step would be a leap in the dark


def bias_shift(sums: Array, requant: Requant, dtype: Any, zero_point: int, target_mean: Array) -> Array:
    """Return int64[o], codes to add to the bias so that the layer's mean output comes nearest to `target_mean`.

    `sums`: int64[rows, o], accumulators with their bias.
    `requant`, `dtype`: requantization to the layer's output, and numpy type of its codes.
    `zero_point`: of the output tensor.
    `target_mean`: float64[o], mean of the float output in output steps, from the zero point.

    Newton's method, four steps: the slope is the share of rows between the clamps. The bias with the nearest mean wins, which may
    be the bias as it was.
    """
    shift = np.zeros(sums.shape[1])
    best, least = shift, np.full(shift.shape, np.inf)
    for _ in range(_STEPS):
        out = requantize(sums + shift.astype(np.int64), requant, dtype)
        error = out.mean(0, dtype=np.float64) - zero_point - target_mean
        better = np.abs(error) < least
        best, least = np.where(better, shift, best), np.where(better, np.abs(error), least)
        share = ((out > requant.low) & (out < requant.high)).mean(0)
        shift = shift - np.rint(error / (np.maximum(share, _LEAST_SHARE) * requant.real_scale))
    return best.astype(np.int64)
