"""What layers ask for whose constants are there when they begin."""

from __future__ import annotations

from dataclasses import dataclass

from toolchain.ops.kit.tile import round_up
from toolchain.schedule.access_ranges import AccessRange
from toolchain.schedule.copies import dram_alignment
from toolchain.schedule.cost import CostModel
from toolchain.schedule.plan import RegionPlan
from toolchain.schedule.plan_timer import PlanTimer
from toolchain.schedule.prefetch_parts import LayerConstants, collect_constants
from toolchain.schedule.sampled_tiles import sample_tiles
from toolchain.schedule.tile_buffers import Slot, staging_bytes
from toolchain.schedule.unit_choice import turn


@dataclass(frozen=True)
class PreloadedCost:
    """Of one layer: cycles from its first work to its last, of the busiest queue alone, and of the loads and stores that remain.
    slots: of what else passes through. grows_bytes: that it takes more of the constants' memory than with those in rings."""

    constants: LayerConstants
    slots: tuple[Slot, ...]
    cycles: int
    busy_cycles: float
    moved_cycles: float
    grows_bytes: int


def with_constants_there(plan: RegionPlan, index: int, model: CostModel) -> PreloadedCost | None:
    """A layer of the plan that runs by itself, with its constants there when it begins. None where it has no constants to be
    fetched before, or has them so already."""
    planned = plan.layers[index]
    layer, tiled, chip, pitch = planned.layer, planned.plan, model.chip, dram_alignment(model.chip)
    if tiled is None or tiled.ahead:
        return None
    constants = collect_constants(layer, tiled.tiling, tiled.units)
    if constants is None or pitch % chip.spaces[constants.space].memory.alignment_bytes:
        return None
    inside = frozenset(n for n in (*layer.activations, *layer.node.outputs) if n in plan.residents)
    slots = tuple(s for s in tiled.slots if not s.of_constants)
    here = AccessRange(constants.space, 0, 0, [])
    walk, period = PlanTimer(model, plan.views, inside), turn(tiled.units)
    works = list(sample_tiles(layer.tiled.nest(layer, tiled.tiling), period))
    walk.works(layer, slots, tiled.units, works, period, None, {block.key: here for block in constants.blocks})
    rings = tiled.staging_bytes.get(constants.space, 0) - staging_bytes(slots, chip).get(constants.space, 0)
    grows = sum(round_up(block.size_bytes, pitch) for block in constants.blocks) - rings
    return PreloadedCost(constants, slots, walk.cycles, walk.busy_cycles, walk.moved_cycles, grows)
