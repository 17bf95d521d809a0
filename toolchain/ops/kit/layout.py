"""Translate between the two orders in which the chip holds a tensor.

"plain" is the model's order; "nhwc" is channels last, for tensors of three or four dimensions whose channels are second.
"""

from __future__ import annotations


def channels_last(rank: int) -> tuple[int, ...]:
    """Return the permutation from channels second, as in NCHW, to channels last, as in NHWC."""
    return (0, *range(2, rank), 1)


def channels_second(rank: int) -> tuple[int, ...]:
    """Return the permutation from channels last to channels second."""
    return (0, rank - 1, *range(1, rank - 1))


NHWC, NCHW = channels_last(4), channels_second(4)
_AXIS_NHWC = {0: 0, 1: 3, 2: 1, 3: 2}


def axis_in(axis: int, layout: str) -> int:
    """Return where dimension `axis` of the model's order stands in `layout`; with "nhwc" the tensor has four dimensions."""
    return _AXIS_NHWC[axis] if layout == "nhwc" else axis


def permute_to_layout(values: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Return values, one for each dimension in the model's order, in the order of `layout`."""
    return tuple(values[i] for i in channels_last(len(values))) if layout == "nhwc" else tuple(values)
