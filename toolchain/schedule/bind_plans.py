"""Plan the layers that a user's schedule names, with their prefetches and cascades, exactly as it says.

Input is a `BoundTree` (`schedule.bind_region`). Nothing is searched. What the schedule leaves open of a layer, such as
slots, gets its default. A root is a tensor with storage of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain

from quant.suggestion import suggestion
from toolchain.errors import format_count
from toolchain.machine import Space
from toolchain.ops.kit.operator import TiledOp
from toolchain.ops.kit.tile import TileTask, round_up
from toolchain.schedule.bind_layer import Faults, LayerDirective, bind_rings, require_capable_units
from toolchain.schedule.bind_region import BoundTree, CascadeDirective, RegionFacts, tensors_in
from toolchain.schedule.cascade import CascadePlanner
from toolchain.schedule.cascade_candidates import BufferCounts, TileChoice
from toolchain.schedule.copies import dram_alignment
from toolchain.schedule.dependences import AccessRange
from toolchain.schedule.layer_constants import LayerConstants, collect_constants, split_constants
from toolchain.schedule.nodes import CHANNELS, COLUMNS, ROWS, Fetch, Prefetch, Ring
from toolchain.schedule.plan import PlannedCascade, TiledLayer
from toolchain.schedule.plan_timer import PlanTimer
from toolchain.schedule.sampling import flatten_tiles, sample_tiles
from toolchain.schedule.stripes import LayerCall, Step
from toolchain.schedule.text import quote_name
from toolchain.schedule.tile_buffers import Sizes
from toolchain.schedule.tilings import layer_units
from toolchain.schedule.unit_choice import turn


def bind_prefetches(
    index: int, directive: LayerDirective, bound: BoundTree, facts: RegionFacts, faults: Faults
) -> tuple[Fetch, ...] | None:
    """Return the fetches of a layer outside cascades, () where it has none; None after a fault, which is added to
    `faults`.
    """
    fetches = directive.statement.fetches
    if not fetches:
        return ()
    cuts: list[tuple[Prefetch, int]] = []
    for fetch in fetches:
        place = _find_layer_before(fetch.buffer.after_layer, index, bound, facts)
        if isinstance(place, str):
            line = f"fetch {fetch.buffer.constants} behind {quote_name(fetch.buffer.after_layer)}"
            faults.of(directive.layer, fetch.line, f"{line}: {place}")
            return None
        cuts.append((fetch.buffer, place))
    constants = collect_constants(directive.layer, directive.tiling, directive.units)
    fault = _fault([since for _, since in cuts], sum(prefetch.constants for prefetch, _ in cuts), constants, directive, facts)
    if fault is not None:
        faults.of(directive.layer, fetches[0].line, f"fetch: {fault}")
        return None
    assert constants is not None
    return split_constants(constants, cuts, dram_alignment(facts.chip))


def _find_layer_before(name: str, of: int, bound: BoundTree, facts: RegionFacts) -> int | str:
    """Return the index of the layer after whose loads constants are fetched, or a sentence on why that is not possible.

    `of`: index of the layer that the constants are for.
    """
    named = {layer.node.name: index for index, layer in enumerate(facts.layers)}
    at = named.get(name)
    if at is None:
        return f"there is no such layer{suggestion(name, named)}"
    if at > of:
        return "it runs later; name this layer or one before it"
    if not isinstance(facts.layers[at].node.op, TiledOp):
        return "it is moved by DMA and has no tiles"
    if any(at in cascade.layers for cascade in bound.cascades):
        return "it runs in turns with others; name one that does not"
    if at not in bound.layers:
        return "the schedule does not name it, so that it might take turns; name it too"
    return at


def _fault(
    order: list[int], count: int, constants: LayerConstants | None, directive: LayerDirective, facts: RegionFacts
) -> str | None:
    """Return why constants cannot be fetched so, or None.

    `order`: indices of the layers after whose loads they come. `count`: number of constants that are fetched.
    `constants`: the layer's constants; None: they cannot be prefetched.
    """
    if order != sorted(order):
        return "constants come in the order of their use; name the layers in their order"
    if constants is None:
        return "its units read constants in more than one memory, so that nothing is fetched ahead; leave it out"
    memory = facts.chip.spaces[constants.space]
    if dram_alignment(facts.chip) % memory.memory.alignment_bytes:
        return f"{memory.key}.alignment_bytes does not divide that of DRAM, so that nothing is fetched ahead; leave it out"
    if count > len(constants.blocks):
        return f"{format_count(count, 'constant')} in all; with these loops it has {len(constants.blocks)}"
    if any(ring.of_constants for ring in directive.statement.rings) and count == len(constants.blocks):
        return "its constants pass through no ring then; leave out the rings of constants"
    return None


def fetches_all(directive: LayerDirective, parts: Sequence[Fetch]) -> bool:
    """Return whether these fetches hold all constants of the layer, so that none passes through a tile buffer."""
    constants = collect_constants(directive.layer, directive.tiling, directive.units) if parts else None
    return constants is not None and sum(len(part.blocks) for part in parts) == len(constants.blocks)


def _plan_directed(
    index: int, directive: LayerDirective, resident: Collection[str], bound: BoundTree, facts: RegionFacts, faults: Faults
) -> TiledLayer | None:
    """Return the timed plan of a layer outside cascades; None after a fault. `resident`: tensors in SRAM."""
    layer, units, model = directive.layer, directive.units, facts.model
    every = layer_units(layer, directive.tiling)
    nest = layer.tiled.nest(layer, directive.tiling)
    visited = list(sample_tiles(nest, turn(every)))
    sizes = Sizes(layer, every)
    for tiles in visited:
        for tile in tiles if not isinstance(tiles, int) else ():
            sizes.add(tile, resident)
    fetches = bind_prefetches(index, directive, bound, facts, faults)
    no_rings = fetches is not None and fetches_all(directive, fetches)
    defaults = tuple(s for s in sizes.slots(facts.depth, units) if not (no_rings and s.of_constants))
    slots = bind_rings(directive, defaults, nest.iterate_tasks(), resident, faults, units)
    if slots is None or fetches is None:
        return None
    # Where only the first constants are prefetched, the cycles are those without, as when the search chose them.
    preloaded: dict[Hashable, AccessRange] = {
        key: AccessRange(part.space, 0, 0, []) for part in fetches for key in part.offsets if no_rings
    }
    timer = PlanTimer(model, facts.views, resident)
    return replace(timer.layer(layer, directive.tiling, slots, units, visited, turn(every), preloaded), fetches=fetches)


def _tiles_of(index: int, stripes: Iterable[Sequence[Step]], directive: LayerDirective) -> Iterator[TileTask]:
    """Return all tile tasks of a layer of a cascade, in order."""
    calls = (step for step in chain.from_iterable(stripes) if isinstance(step, LayerCall) and step.layer == index)
    return chain.from_iterable(
        directive.layer.tiled.nest(directive.layer, directive.tiling, c.extent).iterate_tasks() for c in calls
    )


class FixedLayers:
    """The layers and cascades that a schedule fixes, and their plans, each made once."""

    def __init__(self, bound: BoundTree, facts: RegionFacts, cascade_planner: Callable[[], CascadePlanner]):
        """Take the resolved schedule. `cascade_planner`: is called for the region's cascade planner, only where there
        are cascades.
        """
        self.bound, self._facts, self._cascade_planner = bound, facts, cascade_planner
        self._plans: dict[tuple[int, frozenset[str]], TiledLayer | None] = {}
        self._planned_cascades: dict[frozenset[str], tuple[PlannedCascade, ...]] = {}

    @property
    def _cascades(self) -> CascadePlanner:
        return self._cascade_planner()

    @property
    def inside(self) -> frozenset[str]:
        """The roots that must lie in SRAM as a whole."""
        return self.bound.resident

    @cached_property
    def rows(self) -> frozenset[str]:
        """The roots that have a rolling buffer."""
        return frozenset(root for cascade in self.bound.cascades for root in cascade.rows)

    @cached_property
    def outside(self) -> frozenset[str]:
        """The roots that must not lie in SRAM as a whole: in DRAM, in rolling buffers, or read and written through tile
        buffers.
        """
        return self.bound.spilled.union(self.rows, self._through_rings())

    def _through_rings(self) -> Iterator[str]:
        """Yield the roots that layers load into tile buffers of their own or store from them."""
        for directive in self.bound.directives.values():
            layer = directive.layer
            reads = next(layer.tiled.nest(layer, directive.tiling).iterate_tasks()).reads
            for ring in (written.buffer for written in directive.statement.rings if not written.of_constants):
                operands = (
                    [(box.tensor, box.role) for box in reads] if ring.role == "input" else [(layer.node.outputs[0], "output")]
                )
                for tensor, role in operands[ring.number : ring.number + 1]:
                    # In other memories rings bring resident tensors too.
                    if all(unit.roles[role] == Space.SRAM for unit in directive.units):
                        yield self._facts.views[tensor].root

    def plan_layer(self, index: int, inside: frozenset[str]) -> TiledLayer | None:
        """Return the plan of a layer outside cascades; None where the schedule does not tile it. `inside`: its tensors
        in SRAM.

        Raise CompileError with the layer's faults.
        """
        key = index, inside
        if key not in self._plans:
            faults = Faults(self.bound.tree)
            plan = self._plan_layer(index, {self._facts.views[n].root for n in inside}, faults)
            faults.end()  # before it is kept: a layer with faults raises them each time
            self._plans[key] = plan
        return self._plans[key]

    def plan_layers(self, indices: Sequence[int]) -> dict[int, TiledLayer | None]:
        """Return the plans of layers outside cascades, by index; None for data movement. Raise CompileError with all
        faults.
        """
        faults = Faults(self.bound.tree)
        plans = {i: self._plan_layer(i, self.inside, faults) for i in indices}
        faults.end()
        return plans

    def _plan_layer(self, index: int, resident: Collection[str], faults: Faults) -> TiledLayer | None:
        """Return the plan of one layer; None where it has no directive, or after a fault. `resident`: roots in SRAM."""
        directive = self.bound.directives.get(index)
        if directive is None:
            return None
        inside = frozenset(tensors_in(directive.layer, self._facts.views, resident))
        return _plan_directed(index, directive, inside, self.bound, self._facts, faults)

    def plan_cascades(self, resident: Collection[str]) -> tuple[PlannedCascade, ...]:
        """Return the timed cascades that the schedule names. `resident`: roots that lie in SRAM as a whole.

        Raise CompileError with the faults of all cascades.
        """
        key = frozenset(resident)
        if key not in self._planned_cascades:
            faults = Faults(self.bound.tree)
            planned = [self._plan_cascade(directive, key, faults) for directive in self.bound.cascades]
            faults.end()
            self._planned_cascades[key] = tuple(cascade for cascade in planned if cascade is not None)
        return self._planned_cascades[key]

    @cached_property
    def in_cascades(self) -> frozenset[int]:
        """The indices of the layers in cascades."""
        return frozenset(i for cascade in self.bound.cascades for i in cascade.layers)

    def least_bytes(self) -> Mapping[int, int]:
        """Return the bytes of SRAM that each named layer needs beside resident roots, by index.

        Layers of a cascade share theirs. Raise CompileError with a layer's faults.
        """
        sram, align = int(Space.SRAM), self._facts.chip.sram.alignment_bytes
        plans = {i: self._least_plan(i) for i in self.bound.directives if i not in self.in_cascades}
        least = {i: plan.staging_bytes.get(sram, 0) for i, plan in plans.items() if plan is not None}
        for directive, cascade in zip(self.bound.cascades, self.plan_cascades(self.inside)):
            partial_views = {v.root: v for v in cascade.views.values()}
            types = self._facts.layers[directive.layers.start].types
            rows = sum(round_up(view.count_stored_bytes(types[root].shape), align) for root, view in partial_views.items())
            slots = sum(tiled.staging_bytes.get(sram, 0) for tiled in cascade.layers)
            least |= dict.fromkeys(directive.layers, rows + slots)
        return least

    def _least_plan(self, index: int) -> TiledLayer | None:
        """Return the plan of a layer with only the schedule's own tensors in SRAM."""
        layer = self._facts.layers[index]
        names = (*layer.activations, *layer.node.outputs)
        return self.plan_layer(index, frozenset(n for n in names if self._facts.views[n].root in self.inside))

    def _plan_cascade(self, cascade: CascadeDirective, resident: Collection[str], faults: Faults) -> PlannedCascade | None:
        """Return the timed plan of a cascade; None after a fault."""
        self._require_rows(cascade, faults)
        self._require_blocks(cascade, frozenset(resident), faults)
        chosen: dict[int, TileChoice] = {}
        for index in cascade.layers:
            directive = self.bound.directives[index]
            for fetch in directive.statement.fetches:
                faults.of(directive.layer, fetch.line, "fetch: layers in turns bring their constants themselves; leave it out")
            chosen[index] = TileChoice(directive.tiling, directive.units)
        if faults:
            return None
        draft = self._cascades.make_candidate(cascade.layers, cascade.loop.step, cascade.rows, resident, chosen, cascade.sweep)
        visited = list(flatten_tiles(draft.visited))
        slots: dict[int, tuple[Ring, ...]] = {}
        for index in cascade.layers:
            directive, units = self.bound.directives[index], chosen[index].units
            tiles = [tile for layer, all_tiles in visited if layer == index for tile in all_tiles]
            defaults = draft.blocks[index].slots(BufferCounts(self._facts.depth, self._facts.depth), True)
            all_tiles = _tiles_of(index, draft.stripes.steps, directive)
            rings = bind_rings(directive, defaults, all_tiles, draft.inside, faults, units)
            if require_capable_units(directive, units, lambda tiles=tiles: tiles, faults) and rings is not None:
                slots[index] = rings
        return self._cascades.time_candidate(draft, slots) if len(slots) == len(cascade.layers) else None

    def _require_rows(self, cascade: CascadeDirective, faults: Faults) -> None:
        """Add faults where a rolling buffer is not possible, or keeps fewer rows than the stripes need."""
        layers, height, lines = cascade.layers, cascade.loop.step, self.bound.lines
        partial = set(self._cascades.map_inner_roots(layers.start, layers.stop, ()).values())
        for root in sorted(cascade.rows.keys() - partial):
            faults.add(
                lines[root],
                f"alloc {quote_name(root)}: its rows cannot be kept by themselves; let all of it lie in sram, or in dram",
            )
        least = self._cascades.least_rows(layers, height, cascade.rows)
        if least is None:
            faults.add(cascade.loop.line, f"for {ROWS}: one of these layers needs all of what another makes; they take no turns")
            return
        types = self._facts.layers[layers.start].types
        for root, rows in cascade.rows.items():
            tall, need = types[root].shape[1], least.get(root, 0)
            if rows > tall:
                faults.add(lines[root], f"alloc {quote_name(root)} rows {rows}: it has {tall}")
            elif rows < need:
                stripes = f"stripes of {format_count(height, 'row')} need {need} of it at once"
                faults.add(lines[root], f"alloc {quote_name(root)} rows {rows}: {stripes}; keep as many, or take a smaller step")

    def _require_blocks(self, cascade: CascadeDirective, resident: frozenset[str], faults: Faults) -> None:
        """Add faults where the cascade's layers cannot run in these blocks of channels or columns one by one."""
        layers, (channels, columns) = cascade.layers, cascade.sweep
        _, _, wide, deep = self._facts.layers[layers.stop - 1].output.shape
        if channels:
            at, blocks = f"for {CHANNELS} by {channels}", self._cascades.blocks(layers.start, layers.stop, resident)
            if not blocks:
                faults.add(cascade.loop.line, f"{at}: one of these layers needs other channels of what another makes")
            elif channels % blocks[-1] or channels >= deep:
                faults.add(cascade.loop.line, f"{at}: take a multiple of {blocks[-1]} below {deep}")
        if columns:
            at = f"for {COLUMNS} by {columns}"
            if columns >= wide:
                faults.add(cascade.loop.line, f"{at}: take fewer than {wide}")
            elif not self._in_columns(cascade):
                reason = "keep rows of all that these layers hand on, each in an alloc of its own, to nothing behind them"
                faults.add(cascade.loop.line, f"{at}: {reason}")

    def _in_columns(self, cascade: CascadeDirective) -> bool:
        """Return whether blocks of columns can run one by one, with a rolling buffer for every tensor between the
        layers.
        """
        layers, views = cascade.layers, self._facts.views
        outputs = {views[layer.node.outputs[0]].root for layer in self._facts.layers[layers.start : layers.stop - 1]}
        return outputs <= cascade.rows.keys() and bool(self._cascades.columns(layers.start, layers.stop, frozenset()))
