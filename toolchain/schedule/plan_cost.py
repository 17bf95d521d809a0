"""The cost of a whole plan: its cycles by the timing model, the unit that runs each tile, and its DRAM bytes.

Tiles are assigned greedily, each chain to the unit on which it ends first. A chain is the tiles that add to the same
partial sums: accumulators belong to one array, so a chain stays on it. A ring is a tile buffer.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from toolchain.hw.unit_map import Unit
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import TileTask, Tiling
from toolchain.schedule.cost import CostModel
from toolchain.schedule.hoisted_constants import NOT_HOISTED, ConstantHoister, HoistedConstants
from toolchain.schedule.layer_constants import LayerConstants
from toolchain.schedule.nodes import Ring
from toolchain.schedule.plan import PlannedRegion, TiledLayer, VisitedStripes, replace_layers
from toolchain.schedule.plan_walk import RecordedWalk, walk_plan
from toolchain.schedule.sampling import BEGIN, SAMPLED_STEPS_IN_PLANS, Visited, flatten_tiles, sample_tiles
from toolchain.schedule.tile_buffers import MultiBuffer, empty_buffers, needs_staging
from toolchain.schedule.unit_choice import turn

_FEW_TILES = 128  # of a layer that are all timed; with 64, plain10 (docs/bounds.md) takes 0.5 % more cycles


@dataclass(frozen=True)
class CostWeights:
    """Weights by which plans of layers are compared.

    `cycle`: of a cycle. `busy`: of a cycle of the busiest queue. `byte`: of a byte between DRAM and the chip. Called
    with a `TiledLayer` it returns the weighted sum; the plan of least sum is taken.

    `ALONE` counts cycles, as of a layer without neighbours. `AMID` counts half of them, as neighbours fill about half of
    the time in which the busiest queue has nothing to do. `LEAST_MOVED` counts bytes, and cycles between equal ones.
    """

    cycle: float = 1.0
    busy: float = 0.0
    byte: float = 0.0

    def __call__(self, plan: TiledLayer) -> float:
        return self.cycle * plan.cycles + self.busy * plan.busy_cycles + self.byte * plan.moved_bytes


ALONE = CostWeights()
AMID = CostWeights(0.5, 0.5)
LEAST_MOVED = CostWeights(2.0**-44, 0.0, 1.0)


_Passing = tuple[TileTask, Layer, Unit, Mapping[tuple[str, int], MultiBuffer]]


def count_layer_bytes(
    layer: Layer,
    slots: Iterable[Ring],
    unit: Unit,
    resident: Collection[str],
    visited: Iterable[Sequence[TileTask] | int],
    period: int = 1,
    loaded: Collection[tuple[Hashable, int]] = (),
) -> int:
    """Return the bytes between DRAM and the chip of one layer. Constants without a ring, as prefetched ones, are loaded
    once.

    `slots`: the layer's tile buffers, empty at first. `resident`: names of the tensors that lie in SRAM. `visited`: its
    sampled tiles with marks, of `schedule.sampling.sample_tiles` with this `period`. `unit`: one that runs them.
    `loaded`: blocks, by key and memory, that an earlier layer has loaded.
    """
    buffers = defaultdict(lambda: MultiBuffer(sys.maxsize), empty_buffers(slots))
    passing = (tiles if isinstance(tiles, int) else ((tile, layer, unit, buffers) for tile in tiles) for tiles in visited)
    return _count_moved_bytes(passing, resident, period, loaded)


def count_cascade_bytes(layers: Mapping[int, TiledLayer], visited: VisitedStripes, resident: Collection[str]) -> int:
    """Return the bytes between DRAM and the chip of a cascade. `layers`: by index. `visited`: its timed steps, with
    marks of repeats.
    """
    stages = {i: (tiled.layer, tiled.units[0], empty_buffers(tiled.rings)) for i, tiled in layers.items()}
    passing = (
        steps if isinstance(steps, int) else ((tile, *stages[i]) for i, tiles in flatten_tiles([steps]) for tile in tiles)
        for steps in visited
    )
    return _count_moved_bytes(passing, resident)


def _count_moved_bytes(
    visited: Iterable[Iterable[_Passing] | int],
    resident: Collection[str],
    period: int = 1,
    loaded: Collection[tuple[Hashable, int]] = (),
) -> int:
    """Return the bytes of all tiles. A mark counts steps, and what is repeated has `period` of them."""
    total, marks = 0, list[int]()
    for passing in visited:
        if not isinstance(passing, int):
            for tile, layer, unit, buffers in passing:
                for i, box in enumerate(tile.reads):
                    if needs_staging(box, unit, resident) and not buffers[f"r{i}", unit.roles[box.role]].take(box)[1]:
                        total += 0 if box.tensor in resident else layer.box_bytes(box)
                for i, block in enumerate(tile.blocks):
                    space = unit.roles[block.role]
                    if (block.key, space) not in loaded and not buffers[f"b{i}", space].take(block.key)[1]:
                        total += block.size_bytes
                if tile.write is not None and tile.write.tensor not in resident:
                    total += layer.box_bytes(tile.write)
        elif passing == BEGIN:
            marks.append(total)
        else:
            total += round(passing / period * (total - marks.pop()))
    return total


class PlanCosts:
    """The cycles and bytes of plans of one region; the sampled tiles of each tiling are computed once."""

    def __init__(self, model: CostModel, hoister: ConstantHoister, overlapping: Collection[str] = ()):
        """Take the cost model of one machine.

        `hoister`: of constants that programs load once for several layers.
        `overlapping`: names of layers next to one on units of another kind. All of their tiles are timed where they are
        few. A sampled tile ends when the last of its kind does, so that the next layer would seem to wait for it.
        """
        self.model, self._hoister, self._overlapping = model, hoister, overlapping
        self._visited: dict[tuple[str, Tiling], Visited] = {}
        self._recorded: RecordedWalk | None = None

    def cycles(
        self, plan: PlannedRegion, preloaded: Mapping[int, LayerConstants] | None = None, near: PlannedRegion | None = None
    ) -> int:
        """Return the expected cycles of a plan, all layers at their addresses, by sampled tiles.

        `preloaded`: by index of a layer, constants that are not loaded. `near`: a plan that differs in few layers; then
        only what differs is walked, and the result is the same.
        """
        if near is None or preloaded or self._hoister.shared:
            return walk_plan(plan, self.model, self._some, preloaded, self._hoister.hoist(plan))[0].finish()
        if self._recorded is None:
            self._recorded = RecordedWalk(near, self.model, self._some)
        elif self._recorded.plan is not near:
            self._recorded.move_to(near)
        return self._recorded.cycles_of(plan)

    def count_moved_bytes(self, plan: PlannedRegion) -> int:
        """Return the bytes between DRAM and the chip, by sampled tiles."""
        total = sum(cascade.moved_bytes for cascade in plan.cascades)
        hoisted = self._hoister.hoist(plan).by_layer
        for run in (run for run in plan.runs if isinstance(run, int)):
            planned, residents = plan.layers[run], plan.residents
            layer = planned.layer
            if isinstance(planned, TiledLayer):
                tiles, period = self._some(planned), turn(planned.units)
                loaded = {key for key, block in hoisted.get(run, {}).items() if block.first < run}
                total += count_layer_bytes(layer, planned.rings, planned.units[0], residents, tiles, period, loaded)
            else:
                tensors = (name for name in (*layer.activations, *layer.node.outputs) if name not in residents)
                total += sum(layer.types[name].size_bytes for name in tensors)
        return total

    def _some(self, tiled: TiledLayer) -> Visited:
        """Return the sampled tiles of a layer; all where only some constants are prefetched, or other layers overlap."""
        if tiled.fetches and any(ring.of_constants for ring in tiled.rings):
            return [tuple(tiled.tasks())]
        key = tiled.name, tiled.tiling
        if key not in self._visited:
            is_few = tiled.name in self._overlapping and tiled.tile_count <= _FEW_TILES
            nest = tiled.layer.tiled.nest(tiled.layer, tiled.tiling)
            sampled = [tuple(tiled.tasks())] if is_few else sample_tiles(nest, turn(tiled.units), SAMPLED_STEPS_IN_PLANS)
            self._visited[key] = list(sampled)
        return self._visited[key]


def assign_units(plan: PlannedRegion, model: CostModel, hoisted: HoistedConstants = NOT_HOISTED) -> PlannedRegion:
    """Return the plan with its cycles timed over all tiles, none sampled, and with each tile's unit where there is a choice.

    `hoisted`: constants that the program loads once for several layers, as of `walk_plan`.
    """
    timer, layers = walk_plan(plan, model, hoisted=hoisted)
    return replace(plan, cycles=timer.finish(), parts=replace_layers(plan.parts, layers) if model.choice else plan.parts)
