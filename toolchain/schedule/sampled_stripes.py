"""Which stripes of a cascade stand for all, and what those that are looked at say of all."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from toolchain.ops.kit.tile import TileTask
from toolchain.schedule.plan import VisitedStripes
from toolchain.schedule.sampled_tiles import BEGIN
from toolchain.schedule.stripes import BufferReset, BufferShift

_LONGEST_PERIOD = 8  # stripes


def flatten_tiles(visited: VisitedStripes) -> Iterator[tuple[int, Sequence[TileTask]]]:
    """Those of calls, in order."""
    for steps in visited:
        if not isinstance(steps, int):
            yield from (s for s in steps if not isinstance(s, BufferShift | BufferReset))


def count_tiles(visited: VisitedStripes) -> dict[int, int]:
    """How many each layer has."""
    found: dict[int, float] = {}
    marks: list[dict[int, float]] = []
    for steps in visited:
        if not isinstance(steps, int):
            for index, works in flatten_tiles([steps]):
                found[index] = found.get(index, 0) + len(works)
        elif steps == BEGIN:
            marks.append(dict(found))
        else:
            before = marks.pop()
            found = {i: n + steps * (n - before.get(i, 0)) for i, n in found.items()}
    return {i: round(n) for i, n in found.items()}


def sample_kinds(kinds: Sequence[Hashable]) -> Iterator[tuple[int, bool]]:
    """(index, False) of those that stand for all, in order; (BEGIN, True) before what is repeated, (times, True) behind it."""
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
    """How many from there on are as those a period before."""
    end = at + period
    while end < len(kinds) and kinds[end] == kinds[end - period]:
        end += 1
    return end - at
