"""Which points of a nest stand for all: of neighbouring steps of one kind (`ops.nest`) the first few."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from toolchain.ops.kit.nest import Axis, Nest
from toolchain.ops.kit.tile import TileTask

# Of equal steps, of the innermost loop: the pipeline is in its stride after two works, that of all layers together after three.
SEEN, SEEN_IN_PLANS = 3, 4
_SEEN_OUTER = 2

# A point of a nest; BEGIN before the last of the steps that are looked at, and behind them how many steps they stand for.
Visit = tuple[Any, ...] | int
BEGIN = -1
Visited = Sequence[Sequence[TileTask] | int]  # the works of such points


def sample_points(axes: Sequence[Axis], period: int = 1, seen: int = SEEN, point: tuple[Any, ...] = ()) -> Iterator[Visit]:
    """The points that stand for all, in order, with what is to be repeated: the last `period` steps that are looked at,
    as many of which keep all units busy once. seen: how many of the innermost loop are looked at."""
    if not axes:
        yield point
        return
    axis, deeper = axes[0], axes[1:]
    most = (_SEEN_OUTER if any(len(a.steps) > 1 for a in deeper) else seen) + period - 1
    for start, count in axis.runs:
        looked_at = min(count, most)
        for i in range(start, start + looked_at):
            if count > looked_at and i == start + looked_at - period:
                yield BEGIN
            yield from sample_points(deeper, period, seen, (*point, axis.steps[i]))
        if count > looked_at:
            yield count - looked_at


def sample_tiles(nest: Nest, period: int = 1, seen: int = SEEN) -> Iterator[Sequence[TileTask] | int]:
    """The works at the points that stand for all, and how often what is repeated."""
    return (visit if isinstance(visit, int) else nest.body(visit) for visit in sample_points(nest.axes, period, seen))
