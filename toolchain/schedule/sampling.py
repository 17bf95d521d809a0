"""Choose a few tiles of a loop nest, and a few stripes of a cascade. The cost model times these in place of all others
of their kind.

Samples are sequences in which integers mark repeats. BEGIN stands before the steps that are repeated. A positive number
after them says how many steps were left out that they stand for; `sample_kinds` counts whole periods.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from toolchain.ops.kit.nest import Axis, Nest
from toolchain.ops.kit.tile import TileTask
from toolchain.schedule.plan import VisitedStripes
from toolchain.schedule.stripes import BufferReset, BufferShift

_LONGEST_PERIOD = 8  # stripes

# Of equal steps, of the innermost loop: the pipeline is in its stride after two works, that of all layers together after three.
SAMPLED_STEPS, SAMPLED_STEPS_IN_PLANS = 3, 4
_SAMPLED_OUTER_STEPS = 2

# A point of a nest; BEGIN before the last of the steps that are looked at, and behind them how many steps they stand for.
Visit = tuple[Any, ...] | int
BEGIN = -1
Visited = Sequence[Sequence[TileTask] | int]  # the works of such points


def sample_points(
    axes: Sequence[Axis], period: int = 1, sampled: int = SAMPLED_STEPS, point: tuple[Any, ...] = ()
) -> Iterator[Visit]:
    """Yield the sampled points of a loop nest in order, with marks of what is repeated in the place of the others.

    A mark BEGIN stands in front of steps that are repeated, and behind them the number of steps left out, for which
    they stand. Marks may be nested. `period`: how many of the last sampled steps are repeated; so many keep all units
    busy once. A mark over `period` is how often they are repeated. `sampled`: sampled steps of the innermost loop.
    `point`: the steps of the loops outside of `axes`.
    """
    if not axes:
        yield point
        return
    axis, deeper = axes[0], axes[1:]
    most = (_SAMPLED_OUTER_STEPS if any(len(a.steps) > 1 for a in deeper) else sampled) + period - 1
    for start, count in axis.runs:
        looked_at = min(count, most)
        for i in range(start, start + looked_at):
            if count > looked_at and i == start + looked_at - period:
                yield BEGIN
            yield from sample_points(deeper, period, sampled, (*point, axis.steps[i]))
        if count > looked_at:
            yield count - looked_at


def sample_tiles(nest: Nest, period: int = 1, sampled: int = SAMPLED_STEPS) -> Iterator[Sequence[TileTask] | int]:
    """Yield the tile tasks of each sampled point, with the marks of `sample_points` between them."""
    return (visit if isinstance(visit, int) else nest.body(visit) for visit in sample_points(nest.axes, period, sampled))


def flatten_tiles(visited: VisitedStripes) -> Iterator[tuple[int, Sequence[TileTask]]]:
    """Yield (index of the layer, tile tasks) of the sampled steps of a cascade, in order; marks and buffer steps are left out."""
    for steps in visited:
        if not isinstance(steps, int):
            yield from (s for s in steps if not isinstance(s, BufferShift | BufferReset))


def count_tiles(visited: VisitedStripes) -> dict[int, int]:
    """Return the number of tiles of each layer of a cascade, by the layer's index, repetitions included."""
    counts: dict[int, float] = {}
    marks: list[dict[int, float]] = []
    for steps in visited:
        if not isinstance(steps, int):
            for index, tiles in flatten_tiles([steps]):
                counts[index] = counts.get(index, 0) + len(tiles)
        elif steps == BEGIN:
            marks.append(dict(counts))
        else:
            before = marks.pop()
            counts = {i: n + steps * (n - before.get(i, 0)) for i, n in counts.items()}
    return {i: round(n) for i, n in counts.items()}


def sample_kinds(kinds: Sequence[Hashable]) -> Iterator[tuple[int, bool]]:
    """Yield (index, False) of the sampled items in order, (BEGIN, True) before repeated ones and (times, True) behind
    them.

    Items repeat where their kinds have a period of up to _LONGEST_PERIOD for at least four periods. Three periods are
    yielded, of which the last is repeated `times` more times.
    """
    at = 0
    while at < len(kinds):
        length, period = max(((_run(kinds, at, p), p) for p in range(1, _LONGEST_PERIOD + 1)), key=lambda f: f[0] / f[1])
        times = length // period - 3
        if times < 1:
            yield at, False
            at += 1
            continue
        yield from ((i, False) for i in range(at, at + 2 * period))
        yield BEGIN, True
        yield from ((i, False) for i in range(at + 2 * period, at + 3 * period))
        yield times, True
        at += (times + 3) * period


def _run(kinds: Sequence[Hashable], at: int, period: int) -> int:
    """Return the length of the run from `at` in which each kind equals the one a period before."""
    end = at + period
    while end < len(kinds) and kinds[end] == kinds[end - period]:
        end += 1
    return end - at
