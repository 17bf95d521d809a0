"""The cost of a whole plan: its cycles by the timing model, the unit that runs each tile, its DRAM bytes.

Tiles are assigned greedily, each chain to the unit on which it ends first. A chain is the tiles that add to the same partial
sums: accumulators belong to one array, so a chain stays on it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from toolchain.hw.unit_map import Unit
from toolchain.machine import Space
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import TileTask, Tiling
from toolchain.schedule.cost import CostModel
from toolchain.schedule.dependences import AccessRange, AccessRanges
from toolchain.schedule.layer_constants import LayerConstants
from toolchain.schedule.nodes import Ring
from toolchain.schedule.plan import PlannedCascade, PlannedLayer, PlannedRegion, TiledLayer, VisitedStripes, replace_layers
from toolchain.schedule.plan_timer import PlanTimer
from toolchain.schedule.sampling import BEGIN, SEEN_IN_PLANS, Visited, flatten_tiles, sample_tiles
from toolchain.schedule.stripes import LayerCall
from toolchain.schedule.tile_buffers import MultiBuffer, empty_buffers, needs_staging
from toolchain.schedule.tile_pipeline import LayerPipeline, PrefetchQueue
from toolchain.schedule.unit_choice import turn


@dataclass(frozen=True)
class CostWeights:
    """The weights of a cycle, of a cycle of the busiest queue, and of a byte between DRAM and the chip."""

    cycle: float = 1.0
    busy: float = 0.0
    byte: float = 0.0

    def __call__(self, plan: TiledLayer) -> float:
        return self.cycle * plan.cycles + self.busy * plan.busy_cycles + self.byte * plan.moved_bytes


ALONE = CostWeights()  # with nothing before or behind it
AMID = CostWeights(0.5, 0.5)  # between neighbours that fill about half of the time in which its busiest queue has nothing to do
LEAST_MOVED = CostWeights(2.0**-44, 0.0, 1.0)  # by bytes, of equal ones by cycles


_Passing = tuple[TileTask, Layer, Unit, Mapping[tuple[str, int], MultiBuffer]]


def count_layer_bytes(
    layer: Layer, slots: Iterable[Ring], unit: Unit, resident: Collection[str], visited: Iterable[Sequence[TileTask] | int]
) -> int:
    """The DRAM bytes of one layer. `visited`: its sampled tiles with repeat marks (`schedule.sampling`). `unit`: that runs
    them."""
    buffers = empty_buffers(slots)
    passing = (tiles if isinstance(tiles, int) else ((tile, layer, unit, buffers) for tile in tiles) for tiles in visited)
    return _moved(passing, resident)


def count_cascade_bytes(layers: Mapping[int, TiledLayer], visited: VisitedStripes, resident: Collection[str]) -> int:
    """The DRAM bytes of a cascade. `layers`: by index."""
    stages = {i: (tiled.layer, tiled.units[0], empty_buffers(tiled.rings)) for i, tiled in layers.items()}
    passing = (
        steps if isinstance(steps, int) else ((tile, *stages[i]) for i, tiles in flatten_tiles([steps]) for tile in tiles)
        for steps in visited
    )
    return _moved(passing, resident)


def _moved(visited: Iterable[Iterable[_Passing] | int], resident: Collection[str]) -> int:
    total, marks = 0, list[int]()
    for passing in visited:
        if not isinstance(passing, int):
            for tile, layer, unit, buffers in passing:
                for i, box in enumerate(tile.reads):
                    if needs_staging(box, unit, resident) and not buffers[f"r{i}", unit.roles[box.role]].take(box)[1]:
                        total += 0 if box.tensor in resident else layer.box_bytes(box)
                for i, block in enumerate(tile.blocks):
                    if not buffers[f"b{i}", unit.roles[block.role]].take(block.key)[1]:
                        total += block.size_bytes
                if tile.write is not None and tile.write.tensor not in resident:
                    total += layer.box_bytes(tile.write)
        elif passing == BEGIN:
            marks.append(total)
        else:
            total += passing * (total - marks.pop())
    return total


class PlanCosts:
    """The cycles of plans of one region; the sampled tiles of each tiling are computed once."""

    def __init__(self, model: CostModel):
        self.model = model
        self._visited: dict[tuple[str, Tiling], Visited] = {}

    def cycles(self, plan: PlannedRegion, preloaded: Mapping[int, LayerConstants] | None = None) -> int:
        """The cycles of all layers at their addresses. `preloaded`: by layer, constants that are not loaded."""
        walk, _ = _walked(plan, self.model, self._some, preloaded or {})
        return walk.cycles

    def _some(self, tiled: TiledLayer) -> Visited:
        """The works that stand for all: where only the first have their constants there, none does."""
        if tiled.fetches and any(ring.of_constants for ring in tiled.rings):
            return [tuple(tiled.tasks())]
        key = tiled.name, tiled.tiling
        if key not in self._visited:
            nest = tiled.layer.tiled.nest(tiled.layer, tiled.tiling)
            self._visited[key] = list(sample_tiles(nest, turn(tiled.units), SEEN_IN_PLANS))
        return self._visited[key]


def assign_units(plan: PlannedRegion, model: CostModel) -> PlannedRegion:
    """The plan with the cycles of all its tiles, and the unit of each where there is a choice."""
    walk, layers = _walked(plan, model)
    return replace(plan, cycles=walk.cycles, parts=replace_layers(plan.parts, layers) if model.choice else plan.parts)


def _walked(
    plan: PlannedRegion,
    model: CostModel,
    some: Callable[[TiledLayer], Visited] | None = None,
    preloaded: Mapping[int, LayerConstants] = MappingProxyType({}),
) -> tuple[PlanTimer, tuple[PlannedLayer, ...]]:
    """Time every layer of a plan, one after the other, at its addresses.

    `some`: tiles of a layer that stand for all; None: all tiles are timed, those of stripes too. `preloaded`: constants, by
    layer, that are not loaded.
    """
    walk, areas = PlanTimer(model, plan.views, plan.residents, some is None and bool(plan.fetched)), AccessRanges()
    layers: list[PlannedLayer] = []
    ranges: dict[int, dict[Hashable, AccessRange]] = {
        i: dict.fromkeys((block.key for block in pieces.blocks), AccessRange(pieces.space, 0, 0, []))
        for i, pieces in preloaded.items()
    }
    for run in plan.runs:
        inside = [run] if isinstance(run, int) else list(run.indices)
        for index in inside:
            _roots(plan, index, walk, areas)
        slots = {i: _slots(plan, i, areas) for i in inside}
        if not isinstance(run, int):
            tiles = dict(zip(inside, run.layers))
            stages = {i: LayerPipeline.of(tiled.layer, tiled.rings, tiled.units, slots[i]) for i, tiled in tiles.items()}
            ran = walk.cascade(stages, _all_stripes(run) if some is None else run.visited)
            layers += [replace(tiled, assigned=tuple(ran[i])) for i, tiled in tiles.items()]
            continue
        fetched: list[AccessRange] = []
        for index, part in plan.fetched.get(run, ()):
            slot = plan.part(index, part)
            fetched.append(areas.add(slot.space, slot.address, part.size_bytes))
            ranges.setdefault(index, {}).update(dict.fromkeys(part.offsets, fetched[-1]))
        planned = plan.layers[run]
        if not isinstance(planned, TiledLayer):
            walk.moves(planned.layer)
        else:
            visited = [tuple(planned.tasks())] if some is None else some(planned)
            cuts = plan.cuts(run, model.chip) if fetched else ()
            dealt = (
                PrefetchQueue(fetched, [[([fetched[c.part]], c.stop - c.start) for c in pieces] for pieces in cuts])
                if fetched
                else None
            )
            period, places, preloads = turn(planned.units), slots[run], ranges.get(run)
            walk.works(planned.layer, planned.rings, planned.units, visited, period, places, preloads, dealt)
            planned = replace(planned, assigned=tuple(walk.units))
        layers.append(planned)
    return walk, tuple(layers)


def _all_stripes(cascade: PlannedCascade) -> VisitedStripes:
    def works(call: LayerCall) -> tuple[int, Sequence[TileTask]]:
        return call.layer, tuple(cascade.layers[call.layer - cascade.first].tasks(call.extent))

    return [[works(step) if isinstance(step, LayerCall) else step for step in steps] for steps in cascade.stripes.steps]


def _roots(plan: PlannedRegion, index: int, walk: PlanTimer, areas: AccessRanges) -> None:
    """Add the ranges of resident roots that a layer is the first to touch."""
    layer = plan.layers[index].layer
    for name in (*layer.activations, *layer.node.outputs):
        root = plan.views[name].root
        if root in plan.resident and root not in walk.roots:
            size_bytes = plan.views[root].stored_bytes(layer.types[root].shape)
            walk.roots[root] = areas.add(Space.SRAM, plan.root(root).address, size_bytes)


def _slots(plan: PlannedRegion, index: int, areas: AccessRanges) -> Mapping[tuple[str, int], Sequence[AccessRange]]:
    """The ranges of a layer's slots."""
    ranges: dict[tuple[str, int], list[AccessRange]] = {}
    for ring in plan.layers[index].rings:
        starts = (plan.slot(index, ring.key, ring.space, copy).address for copy in range(ring.copies))
        ranges[ring.key, ring.space] = [areas.add(ring.space, start, size) for start, size in zip(starts, ring.sizes)]
    return ranges
