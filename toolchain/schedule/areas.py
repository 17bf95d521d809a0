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

    def before(self) -> list[int]:
        """The operations that must be over before the area is written."""
        found = [*self.used.values(), *self.written]
        if self._older:
            for area in self._older:
                found += (*area.used.values(), *area.written)
            self._older = []
        return found

    def write(self, number: int) -> None:
        """What lay there is gone."""
        self.written, self.used = (number,), {}


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
