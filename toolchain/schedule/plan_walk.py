"""Walk a plan to time it: its layers and cascades one after the other, at their addresses.

A walk can be recorded, to time plans that differ in few layers. It goes on from the first layer that differs. After the
last one it ends where all that later layers depend on is as it was: the rest takes the same cycles. A root is a tensor
with storage of its own. A `SampleTiles` returns the tiles of a layer that stand for all.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import replace
from itertools import accumulate, chain
from typing import cast

import numpy as np

from toolchain.foundation.type_guards import is_dict, is_list
from toolchain.machine import Space
from toolchain.ops.kit.tile import TileTask
from toolchain.schedule.cost import CostModel
from toolchain.schedule.dependences import AccessRange, AccessRanges, SavedRange
from toolchain.schedule.hoisted_constants import NOT_HOISTED, HoistedConstants
from toolchain.schedule.layer_constants import LayerConstants
from toolchain.schedule.plan import Part, PlannedCascade, PlannedLayer, PlannedRegion, TiledLayer, VisitedStripes, slot_name
from toolchain.schedule.plan_timer import PlanTimer
from toolchain.schedule.sampling import Visited
from toolchain.schedule.stripes import LayerCall
from toolchain.schedule.tile_pipeline import HoistedRange, LayerPipeline, PrefetchQueue
from toolchain.schedule.unit_choice import turn

SampleTiles = Callable[[TiledLayer], Visited]


def walk_plan(
    plan: PlannedRegion,
    model: CostModel,
    some: SampleTiles | None = None,
    preloaded: Mapping[int, LayerConstants] | None = None,
    hoisted: HoistedConstants = NOT_HOISTED,
) -> tuple[PlanTimer, tuple[PlannedLayer, ...]]:
    """Time a whole plan; return the timer, whose `finish` gives the cycles, and the layers with the unit of each tile.

    `some`: returns the sampled tiles of a layer; None: all tiles are timed, those of stripes too. `preloaded`: by index
    of a layer, constants that are not loaded. `hoisted`: constants that only the first of their layers loads.
    """
    walk = PlanWalk(plan, model, some, preloaded or {}, hoisted)
    return walk.timer, tuple(chain.from_iterable(walk.step(plan, run) for run in plan.runs))


class PlanWalk:
    """A walk over one plan. `timer`: times everything so far. `areas`: the places of slots and roots so far."""

    def __init__(
        self,
        plan: PlannedRegion,
        model: CostModel,
        some: SampleTiles | None,
        preloaded: Mapping[int, LayerConstants],
        hoisted: HoistedConstants,
    ):
        """The arguments are those of `walk_plan`."""
        self.timer = PlanTimer(model, plan.views, plan.residents, some is None and bool(plan.fetched))
        self.areas, self._some, self._chip, self._has_choice = AccessRanges(), some, model.chip, model.choice
        self._ranges: dict[int, dict[Hashable, AccessRange]] = {
            i: dict.fromkeys((block.key for block in pieces.blocks), AccessRange(pieces.space, 0, 0, []))
            for i, pieces in preloaded.items()
        }
        self._hoisted: dict[int, dict[tuple[Hashable, int], HoistedRange]] = {}  # by layer, of a block in a memory
        ranges: dict[tuple[int, int], AccessRange] = {}
        for index, blocks in hoisted.by_layer.items():
            for (key, space), block in blocks.items():
                at = space, block.address
                if at not in ranges:
                    ranges[at] = self.areas.add(*at, block.size_bytes)
                self._hoisted.setdefault(index, {})[key, space] = HoistedRange(ranges[at], index > block.first)

    def save(self) -> WalkState:
        """Return a copy of everything that the next layers change."""
        objects = [(item, {name: _copy(value) for name, value in vars(item).items()}) for item in self._objects]
        return objects, [(area, area.save()) for area in self.areas.ranges]

    def restore(self, state: WalkState) -> None:
        """Return to a saved state of this walk."""
        objects, ranges = state
        for item, attributes in objects:
            vars(item).update((name, _copy(value)) for name, value in attributes.items())
        for area, saved in ranges:
            area.restore(saved)

    @property
    def _objects(self) -> list[object]:
        return [*self.timer.state, *self.areas.state]

    def step(self, plan: PlannedRegion, run: int | PlannedCascade) -> list[PlannedLayer]:
        """Time a layer, by its index, or a cascade, and return its layers with the unit of each tile.

        Each `run` of `plan.runs` must be stepped in order.
        """
        inside = [run] if isinstance(run, int) else list(run.indices)
        for index in inside:
            _roots(plan, index, self.timer, self.areas)
        slots = {i: _slots(plan, i, self.areas) for i in inside}
        if not isinstance(run, int):
            tiles = dict(zip(inside, run.layers))
            stages = {i: LayerPipeline.of(tiled.layer, tiled.rings, tiled.units, slots[i]) for i, tiled in tiles.items()}
            ran = self.timer.cascade(stages, _all_stripes(run) if self._some is None else run.visited)
            return [replace(tiled, assigned=tuple(ran[i])) for i, tiled in tiles.items()]
        fetched: list[AccessRange] = []
        for index, part in plan.fetched.get(run, ()):
            slot = plan.part(index, part)
            fetched.append(self.areas.add(slot.space, slot.address, part.size_bytes))
            self._ranges.setdefault(index, {}).update(dict.fromkeys(part.offsets, fetched[-1]))
        planned = plan.layers[run]
        if not isinstance(planned, TiledLayer):
            self.timer.moves(planned.layer)
            return [planned]
        visited = [tuple(planned.tasks())] if self._some is None else self._some(planned)
        cuts = plan.cuts(run, self._chip) if fetched else ()
        dealt = (
            PrefetchQueue(fetched, [[([fetched[c.part]], c.stop - c.start) for c in pieces] for pieces in cuts])
            if fetched
            else None
        )
        period, places, preloads = turn(planned.units), slots[run], self._ranges.get(run)
        hoisted = self._hoisted.get(run)
        self.timer.time_tiles(planned.layer, planned.rings, planned.units, visited, period, places, preloads, dealt, hoisted)
        # Where a machine has a choice of units for no layer, nobody asks which ran each tile.
        return [replace(planned, assigned=tuple(self.timer.units))] if self._has_choice else [planned]


WalkState = tuple[list[tuple[object, dict[str, object]]], list[tuple[AccessRange, SavedRange]]]


class RecordedWalk:
    """A walk of one plan, with its state before each layer and cascade, to time similar plans faster."""

    def __init__(self, plan: PlannedRegion, model: CostModel, some: SampleTiles):
        self._model, self._some = model, some
        self._states: list[WalkState] = []
        self._keys: dict[int, tuple[object, float]] = {}  # of all that follows, and the front end's cycle
        self._walk = PlanWalk(plan, model, some, {}, NOT_HOISTED)
        self._record(plan, 0)

    def move_to(self, plan: PlannedRegion) -> None:
        """Record another plan, from the first layer that differs on. A plan with other parts or tensors is walked from
        the beginning.
        """
        if not self._is_near(plan):
            self._walk = PlanWalk(plan, self._model, self._some, {}, NOT_HOISTED)
            self._record(plan, 0)
        elif changed := self._find_changes(plan):
            self._walk.restore(self._states[changed[0]])
            self._record(plan, changed[0])
        self.plan = plan

    def _record(self, plan: PlannedRegion, first: int) -> None:
        """Walk on from run `first` and record the states."""
        self.plan, self._named = plan, [_names(plan, run) for run in plan.runs]  # slots and roots
        later = list(accumulate(reversed(self._named), lambda names, more: names | more, initial=frozenset[str]()))
        self._later = later[:0:-1]  # touched by each and those behind it
        units = {unit for planned in plan.layers if isinstance(planned, TiledLayer) for unit in planned.units}
        emitters = {self._model.chip.emitter(unit) for unit in units}
        self._queues = sorted({unit.queue for unit in (*units, *emitters, *self._model.chip.channels) if unit is not None})
        del self._states[first:]
        self._keys = {at: key for at, key in self._keys.items() if at < first}
        for run in plan.runs[first:]:
            self._states.append(self._walk.save())
            self._walk.step(plan, run)
        self._cycles = self._walk.timer.finish()

    def cycles_of(self, plan: PlannedRegion) -> int:
        """Return the cycles of a plan, as a walk over all of it would. The recorded plan stays."""
        if not self._is_near(plan):
            return walk_plan(plan, self._model, self._some)[0].finish()
        changed = self._find_changes(plan)
        if not changed:
            return self._cycles
        self._walk.restore(self._states[changed[0]])
        for at in range(changed[0], len(plan.runs)):
            later = self._get_delay(at) if at > changed[-1] else None
            if later is not None:
                return self._cycles + later
            self._walk.step(plan, plan.runs[at])
        return self._walk.timer.finish()

    def _is_near(self, plan: PlannedRegion) -> bool:
        """Return whether the plan has the same parts and tensors, no prefetches, and a machine that serves in program
        order.
        """
        return (
            len(plan.parts) == len(self.plan.parts)
            and plan.resident == self.plan.resident
            and plan.views == self.plan.views
            and not (plan.fetched or self.plan.fetched)
            and self._walk.timer.is_in_program_order
        )

    def _find_changes(self, plan: PlannedRegion) -> list[int]:
        """Return the indices of layers and cascades that differ from the recorded ones, or lie at other addresses."""
        spaces = {*plan.placements, *self.plan.placements}
        moved = {name for space in spaces for name, _ in _addresses(plan, space) ^ _addresses(self.plan, space)}
        pairs = enumerate(zip(self.plan.parts, plan.parts, self._named))
        return [at for at, (old, new, names) in pairs if not (_is_same(old, new) and moved.isdisjoint(names))]

    def _get_delay(self, at: int) -> int | None:
        """Return the cycles by which what follows is later than in the recorded walk; None where it may take longer or
        shorter.
        """
        key, fetched = self._key(at)
        if at not in self._keys:
            now = self._walk.save()
            self._walk.restore(self._states[at])
            self._keys[at] = self._key(at)
            self._walk.restore(now)
        recorded, before = self._keys[at]
        return None if key != recorded or (fetched - before) % 1 else round(fetched - before)

    def _key(self, at: int) -> tuple[object, float]:
        """Return a key of all that run `at` and later ones depend on, and the front end's cycle."""
        key = self._walk.timer.key(self._walk.areas, self._later[at], self._queues)
        return key, self._walk.timer.fetched


def _copy(value: object) -> object:
    """Return a copy of a container and of the lists in it; anything else as it is."""
    if is_list(value):
        return [item.copy() for item in value] if value and is_list(value[0]) else value.copy()
    if is_dict(value):
        copied = value.copy()
        copied.update((key, item.copy()) for key, item in value.items() if is_list(item))
        return copied
    return cast("set[object] | np.ndarray", value).copy() if isinstance(value, set | np.ndarray) else value


def _is_same(old: Part, new: Part) -> bool:
    """Return whether two parts of plans are the same objects but for their addresses."""
    if not (isinstance(old, PlannedCascade) and isinstance(new, PlannedCascade)):
        return old is new
    layers_match = len(old.layers) == len(new.layers) and all(a is b for a, b in zip(old.layers, new.layers))
    return layers_match and old.stripes is new.stripes and old.visited is new.visited


def _addresses(plan: PlannedRegion, space: int) -> Set[tuple[str, int]]:
    """Return (name, address) of all slots and roots placed in this memory."""
    return plan.placements[space].addresses.items() if space in plan.placements else frozenset()


def _names(plan: PlannedRegion, run: int | PlannedCascade) -> frozenset[str]:
    """Return the slots of the run's layers, and the roots that they touch."""
    layers = [(i, plan.layers[i]) for i in ([run] if isinstance(run, int) else run.indices)]
    slots = {slot_name(i, ring.key, copy) for i, planned in layers for ring in planned.rings for copy in range(ring.copies)}
    tensors = (name for _, p in layers for name in (*p.layer.activations, *p.layer.node.outputs))
    return frozenset(slots.union(plan.views[name].root for name in tensors))


def _all_stripes(cascade: PlannedCascade) -> VisitedStripes:
    """Return all steps of a cascade with all of their tiles, without marks of repeats."""

    def list_tiles(call: LayerCall) -> tuple[int, Sequence[TileTask]]:
        return call.layer, tuple(cascade.layers[call.layer - cascade.first].tasks(call.extent))

    return [[list_tiles(step) if isinstance(step, LayerCall) else step for step in steps] for steps in cascade.stripes.steps]


def _roots(plan: PlannedRegion, index: int, walk: PlanTimer, areas: AccessRanges) -> None:
    """Add the places of resident roots that this layer is the first to touch."""
    layer = plan.layers[index].layer
    for name in (*layer.activations, *layer.node.outputs):
        root = plan.views[name].root
        if root in plan.resident and root not in walk.roots:
            size_bytes = plan.views[root].count_stored_bytes(layer.types[root].shape)
            walk.roots[root] = areas.add(Space.SRAM, plan.root(root).address, size_bytes)


def _slots(plan: PlannedRegion, index: int, areas: AccessRanges) -> Mapping[tuple[str, int], Sequence[AccessRange]]:
    """Return the places of a layer's slots, by key and memory of the tile buffer."""
    ranges: dict[tuple[str, int], list[AccessRange]] = {}
    for ring in plan.layers[index].rings:
        starts = (plan.slot(index, ring.key, ring.space, copy).address for copy in range(ring.copies))
        ranges[ring.key, ring.space] = [areas.add(ring.space, start, size) for start, size in zip(starts, ring.sizes)]
    return ranges
