"""Bytes that a layer's tiles bring from DRAM and take there, by the rings that they pass through."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from toolchain.hw.units import Unit
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import Work
from toolchain.schedule.staging import LayerPlan, Slot, rings, staged
from toolchain.schedule.visits import BEGIN


def least_moved(plan: LayerPlan) -> float:
    """By bytes, of equal ones by cycles."""
    return plan.moved_bytes + plan.cycles * 2.0**-44


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
