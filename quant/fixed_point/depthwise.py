"""Depthwise convolution: one or more outputs from each input channel, by taps instead of a matrix product."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.windows import Pair, tap

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class DepthwiseKernel:
    """values: int8 or uint8 [c m, kh, kw, 1], output channel c m + j reads input channel c; zero_point: int or [c m]."""

    values: Array
    zero_point: int | Array

    @cached_property
    def taps(self) -> Array:
        """int64[kh, kw, c m]: values - zero_point."""
        return np.ascontiguousarray(
            self.values[..., 0].transpose(1, 2, 0).astype(np.int64) - np.asarray(self.zero_point, np.int64)
        )


def depthwise_sums(
    x: Array, kernel: DepthwiseKernel, strides: Pair, dilations: Pair, size: Pair, x_zero_point: int, wide: bool
) -> Array:
    """x: padded [n, h, w, c] -> int32 (modulo 2**32) or int64 [n, oh, ow, c m]."""
    taps = kernel.taps
    kh, kw, oc = taps.shape
    dtype = np.int64 if wide else np.int32
    centred = x.astype(dtype) - dtype(x_zero_point)
    multiplier = oc // x.shape[3]
    if multiplier > 1:
        centred = np.repeat(centred, multiplier, axis=3)
    out = np.zeros((x.shape[0], *size, oc), dtype)
    for ky in range(kh):
        for kx in range(kw):
            out += tap(centred, ky, kx, strides, dilations, size) * taps[ky, kx].astype(dtype)
    return out
