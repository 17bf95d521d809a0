"""A region's plan as text: what is resident, how layers are tiled, where things lie."""

from __future__ import annotations

from toolchain.schedule.region import RegionPlan


def print_plan(plan: RegionPlan) -> str:
    """Resident tensors with address and live steps, then one line a layer with its tiling and slots."""
    lines = [
        f"sram peak {plan.placement.peak_bytes} bytes, bound {plan.placement.bound_bytes}, proved {plan.placement.proved}",
        f"expected cycles {plan.cycles:.0f}",
    ]
    lines += [f"resident {name} at {plan.sram[name]}" for name in sorted(plan.resident)]
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
            f"{planned.plan.works} tiles, {planned.plan.cycles:.0f} cycles"
        )
        for slot in planned.plan.slots:
            at = ", ".join(str(plan.sram[f"{step}:{slot.role}:{i}"]) for i in range(slot.copies))
            lines.append(f"       slot {slot.role}: {slot.copies} x {slot.size_bytes} bytes at {at}")
    return "\n".join(lines) + "\n"
