"""Name the loops over an operator's tiles, so that a schedule written as text and a `Tiling` can be turned into each other.

Each operator returns `LoopOrder`s once. Schedules name loops and their steps; tile sizes in a `Tiling` follow, and the other
way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from toolchain.ops.kit.tile import Tiling

GRANULES = "layout.feature_maps has granules of channels, which operands begin with"
_ALL_TAPS = 0  # of `Tiling.taps`: as many as the machine's limits allow


class LoopAxis(NamedTuple):
    """A loop over `size` items.

    `field`: the field of `Tiling` that holds its step, in which each item counts `unit`; "" for a loop that takes items one
    by one.
    `multiple`: a step is a multiple of this, unless it covers all items.
    `least`: the smallest step.
    `why`: the reason of `least` or `multiple`, for messages.
    """

    name: str
    size: int
    field: str = ""
    unit: int = 1
    multiple: int = 1
    least: int = 1
    why: str = ""


@dataclass(frozen=True)
class LoopOrder:
    """One order of the loops, outermost first. It belongs to tilings with this `rows_outer`."""

    axes: tuple[LoopAxis, ...]
    rows_outer: bool = True

    def steps(self, tiling: Tiling) -> dict[str, int] | None:
        """Return the step of every loop by its name, in items.

        None where the tiling does not belong to this order, or a step is no whole number of items or out of its loop's
        bounds.
        """
        if tiling.rows_outer != self.rows_outer:
            return None
        step_by_axis = {axis.name: _step(axis, tiling) for axis in self.axes}
        return (
            None
            if any(not axis.least <= step_by_axis[axis.name] <= max(axis.size, axis.least) for axis in self.axes)
            else step_by_axis
        )

    def tiling(self, steps: Mapping[str, int], dataflow: int = 0, mode: int = 0) -> Tiling:
        """Return the tiling with these steps, which are not checked against `multiple` and `least`.

        `steps`: items by loop name, cut to the loop's size; a loop that is left out takes all its items in one step.
        Loops without a field take one item, whatever `steps` says.
        """
        tiling = Tiling(1, 1, 1, 0, self.rows_outer, dataflow=dataflow, mode=mode)
        values: dict[str, Any] = {}
        for axis in self.axes:
            step = min(steps.get(axis.name, axis.size), axis.size)
            if axis.field:
                values[axis.field] = _ALL_TAPS if axis.field == "taps" and step == axis.size else step * axis.unit
        return replace(tiling, **values)


def _step(axis: LoopAxis, tiling: Tiling) -> int:
    """Return a loop's step in items; 0 where the tiling's field is no whole number of items."""
    if not axis.field:
        return 1
    value: int = getattr(tiling, axis.field)
    if axis.field == "taps" and value == _ALL_TAPS:
        return axis.size
    return value // axis.unit if value % axis.unit == 0 else 0


def one_by_one(sizes: Sequence[int], name: str = "images") -> tuple[LoopAxis, ...]:
    """Return loops over dimensions that no tile spans. Several are numbered from the outermost: `images0`, `images1`."""
    if len(sizes) == 1:
        return (LoopAxis(name, sizes[0]),)
    return tuple(LoopAxis(f"{name}{i}", size) for i, size in enumerate(sizes))
