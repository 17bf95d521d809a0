"""A mover's fills and copies between the places of its tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from toolchain.hw.chip import Chip
from toolchain.machine import Copy, MachineOp
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import FillBox, Loop, Move
from toolchain.schedule.copies import CopyEngine, Location, copies, fills
from toolchain.schedule.queue_cost import sum_queue_cost
from toolchain.schedule.strided_runs import MoveSide, padding, runs_of, writes_whole_blocks
from toolchain.schedule.views import View

INDEXED = 1  # a base register that is named when it is known which are free
Locate = Callable[[str, Sequence[int]], Location]  # where an element of a tensor lies


def lower_moves(layer: Layer, views: Mapping[str, View], locate: Locate, chip: Chip) -> list[MachineOp]:
    """By the channel that stores. What lies where it should already is not moved. Copies of indexed moves name `INDEXED` as the
    base of what they reach by rows."""
    store, out, item_bytes = chip.channels[-1], layer.node.outputs[0], layer.output.item_bytes
    most = Copy.need("inner_bytes", chip).high
    mover = CopyEngine(store.number, chip.dma_dimensions, element_type=layer.output_number, most=most)
    movers = (mover, *((replace(mover, transposes=True),) if store.dma.transpose_block else ()))
    boxes, moved = layer.mover.moves(layer)
    index = layer.mover.row_index(layer)
    indexed = {"destination_base" if index is not None and index.tensor == out else "source_base": INDEXED}
    kept = [m for m in moved if not _in_place(m, layer, views, locate)]
    ends = {m: _ends(m, layer, views) for m in kept}
    ops: list[MachineOp] = []
    for box in (*_padding(layer, views[out], ends), *boxes):
        for at, sizes, strides in _filled(box, layer, views[out]):
            start = locate(out, box.start)
            ops += fills(Location(start.space, start.address + at), sizes, strides, box.value, item_bytes, mover)
    for move in kept:
        source, target = locate(layer.node.inputs[move.source], move.source_start), locate(out, move.target_start)
        for run in runs_of(move, *ends[move]):
            there = replace(source, address=source.address + run.source), replace(target, address=target.address + run.target)
            strides = sorted(run.loops, key=lambda s: -s.target)
            # Matrices are turned where that is no slower than element by element.
            ways = [list(copies(*there, strides, item_bytes, m)) for m in movers]
            best = min(ways, key=lambda way: (_alone_cycles(way, chip), len(way))) if len(ways) > 1 else ways[0]
            ops += [replace(op, **indexed) for op in best] if move.indexed else best
    return ops


def _in_place(move: Move, layer: Layer, views: Mapping[str, View], locate: Locate) -> bool:
    """Whether what it would move was made where it belongs."""
    name, out = layer.node.inputs[move.source], layer.node.outputs[0]
    return views[name].root == views[out].root and locate(name, move.source_start) == locate(out, move.target_start)


def _ends(move: Move, layer: Layer, views: Mapping[str, View]) -> tuple[MoveSide, MoveSide]:
    name, out = layer.node.inputs[move.source], layer.node.outputs[0]
    source = MoveSide(views[name].strides, layer.types[name].shape, move.source_start)
    return source, MoveSide(views[out].strides, layer.output.shape, move.target_start)


def _padding(layer: Layer, view: View, ends: Mapping[Move, tuple[MoveSide, MoveSide]]) -> Iterator[FillBox]:
    """Of the output's last granules, where no move brings them whole: what reads a granule reads all of it."""
    rest = padding(layer.output.shape, view.strides)
    if rest is not None and not all(writes_whole_blocks(move, *pair) for move, pair in ends.items()):
        yield FillBox(*rest, 0)


def _filled(box: FillBox, layer: Layer, view: View) -> Iterator[tuple[int, list[int], list[int]]]:
    """(bytes behind its first element, sizes, strides) of each part of a box that is strided as it lies."""
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
