"""Bytes that tiles bring from DRAM and take there, by the rings that they pass through."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from toolchain.hw.units import Unit
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import Work
from toolchain.schedule.drafts import PlannedCascade
from toolchain.schedule.repeats import all_works
from toolchain.schedule.staging import Slot, rings, staged
from toolchain.schedule.visits import BEGIN


def moved_bytes(
    layer: Layer, slots: Iterable[Slot], unit: Unit, resident: Collection[str], visited: Iterable[Sequence[Work] | int]
) -> int:
    """visited: the works that stand for all, with what is repeated (`schedule.visits`). unit: that runs them."""
    held = rings(slots)
    total, marks = 0, list[int]()
    for works in visited:
        if not isinstance(works, int):
            for work in works:
                for i, box in enumerate(work.reads):
                    if staged(box, unit, resident) and not held[f"r{i}", unit.roles[box.role]].take(box)[1]:
                        total += 0 if box.tensor in resident else layer.box_bytes(box)
                for i, block in enumerate(work.blocks):
                    if not held[f"b{i}", unit.roles[block.role]].take(block.key)[1]:
                        total += block.size_bytes
                if work.write is not None and work.write.tensor not in resident:
                    total += layer.box_bytes(work.write)
        elif works == BEGIN:
            marks.append(total)
        else:
            total += works * (total - marks.pop())
    return total


def cascade_bytes(planned: PlannedCascade) -> int:
    """Of all its layers."""
    total, visited = 0, planned.cascade.visited
    for index, own in zip(planned.cascade.layers, planned.layers):
        assert own.plan is not None
        works = [s if isinstance(s, int) else [w for i, part in all_works([s]) if i == index for w in part] for s in visited]
        total += moved_bytes(own.layer, own.plan.slots, own.plan.units[0], planned.inside, works)
    return total
