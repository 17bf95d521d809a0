"""Cut neighbouring layers into stripes of rows, as a cascade executes them, and compute what their rolling buffers
hold.

In a cascade (depth-first scheduling) layers take turns, and only the latest rows of the tensors between them are kept.
The last layer goes down its output in equal steps. Each of the others first makes the rows that are needed by then.
Rows of a tensor lie one after the other in a buffer. Where the next ones would go beyond its end, those that are still
needed (the halo) are moved to its beginning.

All stripes may run for one block of channels, or of columns of the last output, before the next block. Columns at the
borders of blocks are then computed in both. `schedule.cascade` plans with the result; nothing here knows of memory
sizes. A root is a tensor with storage of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from toolchain.ir.graph import TensorType
from toolchain.ops.kit.operator import Layer, TiledOp, Windows
from toolchain.ops.kit.tile import Box, Extent, spans
from toolchain.ops.kit.window import Window


class LayerCall(NamedTuple):
    """A call of a layer, by its index in the region, for a part of its output."""

    layer: int
    extent: Extent


Span = tuple[int, int]  # (start, count)


class Sweep(NamedTuple):
    """The size of the blocks that go through all stripes one after the other, in channels or columns of the last
    output; 0: no blocks.
    """

    channels: int = 0
    columns: int = 0


UNCUT = Sweep()


class BufferReset(NamedTuple):
    """A rolling buffer begins anew: from here on it holds these channels and columns of its root, from row 0 on.

    `layer`: index of the layer that makes them. `columns`: (start, count), None: all.
    """

    root: str
    channels: Span
    layer: int
    columns: Span | None = None

    @property
    def first(self) -> Span:
        """(column, channel) of the first element in the buffer."""
        return (self.columns or (0, 0))[0], self.channels[0]


class BufferShift(NamedTuple):
    """A move of rows in a rolling buffer: row `first` of the root becomes its first row, later rows move with it.

    `tensors`: (tensor in the root, number of its rows that move). `distance`: rows by which they move. `layer`: index
    of the layer that makes them. `channels`, `columns`: (start, count) of what lies in the buffer; None: all.
    """

    root: str
    tensors: tuple[tuple[str, int], ...]
    first: int
    distance: int
    layer: int
    channels: Span | None = None
    columns: Span | None = None


Step = LayerCall | BufferShift | BufferReset
Ends = Sequence[tuple[int, ...]]


@dataclass(frozen=True)
class CascadeLayer:
    """A layer of a cascade. `layer`: its index in the region. `height`, `width`, `channels`: of its output.

    `reads`: for each input, how rows of the output are made of its rows; no windows: it needs all of them. `across`:
    the same for columns; None: they cannot be made in parts.
    """

    layer: int
    output: str
    height: int
    channels: int
    reads: Windows
    width: int = 1
    across: Windows | None = None


@dataclass(frozen=True)
class Stripes:
    """The stripes of a cascade.

    `steps`: of each stripe, in the order in which they run. `rows`: rows that the buffer of each root holds. `widths`:
    columns that the buffer of each root holds; a root without an entry holds all.
    """

    steps: tuple[tuple[Step, ...], ...]
    rows: Mapping[str, int]
    sweep: Sweep = UNCUT
    widths: Mapping[str, int] = field(default_factory=dict[str, int])


class _Block(NamedTuple):
    """One block of a sweep. `channels`: of every layer, None: all. `columns`: of each layer's output, None: all."""

    channels: Span | None = None
    columns: Sequence[Span] | None = None

    def across(self, part: int) -> Span | None:
        """Return the columns of the layer at index `part` of the cascade; None: all."""
        return None if self.columns is None else self.columns[part]


class StripeShapes:
    """The stripes of some neighbouring layers, for any height of stripes. Results are remembered."""

    def __init__(self, parts: Sequence[CascadeLayer], partial: Mapping[str, str]):
        """Take the layers in order. `partial`: tensors that only these layers touch, with their roots; they may have
        rolling buffers.
        """
        self._parts = parts
        self._users: dict[str, list[tuple[int, Sequence[Window]]]] = {}
        for index, part in enumerate(parts):
            for name, windows in part.reads.items():
                self._users.setdefault(name, []).append((index, windows))
        self._producers = {part.output: index for index, part in enumerate(parts)}
        self._roots: dict[str, list[tuple[str, int]]] = {}  # tensors that are made in each, and by which part
        for name, root in partial.items():
            if name in self._producers:
                self._roots.setdefault(root, []).append((name, self._producers[name]))
        self._ends: dict[int, Ends] = {}  # by height
        self._across: dict[int, list[list[Span]]] = {}  # by columns of a block
        self._buffers: dict[tuple[int, str, bool], int] = {}  # rows by height, root, and whether it has room ahead
        self._readers: dict[str, list[tuple[int, int, Window]]] = {}  # of each root: the part, its rows, how it reads
        for name, root in partial.items():
            for user, windows in self._users.get(name, ()):
                self._readers.setdefault(root, []).extend((user, parts[user].height, w) for w in windows)
        self._touching: dict[str, set[int]] = {}  # the layers that make or read what lies in each root
        for part in parts:
            for root in {partial[name] for name in (part.output, *part.reads) if name in partial}:
                self._touching.setdefault(root, set()).add(part.layer)

    def of(
        self, height: int, double_buffered: Collection[str] = (), sweep: Sweep = UNCUT, roots: Collection[str] | None = None
    ) -> Stripes | None:
        """Return stripes of `height` rows of the last output; None where a layer needs all of another's output.

        `double_buffered`: roots that have room for one more stripe, so that it can be written while others are read.
        `roots`: roots with rolling buffers; None: all that can.
        """
        rows = self.rows(height, double_buffered, roots)
        return None if rows is None else self.fix_rows(height, rows, sweep)

    def fix_rows(self, height: int, rows: Mapping[str, int], sweep: Sweep = UNCUT) -> Stripes:
        """Return stripes with buffers of given rows by root, which must be at least those of `rows`."""
        ends, steps = self._ends_of(height), list[tuple[Step, ...]]()
        for block in self._blocks(sweep):
            steps += self._steps(ends, rows, block)
        return Stripes(tuple(steps), rows, sweep, self.widths(sweep, rows))

    def middle(self, height: int, sweep: Sweep = UNCUT) -> list[LayerCall]:
        """Return the middle call of each layer, as a typical one."""
        blocks, calls = list(self._blocks(sweep)), list[LayerCall]()
        for at, rows in enumerate(self.rows_made(height)):
            block, number = divmod(len(blocks) * len(rows) // 2, len(rows))
            calls.append(self._call(at, rows[number], blocks[block]))
        return calls

    def rows_made(self, height: int) -> list[list[Span]]:
        """Return (start, count) of the rows that each layer computes in the stripes of one block, without empty ones."""
        ends = ([stripe[at] for stripe in self._ends_of(height)] for at in range(len(self._parts)))
        return [[(start, end - start) for start, end in zip([0, *rows], rows) if end > start] for rows in ends]

    def _call(self, at: int, rows: Span, block: _Block) -> LayerCall:
        """Return the call of the layer at index `at` of the cascade for these rows of a block."""
        part = self._parts[at]
        return LayerCall(part.layer, Extent(rows, block.channels or (0, part.channels), block.across(at)))

    def _blocks(self, sweep: Sweep) -> Iterator[_Block]:
        """Yield the blocks of a sweep in order; one of everything where it has none."""
        if sweep.columns:
            yield from (_Block(None, columns) for columns in self._in_blocks(sweep.columns))
        elif sweep.channels:
            yield from (_Block(block) for block in spans(self._parts[-1].channels, sweep.channels))
        else:
            yield _Block()

    def widths(self, sweep: Sweep, roots: Collection[str]) -> dict[str, int]:
        """Return the most columns of each root that a block needs; empty where blocks are not of columns."""
        if not sweep.columns:
            return {}
        blocks = self._in_blocks(sweep.columns)
        return {root: max(columns[at][1] for columns in blocks for _, at in self._roots[root]) for root in roots}

    def count_recomputed(self, columns: int) -> list[float]:
        """Return the mean number of times that each layer computes a column, in blocks of so many columns."""
        blocks = self._in_blocks(columns)
        return [sum(block[at][1] for block in blocks) / part.width for at, part in enumerate(self._parts)]

    def in_columns(self, roots: Collection[str]) -> bool:
        """Return whether blocks of columns can run one by one, with rolling buffers of these roots.

        Every layer must allow parts of columns. Each but the last needs such a buffer and a reader among these layers,
        and none may need all columns of another's output.
        """
        outputs = {name for root in roots for name, _ in self._roots.get(root, ())}
        return (
            all(part.across is not None for part in self._parts)
            and all(part.output in outputs and part.output in self._users for part in self._parts[:-1])
            and all(windows for part in self._parts for name, windows in (part.across or {}).items() if name in self._producers)
        )

    def _in_blocks(self, columns: int) -> list[list[Span]]:
        """Return (start, count) of each layer's columns, for each block of so many columns of the last output."""
        if columns not in self._across:
            self._across[columns] = [self._columns(block) for block in spans(self._parts[-1].width, columns)]
        return self._across[columns]

    def _columns(self, block: Span) -> list[Span]:
        """Return (start, count) of the columns of each layer's output that a block of the last one needs."""
        columns_of = [block] * len(self._parts)
        for index in range(len(self._parts) - 2, -1, -1):
            name = self._parts[index].output
            spans_read = [
                window.get_input_span(*columns_of[user])
                for user, _ in self._users[name]
                for window in (self._parts[user].across or {}).get(name, ())
            ]
            first = min(start for start, _ in spans_read)
            columns_of[index] = first, max(start + count for start, count in spans_read) - first
        return columns_of

    def rows(
        self, height: int, double_buffered: Collection[str] = (), roots: Collection[str] | None = None
    ) -> Mapping[str, int] | None:
        """Return the rows that each rolling buffer needs, by root; None where a layer needs all of another's output."""
        if self._reads_whole:
            return None
        roots_kept = (root for root in self._roots if roots is None or root in roots)
        return {root: self._buffer(height, root, root in double_buffered) for root in roots_kept}

    @cached_property
    def _reads_whole(self) -> bool:
        """True where some layer needs all of another's output."""
        return any(not windows for name in self._producers for _, windows in self._users.get(name, ()))

    def _ends_of(self, height: int) -> Ends:
        """Return, for each stripe, the number of rows that each layer has computed at its end."""
        if height not in self._ends:
            self._ends[height] = self._find_ends(height)
        return self._ends[height]

    def _find_ends(self, height: int) -> Ends:
        """Return, for each stripe, the number of rows that each layer has computed at its end."""
        last = self._parts[-1]
        count = -(-last.height // height)
        ends_of: list[tuple[int, ...]] = []
        before = (0,) * len(self._parts)
        for stripe in range(1, count + 1):
            ends = [*before[:-1], min(last.height, stripe * height)]
            for index in range(len(self._parts) - 2, -1, -1):
                part = self._parts[index]
                users = self._users.get(part.output, [])
                if not users or stripe == count:
                    need = -(-part.height * stripe // count)
                else:
                    need = max(sum(w.get_input_span(ends[user] - 1, 1)) if ends[user] else 0 for user, ws in users for w in ws)
                ends[index] = max(before[index], need)
            before = tuple(ends)
            ends_of.append(before)
        return ends_of

    def _first(self, root: str, before: Sequence[int]) -> int:
        """Return the first row of a root that is still needed once the layers have made `before` rows."""
        first_rows = [
            max(0, before[user] * w.stride - w.pad) for user, height, w in self._readers.get(root, ()) if before[user] < height
        ]
        last_row = max(before[at] for _, at in self._roots[root])
        return min(*first_rows, last_row) if first_rows else last_row

    def _buffer(self, height: int, root: str, double_buffered: bool) -> int:
        """Return the rows that the root's buffer holds."""
        key = height, root, double_buffered
        if key not in self._buffers:
            self._buffers[key] = self._measure_buffer(self._ends_of(height), root, double_buffered)
        return self._buffers[key]

    def _measure_buffer(self, ends: Ends, root: str, double_buffered: bool) -> int:
        """Return the most rows between the first that is needed and the last that is made, and for double buffers one
        stripe more.
        """
        rows, more, names = 1, 0, self._roots[root]
        before = (0,) * len(self._parts)
        for stripe in ends:
            rows = max(rows, max(stripe[at] for _, at in names) - self._first(root, before))
            if double_buffered:
                more = max(more, *(stripe[at] - before[at] for _, at in names))
            before = stripe
        return min(rows + more, self._height(root))

    def _height(self, root: str) -> int:
        """Return the rows of the tallest tensor in the root."""
        return max(self._parts[at].height for _, at in self._roots[root])

    def _steps(self, ends: Ends, rows: Mapping[str, int], block: _Block) -> Iterator[tuple[Step, ...]]:
        """Yield the calls, shifts and resets of each stripe of one block."""
        steps_of: list[list[Step]] = []
        roots = {root: names for root, names in self._roots.items() if root in rows}
        resets = [] if block == _Block() else [self._reset(root, block) for root in roots]
        before = (0,) * len(self._parts)
        tops = dict.fromkeys(rows, 0)
        for stripe in ends:
            for root, names in roots.items():
                if max(stripe[at] for _, at in names) - tops[root] > rows[root]:
                    first = self._first(root, before)
                    self._shift(steps_of[-1], root, first, first - tops[root], before, block)
                    tops[root] = first
            calls = [
                self._call(at, (start, end - start), block) for at, (start, end) in enumerate(zip(before, stripe)) if end > start
            ]
            steps_of.append([*(resets if not steps_of else ()), *calls])
            before = stripe
        return map(tuple, steps_of)

    def _reset(self, root: str, block: _Block) -> BufferReset:
        """Return the step that begins a root's rolling buffer anew for a block."""
        _, at = self._roots[root][0]
        part = self._parts[at]
        return BufferReset(root, block.channels or (0, part.channels), part.layer, block.across(at))

    def _shift(
        self,
        steps: list[Step],
        root: str,
        first: int,
        distance: int,
        rows_made: Sequence[int],
        block: _Block,
    ) -> None:
        """Insert a shift after the last call of these steps that touches the root, so that other layers go on
        meanwhile.
        """
        names = self._roots[root]
        tensors = tuple((n, rows_made[at] - first) for n, at in names if rows_made[at] > first)
        touching = self._touching[root]
        at = next(
            (i for i in range(len(steps), 0, -1) if isinstance(steps[i - 1], LayerCall) and steps[i - 1].layer in touching), 0
        )
        _, maker = names[0]
        layer = self._parts[maker].layer
        steps.insert(at, BufferShift(root, tensors, first, distance, layer, block.channels, block.across(maker)))


def can_be_cut(layer: Layer) -> bool:
    """Return whether the rows of a layer's output, [1, h, w, c], can be computed in stripes."""
    shape = layer.output.shape
    if len(shape) != 4 or shape[0] != 1 or not isinstance(layer.node.op, TiledOp):
        return False
    return layer.node.op.windows(layer, 1) is not None


def shift_boxes(shift: BufferShift, types: Mapping[str, TensorType]) -> Iterator[Box]:
    """Yield the boxes that a shift copies one by one, each of as many rows as do not overlap their own target."""
    for tensor, count in shift.tensors:
        _, _, width, every = types[tensor].shape
        (start, channels), (first_column, columns) = shift.channels or (0, every), shift.columns or (0, width)
        at_once = min(count, shift.distance)
        for row in range(0, count, at_once):
            yield Box(tensor, (0, shift.first + row, first_column, start), (1, min(at_once, count - row), columns, channels))


def group_calls(stripes: Stripes) -> dict[int, list[LayerCall]]:
    """Return the calls of each layer, by its index."""
    calls: dict[int, list[LayerCall]] = {}
    for step in chain.from_iterable(stripes.steps):
        if isinstance(step, LayerCall):
            calls.setdefault(step.layer, []).append(step)
    return calls
