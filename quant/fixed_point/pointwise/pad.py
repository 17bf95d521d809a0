"""Pads arrays of any rank with codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.core.fixed_point_errors import FixedPointError

Array = NDArray[Any]
PadMode = Literal["constant", "edge", "reflect", "symmetric", "wrap"]


def pad(x: Array, pads: Sequence[tuple[int, int]], *, value: int = 0, mode: PadMode = "constant") -> Array:
    """Return x, of any rank, padded, in the same type.

    `pads`: (before, after) for each axis, negative crops.
    `value`: usually the zero point.

    Modes are those of ONNX Pad ('symmetric' as TFLite MIRROR_PAD SYMMETRIC). Raise FixedPointError where value does not fit, or
    there is not one pair for each axis.
    """
    if len(pads) != x.ndim:
        raise FixedPointError(f"pad: {len(pads)} pairs for shape {x.shape}; give (before, after) for each axis")
    limits = np.iinfo(x.dtype)
    if not limits.min <= value <= limits.max:
        raise FixedPointError(f"pad: value {value} does not fit {x.dtype} ({limits.min}..{limits.max})")
    crop = tuple(slice(max(0, -before), size - max(0, -after)) for (before, after), size in zip(pads, x.shape))
    x = x[crop]
    grow = [(max(0, before), max(0, after)) for before, after in pads]
    if mode == "constant":
        return np.pad(x, grow, constant_values=value)
    return np.pad(x, grow, mode=mode)
