"""A region's plan as text: what is resident, how layers are tiled, where things lie."""

from __future__ import annotations

from toolchain.hw.chip import Chip
from toolchain.machine import Space
from toolchain.schedule.plan import RegionPlan


def print_plan(plan: RegionPlan, chip: Chip) -> str:
    """Resident tensors with address and live steps, then one line a layer with its tiling and slots."""
    lines = [
        f"{chip.spaces[space].name} peak {found.peak_bytes} bytes, bound {found.bound_bytes}, proved {found.proved}"
        for space, found in sorted(plan.placements.items())
    ]
    lines += [f"expected cycles {plan.cycles}"]
    lines += [f"resident {name} at {plan.root(name).address}" for name in sorted(plan.resident)]
    lines += [f"spilled {s.name} {s.size_bytes} bytes, steps {s.start}..{s.end - 1}" for s in plan.spilled]
    for step, planned in enumerate(plan.layers):
        name, kind = planned.layer.node.name, type(planned.layer.node.op).__name__
        if planned.plan is None:
            lines.append(f"{step:4d} {name} ({kind}): moved by DMA")
            continue
        t = planned.plan.tiling
        order = "inputs kept" if t.rows_outer else "weights kept"
        lines.append(
            f"{step:4d} {name} ({kind}): rows {t.rows} columns {t.columns} channels {t.channels} inner {t.inner}, {order}, "
            f"{planned.plan.works} tiles, {planned.plan.cycles} cycles"
        )
        for slot in planned.plan.slots:
            at = ", ".join(str(plan.slot(step, slot.role, slot.space, i).address) for i in range(slot.copies))
            where = "" if slot.space == Space.SRAM else f"{chip.spaces[slot.space].name} "
            lines.append(f"       slot {slot.role}: {slot.copies} x {slot.size_bytes} bytes at {where}{at}")
    return "\n".join(lines) + "\n"
