"""The plans of layers that a schedule names, where it is known which tensors lie in SRAM."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from itertools import chain

from toolchain.errors import format_count
from toolchain.ops.kit.tile import TileTask
from toolchain.schedule.access_ranges import AccessRange
from toolchain.schedule.cascade import CascadePlanner
from toolchain.schedule.cascade_candidates import BufferCounts, PlannedCascade, TileChoice
from toolchain.schedule.plan_timer import PlanTimer
from toolchain.schedule.sampled_stripes import flatten_tiles
from toolchain.schedule.sampled_tiles import sample_tiles
from toolchain.schedule.stripes import LayerCall, Step
from toolchain.schedule.tile_buffers import LayerPlan, PlannedLayer, Sizes, Slot, staging_bytes
from toolchain.schedule.tilings import layer_units
from toolchain.schedule.tree.bind_tree import BoundTree, CascadeDirective, RegionFacts, tensors_in
from toolchain.schedule.tree.buffer_directives import ring_slots
from toolchain.schedule.tree.layer_directives import LayerDirective, require_capable_units
from toolchain.schedule.tree.nodes import CHANNELS, COLUMNS, ROWS
from toolchain.schedule.tree.prefetch_directives import bind_prefetches, fetches_all, list_prefetches
from toolchain.schedule.tree.schedule_faults import Faults
from toolchain.schedule.tree.text import quote_name
from toolchain.schedule.unit_choice import turn


class DirectedLayerBuilder:
    """Of one region. Raises CompileError with all faults that depend on where tensors lie."""

    def __init__(self, given: BoundTree, facts: RegionFacts, cascades: Callable[[], CascadePlanner]):
        """cascades: of the region, asked for where layers take turns."""
        self._given, self._facts, self._of_region = given, facts, cascades

    @property
    def _cascades(self) -> CascadePlanner:
        return self._of_region()

    def alone(self, indices: Sequence[int], resident: Collection[str]) -> dict[int, PlannedLayer]:
        """Layers by themselves. resident: roots in SRAM."""
        facts, faults, found = self._facts, Faults(self._given.tree), dict[int, PlannedLayer]()
        for index in indices:
            layer, asked = facts.layers[index], self._given.asked.get(index)
            if asked is None:
                found[index] = PlannedLayer(layer, None)
                continue
            inside = frozenset(tensors_in(layer, facts.views, resident))
            plan = _planned(index, asked, inside, self._given, facts, faults)
            found[index] = PlannedLayer(layer, plan)
        faults.end()
        return found

    def turns(self, resident: Collection[str]) -> tuple[PlannedCascade, ...]:
        """Layers in turns. resident: roots that lie in SRAM whole."""
        faults = Faults(self._given.tree)
        found = [self._turns(turns, resident, faults) for turns in self._given.turns]
        faults.end()
        return tuple(f for f in found if f is not None)

    def _turns(self, turns: CascadeDirective, resident: Collection[str], faults: Faults) -> PlannedCascade | None:
        self._require_rows(turns, faults)
        self._require_blocks(turns, frozenset(resident), faults)
        chosen: dict[int, TileChoice] = {}
        for index in turns.layers:
            asked = self._given.asked[index]
            for _, alloc in list_prefetches(asked.said):
                faults.of(asked.layer, alloc.line, "fetch: layers in turns bring their constants themselves; leave it out")
            chosen[index] = TileChoice(asked.tiling, asked.units)
        if faults:
            return None
        draft = self._cascades.given(turns.layers, turns.loop.step, turns.rows, resident, chosen, turns.sweep)
        visited = list(flatten_tiles(draft.visited))
        slots: dict[int, tuple[Slot, ...]] = {}
        for index in turns.layers:
            asked, units = self._given.asked[index], chosen[index].units
            own = [work for layer, works in visited if layer == index for work in works]
            known = draft.blocks[index].slots(BufferCounts(self._facts.depth, self._facts.depth), True)
            works = _works_of(index, draft.stripes.steps, asked)
            found = ring_slots(asked, known, works, draft.inside, faults, units)
            if require_capable_units(asked, units, lambda own=own: own, faults) and found is not None:
                slots[index] = found
        return self._cascades.planned(draft, slots) if len(slots) == len(turns.layers) else None

    def _require_rows(self, turns: CascadeDirective, faults: Faults) -> None:
        """As many of each tensor are kept as stripes need."""
        layers, height, lines = turns.layers, turns.loop.step, self._given.lines
        kept = set(self._cascades.kept(layers.start, layers.stop, ()).values())
        for root in sorted(turns.rows.keys() - kept):
            faults.add(
                lines[root],
                f"alloc {quote_name(root)}: its rows cannot be kept by themselves; let all of it lie in sram, or in dram",
            )
        least = self._cascades.least_rows(layers, height, turns.rows)
        if least is None:
            faults.add(turns.loop.line, f"for {ROWS}: one of these layers needs all of what another makes; they take no turns")
            return
        types = self._facts.layers[layers.start].types
        for root, rows in turns.rows.items():
            tall, need = types[root].shape[1], least.get(root, 0)
            if rows > tall:
                faults.add(lines[root], f"alloc {quote_name(root)} rows {rows}: it has {tall}")
            elif rows < need:
                stripes = f"stripes of {format_count(height, 'row')} need {need} of it at once"
                faults.add(lines[root], f"alloc {quote_name(root)} rows {rows}: {stripes}; keep as many, or take a smaller step")

    def _require_blocks(self, turns: CascadeDirective, resident: frozenset[str], faults: Faults) -> None:
        """Blocks of channels, or of columns, go through all the layers one by one."""
        layers, (channels, columns) = turns.layers, turns.sweep
        _, _, wide, deep = self._facts.layers[layers.stop - 1].output.shape
        if channels:
            at, blocks = f"for {CHANNELS} by {channels}", self._cascades.blocks(layers.start, layers.stop, resident)
            if not blocks:
                faults.add(turns.loop.line, f"{at}: one of these layers needs other channels of what another makes")
            elif channels % blocks[-1] or channels >= deep:
                faults.add(turns.loop.line, f"{at}: take a multiple of {blocks[-1]} below {deep}")
        if columns:
            at = f"for {COLUMNS} by {columns}"
            if columns >= wide:
                faults.add(turns.loop.line, f"{at}: take fewer than {wide}")
            elif not self._in_columns(turns):
                reason = "keep rows of all that these layers hand on, each in an alloc of its own, to nothing behind them"
                faults.add(turns.loop.line, f"{at}: {reason}")

    def _in_columns(self, turns: CascadeDirective) -> bool:
        """Whether rows are kept of all that a block of columns would make more than once."""
        layers, views = turns.layers, self._facts.views
        made = {views[layer.node.outputs[0]].root for layer in self._facts.layers[layers.start : layers.stop - 1]}
        return made <= turns.rows.keys() and bool(self._cascades.columns(layers.start, layers.stop, frozenset()))


def _planned(
    index: int, asked: LayerDirective, resident: Collection[str], given: BoundTree, facts: RegionFacts, faults: Faults
) -> LayerPlan | None:
    """A layer by itself. resident: tensors that lie in SRAM. None where something is wrong with its rings or its constants."""
    layer, units, model = asked.layer, asked.units, facts.model
    every = layer_units(layer, asked.tiling)
    nest = layer.tiled.nest(layer, asked.tiling)
    visited = list(sample_tiles(nest, turn(every)))
    sizes = Sizes(layer, every)
    for works in visited:
        for work in works if not isinstance(works, int) else ():
            sizes.add(work, resident)
    ahead = bind_prefetches(index, asked, given, facts, faults)
    no_rings = ahead is not None and fetches_all(asked, ahead)
    known = tuple(s for s in sizes.slots(facts.depth, units) if not (no_rings and s.of_constants))
    slots = ring_slots(asked, known, nest.works(), resident, faults, units)
    if slots is None or ahead is None:
        return None
    walk = PlanTimer(model, facts.views, resident)
    # Where only the first constants are there, its cycles are those with none there, as when they were dealt.
    there: dict[Hashable, AccessRange] = {
        key: AccessRange(part.space, 0, 0, []) for part in ahead for key in part.places if no_rings
    }
    works = walk.works(layer, slots, units, visited, turn(every), None, there)
    needed = staging_bytes(slots, model.chip)
    return LayerPlan(asked.tiling, slots, needed, works, walk.cycles, walk.busy_cycles, units, ahead=ahead)


def _works_of(index: int, stripes: Iterable[Sequence[Step]], asked: LayerDirective) -> Iterator[TileTask]:
    """All of a layer in turns, in order."""
    calls = (step for step in chain.from_iterable(stripes) if isinstance(step, LayerCall) and step.layer == index)
    return chain.from_iterable(asked.layer.tiled.nest(asked.layer, asked.tiling, c.extent).works() for c in calls)
