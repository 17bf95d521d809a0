"""Which operations touched the bytes of a memory last, as far as a plan foresees."""

from __future__ import annotations

from toolchain.ops.kit.tile import Box


class Area:
    """Bytes in which a slot or a resident tensor lies for a while.

    written: operations that made what lies there. used: the last to touch it, by queue. group: the tile that touched it last.
    """

    __slots__ = ("_older", "end", "group", "space", "start", "used", "written")

    def __init__(self, space: int, start: int, end: int, older: list[Area]):
        self.space, self.start, self.end = space, start, end
        self.written: tuple[int, ...] = ()
        self.used: dict[int, int] = {}
        self.group = -1
        self._older = older  # those that had bytes of this one before, until it is first written

    def touched_in(self, group: int) -> bool:
        """Whether the tile touches bytes of the area."""
        return self.group == group or (bool(self._older) and any(area.group == group for area in self._older))

    def inherited(self) -> list[int]:
        """The operations that had its bytes before it did, until it is first written."""
        found = [n for area in self._older for n in (*area.used.values(), *area.written)]
        self._older = []
        return found

    def before(self) -> list[int]:
        """The operations that must be over before the area is written."""
        return [*self.used.values(), *self.written, *self.inherited()]

    def write(self, number: int) -> None:
        """What lay there is gone."""
        self.written, self.used = (number,), {}


class Rows:
    """The buffer of a root of which only some rows are kept. top: the row that lies first in it."""

    def __init__(self) -> None:
        self.top = 0
        self._used: list[tuple[int, int, int]] = []  # first place, one past the last, operation

    def use(self, box: Box, number: int) -> None:
        first = box.start[1] - self.top
        self._used.append((first, first + box.size[1], number))

    def before(self, box: Box) -> list[int]:
        """The operations that must be over before the box is written."""
        first, end = box.start[1] - self.top, box.start[1] - self.top + box.size[1]
        found = [n for low, high, n in self._used if low < end and first < high]
        self._used = [u for u in self._used if u[0] >= end or first >= u[1]]
        return found


class Areas:
    """Areas that still have a byte of their own."""

    def __init__(self) -> None:
        self._areas: list[Area] = []

    def add(self, space: int, start: int, size_bytes: int) -> Area:
        end = start + size_bytes
        older = [a for a in self._areas if a.space == space and a.start < end and start < a.end]
        self._areas = [a for a in self._areas if a.space != space or a.start < start or a.end > end]
        self._areas.append(Area(space, start, end, older))
        return self._areas[-1]


def boxes_meet(a: Box, b: Box) -> bool:
    """Two boxes of one root; of different tensors in it nothing more is known."""
    return a.tensor != b.tensor or all(
        first < second + n and second < first + m for first, m, second, n in zip(a.start, a.size, b.start, b.size)
    )
