"""Sums of products with weights in groups along the reduction, each with a scale and a minimum of its own.

With the weights w of an output channel cut into groups g of `size` neighbours:

    acc = sum over g of (acc_g m_g + n_g x_g)
    acc_g = sum within g of (x - x_zero_point) w,   x_g = sum within g of (x - x_zero_point)

m_g: scales, n_g: minima, whole numbers beside the weights. Bias and one requantization follow, as behind any sum. All of it
wraps to the accumulators' width, acc_g and its product too, which equals wrapping once at the end. So it is the sum of products
with the whole numbers m_g w + n_g, which `applied` gives: `conv2d` and `matmul` take these as weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.core.fixed_point_errors import FixedPointError

Array = NDArray[Any]


def group_count(weights: int, size: int) -> int:
    """Groups of so many weights of one output channel; the last may be shorter."""
    return -(-weights // size)


def spread(values: Array, size: int, weights: int) -> Array:
    """[o, g] -> [o, weights]: each group's value at each of its weights."""
    return np.repeat(values, size, 1)[:, :weights]


@dataclass(frozen=True, eq=False)
class WeightGroups:
    """size: weights of a group, along the reduction in the order of memory. scales: int32[o, g], 0 to 65,535; minima: int32[o, g]
    of 16 bits, or None for zeros."""

    size: int
    scales: Array
    minima: Array | None = None

    def __post_init__(self) -> None:
        given = [("scales", self.scales, 0, 0xFFFF)]
        given += [] if self.minima is None else [("minima", self.minima, -0x8000, 0x7FFF)]
        for name, values, low, high in given:
            if values.ndim != 2 or values.shape != self.scales.shape or self.size < 1:
                raise FixedPointError(f"groups of {self.size}: {name} have shape {values.shape}; must be [o, groups], all alike")
            if values.min(initial=0) < low or values.max(initial=0) > high:
                raise FixedPointError(f"groups: {name} {values.min()}..{values.max()}; must be {low}..{high}")

    def applied(self, codes: Array) -> Array:
        """codes: int8[o, ...] -> int32[o, ...], m_g w + n_g. Raises FixedPointError where they are not of these groups."""
        rows = codes.reshape(len(codes), -1)
        count = group_count(rows.shape[1], self.size)
        if self.scales.shape != (len(rows), count):
            raise FixedPointError(
                f"groups: scales have shape {self.scales.shape}; weights {codes.shape} in groups of {self.size} have "
                f"{(len(rows), count)}"
            )
        whole = rows * spread(self.scales.astype(np.int32), self.size, rows.shape[1])
        if self.minima is not None:
            whole += spread(self.minima.astype(np.int32), self.size, rows.shape[1])
        return whole.reshape(codes.shape)

    def part(self, channels: slice, groups: slice) -> WeightGroups:
        """Of some output channels, and of some of their groups."""
        minima = None if self.minima is None else self.minima[channels, groups]
        return WeightGroups(self.size, self.scales[channels, groups], minima)
