"""Defines which weights share a scale, and which scales of groups a machine has."""

from __future__ import annotations

from dataclasses import dataclass

from quant.fixed_point.core.fixed_point_errors import FixedPointError

LEAST_GROUP, LARGEST_GROUP, GROUP_STEP = 16, 256, 16


@dataclass(frozen=True)
class WeightScaling:
    """A rule of which weights of a tensor share a scale.

    `axis`: weights of one index of this axis share a scale; None: all of them.
    `group`: only so many neighbours along the reduction share a scale; 0: all.
    """

    axis: int | None = 0
    group: int = 0


@dataclass(frozen=True)
class GroupForm:
    """The weight groups that a machine has. FixedPointError for sizes or bits out of range.

    `sizes`: supported numbers of weights in a group, multiples of 16 from 16 to 256.
    `scale_bits`: bits of a group's scale, a non-negative integer, 1..16.
    `minimum_bits`: bits of a group's minimum, a signed integer, 2..16; 0: it has none.
    """

    sizes: tuple[int, ...]
    scale_bits: int = 8
    minimum_bits: int = 0

    def __post_init__(self) -> None:
        bad = [n for n in self.sizes if not LEAST_GROUP <= n <= LARGEST_GROUP or n % GROUP_STEP]
        if bad or not self.sizes:
            raise FixedPointError(f"groups: sizes={self.sizes}; multiples of {GROUP_STEP}, {LEAST_GROUP} to {LARGEST_GROUP}")
        if not 1 <= self.scale_bits <= 16 or not (self.minimum_bits == 0 or 2 <= self.minimum_bits <= 16):
            bits = f"scale_bits={self.scale_bits}, minimum_bits={self.minimum_bits}"
            raise FixedPointError(f"groups: {bits}; must be 1..16, and 0 or 2..16")

    @property
    def largest_scale(self) -> int:
        """The largest scale of a group."""
        return (1 << self.scale_bits) - 1

    @property
    def largest_minimum(self) -> int:
        """The largest magnitude of a group's minimum; 0 where there are none."""
        return (1 << self.minimum_bits) // 2 - 1 if self.minimum_bits else 0
