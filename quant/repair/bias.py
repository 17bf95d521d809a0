"""Bias correction on a machine's own arithmetic: the codes that make a layer's mean output, channel by channel, what float's is.

The shift of means that quantization leaves: Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias
Correction" (2019), 3.3, there by formula from the weights' rounding alone. Here the mean is that of the requantized, clamped
codes themselves, so that the machine's rounding, its clamps and the error of the inputs are all in it.
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


def bias_shift(sums: Array, requant: Requant, dtype: Any, zero_point: int, wanted: Array) -> Array:
    """sums: int64[rows, o], accumulators with their bias; requant, dtype: of the layer's output; zero_point: of its tensor;
    wanted: float64[o], the mean of its output in steps from the zero point. -> int64[o], codes to add to the bias.

    Newton's method: the slope is the share of rows between the clamps. Of the biases tried the one whose mean is nearest.
    """
    shift = np.zeros(sums.shape[1])
    best, least = shift, np.full(shift.shape, np.inf)
    for _ in range(_STEPS):
        out = requantize(sums + shift.astype(np.int64), requant, dtype)
        error = out.mean(0, dtype=np.float64) - zero_point - wanted
        better = np.abs(error) < least
        best, least = np.where(better, shift, best), np.where(better, np.abs(error), least)
        share = ((out > requant.low) & (out < requant.high)).mean(0)
        shift = shift - np.rint(error / (np.maximum(share, _LEAST_SHARE) * requant.real_scale))
    return best.astype(np.int64)
