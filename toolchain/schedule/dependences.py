"""Which operations made what lies in tensors, and which touched their places last."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from toolchain.ops.kit.tile import Box
from toolchain.schedule.access_ranges import AccessRange, PartialBuffer, boxes_meet
from toolchain.schedule.views import View


class DependenceTracker:
    """Operations by their numbers. roots: where resident roots lie, as far as it matters. every: all works of what runs are
    looked at, and none stands for others."""

    def __init__(self, views: Mapping[str, View]):
        self._views = views
        self._made: dict[str, list[tuple[Box, int, int]]] = {}  # by root: box, operation that wrote it, its queue
        self._rows: defaultdict[str, PartialBuffer] = defaultdict(PartialBuffer)
        self.roots: dict[str, AccessRange] = {}
        self.every = False

    def move_rows(self, root: str, top: int) -> None:
        """That row is now the first of those that its buffer holds."""
        self._rows[root].top = top

    def begin(self, root: str, first: tuple[int, int]) -> None:
        """The root's buffer holds other columns and channels, from these and the first row on; what lay there nothing reads."""
        self._made.pop(root, None)
        rows = self._rows[root]
        rows.top, (rows.column, rows.channel) = 0, first

    def moved(self, box: Box, number: int, queue: int) -> None:
        """The box was written again to another place."""
        self._made.setdefault(self.root(box.tensor), []).append((box, number, queue))

    def reads(self, box: Box | None, written: Box | None) -> bool:
        """Whether a load of the box reads bytes of what is written."""
        if box is None or written is None or self.root(written.tensor) != self.root(box.tensor):
            return False
        return self._meet(written, box)

    def view(self, box: Box) -> View:
        return self._views[box.tensor]

    def root(self, tensor: str) -> str:
        return self._views[tensor].root

    def makers(self, box: Box, queue: int) -> list[int]:
        """The operations on other queues that wrote what the box holds; of no size: all of its tensor."""
        made = self._made.get(self.root(box.tensor), ())
        return [n for other, n, q in made if q != queue and (not (box.size and other.size) or self._meet(other, box))]

    def _meet(self, a: Box, b: Box) -> bool:
        """Two boxes of one root; of different tensors in it, as under two shapes, by their first and last bytes."""
        if a.tensor == b.tensor:
            return boxes_meet(a, b)
        one, other = self._bytes(a), self._bytes(b)
        return one is None or other is None or (one[0] < other[1] and other[0] < one[1])

    def _bytes(self, box: Box) -> tuple[int, int] | None:
        """Of the root, [first, end) of a box; None where they are not known: of rows that move, in feature maps."""
        view = self.view(box)
        if view.rows or view.strides.maps is not None:
            return None
        last = [first + size - 1 for first, size in zip(box.start, box.size)]
        return view.at(box.start), view.at(last) + view.item_bytes

    def make(self, box: Box, number: int, queue: int) -> None:
        root = self.root(box.tensor)
        self._made.setdefault(root, []).append((box, number, queue))
        self.use(box, number, queue)

    def use(self, box: Box, number: int, queue: int) -> None:
        root = self.root(box.tensor)
        area = self.roots.get(root)
        if area is not None:
            area.use(number, queue, self._part(box, area))
        if self.view(box).rows:
            self._rows[root].use(box, number)

    def _part(self, box: Box, area: AccessRange) -> tuple[int, int] | None:
        """Bytes of an area from the first to the last of a box."""
        if not box.size:
            return area.start, area.end
        part = self._bytes(box) if self.every else None
        return None if part is None else (area.start + part[0], area.start + part[1])

    def before(self, box: Box, queue: int) -> list[int]:
        """The operations that must be over before the queue writes the box to its place: no element is written twice."""
        root = self.root(box.tensor)
        area = self.roots.get(root)
        if self.view(box).rows:
            return [*self._rows[root].before(box), *(area.before_part(queue) if area is not None else ())]
        return area.before_part(queue) if area is not None else []
