"""Search prefetches: constants of later layers are loaded while earlier layers run, where the load channel would be
idle.

`schedule.region_planner` asks for each base plan. Layer by layer, idle cycles of the load channel are filled with
constants of later layers, in the order of their first use. They need room from then to the end of their layer. Where
all constants of a layer have room, none of them passes through a tile buffer; else only the first are prefetched. What
a layer fetches is cut into equal pieces, one after the loads of each of its tiles. A plan is taken only where it takes
fewer cycles as a whole.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, islice, takewhile

import numpy as np
import numpy.typing as npt

from toolchain.ops.kit.tile import ConstantBlock, round_up
from toolchain.schedule.copies import dram_alignment
from toolchain.schedule.cost import CostModel
from toolchain.schedule.dependences import AccessRange
from toolchain.schedule.layer_constants import LayerConstants, collect_constants, split_constants
from toolchain.schedule.nodes import Prefetch
from toolchain.schedule.options import SearchSteps
from toolchain.schedule.plan import PlannedLayer, PlannedRegion, TiledLayer
from toolchain.schedule.plan_cost import PlanCosts
from toolchain.schedule.plan_timer import PlanTimer
from toolchain.schedule.sampling import sample_tiles
from toolchain.schedule.tile_buffers import Room
from toolchain.schedule.unit_choice import turn

_FILLED = 0.95  # share of idle cycles; measured on ethos_u55_256: all of them, ResNet-8 +1.5 %; half, MobileNetV2 +19 %
_BLOCK_SHARES = (1.0, 0.5)  # shares of a block that idle cycles must hold: measured in docs/bounds.md
_USABLE = ((1.0, False), (0.93, True))  # shares of a memory, and whether places are searched for: all of it is hardly found
_EASY = (0.93, 0.86, 0.8)  # shares of a memory in which places are found without a search, sooner or later
_LEAST_GAIN = 0.01  # of the cycles: less than that may be what is expected too much
_BY_ADDRESSES = 2.0  # times what is gained where addresses stay: places that nothing had before wait for nothing
_FEW = 4  # layers for which one fetches: copies of more fill a queue, which keeps the front end from what comes behind them


@dataclass(frozen=True)
class PreloadedCost:
    """The cost of one layer whose constants are on the chip when it begins.

    `plan`: with its other tile buffers. `moved_cycles`: of the loads and stores that remain. `grows_bytes`: bytes that
    all constants take more than their tile buffers.
    """

    constants: LayerConstants
    plan: TiledLayer
    moved_cycles: float
    grows_bytes: int


TimedLayers = dict[Hashable, tuple[TiledLayer, float]]  # plan and cycles moved of equal layers without their constants


def with_constants_there(
    plan: PlannedRegion, index: int, model: CostModel, signature: Hashable, timed_layers: TimedLayers
) -> PreloadedCost | None:
    """Return the cost of a layer outside cascades with its constants on the chip when it begins.

    None: it is data movement, has prefetches already, or its constants cannot be prefetched.

    `signature`: equal for layers that equal each other in this plan. `timed_layers`: what is timed of one of them, for all; new
    ones are added.
    """
    tiled, chip, pitch = plan.layers[index], model.chip, dram_alignment(model.chip)
    if not isinstance(tiled, TiledLayer) or tiled.fetches:
        return None
    layer = tiled.layer
    constants = collect_constants(layer, tiled.tiling, tiled.units)
    if constants is None or pitch % chip.spaces[constants.space].memory.alignment_bytes:
        return None
    key = signature, tiled.tiling, tiled.units, tuple((ring, ring.sizes, ring.space) for ring in tiled.rings)
    if key not in timed_layers:
        inside = frozenset(n for n in (*layer.activations, *layer.node.outputs) if n in plan.residents)
        rings = tuple(ring for ring in tiled.rings if not ring.of_constants)
        timer, period = PlanTimer(model, plan.views, inside), turn(tiled.units)
        tiles = list(sample_tiles(layer.tiled.nest(layer, tiled.tiling), period))
        here = AccessRange(constants.space, 0, 0, [])
        preloaded: dict[Hashable, AccessRange] = {block.key: here for block in constants.blocks}
        timed_layers[key] = timer.layer(layer, tiled.tiling, rings, tiled.units, tiles, period, preloaded), timer.moved_cycles
    timed, moved_cycles = timed_layers[key]
    ring_bytes = tiled.staging_bytes.get(constants.space, 0) - timed.staging_bytes.get(constants.space, 0)
    grows = sum(round_up(block.size_bytes, pitch) for block in constants.blocks) - ring_bytes
    return PreloadedCost(constants, timed.as_layer(layer), moved_cycles, grows)


Place = Callable[[Sequence[PlannedLayer], bool], PlannedRegion | None]


_Bytes = Mapping[int, npt.NDArray[np.int64]]  # by memory, of each layer


@dataclass
class _DealtBlocks:
    """The constant blocks that layers have been given to fetch so far. The owner of a block is the layer that uses it.

    `room`: bytes that are free while each layer runs, by memory. `complete`: owners for all of whose blocks there is
    room. `waiting`: by owner, in order, the blocks that nothing fetches yet; owners without any are left out.
    `fetched`: for each owner, the layers that fetch its first blocks, in order.
    """

    room: _Bytes
    complete: set[int]
    waiting: dict[int, deque[ConstantBlock]]
    fetched: dict[int, list[int]] = field(default_factory=dict[int, list[int]])

    def iterate_waiting(self) -> Iterator[tuple[int, ConstantBlock]]:
        """Yield each waiting block with its owner. Blocks may be fetched meanwhile, and mostly few are taken, so that owners are
        listed in parts.
        """
        last, count = -1, 1
        while owners := list(islice((i for i in self.waiting if i > last), count)):
            for owner in owners:
                yield from ((owner, block) for block in list(self.waiting[owner]))
            last, count = owners[-1], 2 * count

    def fetch_rest(self, at: int) -> None:
        """Let a layer, and those before it, fetch the blocks by themselves that still wait, if others fetch some."""
        for owner in list(takewhile(lambda i: i <= at, self.waiting)):
            blocks = self.waiting.pop(owner)
            if owner in self.fetched and owner in self.complete:
                self.fetched[owner] += [at] * len(blocks)

    def fetch(self, at: int, owner: int, cost: PreloadedCost, size_bytes: int) -> bool:
        """Let layer `at` fetch the next block of an owner; return False where it has no room until the owner is done."""
        free = self.room[cost.constants.space]
        grows = cost.grows_bytes if owner in self.complete and owner not in self.fetched else 0
        until = owner if owner in self.complete else owner + 1
        if free[owner] < grows or free[at:until].min() < size_bytes:
            return False
        free[at:until] -= size_bytes
        free[owner] -= grows
        self.fetched.setdefault(owner, []).append(at)
        self.waiting[owner].popleft()
        if not self.waiting[owner]:
            del self.waiting[owner]
        return True


class PrefetchSearch:
    """The search of prefetches for one plan. Layers in cascades neither fetch nor are fetched for."""

    def __init__(
        self,
        plan: PlannedRegion,
        shared: Collection[int],
        used_bytes: Callable[[int], Sequence[int]],
        sizes: Room,
        costs: PlanCosts,
        place: Place,
        steps: SearchSteps,
        signature: Callable[[int], Hashable],
        timed_layers: TimedLayers,
    ):
        """Take a plan without prefetches, and the means to place and time its variants.

        `shared`: layers whose constants others have as well, which are left out. `used_bytes`: returns the bytes of a
        memory that are live while each layer runs. `sizes`: of the memories. `place`: returns the plan with other
        layers and new addresses, after a search if its second argument is true; None where they have no place.
        `signature`: returns a key of a layer, equal for layers that equal each other in this plan. `timed_layers`: of all
        searches of the region (`with_constants_there`).
        """
        self._plan, self._shared, self._used_bytes, self._sizes, self._place = plan, shared, used_bytes, sizes, place
        self._steps, self._signature, self._timed_layers = steps, signature, timed_layers
        self._costs, self._chip = costs, costs.model.chip
        self._known_places: dict[Hashable, PlannedRegion | None] = {}
        self._pitch = dram_alignment(self._chip)
        self._search_failed = False  # for places of other constants ahead: one that finds none takes long, and so would the next

    @cached_property
    def first(self) -> PlannedRegion:
        """The plan with the fullest prefetch that has a place without a search, if it takes fewer cycles, else the
        plan. It estimates `best`.
        """
        if self._steps.over or not self.may_gain:
            return self._plan
        tried = (self._find_place(self._dealt(_BLOCK_SHARES[0], share, _FEW), False) for share in _EASY)
        plan = next((plan for plan in tried if plan is not None), self._plan)
        return min(self._plan, plan, key=lambda plan: plan.cycles)

    @cached_property
    def may_gain(self) -> bool:
        """True where prefetches could save enough cycles to be worth a search."""
        return all(gain >= _LEAST_GAIN * self._plan.cycles for gain in self._most_gains())

    def best(self, worst: float = math.inf) -> PlannedRegion:
        """Return the plan with prefetches that takes fewest cycles, if that saves 1 %, else the plan itself.

        `worst`: the search ends where its first variant takes more cycles.
        """
        best = self._plan
        if not self.may_gain:
            return best
        for most in (_FEW, len(self._plan.layers)):
            plans = self._plans(most, worst)
            fastest = min(plans, key=lambda plan: plan.cycles, default=best)
            if fastest.cycles < (1 - _LEAST_GAIN) * best.cycles:
                best = fastest
            if all(_count_served(plan.layers) < most for plan in plans) or fastest.cycles > worst:
                break  # more would be served by none, or in vain
        return best

    def _plans(self, most: int, worst: float) -> list[PlannedRegion]:
        """Return the variants that have a place. `most`: layers that one layer may fetch for."""
        plans: list[PlannedRegion] = []
        for least in _BLOCK_SHARES:
            if plans and plans[0].cycles > worst:
                break
            for share, searched in () if self._steps.over else _USABLE:
                plan = self._find_place(self._dealt(least, share, most), searched)
                if plan is not None:
                    plans.append(plan)
                    break
        return plans

    def _find_place(self, dealt: Sequence[PlannedLayer], searched: bool) -> PlannedRegion | None:
        """Return the plan with these layers and new addresses, or None where they have no place; results are
        remembered.
        """
        parts = ((i, len(part.blocks), part.since) for i, planned in enumerate(dealt) for part in planned.fetches)
        key = searched, *parts
        if key not in self._known_places:
            self._known_places[key] = self._place(dealt, searched and not self._search_failed)
            self._search_failed |= searched and self._known_places[key] is None
        return self._known_places[key]

    def _most_gains(self) -> Iterator[float]:
        """Yield two upper bounds of the cycles gained if no layer waits for its constants.

        The first times each layer alone. The second times them together: neighbours hide a part of the waits, and other
        addresses may gain more.
        """
        yield sum(max(0.0, self._plan_cycles(i) - cost.plan.cycles) for i, cost in self._costs_by_layer.items())
        constants = {i: cost.constants for i, cost in self._costs_by_layer.items()}
        yield _BY_ADDRESSES * (self._plan.cycles - self._costs.cycles(self._plan, constants))

    def _plan_cycles(self, index: int) -> float:
        """Return the cycles of a layer alone in the plan; 0 for data movement."""
        tiled = self._plan.layers[index]
        return tiled.cycles if isinstance(tiled, TiledLayer) else 0.0

    @cached_property
    def _costs_by_layer(self) -> dict[int, PreloadedCost]:
        """The layers whose constants can be prefetched, and that can prefetch for others."""
        others = {i for c in self._plan.cascades for i in c.indices}.union(self._shared)
        alone = (i for i in range(len(self._plan.layers)) if i not in others)
        plan, model = self._plan, self._costs.model
        costs = ((i, with_constants_there(plan, i, model, self._signature(i), self._timed_layers)) for i in alone)
        return {i: cost for i, cost in costs if cost is not None}

    def _room(self, share: float) -> _Bytes:
        """Return the free bytes while each layer runs, by memory, in this share of it."""
        return {s: int(share * self._sizes[s]) - used for s, used in self._used.items()}

    @cached_property
    def _used(self) -> _Bytes:
        """The live bytes while each layer runs, by memory that constants are read in."""
        return {
            s: np.array(self._used_bytes(s), np.int64)
            for s in sorted({cost.constants.space for cost in self._costs_by_layer.values()})
        }

    def _find_roomy_layers(self, room: _Bytes) -> set[int]:
        """Return the layers for all of whose constants there is room while they run."""
        return {i for i, cost in self._costs_by_layer.items() if cost.grows_bytes <= room[cost.constants.space][i]}

    @cached_property
    def _cut_short(self) -> bool:
        """True where some layer has more constants than there is room for."""
        return len(self._find_roomy_layers(self._room(1.0))) < len(self._costs_by_layer)

    def _dealt(self, least: float, share: float, most: int) -> list[PlannedLayer]:
        """Return the layers with prefetches, as far as there is room in this share of the memories.

        A layer fetches by itself, after the loads of its tiles, what others have not fetched by its beginning. Where a
        layer has more constants than all of the room, its first are prefetched, and the others pass through its tile
        buffers. `least`: share of a block that idle cycles must hold. `most`: layers that one layer may fetch for.
        """
        room = self._room(share)
        complete = self._find_roomy_layers(room)
        owners = sorted(self._costs_by_layer if self._cut_short else complete)
        waiting = {i: deque(self._costs_by_layer[i].constants.blocks) for i in owners}
        dealt = _DealtBlocks(room, complete, {i: blocks for i, blocks in waiting.items() if blocks})
        idle = 0.0
        for at in sorted(self._costs_by_layer):
            dealt.fetch_rest(at)
            overrun = min(0.0, idle)  # of the last block that an earlier layer fetches
            idle = _FILLED * self._idle_cycles(at, dealt.fetched.get(at, ())) + overrun
            idle = self._fill(dealt, at, idle, least, most)
        return [self._add_fetches(i, p, dealt.fetched.get(i, ())) for i, p in enumerate(self._plan.layers)]

    def _fill(self, dealt: _DealtBlocks, at: int, idle: float, least: float, most: int) -> float:
        """Let one layer fetch blocks for others, and return what is left of its idle cycles.

        It is below 0 where the last block takes cycles of the next layer. `least`: share of a block that idle cycles
        must hold. `most`: layers that one layer may fetch for.
        """
        full: set[int] = set()  # owners whose next constant finds no room
        served: set[int] = set()  # owners some of whose constants are fetched here
        for owner, block in dealt.iterate_waiting():
            if owner in full:
                continue
            cycles = self._block_cycles(block)
            if idle < least * cycles or (owner not in served and len(served) == most):
                break
            if dealt.fetch(at, owner, self._costs_by_layer[owner], round_up(block.size_bytes, self._pitch)):
                served.add(owner)
                idle -= cycles
            elif owner in dealt.complete:
                break
            else:
                full.add(owner)
        return idle

    def _idle_cycles(self, index: int, fetched: Sequence[int]) -> float:
        """Return the idle cycles of the load channel. `fetched`: the layer that fetches each of its first constants."""
        cost = self._costs_by_layer[index]
        fetched_before = sum(since < index for since in fetched)
        load_cycles = sum(self._block_cycles(b) for b in islice(cost.constants.blocks, fetched_before, None))
        return max(cost.plan.cycles, cost.moved_cycles + load_cycles) - cost.moved_cycles - load_cycles

    def _block_cycles(self, block: ConstantBlock) -> float:
        """Return the cycles in which DRAM delivers a block."""
        return block.size_bytes / self._chip.dram.read_bytes_per_cycle

    def _add_fetches(self, index: int, planned: PlannedLayer, fetched: Sequence[int]) -> PlannedLayer:
        """Return a layer with prefetches. `fetched`: the layer that fetches each of its first constants, in order."""
        if not fetched:
            return planned
        cost = self._costs_by_layer[index]
        layers = self._plan.layers
        cuts = ((Prefetch(len(list(of)), layers[since].name), since) for since, of in groupby(fetched))
        parts = split_constants(cost.constants, cuts, self._pitch)
        return replace(planned if len(fetched) < len(cost.constants.blocks) else cost.plan, fetches=parts)


def _count_served(layers: Sequence[PlannedLayer]) -> int:
    """Return the most layers for which one layer fetches constants."""
    fetching = Counter(since for planned in layers for since in {part.since for part in planned.fetches})
    return max(fetching.values(), default=0)
