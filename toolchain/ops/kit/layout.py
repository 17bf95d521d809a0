"""The two orders in which the chip holds a tensor: "plain", the model's, and "nhwc", channels last, of three or four axes."""

from __future__ import annotations


def channels_last(rank: int) -> tuple[int, ...]:
    """Return the permutation of a tensor whose channels are second to channels-last order."""
    return (0, *range(2, rank), 1)


def channels_second(rank: int) -> tuple[int, ...]:
    """The inverse."""
    return (0, rank - 1, *range(1, rank - 1))


NHWC, NCHW = channels_last(4), channels_second(4)
_AXIS_NHWC = {0: 0, 1: 3, 2: 1, 3: 2}


def axis_in(axis: int, layout: str) -> int:
    """Return the place of dimension `axis` of the model's order in `layout`."""
    return _AXIS_NHWC[axis] if layout == "nhwc" else axis


def permute_to_layout(values: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """One value a dimension, from the model's order to `layout`."""
    return tuple(values[i] for i in channels_last(len(values))) if layout == "nhwc" else tuple(values)
