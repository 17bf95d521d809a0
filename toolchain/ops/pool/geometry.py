"""Compute where the windows of pools lie, and how many elements of the input each covers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain.ops.kit.window import Window, output_size

Array = NDArray[Any]
Pair = tuple[int, int]
Shape = tuple[int, ...]
Pads = tuple[int, int, int, int]


@dataclass(frozen=True)
class Geometry:
    """A window over rows and columns of [n, h, w, c]; `pads` are top, left, bottom, right."""

    kernel: Pair
    strides: Pair
    pads: Pads
    dilations: Pair = (1, 1)

    def axes(self, height: int, width: int) -> tuple[Window, Window]:
        """Return the windows over rows and columns of an input of this size."""
        vertical = Window(height, self.kernel[0], self.strides[0], self.dilations[0], self.pads[0])
        return vertical, Window(width, self.kernel[1], self.strides[1], self.dilations[1], self.pads[1])


def window_counts(geometry: Geometry, height: int, width: int, count_padding: bool) -> Array:
    """Return int[oh, ow]: how many elements each window's mean is of; with `count_padding` it is int[1, 1], the kernel's size."""
    kh, kw = geometry.kernel
    if count_padding:
        return np.array([[kh * kw]])
    rows = axis_counts(geometry, 0, height)
    columns = axis_counts(geometry, 1, width)
    return np.outer(rows, columns)


def axis_counts(geometry: Geometry, axis: int, size: int) -> Array:
    """Return int[outputs]: kernel elements of each output that lie inside the input, at least 1. `axis`: 0 rows, 1 columns."""
    return np.maximum(_met(geometry, axis, size, 0, size), 1)


def all_windows_meet(geometry: Geometry, axis: int, size: int, start: int, count: int) -> bool:
    """Return whether every window over an input of `size` has an element in [start, start + count)."""
    return bool(_met(geometry, axis, size, start, count).all())


def _met(geometry: Geometry, axis: int, size: int, start: int, count: int) -> Array:
    """Return int[outputs]: kernel elements of each output in [start, start + count) of an input of `size`."""
    kernel, stride, dilation = geometry.kernel[axis], geometry.strides[axis], geometry.dilations[axis]
    before, after = geometry.pads[axis], geometry.pads[axis + 2]
    first = np.arange(output_size(size, kernel, stride, dilation, (before, after))) * stride - before
    reached = (-((first - limit) // dilation) for limit in (start, start + count))  # the first element at or behind a limit
    low, high = (np.clip(elements, 0, kernel) for elements in reached)
    return high - low


def over_one(outer: int, length: int, inner: int) -> tuple[Shape, Shape, Pair]:
    """Return how a pool reduces the middle of three dimensions: the input's map [n, h, w, c], the output's, and the kernel.

    Where `inner` is 1, each row of `length` numbers is one of a map of one channel.
    """
    if inner == 1:
        return (1, outer, length, 1), (1, outer, 1, 1), (1, length)
    return (outer, length, 1, inner), (outer, 1, 1, inner), (length, 1)
