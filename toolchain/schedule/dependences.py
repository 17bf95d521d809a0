"""Track dependences between the queued operations of a plan: which wrote the bytes of a slot or a tensor last, which
read them.

The cost model (`schedule.plan_timer`) tells each operation and asks what the next must wait for. `AccessRanges` follows
bytes of memories, `DependenceTracker` tensors by their boxes, in rolling buffers too. Operations are named by numbers
in the order of the program. Both can add what later operations wait for to a `FutureKey`, by which equal states of two
walks are recognised. A root is a tensor with storage of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from math import prod

import numpy as np

from toolchain.ops.kit.tile import Box
from toolchain.schedule.queues import FutureKey
from toolchain.schedule.views import View


class AccessRange:
    """Bytes [start, end) of a memory in which a slot or a resident tensor lies for a while, with what touched them.

    `written`: operations that made its content. `used`: the last operation that touched it, by queue. `group`: number
    of the tile that touched it last, which the caller sets; -1: none. Ranges that had some of its bytes before count
    until it is first written whole.
    """

    __slots__ = ("_older", "_parts", "_waited", "end", "group", "space", "start", "used", "written")

    def __init__(self, space: int, start: int, end: int, older: list[AccessRange]):
        self.space, self.start, self.end = space, start, end
        self.written: tuple[int, ...] = ()
        self.used: dict[int, int] = {}
        self.group = -1
        self._parts: list[tuple[int, int, int]] | None = []  # bytes [first, end) and what touched them; None: not all are known
        self._older = older  # those that had bytes of this one before, until it is first written whole
        self._waited: set[int] = set()  # queues that have written a part of it, behind those

    def is_touched_in(self, group: int) -> bool:
        """Return whether the tile of this group touched the range, or an older one with bytes of it."""
        return self.group == group or (bool(self._older) and any(area.group == group for area in self._older))

    def use(self, number: int, queue: int, part: tuple[int, int] | None = None) -> None:
        """Note an operation that touches the range. `part`: the bytes [first, end) that it touches; None: unknown."""
        self.used[queue] = number
        if part is None:
            self._parts = None
        elif self._parts is not None:
            self._parts.append((*part, number))

    def take_inherited(self) -> list[int]:
        """Return the operations that touched its bytes in older ranges, and forget those."""
        operations = self._earlier()
        self._older = []
        return operations

    def _earlier(self) -> list[int]:
        """Return the operations that touched this range's bytes in older ranges."""
        return [n for area in self._older for n in area.touching(self.start, self.end)]

    def touching(self, start: int, end: int) -> list[int]:
        """Return the last operations that touched bytes [start, end); all of the range's where it is not known which
        touched what.
        """
        if not self._parts:
            return [*self.used.values(), *self.written]
        return [n for first, last, n in self._parts if first < end and start < last]

    def before(self) -> list[int]:
        """Return the operations that must end before the range is written whole, and forget older ranges.

        `write` notes the write itself.
        """
        return [*self.used.values(), *self.written, *self.take_inherited()]

    def before_part(self, queue: int) -> list[int]:
        """Return the operations that must end before this queue writes a part of the range that nothing else in it
        touches.

        Only the first call for a queue has any.
        """
        if queue in self._waited:
            return []
        self._waited.add(queue)
        return self._earlier()

    def write(self, number: int) -> None:
        """Note a write of the whole range; its former content is gone."""
        self.written, self.used = (number,), {}

    def save(self) -> SavedRange:
        """Return a copy of all that operations change."""
        parts = None if self._parts is None else self._parts.copy()
        return self.written, self.used.copy(), self.group, parts, self._older, self._waited.copy()

    def restore(self, saved: SavedRange) -> None:
        """Return to a state of `save`."""
        self.written, used, self.group, parts, self._older, waited = saved
        self.used, self._parts, self._waited = used.copy(), None if parts is None else parts.copy(), waited.copy()

    def add_to(self, key: FutureKey, group: int, is_open: bool = False) -> None:
        """Add to `key` what later operations wait for on these bytes.

        `group`: number of the pending tile. `is_open`: the range itself is still used, not only its bytes by later
        ranges.
        """
        place, is_pending = (self.start, self.end), self.group == group
        if self._parts and not is_open:
            for first, end, number in self._parts:
                key.add((*place, first, end), [number])
        else:
            key.add((*place, is_open), [*self.used.values(), *self.written])
        if is_pending or is_open:
            key.note((*place, is_pending, self.is_touched_in(group), self._parts is None))
        if is_open:
            key.add((*place, *sorted(self._waited)), self._earlier())
            for first, end, number in self._parts or ():
                key.add((*place, first, end), [number])


SavedRange = tuple[
    tuple[int, ...], dict[int, int], int, list[tuple[int, int, int]] | None, list[AccessRange], set[int]
]  # the attributes of a range, all but its bytes
_Used = tuple[int, int, Box, int, int]  # rows [first, end), where in the buffer, operation, elements not written since


class PartialBuffer:
    """The rolling buffer of a root. `top`, `column`, `channel`: position in the tensor of its first element."""

    def __init__(self) -> None:
        self.top, self.column, self.channel = 0, 0, 0
        self._used: list[_Used] = []

    def use(self, box: Box, number: int) -> None:
        """Note an operation that reads or writes a box."""
        place = self._place(box)
        self._used.append((place.start[1], place.start[1] + place.size[1], place, number, prod(box.size)))

    def before(self, box: Box) -> list[int]:
        """Return the operations that must end before the box is written, and forget places that it overwrites."""
        place = self._place(box)
        top, bottom = place.start[1], place.start[1] + place.size[1]
        operations: list[int] = []
        written: set[int] = set()  # places in the list of those of which nothing is left
        for at, (first, end, other, number, elements) in enumerate(self._used):
            met = rows_meet(place, other) if first < bottom and top < end else 0
            if met:
                operations.append(number)
                self._used[at] = first, end, other, number, elements - met
                if elements <= met:
                    written.add(at)
        if written:
            self._used = [used for at, used in enumerate(self._used) if at not in written]
        return operations

    def _place(self, box: Box) -> Box:
        """Return the box by its position in the buffer."""
        _, row, column, channel = box.start
        return Box(box.tensor, (0, row - self.top, column - self.column, channel - self.channel), box.size)


class AccessRanges:
    """The ranges of all memories. A new range takes its bytes from older ones.

    `ranges`: all that were ever added.
    """

    def __init__(self) -> None:
        self._spaces: dict[int, _Space] = {}
        self.ranges: list[AccessRange] = []  # all that were ever added

    @property
    def state(self) -> list[object]:
        """The objects whose attributes change as ranges are added, but for the ranges themselves."""
        return [self, *self._spaces.values()]

    def add_to(self, key: FutureKey, group: int) -> None:
        """Add to `key` what new ranges would wait for. `group`: number of the pending tile."""
        ranges = [area for space in self._spaces.values() for area in space.ranges]
        for area in sorted(ranges, key=lambda area: (area.space, area.start, area.end)):
            area.add_to(key, group)

    def add(self, space: int, start: int, size_bytes: int) -> AccessRange:
        """Return a new range of `size_bytes` from `start`, which knows the older ranges whose bytes it takes."""
        if space not in self._spaces:
            self._spaces[space] = _Space(space)
        self.ranges.append(self._spaces[space].add(start, start + size_bytes))
        return self.ranges[-1]


class _Space:
    """The ranges of one memory that no newer range covers, with their bounds as an array."""

    def __init__(self, space: int) -> None:
        self._space = space
        self.ranges: list[AccessRange] = []
        self._bytes = np.zeros((2, 64), dtype=np.int64)

    def add(self, start: int, end: int) -> AccessRange:
        """Return a new range; ranges that it covers completely are dropped from the list."""
        starts, ends = self._bytes[:, : len(self.ranges)]
        overlapping = np.flatnonzero((starts < end) & (ends > start)).tolist()
        added = AccessRange(self._space, start, end, [self.ranges[at] for at in overlapping])
        for at in reversed(overlapping):
            if start <= self.ranges[at].start and self.ranges[at].end <= end:
                self._replace(at, self.ranges.pop())
        if len(self.ranges) == self._bytes.shape[1]:
            self._bytes = np.concatenate((self._bytes, np.zeros_like(self._bytes)), axis=1)
        self.ranges.append(added)
        self._bytes[:, len(self.ranges) - 1] = start, end
        return added

    def _replace(self, at: int, last: AccessRange) -> None:
        """Put the last range in a place that becomes free, unless that place was its own."""
        if at < len(self.ranges):
            self.ranges[at] = last
            self._bytes[:, at] = last.start, last.end


def rows_meet(a: Box, b: Box) -> int:
    """Return the number of elements of `a` in rows of one buffer that `b` touches too; of one tensor, the elements in
    both.
    """
    met, common = 1, 2 if a.tensor != b.tensor else len(a.size)
    for dimension in range(common - 1, -1, -1):
        first, second = a.start[dimension], b.start[dimension]
        end, other = first + a.size[dimension], second + b.size[dimension]
        side = (end if end < other else other) - (first if first > second else second)
        if side <= 0:
            return 0
        met *= side
    return met * prod(a.size[common:])


def boxes_meet(a: Box, b: Box) -> bool:
    """Return whether two boxes of one tensor have a common element."""
    return all(first < second + n and second < first + m for first, m, second, n in zip(a.start, a.size, b.start, b.size))


class DependenceTracker:
    """A record of the operations that wrote and read each tensor of a plan.

    `roots`: places of resident roots, which the caller enters. `every`: the caller sets it where all tiles of the
    current layer are timed, so that parts of a root are told apart.
    """

    def __init__(self, views: Mapping[str, View]):
        self._views = views
        self._writes: dict[str, list[tuple[Box, int, int]]] = {}  # by root: box, operation that wrote it, its queue
        self._rows: defaultdict[str, PartialBuffer] = defaultdict(PartialBuffer)
        self.roots: dict[str, AccessRange] = {}
        self.every = False

    @property
    def state(self) -> list[object]:
        """The objects whose attributes change, but for access ranges."""
        return [self, *self._rows.values()]

    def add_to(self, key: FutureKey, roots: Collection[str], group: int) -> None:
        """Add to `key` what operations on these roots wait for. `group`: number of the pending tile.

        With a root in a rolling buffer the key equals no other.
        """
        for root in sorted(roots):
            for box, number, queue in self._writes.get(root, ()):
                key.add((box, queue), [number])
            if root in self.roots:
                self.roots[root].add_to(key, group, is_open=True)
            if root in self._rows:
                key.note(object())  # rolling buffers are not compared

    def move_rows(self, root: str, top: int) -> None:
        """Set row `top` of the tensor as the first in the root's rolling buffer."""
        self._rows[root].top = top

    def begin(self, root: str, first: tuple[int, int]) -> None:
        """Begin the root's rolling buffer anew at row 0 and at (column, channel) `first`; its old content is read no
        more.
        """
        self._writes.pop(root, None)
        rows = self._rows[root]
        rows.top, (rows.column, rows.channel) = 0, first

    def note_move(self, box: Box, number: int, queue: int) -> None:
        """Note that an operation wrote the box again, to another place in its buffer. Only `makers` sees it."""
        self._writes.setdefault(self.root(box.tensor), []).append((box, number, queue))

    def reads(self, box: Box | None, written: Box | None) -> bool:
        """Return whether a load of `box` reads bytes of `written`. None, for constants or no output, reads nothing."""
        if box is None or written is None or self.root(written.tensor) != self.root(box.tensor):
            return False
        return self._meet(written, box)

    def view(self, box: Box) -> View:
        return self._views[box.tensor]

    def root(self, tensor: str) -> str:
        return self._views[tensor].root

    def makers(self, box: Box, queue: int) -> list[int]:
        """Return the operations on other queues that wrote a part of the box; a box without size stands for all of its
        tensor.
        """
        writes = self._writes.get(self.root(box.tensor), ())
        return [n for other, n, q in writes if q != queue and (not (box.size and other.size) or self._meet(other, box))]

    def _meet(self, a: Box, b: Box) -> bool:
        """Return whether two boxes of one root have a common byte. For different tensors their first and last bytes
        decide.
        """
        if a.tensor == b.tensor:
            return boxes_meet(a, b)
        one, other = self._bytes(a), self._bytes(b)
        return one is None or other is None or (one[0] < other[1] and other[0] < one[1])

    def _bytes(self, box: Box) -> tuple[int, int] | None:
        """Return the bytes [first, end) of a box in its root; None for rolling buffers and channel-blocked maps."""
        view = self.view(box)
        if view.rows or view.strides.maps is not None:
            return None
        last = [first + size - 1 for first, size in zip(box.start, box.size)]
        return view.at(box.start), view.at(last) + view.item_bytes

    def make(self, box: Box, number: int, queue: int) -> None:
        """Note an operation that writes a box: `makers` names it from now on, and it counts as `use` too."""
        root = self.root(box.tensor)
        self._writes.setdefault(root, []).append((box, number, queue))
        self.use(box, number, queue)

    def use(self, box: Box, number: int, queue: int) -> None:
        """Note an operation that touches a box. It counts where the root is resident or in a rolling buffer; else
        nothing changes.
        """
        root = self.root(box.tensor)
        area = self.roots.get(root)
        if area is not None:
            area.use(number, queue, self._part(box, area))
        if self.view(box).rows:
            self._rows[root].use(box, number)

    def _part(self, box: Box, area: AccessRange) -> tuple[int, int] | None:
        """Return the bytes of an area from the first to the last of a box; None where they are unknown."""
        if not box.size:
            return area.start, area.end
        part = self._bytes(box) if self.every else None
        return None if part is None else (area.start + part[0], area.start + part[1])

    def before(self, box: Box, queue: int) -> list[int]:
        """Return the operations that must end before the queue writes the box to its place. There are none where the
        root is neither resident nor in a rolling buffer.

        No element of a resident tensor is written twice, so that only what had its bytes before is waited for.
        """
        root = self.root(box.tensor)
        area = self.roots.get(root)
        if self.view(box).rows:
            return [*self._rows[root].before(box), *(area.before_part(queue) if area is not None else ())]
        return area.before_part(queue) if area is not None else []
