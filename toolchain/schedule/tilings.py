"""Choose a tiling for each layer of a region: the one of fewest cycles that fits each memory. Equal layers share the
search.

`schedule.layer_by_layer` and the cascade planners ask here. A candidate is a `Tiling` (sizes of a tile and order of
loops) with its number of tiles. Tile buffers (rings) have one or two slots as they fit. A root is a tensor with storage
of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, pairwise

from toolchain.errors import InternalError
from toolchain.hw.unit_map import Unit
from toolchain.machine import Space
from toolchain.ops.kit.operator import Layer, TiledOp, tiling_key
from toolchain.ops.kit.tile import TileTask, Tiling, ceil_div
from toolchain.schedule.cost import CostModel
from toolchain.schedule.layer_constants import count_reloaded
from toolchain.schedule.nodes import Ring
from toolchain.schedule.options import Options
from toolchain.schedule.plan import TiledLayer
from toolchain.schedule.plan_cost import ALONE, CostWeights, count_layer_bytes
from toolchain.schedule.plan_timer import PlanTimer
from toolchain.schedule.sampling import Visited, sample_tiles
from toolchain.schedule.tile_buffers import Room, Sizes, fits, staging_bytes
from toolchain.schedule.unit_choice import emit_at_zero, speed, turn, units_for
from toolchain.schedule.views import View

_FINER_TILINGS = 3  # tilings with more tiles that are tried for one layer
_ENOUGH_TILES = 4096
_ENOUGH_WORKS = 20_000  # works looked at for one layer, over all of its tilings
_FINER_TRIED, _FINER_WORKS, _FINER_CYCLES = 12, 8, 1.15  # next tilings, times the works and the cycles that finer ones may have
_FEW, _FINER = 3, 4  # after so many tilings, those with so many times the tiles of the best are passed over

_Run = tuple[tuple[Ring, ...], tuple[Unit, ...]]
Candidate = tuple[int, Tiling]  # into how many tiles of rows, columns and channels it cuts the output


@dataclass
class _Measured:
    """The measurements of one tiling.

    `sizes`: of the items of its tiles so far, `tile_count` in number; `is_complete`: of all. `capable_units`: units
    that can run them, None: not asked yet. `costs`, `moving`: plans by rings and units, without and with the bytes that
    they move. `reloaded`: constants that come again for an outer loop (`count_reloaded`), None: not counted yet.
    """

    sizes: Sizes
    tile_count: int = 0
    is_complete: bool = False
    capable_units: tuple[Unit, ...] | None = None
    costs: dict[_Run, TiledLayer] = field(default_factory=dict[_Run, TiledLayer])
    moving: dict[_Run, TiledLayer] = field(default_factory=dict[_Run, TiledLayer])  # with the bytes that they move
    reloaded: Mapping[str, int] | None = None


class LayerTilings:
    """The tilings of one layer with given operands in SRAM. Results are remembered.

    Layers of equal signature share it: a plan depends on which of them it is by its `layer` alone.
    """

    def __init__(
        self,
        layer: Layer,
        resident: Collection[str],
        views: Mapping[str, View],
        model: CostModel,
        depth: int,
        shared_candidates: Sequence[Candidate] | None = None,
        visited: dict[Tiling, Visited] | None = None,
    ):
        """Prepare the search.

        `resident`: the layer's tensors in SRAM. `depth`: most slots of a tile buffer. `shared_candidates`: the
        candidates, where they exist already. `visited`: sampled tiles by tiling, shared with the same layer for other
        residents.
        """
        self._visited = {} if visited is None else visited
        self._layer, self._resident, self._views, self._model, self._depth = layer, resident, views, model, depth
        self._candidates = shared_candidates if shared_candidates is not None else candidates(layer)
        self._measured: dict[Tiling, _Measured] = {}
        self._chosen: dict[Hashable, list[tuple[float, float, TiledLayer | None]]] = {}  # from, below how many bytes of SRAM
        self._from, self._below = 0.0, math.inf  # bytes of SRAM with which what was asked of a room is answered alike

    def best(self, room: Room, most: int, by: CostWeights = ALONE) -> TiledLayer | None:
        """Return the plan of least cost `by` among the first `most` tilings that fit the room; None where none fits.

        More tilings are tried until one has all of its slots. The answer for one room does not depend on earlier ones.
        `room`: free bytes by number of the memory.
        """
        size = room.get(int(Space.SRAM), 0)
        answers = self._chosen.setdefault((by, most, *(bytes_ for space, bytes_ in room.items() if space != Space.SRAM)), [])
        for first, below, plan in answers:
            if first <= size < below:
                return plan
        self._from, self._below = 0.0, math.inf
        best = self._best(room, most, by)
        answers.append((self._from, self._below, best))
        return best

    def _best(self, room: Room, most: int, by: CostWeights) -> TiledLayer | None:
        """Search the best plan for a room, and note for which sizes of SRAM the answer is the same."""
        best: TiledLayer | None = None
        tried, doubled, looked_at = 0, False, 0
        for tiles, tiling in self._candidates:
            if best is not None and tried >= _FEW and tiles > _FINER * best.tile_count * best.tiling.batches:
                continue
            plan = self.evaluate(tiling, room, by)
            if plan is None:
                continue
            looked_at += self._measured[tiling].tile_count
            tried += tiling.plain  # the same tiles by another dataflow, or several at once, take no other tiling's turn
            doubled = doubled or self._has_all_slots(plan, room)
            if best is None or by(plan) < by(best):
                best = plan
            if (tried >= most and doubled) or looked_at > _ENOUGH_WORKS:
                break
        return best

    def finer(self, plan: TiledLayer, room: Room, most: int) -> list[TiledLayer]:
        """Return up to `most` plans with more tiles than `plan`, each of another number.

        They have at most eight times the tiles, and take at most 15 % longer alone.
        """
        at = next((i for i, (_, tiling) in enumerate(self._candidates) if tiling == plan.tiling), len(self._candidates))
        finer_plans: dict[int, TiledLayer] = {}
        for _, tiling in self._candidates[at + 1 : at + 1 + _FINER_TRIED]:
            other = self.evaluate(tiling, room)
            if other is None or len(finer_plans) == most:
                continue
            if (
                plan.tile_count < other.tile_count <= _FINER_WORKS * plan.tile_count
                and other.cycles <= _FINER_CYCLES * plan.cycles
            ):
                finer_plans.setdefault(other.tile_count, other)
        return list(finer_plans.values())

    def _fits(self, need: Room, room: Room) -> bool:
        """Return whether the room suffices, and narrow the sizes of SRAM for which the current answer holds."""
        if not fits({**need, int(Space.SRAM): 0}, room):
            return False
        size = need.get(int(Space.SRAM), 0)
        is_within = size <= room.get(int(Space.SRAM), 0)
        self._from, self._below = (max(self._from, size), self._below) if is_within else (self._from, min(self._below, size))
        return is_within

    def _has_all_slots(self, plan: TiledLayer, room: Room) -> bool:
        """Return whether all tile buffers of the plan's tiling would fit with all slots.

        Else loads wait for computation, and finer tiles may be faster.
        """
        return self._fits(staging_bytes(self._measured[plan.tiling].sizes.slots(self._depth, plan.units), self._layer.chip), room)

    def evaluate(self, tiling: Tiling, room: Room, by: CostWeights = ALONE) -> TiledLayer | None:
        """Return the plan of one tiling with as many slots as fit, or fewer that are as fast.

        None: one slot for each buffer does not fit, or no unit can run its tiles, as another dataflow may require.
        Raise InternalError where no unit can run the tiles of a tiling in the first dataflow and mode.
        """
        measured = self._measured.get(tiling) or self._measured.setdefault(tiling, _Measured(self._sizes()))
        if not self._may_fit(measured.sizes, room) or not (measured.is_complete or self._measure(tiling, measured, room)):
            return None
        if measured.capable_units is None:
            measured.capable_units = (
                self._units if len(self._units) == 1 else self._model.list_capable_units(self._layer, self._visited[tiling])
            )
            if not measured.capable_units and tiling.variant == (0, 0):
                raise InternalError(f"{self._layer.node.name}: no unit can run all of its tiles")
        units = self._fitting(measured.capable_units, measured.sizes, room)
        plans: list[TiledLayer] = []
        for depth, apart, singles in self._depths(measured.sizes):
            for single in singles:
                slots = measured.sizes.slots(depth, units, apart, single)
                if units and self._fits(staging_bytes(slots, self._layer.chip), room):
                    plans.append(self._cost(tiling, (slots, units), by))
            if plans and not apart:
                break
        plan = min(reversed(plans), key=by, default=None)
        return self._keep_constants(plan, room, by) if plan is not None and by.byte else plan

    def _cost(self, tiling: Tiling, run: _Run, by: CostWeights) -> TiledLayer:
        """Return the plan with these rings and units; with the bytes that it moves where `by` counts them."""
        measured, (slots, units) = self._measured[tiling], run
        if run not in measured.costs:
            timer = PlanTimer(self._model, self._views, self._resident)
            measured.costs[run] = timer.layer(self._layer, tiling, slots, units, self._visited[tiling], self._period)
        if by.byte and run not in measured.moving:
            visited = self._visited[tiling]
            moved = count_layer_bytes(self._layer, slots, units[0], self._resident, visited, self._period)
            measured.moving[run] = replace(measured.costs[run], moved_bytes=moved)
        return (measured.moving if by.byte else measured.costs)[run]

    def _keep_constants(self, plan: TiledLayer, room: Room, by: CostWeights) -> TiledLayer:
        """Return the plan, or a better one in which constants that an outer loop would load again have a slot each."""
        measured = self._measured[plan.tiling]
        if measured.reloaded is None:
            measured.reloaded = count_reloaded(self._layer.tiled.nest(self._layer, plan.tiling))
        counts = ((ring, measured.reloaded.get(ring.key, 0)) for ring in plan.rings)
        rings = tuple(replace(r, slots=n, sizes=r.sizes[:1] * n) if n > r.copies else r for r, n in counts)
        if rings == plan.rings or not self._fits(staging_bytes(rings, self._layer.chip), room):
            return plan
        return min(plan, self._cost(plan.tiling, (rings, plan.units), by), key=by)

    def _depths(self, sizes: Sizes) -> Iterator[tuple[int, bool, Iterable[frozenset[str]]]]:
        """Yield the slot counts to try, the most first: (slots, as many for each of several units, sets of roles with
        one slot).
        """
        none = (frozenset[str](),)
        if len(self._units) > 1:
            yield self._depth, True, none
        if self._depth > 1:
            yield self._depth, False, none
            yield self._depth, False, sizes.mixes()
        yield 1, False, none

    @cached_property
    def _period(self) -> int:
        """The number of tiles after which every unit has had one."""
        return turn(self._units)

    @cached_property
    def _units(self) -> tuple[Unit, ...]:
        """The units that may share the layer's tiles."""
        return layer_units(self._layer, self._candidates[0][1])

    def _sizes(self) -> Sizes:
        return Sizes(self._layer, self._units)

    def _may_fit(self, sizes: Sizes, room: Room) -> bool:
        """Return whether the sizes so far fit the memories of one unit at least."""
        return any(self._fits(sizes.least([unit]), room) for unit in self._units)

    def _fitting(self, capable: Sequence[Unit], sizes: Sizes, room: Room) -> tuple[Unit, ...]:
        """Return the units whose memories hold one slot of each ring, all together; the fastest have precedence."""
        fitting: list[Unit] = []
        for unit in sorted(capable, key=lambda u: -speed(u)):
            if self._fits(sizes.least([*fitting, unit]), room):
                fitting.append(unit)
        return tuple(unit for unit in capable if unit in fitting)

    def _measure(self, tiling: Tiling, measured: _Measured, room: Room) -> bool:
        """Find the sizes of the tiling's slots; return false as soon as they exceed the room."""
        sizes = measured.sizes = self._sizes()
        measured.tile_count, visited = 0, list[Sequence[TileTask] | int]()
        for tiles in self._visit(tiling):
            visited.append(tiles)
            if isinstance(tiles, int):
                continue
            measured.tile_count += len(tiles)
            before = sizes.total_bytes
            for tile in tiles:
                sizes.add(tile, self._resident)
            if sizes.total_bytes > before and not self._may_fit(sizes, room):
                return False
        measured.is_complete = True
        self._visited[tiling] = visited
        return True

    def _visit(self, tiling: Tiling) -> Iterable[Sequence[TileTask] | int]:
        """Return the sampled tiles, with marks of repeats."""
        visited = self._visited.get(tiling)
        return sample_tiles(self._layer.tiled.nest(self._layer, tiling), self._period) if visited is None else visited


def candidates(layer: Layer) -> Sequence[Candidate]:
    """Return the tilings of a layer in the order in which they are tried, each with its number of tiles.

    Those that cut sums least come first, then those of fewest tiles. Tilings of more than 4,096 tiles come last. Rows
    of a matrix may be cut anywhere; every second tiling is then the next of fewest tiles and reduction parts. Where
    some tilings take a kernel in fewer instructions, every second one is of those.
    """
    height, width, channels = (1, 1, 1, *layer.output.shape)[-3:]
    counted = [
        (-(-height // max(1, t.rows)) * -(-width // max(1, t.columns)) * -(-channels // max(1, t.channels)), t)
        for t in layer.tiled.tilings(layer)
    ]
    coarsest = sorted(counted, key=lambda c: (c[0] > _ENOUGH_TILES, -c[1].inner, c[0]))
    parts = layer.tiled.count_kernel_parts(layer, [t for _, t in coarsest if not t.taps])
    if len(set(parts.values())) > 1:
        together = sorted(coarsest, key=lambda c: (c[0] > _ENOUGH_TILES, -c[1].inner, parts.get(c[1], math.inf), c[0]))
        return list(dict.fromkeys(chain.from_iterable(zip(coarsest, together))))
    if height > 1 or width == 1:
        return coarsest
    most = max(t.inner for _, t in coarsest)
    fewest = sorted(coarsest, key=lambda c: (c[0] > _ENOUGH_TILES, c[0] * ceil_div(most, max(1, c[1].inner))))
    return list(dict.fromkeys(chain.from_iterable(zip(coarsest, fewest))))


def layer_units(layer: Layer, tiling: Tiling) -> tuple[Unit, ...]:
    """Return the units of the kind that runs the layer."""
    return units_for(emit_at_zero(next(layer.tiled.nest(layer, tiling).iterate_tasks()), layer), layer.chip)


@dataclass(frozen=True)
class SmallestTile:
    """The tile buffers with which a layer can run at all, and their bytes in each memory. Without any it is data
    movement.
    """

    slots: tuple[Ring, ...] = ()
    sizes: Room = field(default_factory=dict[int, int])


def smallest_tile(layer: Layer, resident: Collection[str]) -> SmallestTile:
    """Return the tile buffers of the layer's smallest tiles with single slots, those that exceed the memories least."""
    least, smallest = SmallestTile(), None
    memories = [space.memory for space in layer.chip.spaces]
    for tiling in _last_of_each(layer.tiled.tilings(layer)):
        units, nest = layer_units(layer, tiling), layer.tiled.nest(layer, tiling)
        sizes = Sizes(layer, units)
        for tile in nest.distinct():
            sizes.add(tile, resident)
        for unit in units:
            slots = sizes.slots(1, [unit])
            ring_bytes = staging_bytes(slots, layer.chip)
            excess = sum(max(0, size - memories[space].size) for space, size in ring_bytes.items())
            size = excess, sum(ring_bytes.values())
            if smallest is None or size < smallest:
                least, smallest = SmallestTile(slots, ring_bytes), size
    return least


def _last_of_each(tilings: Iterable[Tiling]) -> list[Tiling]:
    """Return the smallest tile of each way to cut the reduction and the kernel: one of them takes least memory."""
    smallest: dict[tuple[int, int], Tiling] = {}
    for tiling in tilings:
        cut = (tiling.inner, tiling.taps)
        if cut not in smallest or tiling.volume < smallest[cut].volume:
            smallest[cut] = tiling
    return list(smallest.values())


Pin = Callable[[frozenset[str]], TiledLayer | None]  # from the layer's tensors that lie in SRAM


class RegionTilings:
    """The tilings of all layers of a region. Layers with equal signatures, residents included, share the search."""

    def __init__(
        self,
        layers: Sequence[Layer],
        views: Mapping[str, View],
        model: CostModel,
        options: Options,
        pinned: Mapping[str, Pin] | None = None,
    ):
        """Take the region's layers.

        `pinned`: by name of the layer, a function from its tensors in SRAM to its fixed plan, or None where that has
        none.
        """
        self._pinned = pinned or {}
        self._layers, self._views, self._model, self._options = layers, views, model, options
        self._sizes: Room = {space: model.chip.spaces[space].memory.size for space in model.chip.staging}
        self._candidates: dict[object, Sequence[Candidate]] = {}  # by signature where nothing is resident
        self._unit_kinds: dict[object, str] = {}  # by the same
        self._tilings: dict[object, LayerTilings] = {}  # by signature
        self._visited: dict[str, dict[Tiling, Visited]] = {}  # by layer

    @property
    def depth(self) -> int:
        """The most slots of a tile buffer."""
        return 2 if self._options.double_buffer else 1

    def smallest_tiles(
        self, resident: Collection[str] = (), smallest: dict[object, SmallestTile] | None = None
    ) -> list[SmallestTile]:
        """Return the smallest tile of each layer with these tensors in SRAM.

        `smallest`: those of equal layers, by signature, for regions of one machine; new ones are added.
        """
        by_signature = {} if smallest is None else smallest
        tiles: list[SmallestTile] = []
        for layer in self._layers:
            signature = self._signature(layer, resident)
            if signature not in by_signature:
                by_signature[signature] = smallest_tile(layer, resident) if isinstance(layer.node.op, TiledOp) else SmallestTile()
            tiles.append(by_signature[signature])
        return tiles

    def candidates(self) -> list[tuple[object, Sequence[Candidate]]]:
        """Return the signature and the tilings of each layer; data-movement operators have no tilings."""
        return [(self._signature(la, ()), self._tilings_of(la) if isinstance(la.node.op, TiledOp) else ()) for la in self._layers]

    def best(self, layer: Layer, resident: Collection[str], sram_bytes: int, by: CostWeights) -> TiledLayer | None:
        """Return the best plan of a layer, or of one that equals it; None where none fits.

        `resident`: tensors in SRAM, of any layers. `sram_bytes`: SRAM for the layer's tile buffers.
        """
        room = {**self._sizes, int(Space.SRAM): sram_bytes}
        pin = self._pinned.get(layer.node.name)
        if pin is not None:
            plan = pin(frozenset(n for n in (*layer.activations, *layer.node.outputs) if n in resident))
            return plan if plan is not None and fits(plan.staging_bytes, room) else None
        return self.tilings(layer, resident).best(room, self._options.tilings, by)

    def finer(self, index: int, plan: TiledLayer, resident: Collection[str], sram_bytes: int) -> Sequence[TiledLayer]:
        """Return plans of the layer with more tiles than `plan`, in so many bytes of SRAM; none where its plan is
        fixed.
        """
        layer, room = self._layers[index], {**self._sizes, int(Space.SRAM): sram_bytes}
        if layer.node.name in self._pinned:
            return ()
        return self.tilings(layer, self._inside(layer, resident)).finer(plan, room, _FINER_TILINGS)

    def plan(self, index: int, resident: Collection[str], sram_bytes: int, by: CostWeights) -> TiledLayer | None:
        """Return the best plan of a layer with these roots in SRAM; None where none fits, and for data-movement
        operators.
        """
        layer = self._layers[index]
        if not isinstance(layer.node.op, TiledOp):
            return None
        return self.best(layer, self._inside(layer, resident), sram_bytes, by)

    def find_overlapping(self) -> list[int]:
        """Return the layers whose successor runs on units of another kind, so that it may begin before they end."""
        kinds = [self._unit_kind(layer) for layer in self._layers]
        return [at for at, (kind, following) in enumerate(pairwise(kinds)) if kind and following and kind != following]

    def _unit_kind(self, layer: Layer) -> str | None:
        """Return the kind of unit that runs the layer; None for data-movement operators."""
        if not isinstance(layer.node.op, TiledOp):
            return None
        signature = self._signature(layer, ())
        if signature not in self._unit_kinds:
            self._unit_kinds[signature] = layer_units(layer, self._tilings_of(layer)[0][1])[0].kind
        return self._unit_kinds[signature]

    def cycles(self, index: int, resident: frozenset[str], sram_bytes: int, by: CostWeights) -> float | None:
        """Return the cost `by` of a layer with these roots in SRAM; None where it does not fit."""
        layer = self._layers[index]
        if not isinstance(layer.node.op, TiledOp):
            inside = self._inside(layer, resident)
            moved = sum(layer.types[n].size_bytes for n in (*layer.activations, *layer.node.outputs) if n not in inside)
            return self._model.moves(layer, self._views, inside).alone_cycles + by.byte * moved
        plan = self.plan(index, resident, sram_bytes, by)
        return None if plan is None else by(plan)

    def tilings(self, layer: Layer, resident: Collection[str]) -> LayerTilings:
        """Return the search of the first layer that equals this one."""
        signature = self._signature(layer, resident)
        if signature not in self._tilings:
            operands = frozenset(n for n in (*layer.activations, *layer.node.outputs) if n in resident)
            candidates, visited = self._tilings_of(layer), self._visited.setdefault(layer.node.name, {})
            self._tilings[signature] = LayerTilings(layer, operands, self._views, self._model, self.depth, candidates, visited)
        return self._tilings[signature]

    def _tilings_of(self, layer: Layer) -> Sequence[Candidate]:
        """Return the candidates of a layer, shared with equal layers."""
        signature = self._signature(layer, ())
        if signature not in self._candidates:
            self._candidates[signature] = candidates(layer)
        return self._candidates[signature]

    def signature(self, index: int, roots: Collection[str]) -> Hashable:
        """Return a key that is equal for layers that equal each other with these roots in SRAM; a fixed layer equals no
        other.
        """
        layer = self._layers[index]
        return self._signature(layer, self._inside(layer, roots)), index if layer.node.name in self._pinned else -1

    def _inside(self, layer: Layer, resident: Collection[str]) -> frozenset[str]:
        """Return the layer's tensors that lie in these roots."""
        return frozenset(n for n in (*layer.activations, *layer.node.outputs) if self._views[n].root in resident)

    def _signature(self, layer: Layer, resident: Collection[str]) -> object:
        """Return a key of all that the cost of a layer's tilings depends on."""
        operands = tuple(
            (
                layer.types[n].shape,
                layer.types[n].dtype,
                n in layer.constants,
                n in resident,
                self._views[n].strides,
            )
            for n in (*layer.node.inputs, *layer.node.outputs)
            if n
        )
        return tiling_key(layer), operands
