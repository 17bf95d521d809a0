"""Lower data-movement operators (Concat, Slice, Pad, Transpose and so on) to DMA fills and copies.

Channel-blocked maps need care: channels lie in granules (blocks) of a fixed size, so a loop along channels is no
constant stride. Moves are cut into strided runs inside granules. Code generation and the cost model both call
`lower_moves`.

INDEXED is a placeholder for a base register, which is named when it is known which are free. A `Phase` is the place of a first
element in its granule on both sides. A `Part` is (source byte, target byte, (the loop inside it, its phase)).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

from toolchain.hw.chip import Chip
from toolchain.machine import Copy, MachineOp
from toolchain.machine.tensors import Shape, Strides
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import FillBox, Loop, Move
from toolchain.schedule.copies import CopyEngine, Location, Stride, copies, fills
from toolchain.schedule.queues import sum_queue_cost
from toolchain.schedule.views import View

INDEXED = 1


@dataclass(frozen=True)
class StridedRun:
    """A part of a move as strided loops. `source`, `target`: bytes from the first element of the move on each side."""

    source: int
    target: int
    loops: tuple[Stride, ...]


@dataclass(frozen=True)
class MoveSide:
    """One side of a move: the strides and shape of its tensor, and the element at which the move begins."""

    strides: Strides
    shape: Shape
    start: Shape

    @property
    def last(self) -> int:
        """The dimension that lies in granules; -2, no dimension, where there is none."""
        return len(self.shape) - 1 if self.strides.maps is not None else -2

    def offset(self, channel: int) -> int:
        """Return the bytes from the first element of the move to the one `channel` further along the last dimension."""
        outer = (0,) * (len(self.shape) - 1)
        first = self.start[-1]
        return self.strides.offset_bytes((*outer, first + channel)) - self.strides.offset_bytes((*outer, first))

    def granule(self, channel: int) -> tuple[int, int]:
        """Return (granule, place inside it) of the element `channel` further; (0, 0) without granules."""
        maps = self.strides.maps
        return divmod(self.start[-1] + channel, maps.granule) if maps is not None else (0, 0)

    def is_whole(self, count: int) -> bool:
        """Return whether `count` elements along the last dimension are whole granules."""
        return self.strides.is_whole(self.start[-1], count, self.shape[-1])


def runs_of(move: Move, source: MoveSide, target: MoveSide) -> list[StridedRun]:
    """Return the strided runs that make up a move: one, where neither side lies in granules."""
    cut = _crossing(move, source, target)
    plain = tuple(_stride(loop, source, target) for loop in move.loops if loop not in cut)
    runs = [StridedRun(0, 0, plain)]
    for group in _groups(cut, source, target):
        parts = list(_cut(group, source, target))
        runs = [StridedRun(a.source + b.source, a.target + b.target, (*a.loops, *b.loops)) for a, b in product(runs, parts)]
    return runs


def _crossing(move: Move, source: MoveSide, target: MoveSide) -> list[Loop]:
    """Return the loops along a dimension that lies in granules on either side."""
    return [loop for loop in move.loops if loop.source_dim == source.last or loop.target_dim == target.last]


def writes_whole_blocks(move: Move, source: MoveSide, target: MoveSide) -> bool:
    """Return whether the move writes whole granules only, the padding of the last one included."""
    if target.strides.maps is None:
        return True
    cut = _crossing(move, source, target)
    return len(cut) == 1 and _is_whole(cut[0], source, target)


def _is_whole(loop: Loop, source: MoveSide, target: MoveSide) -> bool:
    """Return whether the loop goes along the same whole granules on both sides."""
    is_parallel = (loop.source_dim, loop.target_dim) == (source.last, target.last) and loop.source_step == loop.target_step == 1
    return is_parallel and source.is_whole(loop.count) and target.is_whole(loop.count)


def _stride(loop: Loop, source: MoveSide, target: MoveSide) -> Stride:
    """Return the bytes by which a loop goes on at each side, along no granules."""
    step = source.strides[loop.source_dim] * loop.source_step if loop.source_dim >= 0 else 0
    return Stride(loop.count, step, target.strides[loop.target_dim] * loop.target_step if loop.target_dim >= 0 else 0)


def _groups(loops: Sequence[Loop], source: MoveSide, target: MoveSide) -> list[list[Loop]]:
    """Return the loops in groups that go along the same granules."""
    groups: list[list[Loop]] = []
    for loop in loops:
        along = [g for g in groups if any(_meet(loop, other, source, target) for other in g)]
        groups = [g for g in groups if g not in along] + [[*(other for g in along for other in g), loop]]
    return groups


def _meet(a: Loop, b: Loop, source: MoveSide, target: MoveSide) -> bool:
    """Return whether both loops go along granules of the same side."""
    return a.source_dim == b.source_dim == source.last or a.target_dim == b.target_dim == target.last


def _cut(group: Sequence[Loop], source: MoveSide, target: MoveSide) -> Iterator[StridedRun]:
    """Yield the runs of a group: its longest loop in parts inside one granule on both sides, for each step of the
    others.
    """
    if len(group) == 1 and _is_whole(group[0], source, target):
        yield _make_whole_run(group[0].count, source, target)
        return
    inner = max(group, key=lambda loop: loop.count)
    others = [loop for loop in group if loop is not inner]
    for index in product(*(range(loop.count) for loop in others)):
        before = list(zip(others, index))
        yield from _progressions(_parts(inner, before, source, target))


def _make_whole_run(count: int, source: MoveSide, target: MoveSide) -> StridedRun:
    """Return the run over whole granules of `count` channels."""
    maps = target.strides.maps
    assert maps is not None
    surfaces = Stride(target.strides.granules(count), source.strides.surface_bytes, target.strides.surface_bytes)
    return StridedRun(0, 0, (surfaces, Stride(maps.granule, source.strides[-1], target.strides[-1])))


Phase = tuple[int, int]
Part = tuple[int, int, tuple[Stride, Phase]]


def _parts(inner: Loop, before: Sequence[tuple[Loop, int]], source: MoveSide, target: MoveSide) -> Iterator[Part]:
    """Yield the longest runs of the inner loop inside one granule on both sides. `before`: the loops around it, each at
    a step.
    """
    places = [_place(((inner, k), *before), source, target) for k in range(inner.count)]
    first = 0
    for k in range(1, inner.count + 1):
        if k < inner.count and places[k].granules == places[first].granules:
            continue
        (a, b, _, phase), count = places[first], k - first
        a_step, b_step = (places[first + 1].source - a, places[first + 1].target - b) if count > 1 else (0, 0)
        yield a, b, (Stride(count, a_step, b_step), phase)
        first = k


class _Place(NamedTuple):
    """The place of an element: bytes from the first element on both sides, its granules, and its places inside them."""

    source: int
    target: int
    granules: tuple[int, int]
    phase: Phase


def _place(steps: Sequence[tuple[Loop, int]], source: MoveSide, target: MoveSide) -> _Place:
    """Return the place of the element at which these loops are at these steps."""
    read, written = (
        sum(k * loop.source_step for loop, k in steps if loop.source_dim == source.last),
        sum(k * loop.target_step for loop, k in steps if loop.target_dim == target.last),
    )
    others = [(_stride(loop, source, target), loop, k) for loop, k in steps]
    a = source.offset(read) + sum(k * s.source for s, loop, k in others if loop.source_dim != source.last)
    b = target.offset(written) + sum(k * s.target for s, loop, k in others if loop.target_dim != target.last)
    (read_granule, at), (other, to) = source.granule(read), target.granule(written)
    return _Place(a, b, (read_granule, other), (at, to))


def _progressions(parts: Iterator[Part]) -> Iterator[StridedRun]:
    """Yield runs that join equal parts at equal distances by one loop around them."""
    starts_of_kind: dict[tuple[Stride, Phase], list[tuple[int, int]]] = {}
    for a, b, kind in parts:
        starts_of_kind.setdefault(kind, []).append((a, b))
    for (loop, _), starts in starts_of_kind.items():
        while starts:
            (a, b), count = starts[0], 1
            step = (starts[1][0] - a, starts[1][1] - b) if len(starts) > 1 else (0, 0)
            while count < len(starts) and starts[count] == (a + count * step[0], b + count * step[1]):
                count += 1
            yield StridedRun(a, b, (Stride(count, *step), loop))
            starts = starts[count:]


def find_padding_box(shape: Shape, strides: Strides) -> tuple[Shape, Shape] | None:
    """Return (start, size) of the box that fills the last granules of a tensor; None where nothing does."""
    maps = strides.maps
    rest = -shape[-1] % maps.granule if maps is not None else 0
    return ((0,) * (len(shape) - 1) + (shape[-1],), (*shape[:-1], rest)) if rest else None


Locate = Callable[[str, Sequence[int]], Location]


def lower_moves(layer: Layer, views: Mapping[str, View], locate: Locate, chip: Chip) -> list[MachineOp]:
    """Return the fills and copies of a data-movement operator, on the DMA channel that stores.

    Data that lie in place already are not moved. `locate`: returns where an element of a tensor lies. Copies of moves
    whose row is read from memory name the base register `INDEXED`, a placeholder, on the side of that row.
    """
    store, out, item_bytes = chip.channels[-1], layer.node.outputs[0], layer.output.item_bytes
    most = Copy.need("inner_bytes", chip).high
    engine = CopyEngine(store.number, chip.dma_dimensions, element_type=layer.output_number, most=most)
    engines = (engine, *((replace(engine, transposes=True),) if store.dma.transpose_block else ()))
    boxes, moved = layer.move_op.moves(layer)
    index = layer.move_op.row_index(layer)
    indexed = {"destination_base" if index is not None and index.tensor == out else "source_base": INDEXED}
    remaining = [m for m in moved if not _in_place(m, layer, views, locate)]
    ends = {m: _ends(m, layer, views) for m in remaining}
    ops: list[MachineOp] = []
    for box in (*_padding(layer, views[out], ends), *boxes):
        for at, sizes, strides in _split_fill(box, layer, views[out]):
            start = locate(out, box.start)
            ops += fills(Location(start.space, start.address + at), sizes, strides, box.value, item_bytes, engine)
    for move in remaining:
        source, target = locate(layer.node.inputs[move.source], move.source_start), locate(out, move.target_start)
        for run in runs_of(move, *ends[move]):
            places = replace(source, address=source.address + run.source), replace(target, address=target.address + run.target)
            strides = sorted(run.loops, key=lambda s: -s.target)
            # Matrices are turned where that is no slower than element by element.
            ways = [list(copies(*places, strides, item_bytes, m)) for m in engines]
            best = min(ways, key=lambda way: (_alone_cycles(way, chip), len(way))) if len(ways) > 1 else ways[0]
            ops += [replace(op, **indexed) for op in best] if move.indexed else best
    return ops


def _in_place(move: Move, layer: Layer, views: Mapping[str, View], locate: Locate) -> bool:
    """Return whether the data of a move lie at their target already."""
    name, out = layer.node.inputs[move.source], layer.node.outputs[0]
    return views[name].root == views[out].root and locate(name, move.source_start) == locate(out, move.target_start)


def _ends(move: Move, layer: Layer, views: Mapping[str, View]) -> tuple[MoveSide, MoveSide]:
    """Return source and target of a move."""
    name, out = layer.node.inputs[move.source], layer.node.outputs[0]
    source = MoveSide(views[name].strides, layer.types[name].shape, move.source_start)
    return source, MoveSide(views[out].strides, layer.output.shape, move.target_start)


def _padding(layer: Layer, view: View, ends: Mapping[Move, tuple[MoveSide, MoveSide]]) -> Iterator[FillBox]:
    """Yield the fill of the output's last granules, where no move writes them whole: readers read whole granules."""
    rest = find_padding_box(layer.output.shape, view.strides)
    if rest is not None and not all(writes_whole_blocks(move, *pair) for move, pair in ends.items()):
        yield FillBox(*rest, 0)


def _split_fill(box: FillBox, layer: Layer, view: View) -> Iterator[tuple[int, list[int], list[int]]]:
    """Yield the strided parts of a box: (bytes from its first element, sizes, strides in bytes)."""
    if view.strides.maps is None:
        yield 0, list(box.size), list(view.strides.along)
        return
    end = MoveSide(view.strides, layer.output.shape, box.start)
    loops = tuple(Loop(n, d, 1, d, 1) for d, n in enumerate(box.size))
    for run in runs_of(Move(0, box.start, box.start, loops), end, end):
        ordered = sorted(run.loops, key=lambda s: -s.target)
        yield run.target, [s.count for s in ordered], [s.target for s in ordered]


def _alone_cycles(ops: Sequence[MachineOp], chip: Chip) -> int:
    return sum(sum_queue_cost([op], chip).alone_cycles for op in ops)
