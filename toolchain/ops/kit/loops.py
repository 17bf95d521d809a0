"""The loops in which an operator's tiles are made: which there are, in which orders, and by which steps.

A schedule names loops and steps; a nest is made from a `Tiling`. Each operator says once how the two belong together.
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

    `field`: of `Tiling`, which has `unit` for each of them; "": they are made one by one.
    `multiple`: a step is a multiple of this, unless it covers all items.
    `least`: the smallest step.
    `why`: reason of `least` or `multiple`.
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
    """Loops, outermost first, of the tilings that have this `rows_outer`."""

    axes: tuple[LoopAxis, ...]
    rows_outer: bool = True

    def steps(self, tiling: Tiling) -> dict[str, int] | None:
        """Return the step of every loop; None where the tiling is not in this order."""
        if tiling.rows_outer != self.rows_outer:
            return None
        step_by_axis = {axis.name: _step(axis, tiling) for axis in self.axes}
        return (
            None
            if any(not axis.least <= step_by_axis[axis.name] <= max(axis.size, axis.least) for axis in self.axes)
            else step_by_axis
        )

    def tiling(self, steps: Mapping[str, int], dataflow: int = 0, mode: int = 0) -> Tiling:
        """Return the tiling.

        `steps`: by axis; an axis that is left out is one step.
        """
        tiling = Tiling(1, 1, 1, 0, self.rows_outer, dataflow=dataflow, mode=mode)
        values: dict[str, Any] = {}
        for axis in self.axes:
            step = min(steps.get(axis.name, axis.size), axis.size)
            if axis.field:
                values[axis.field] = _ALL_TAPS if axis.field == "taps" and step == axis.size else step * axis.unit
        return replace(tiling, **values)


def _step(axis: LoopAxis, tiling: Tiling) -> int:
    if not axis.field:
        return 1
    value: int = getattr(tiling, axis.field)
    if axis.field == "taps" and value == _ALL_TAPS:
        return axis.size
    return value // axis.unit if value % axis.unit == 0 else 0


def one_by_one(sizes: Sequence[int], name: str = "images") -> tuple[LoopAxis, ...]:
    """Loops over dimensions that no tile spans; numbered from the outermost where there are several."""
    if len(sizes) == 1:
        return (LoopAxis(name, sizes[0]),)
    return tuple(LoopAxis(f"{name}{i}", size) for i, size in enumerate(sizes))
