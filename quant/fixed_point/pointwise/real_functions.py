"""Computes functions of real numbers in float64, from which tables are built."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)), float64."""
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def erf(x: Array) -> Array:
    """Return the error function, float64, as the C library computes it; for tables, not for bulk."""
    return np.array([math.erf(v) for v in np.ravel(x)]).reshape(np.shape(x))


def gelu(x: Array) -> Array:
    """Return x (1 + erf(x / sqrt 2)) / 2, float64. ONNX Gelu with approximate 'none'."""
    return x * (1 + erf(x / math.sqrt(2))) / 2


def gelu_tanh(x: Array) -> Array:
    """Return x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x**3))) / 2, float64. ONNX Gelu with approximate 'tanh'."""
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def silu(x: Array) -> Array:
    """Return x sigmoid(x), float64; also called swish."""
    return x * sigmoid(x)


def round_half_away(x: Array) -> Array:
    """Return the nearest integer of x: float[...], in the same type, ties away from zero, as C's `round`; nan stays nan."""
    integers = np.trunc(x)
    with np.errstate(invalid="ignore"):
        up = np.abs(x - integers) >= 0.5
    return integers + np.copysign(up.astype(x.dtype), x)
