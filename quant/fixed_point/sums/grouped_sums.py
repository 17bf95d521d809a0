"""Defines weights in groups along the reduction, each with its own scale and minimum, and the integers that they stand for.

The weights w of an output channel are cut into groups g of `size` neighbours. Write s_g for the sum within g of (x -
x_zero_point) w, and x_g for the sum within g of (x - x_zero_point).

    `acc` = sum over g of (s_g m_g + n_g x_g).

Here m_g are the scales and n_g the minima, integers stored with the weights. Bias and one requantization follow, as after any
sum. All of it wraps to the accumulators' width, s_g and its product too, which equals wrapping once at the end. So it is the sum
of products with the integers m_g w + n_g, which `apply_scales` returns: `conv2d` and `matmul` take these as weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.core.device_arrays import as_like
from quant.fixed_point.core.fixed_point_errors import FixedPointError

Array = NDArray[Any]


def group_count(weights: int, size: int) -> int:
    """Return the number of groups of so many weights of one output channel; the last may be shorter."""
    return -(-weights // size)


def spread(values: Array, size: int, weights: int) -> Array:
    """Return [o, weights] from [o, g]: each group's value at each of its weights."""
    return np.repeat(values, size, 1)[:, :weights]


@dataclass(frozen=True, eq=False)
class WeightGroups:
    """Scales and minima of groups of weights. FixedPointError for other shapes or values.

    `size`: weights of a group, along the reduction in the order of memory.
    `scales`: int32[o, g], 0 to 65,535.
    `minima`: int32[o, g] of 16 bits, or None for zeros.
    """

    size: int
    scales: Array
    minima: Array | None = None

    def __post_init__(self) -> None:
        fields = [("scales", self.scales, 0, 0xFFFF)]
        fields += [] if self.minima is None else [("minima", self.minima, -0x8000, 0x7FFF)]
        for name, values, low, high in fields:
            if values.ndim != 2 or values.shape != self.scales.shape or self.size < 1:
                raise FixedPointError(f"groups of {self.size}: {name} have shape {values.shape}; must be [o, groups], all alike")
            if values.min(initial=0) < low or values.max(initial=0) > high:
                raise FixedPointError(f"groups: {name} {values.min()}..{values.max()}; must be {low}..{high}")

    def apply_scales(self, codes: Array) -> Array:
        """Return m_g w + n_g as int32[o, ...], for codes: int8[o, ...].

        Raise FixedPointError where o or the number of groups differs.
        """
        rows = codes.reshape(len(codes), -1)
        count = group_count(rows.shape[1], self.size)
        if self.scales.shape != (len(rows), count):
            raise FixedPointError(
                f"groups: scales have shape {self.scales.shape}; weights {codes.shape} in groups of {self.size} have "
                f"{(len(rows), count)}"
            )
        weights = rows * as_like(spread(self.scales.astype(np.int32), self.size, rows.shape[1]), rows)
        if self.minima is not None:
            weights += as_like(spread(self.minima.astype(np.int32), self.size, rows.shape[1]), rows)
        return weights.reshape(codes.shape)

    def part(self, channels: slice, groups: slice) -> WeightGroups:
        """Return the part of some output channels and some of their groups."""
        minima = None if self.minima is None else self.minima[channels, groups]
        return WeightGroups(self.size, self.scales[channels, groups], minima)
