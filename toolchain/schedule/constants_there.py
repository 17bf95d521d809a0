"""What layers ask for whose constants are there when they begin."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from toolchain.ops.kit.tile import aligned
from toolchain.schedule.areas import Area
from toolchain.schedule.copies import dram_alignment
from toolchain.schedule.cost import CostModel
from toolchain.schedule.parts import Constants, constants_of
from toolchain.schedule.places import View
from toolchain.schedule.plan import RegionPlan
from toolchain.schedule.staging import PlannedLayer, Slot, staging_bytes
from toolchain.schedule.units import turn
from toolchain.schedule.visits import visited_works
from toolchain.schedule.walk import Walk


@dataclass(frozen=True)
class There:
    """Of one layer: cycles from its first work to its last, of the busiest queue alone, and of the loads and stores that remain.
    slots: of what else passes through. grows_bytes: that it takes more of the constants' memory than with those in rings."""

    constants: Constants
    slots: tuple[Slot, ...]
    cycles: int
    busy_cycles: float
    moved_cycles: float
    grows_bytes: int


class ConstantsThere:
    """Of the layers of a region, each by itself; remembers what it found, which is the same for all sizes of the SRAM."""

    def __init__(self, model: CostModel, views: Mapping[str, View]):
        """views: of tensors that layers by themselves touch."""
        self._model, self._views = model, views
        self._pitch = dram_alignment(model.chip)
        self._known: dict[Hashable, There | None] = {}

    def layer(self, plan: RegionPlan, index: int) -> There | None:
        """None where it has no constants to be fetched before, or has them so already."""
        planned = plan.layers[index]
        tiled, layer = planned.plan, planned.layer
        if tiled is None or tiled.ahead:
            return None
        inside = frozenset(n for n in (*layer.activations, *layer.node.outputs) if n in plan.residents)
        key = layer.node.name, tiled.tiling, tiled.slots, tiled.units, inside
        if key not in self._known:
            self._known[key] = self._there(planned, inside)
        return self._known[key]

    def _there(self, planned: PlannedLayer, inside: frozenset[str]) -> There | None:
        """inside: tensors that lie in SRAM."""
        layer, tiled, chip = planned.layer, planned.plan, self._model.chip
        assert tiled is not None
        constants = constants_of(layer, tiled.tiling, tiled.units)
        if constants is None or self._pitch % chip.spaces[constants.space].memory.alignment_bytes:
            return None
        slots = tuple(s for s in tiled.slots if not s.of_constants)
        here = Area(constants.space, 0, 0, [])
        walk, period = Walk(self._model, self._views, inside), turn(tiled.units)
        works = list(visited_works(layer.tiled.nest(layer, tiled.tiling), period))
        walk.works(layer, slots, tiled.units, works, period, None, {block.key: here for block in constants.blocks})
        rings = tiled.staging_bytes.get(constants.space, 0) - staging_bytes(slots, chip).get(constants.space, 0)
        grows = sum(aligned(block.size_bytes, self._pitch) for block in constants.blocks) - rings
        return There(constants, slots, walk.cycles, walk.busy_cycles, walk.moved_cycles, grows)
