"""A mover's fills and copies between the places of its tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from toolchain.hw.chip import Chip
from toolchain.machine import MachineOp
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import Move
from toolchain.schedule.copies import Location, Mover, Stride, copies, fills
from toolchain.schedule.places import View
from toolchain.schedule.wanted import wanted

Locate = Callable[[str, Sequence[int]], Location]  # where an element of a tensor lies


def moves(layer: Layer, views: Mapping[str, View], locate: Locate, chip: Chip) -> list[MachineOp]:
    """By the channel that stores. What lies where it should already is not moved."""
    store, out, item_bytes = chip.channels[-1], layer.node.outputs[0], layer.output.item_bytes
    mover = Mover(store.number, chip.dma_dimensions, element_type=layer.output_number)
    movers = (mover, *((replace(mover, transposes=True),) if store.dma.transpose_block else ()))
    boxes, moved = layer.mover.moves(layer)
    ops: list[MachineOp] = []
    for box in boxes:
        ops += fills(locate(out, box.start), box.size, views[out].strides.along, box.value, item_bytes, mover)
    for move in moved:
        name = layer.node.inputs[move.source]
        source, target = locate(name, move.source_start), locate(out, move.target_start)
        if source == target and views[name].root == views[out].root:
            continue  # made in place
        strides = sorted(_strides(move, views[name], views[out]), key=lambda s: -s.target)
        # Matrices are turned where that is no slower than element by element.
        ways = [list(copies(source, target, strides, item_bytes, m)) for m in movers]
        ops += min(ways, key=lambda way: (_alone_cycles(way, chip), len(way))) if len(ways) > 1 else ways[0]
    return ops


def _strides(move: Move, source: View, target: View) -> Iterator[Stride]:
    for loop in move.loops:
        step = source.strides[loop.source_dim] * loop.source_step if loop.source_dim >= 0 else 0
        yield Stride(loop.count, step, target.strides[loop.target_dim] * loop.target_step)


def _alone_cycles(ops: Sequence[MachineOp], chip: Chip) -> int:
    return sum(wanted([op], chip).alone_cycles for op in ops)
