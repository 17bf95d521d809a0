"""TFLite's integer operators composed from the core's functions, and models of the same (tests and vector writer)."""

from __future__ import annotations

from typing import Any

import numpy as np

from quant import fixed_point as fp
from quant.fixed_point import Requant, Rounding, ScaleForm

INT32 = (-(1 << 31), (1 << 31) - 1)


def requant(real: Any, zero: int, dtype: Any, rounding: Rounding = Rounding.DOUBLE_ROUND) -> Requant:
    """A 31-bit Requant of a real scale (float64, as TFLite forms it from float32 scales)."""
    low, high = fp.type_limits(np.dtype(dtype))
    return fp.make_requant(real, ScaleForm(), rounding, zero_point=zero, low=low, high=high)


def product_scale(a: Any, b: Any, out: float) -> np.ndarray:
    """S_a S_b / S_out: float64 of float32 scales. TFLite `GetQuantizedConvolutionMultipler`."""
    return np.atleast_1d(np.float64(np.float32(a)) * np.float32(b).astype(np.float64) / np.float64(np.float32(out)))


def product_scale_float32(a: float, b: float, out: float) -> np.ndarray:
    """S_a S_b / S_out in float32 throughout, as LiteRT's reference forms it for MUL and LEAKY_RELU."""
    return np.atleast_1d(np.float64(np.float32(a) * np.float32(b) / np.float32(out)))


def same_pads(size: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    """(before, after) of Padding SAME."""
    out = -(-size // stride)
    total = max(0, (out - 1) * stride + (kernel - 1) * dilation + 1 - size)
    return total // 2, total - total // 2


def add_requants(a: float, b: float, out: float, dtype: Any, zero: int) -> tuple[Requant, Requant, Requant, int]:
    """The three Requants of ADD and SUB, and the left shift."""
    shift = 20 if np.dtype(dtype).itemsize == 1 else 15
    sa, sb, so = (np.float64(np.float32(v)) for v in (a, b, out))
    twice = 2 * max(sa, sb)
    ra = fp.make_requant(sa / twice, ScaleForm(), Rounding.DOUBLE_ROUND, low=INT32[0], high=INT32[1])
    rb = fp.make_requant(sb / twice, ScaleForm(), Rounding.DOUBLE_ROUND, low=INT32[0], high=INT32[1])
    return ra, rb, requant(twice / (2.0**shift * so), zero, dtype), shift
