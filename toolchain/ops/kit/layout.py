"""The two orders in which the chip holds a tensor: "plain", the model's, and "nhwc", channels last."""

from __future__ import annotations

NHWC = (0, 2, 3, 1)
NCHW = (0, 3, 1, 2)
_AXIS_NHWC = {0: 0, 1: 3, 2: 1, 3: 2}


def axis_in(axis: int, layout: str) -> int:
    """Where dimension `axis` of the model's order lies in `layout`."""
    return _AXIS_NHWC[axis] if layout == "nhwc" else axis


def arranged(values: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """One value a dimension, from the model's order to `layout`."""
    return tuple(values[i] for i in NHWC) if layout == "nhwc" else tuple(values)
