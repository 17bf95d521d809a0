"""Layers that run in turns, a stripe of rows each, so that of what they hand on only the latest rows are kept.

The last layer goes down its output in equal steps; each of the others makes, in front of it, the rows that are needed by then.
What is kept of a tensor are rows that lie one behind the other in a buffer. Where the next ones would go beyond its end, those
that are still needed (the halo) are moved to its beginning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from toolchain.ir.graph import TensorType
from toolchain.ops.kit.operator import RowWindows
from toolchain.ops.kit.tile import Box, Extent, spans
from toolchain.ops.kit.window import Window


class Call(NamedTuple):
    """A layer, by its place in the region, on a part of its output."""

    layer: int
    extent: Extent


class Anew(NamedTuple):
    """A root's buffer holds these channels of it from here on, (start, count), from its first row. layer: that makes them."""

    root: str
    channels: tuple[int, int]
    layer: int


class Shift(NamedTuple):
    """Row `first` of all that lies in a root becomes the first of its buffer, and those behind it move with it. tensors: how many
    rows of each there are. distance: that they move, in rows. layer: that makes them. channels: that lie there, where not all."""

    root: str
    tensors: tuple[tuple[str, int], ...]
    first: int
    distance: int
    layer: int
    channels: tuple[int, int] | None = None


Step = Call | Shift | Anew
Ends = Sequence[tuple[int, ...]]


@dataclass(frozen=True)
class Part:
    """A layer of a cascade. height, channels: of its output. reads: how rows of that are made."""

    layer: int
    output: str
    height: int
    channels: int
    reads: RowWindows


@dataclass(frozen=True)
class Stripes:
    """steps: of each stripe, in order. rows: that the buffer of each root between the layers holds. channels: of each block of
    them that goes through all stripes before the next one does; 0: all at once."""

    steps: tuple[tuple[Step, ...], ...]
    rows: Mapping[str, int]
    channels: int = 0


class StripesOf:
    """The stripes of neighbouring layers, for any height of them; what it finds out is remembered."""

    def __init__(self, parts: Sequence[Part], kept: Mapping[str, str]):
        """kept: tensors that only these layers touch, and their roots."""
        self._parts = parts
        self._users: dict[str, list[tuple[int, Sequence[Window]]]] = {}
        for index, part in enumerate(parts):
            for name, windows in part.reads.items():
                self._users.setdefault(name, []).append((index, windows))
        self._made = {part.output: index for index, part in enumerate(parts)}
        self._roots: dict[str, list[tuple[str, int]]] = {}  # tensors that are made in each, and by which part
        for name, root in kept.items():
            if name in self._made:
                self._roots.setdefault(root, []).append((name, self._made[name]))
        self._ends: dict[int, Ends] = {}  # by height
        self._buffers: dict[tuple[int, str, bool], int] = {}  # rows by height, root, and whether it has room ahead
        self._readers: dict[str, list[tuple[int, int, Window]]] = {}  # of each root: the part, its rows, how it reads
        for name, root in kept.items():
            for user, windows in self._users.get(name, ()):
                self._readers.setdefault(root, []).extend((user, parts[user].height, w) for w in windows)
        self._touching: dict[str, set[int]] = {}  # the layers that make or read what lies in each root
        for part in parts:
            for root in {kept[name] for name in (part.output, *part.reads) if name in kept}:
                self._touching.setdefault(root, set()).add(part.layer)

    def of(
        self, height: int, ahead: Collection[str] = (), channels: int = 0, roots: Collection[str] | None = None
    ) -> Stripes | None:
        """height: rows of the last layer's output in a stripe. ahead: roots that have room for the next stripe's rows, so that
        these can be made while others are still read. channels: of a block; 0: all. roots: of which rows are kept; None: all.
        None where a layer needs all of what another makes."""
        rows = self.rows(height, ahead, roots)
        return None if rows is None else self.held(height, rows, channels)

    def held(self, height: int, rows: Mapping[str, int], channels: int = 0) -> Stripes:
        """In buffers of so many rows, no fewer than `rows` says."""
        ends, steps = self._ends_of(height), list[tuple[Step, ...]]()
        for block in spans(self._parts[-1].channels, channels) if channels else [None]:
            steps += self._steps(ends, rows, block)
        return Stripes(tuple(steps), rows, channels)

    def rows(self, height: int, ahead: Collection[str] = (), roots: Collection[str] | None = None) -> Mapping[str, int] | None:
        """That the buffers hold, of such stripes."""
        if self._reads_whole:
            return None
        kept = (root for root in self._roots if roots is None or root in roots)
        return {root: self._buffer(height, root, root in ahead) for root in kept}

    @cached_property
    def _reads_whole(self) -> bool:
        return any(not windows for name in self._made for _, windows in self._users.get(name, ()))

    def _ends_of(self, height: int) -> Ends:
        """For each stripe how many rows each layer has made at its end."""
        if height not in self._ends:
            self._ends[height] = self._found_ends(height)
        return self._ends[height]

    def _found_ends(self, height: int) -> Ends:
        last = self._parts[-1]
        count = -(-last.height // height)
        found: list[tuple[int, ...]] = []
        before = (0,) * len(self._parts)
        for stripe in range(1, count + 1):
            ends = [*before[:-1], min(last.height, stripe * height)]
            for index in range(len(self._parts) - 2, -1, -1):
                part = self._parts[index]
                users = self._users.get(part.output, [])
                if not users or stripe == count:
                    need = -(-part.height * stripe // count)
                else:
                    need = max(sum(w.needed(ends[user] - 1, 1)) if ends[user] else 0 for user, ws in users for w in ws)
                ends[index] = max(before[index], need)
            before = tuple(ends)
            found.append(before)
        return found

    def _first(self, root: str, before: Sequence[int]) -> int:
        """The first row that is needed where the layers have made so many."""
        needed = [
            max(0, before[user] * w.stride - w.pad) for user, height, w in self._readers.get(root, ()) if before[user] < height
        ]
        made = max(before[at] for _, at in self._roots[root])
        return min(*needed, made) if needed else made

    def _buffer(self, height: int, root: str, ahead: bool) -> int:
        """Rows that it holds."""
        key = height, root, ahead
        if key not in self._buffers:
            self._buffers[key] = self._found_buffer(self._ends_of(height), root, ahead)
        return self._buffers[key]

    def _found_buffer(self, ends: Ends, root: str, ahead: bool) -> int:
        """The most between the first that is needed and the last that is made; and what one stripe adds."""
        rows, more, names = 1, 0, self._roots[root]
        before = (0,) * len(self._parts)
        for stripe in ends:
            rows = max(rows, max(stripe[at] for _, at in names) - self._first(root, before))
            if ahead:
                more = max(more, *(stripe[at] - before[at] for _, at in names))
            before = stripe
        return min(rows + more, self._height(root))

    def _height(self, root: str) -> int:
        return max(self._parts[at].height for _, at in self._roots[root])

    def _steps(self, ends: Ends, rows: Mapping[str, int], block: tuple[int, int] | None) -> Iterator[tuple[Step, ...]]:
        """block: channels; None: all."""
        found: list[list[Step]] = []
        roots = {root: names for root, names in self._roots.items() if root in rows}
        anew = [] if block is None else [Anew(r, block, self._parts[names[0][1]].layer) for r, names in roots.items()]
        before = (0,) * len(self._parts)
        tops = dict.fromkeys(rows, 0)
        for stripe in ends:
            for root, names in roots.items():
                if max(stripe[at] for _, at in names) - tops[root] > rows[root]:
                    first = self._first(root, before)
                    self._shift(found[-1], root, first, first - tops[root], before, block)
                    tops[root] = first
            calls = [
                Call(part.layer, Extent((start, end - start), block or (0, part.channels)))
                for part, start, end in zip(self._parts, before, stripe)
                if end > start
            ]
            found.append([*(anew if not found else ()), *calls])
            before = stripe
        return map(tuple, found)

    def _shift(
        self,
        steps: list[Step],
        root: str,
        first: int,
        distance: int,
        made: Sequence[int],
        block: tuple[int, int] | None,
    ) -> None:
        """Put behind the last call that touches the root, so that the array goes on with others meanwhile."""
        names = self._roots[root]
        tensors = tuple((n, made[at] - first) for n, at in names if made[at] > first)
        touching = self._touching[root]
        at = next((i for i in range(len(steps), 0, -1) if isinstance(steps[i - 1], Call) and steps[i - 1].layer in touching), 0)
        steps.insert(at, Shift(root, tensors, first, distance, self._parts[names[0][1]].layer, block))


def shifted(shift: Shift, types: Mapping[str, TensorType]) -> Iterator[Box]:
    """The boxes that are copied one by one: rows of each tensor, as many at once as reach over none of their own places."""
    for tensor, count in shift.tensors:
        _, _, width, every = types[tensor].shape
        start, channels = shift.channels or (0, every)
        at_once = min(count, shift.distance)
        for row in range(0, count, at_once):
            yield Box(tensor, (0, shift.first + row, 0, start), (1, min(at_once, count - row), width, channels))


def calls_of(stripes: Stripes) -> dict[int, list[Call]]:
    """By layer."""
    found: dict[int, list[Call]] = {}
    for step in chain.from_iterable(stripes.steps):
        if isinstance(step, Call):
            found.setdefault(step.layer, []).append(step)
    return found
