"""A region's plan as text: what is resident, how layers are tiled, where things lie."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from toolchain.errors import counted
from toolchain.hw.chip import Chip
from toolchain.machine import Space
from toolchain.schedule.plan import Cascade, RegionPlan
from toolchain.schedule.stripes import Call, Shift


def print_plan(plan: RegionPlan, chip: Chip) -> str:
    """Resident tensors with address and live steps, then one line a layer with its tiling and slots; of layers in turns the rows
    that each makes in a stripe and how many are kept."""
    lines = [
        f"{chip.spaces[space].name} peak {found.peak_bytes} bytes, bound {found.bound_bytes}, proved {found.proved}"
        for space, found in sorted(plan.placements.items())
    ]
    lines += [f"expected cycles {plan.cycles}"]
    lines += [f"resident {name}{_held(plan, name)} at {plan.root(name).address}" for name in sorted(plan.resident)]
    lines += [f"spilled {s.name} {s.size_bytes} bytes, steps {s.start}..{s.end - 1}" for s in plan.spilled]
    begun = {cascade.layers.start: cascade for cascade in plan.cascades}
    for step, planned in enumerate(plan.layers):
        if step in begun:
            lines += _turns(begun[step], plan)
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
            lines.append(f"       slot {slot.role}: {slot.copies} x {max(slot.sizes)} bytes at {where}{at}")
    return "\n".join(lines) + "\n"


def _held(plan: RegionPlan, root: str) -> str:
    rows = plan.views[root].rows
    return f", {counted(rows, 'row')}," if rows else ""


def _turns(cascade: Cascade, plan: RegionPlan) -> Iterator[str]:
    """Neighbouring stripes that are alike as one."""
    layers = cascade.layers
    yield f"     layers {layers.start}..{layers.stop - 1} in turns, {counted(len(cascade.stripes.steps), 'stripe')}:"
    for steps, alike in groupby(tuple(_step(step, plan) for step in steps) for steps in cascade.stripes.steps):
        yield f"       {len(list(alike))} x ({'; '.join(steps)})"


def _step(step: Call | Shift, plan: RegionPlan) -> str:
    if isinstance(step, Shift):
        kept = max((rows for _, rows in step.tensors), default=0)
        return f"keep {counted(kept, 'row')} of {step.root}"
    return f"{plan.layers[step.layer].layer.node.name} {counted(step.extent.rows[1], 'row')}"
