"""Bytes that tiles bring from DRAM and take there, by the rings that they pass through."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from toolchain.hw.unit_map import Unit
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import TileTask
from toolchain.schedule.plan import VisitedStripes
from toolchain.schedule.sampled_stripes import flatten_tiles
from toolchain.schedule.sampled_tiles import BEGIN
from toolchain.schedule.tile_buffers import MultiBuffer, PlannedLayer, Slot, needs_staging, rings

_Passing = tuple[TileTask, Layer, Unit, Mapping[tuple[str, int], MultiBuffer]]


def count_layer_bytes(
    layer: Layer, slots: Iterable[Slot], unit: Unit, resident: Collection[str], visited: Iterable[Sequence[TileTask] | int]
) -> int:
    """visited: the works that stand for all, with what is repeated (`schedule.sampled_tiles`). unit: that runs them."""
    held = rings(slots)
    own = (works if isinstance(works, int) else ((work, layer, unit, held) for work in works) for works in visited)
    return _moved(own, resident)


def count_cascade_bytes(layers: Mapping[int, PlannedLayer], visited: VisitedStripes, resident: Collection[str]) -> int:
    """Of layers in turns, by their numbers."""
    stages = {i: (p.layer, p.plan.units[0], rings(p.plan.slots)) for i, p in layers.items() if p.plan is not None}
    own = (
        steps if isinstance(steps, int) else ((work, *stages[i]) for i, works in flatten_tiles([steps]) for work in works)
        for steps in visited
    )
    return _moved(own, resident)


def _moved(visited: Iterable[Iterable[_Passing] | int], resident: Collection[str]) -> int:
    total, marks = 0, list[int]()
    for passing in visited:
        if not isinstance(passing, int):
            for work, layer, unit, held in passing:
                for i, box in enumerate(work.reads):
                    if needs_staging(box, unit, resident) and not held[f"r{i}", unit.roles[box.role]].take(box)[1]:
                        total += 0 if box.tensor in resident else layer.box_bytes(box)
                for i, block in enumerate(work.blocks):
                    if not held[f"b{i}", unit.roles[block.role]].take(block.key)[1]:
                        total += block.size_bytes
                if work.write is not None and work.write.tensor not in resident:
                    total += layer.box_bytes(work.write)
        elif passing == BEGIN:
            marks.append(total)
        else:
            total += passing * (total - marks.pop())
    return total
