"""Constants that are fetched while layers before theirs run, so that the channel that loads works where it would wait.

Layer by layer the cycles in which the loads have nothing to do are filled with constants of the layers behind it, in the order of
their first use, as far as there is room from then to the end of their layer. What a layer fetches so for others is cut into equal
pieces, one behind the loads of each of its works. A plan is taken only where it takes fewer cycles as a whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, islice

from toolchain.machine import Space
from toolchain.ops.kit.tile import Block, aligned
from toolchain.schedule.areas import Area
from toolchain.schedule.copies import dram_alignment
from toolchain.schedule.cost import CostModel
from toolchain.schedule.parts import constants_of, parts_of
from toolchain.schedule.plan import RegionPlan
from toolchain.schedule.staging import PlannedLayer, Slot, staging_bytes
from toolchain.schedule.units import turn
from toolchain.schedule.visits import visited_works
from toolchain.schedule.walk import Walk

_FILLED = (0.95, 0.75)  # shares of the time in which the loads have nothing to do
_USABLE = (1.0, 0.93)  # shares of the SRAM: not all that fits by its bytes can be placed
_LEAST_GAIN = 0.015  # of the cycles: less than that may be what is expected too much

Place = Callable[[Sequence[PlannedLayer]], RegionPlan | None]


@dataclass(frozen=True)
class _Layer:
    """What a layer asks for with its constants there: cycles from its first work to its last, of the busiest queue alone, and of
    the loads and stores that remain. constants: as `constants_of` has them; slots: of what else passes through."""

    constants: Mapping[Block, int]
    slots: tuple[Slot, ...]
    cycles: int
    busy_cycles: float
    moved_cycles: float


class Ahead:
    """For one plan, layer by layer or with layers in turns, which keep their constants as they are."""

    def __init__(self, plan: RegionPlan, taken: Sequence[int], model: CostModel, place: Place):
        """taken: bytes of the SRAM in use while each layer runs. place: gives addresses to the layers of the plan, changed."""
        self._plan, self._taken, self._model, self._chip, self._place = plan, taken, model, model.chip, place
        self._pitch = dram_alignment(model.chip)

    def best(self) -> RegionPlan:
        """The plan itself where nothing is gained."""
        best = self._plan
        if not self._worth_while():
            return best
        most = (1 - _LEAST_GAIN) * best.cycles
        for filled in _FILLED:
            for share in _USABLE:
                found = self._place(self._dealt(filled, int(share * self._chip.sram.size)))
                if found is not None:
                    best = found if found.cycles < (most if best is self._plan else best.cycles) else best
                    break
        return best

    def _worth_while(self) -> bool:
        waits = (self._plan_cycles(i) - known.cycles for i, known in self._known.items())
        return sum(max(0.0, w) for w in waits) > _LEAST_GAIN * self._plan.cycles

    def _plan_cycles(self, index: int) -> float:
        plan = self._plan.layers[index].plan
        return plan.cycles if plan is not None else 0.0

    @cached_property
    def _known(self) -> dict[int, _Layer]:
        """The layers whose constants can be fetched before and that can fetch some."""
        inside = {i for c in self._plan.cascades for i in c.layers}
        found = ((i, self._layer(p)) for i, p in enumerate(self._plan.layers) if i not in inside)
        return {i: known for i, known in found if known is not None}

    def _layer(self, planned: PlannedLayer) -> _Layer | None:
        plan, layer = planned.plan, planned.layer
        if plan is None or plan.ahead or self._pitch % self._chip.sram.alignment_bytes:
            return None
        constants = constants_of(layer, plan.tiling, plan.units)
        if constants is None:
            return None
        slots = tuple(s for s in plan.slots if not s.of_constants)
        here = Area(Space.SRAM, 0, 0, [])
        walk = Walk(self._model, self._plan.views, self._plan.residents)
        works = list(visited_works(layer.tiled.nest(layer, plan.tiling), turn(plan.units)))
        walk.works(layer, slots, plan.units, works, turn(plan.units), None, {block.key: here for block in constants})
        return _Layer(constants, slots, walk.cycles, walk.busy_cycles, walk.moved_cycles)

    def _dealt(self, filled: float, usable: int) -> list[PlannedLayer]:
        """The layers with their constants fetched ahead, as far as there is room in so many bytes of the SRAM. What is not there
        when a layer begins that others have fetched for, it fetches itself, behind the loads of its works."""
        free = [usable - taken for taken in self._taken]
        fitting = [i for i in sorted(self._known) if self._grows(i) <= free[i]]
        waiting = deque((i, block) for i in fitting for block in self._known[i].constants)
        fetched: dict[int, list[int]] = {}  # behind which layer each of the first constants of one is
        for at in sorted(self._known):
            while waiting and waiting[0][0] <= at:
                owner, _ = waiting.popleft()
                if owner in fetched:
                    fetched[owner].append(at)
            idle = filled * self._idle_cycles(at, fetched.get(at, ()))
            while waiting and idle > 0:
                owner, block = waiting[0]
                size = aligned(block.size_bytes, self._pitch)
                idle -= self._block_cycles(block)
                more = 0 if owner in fetched else self._grows(owner)
                if idle < 0 or free[owner] < more or any(free[step] < size for step in range(at, owner)):
                    break
                for step in range(at, owner):
                    free[step] -= size
                free[owner] -= more
                fetched.setdefault(owner, []).append(at)
                waiting.popleft()
        return [self._changed(i, p, fetched.get(i, ())) for i, p in enumerate(self._plan.layers)]

    def _grows(self, index: int) -> int:
        """Bytes of the SRAM that a layer takes more with all its constants there."""
        known, plan = self._known[index], self._plan.layers[index].plan
        assert plan is not None
        rings = plan.staging_bytes.get(Space.SRAM, 0) - staging_bytes(known.slots, self._chip).get(Space.SRAM, 0)
        return sum(aligned(b.size_bytes, self._pitch) for b in known.constants) - rings

    def _idle_cycles(self, index: int, fetched: Sequence[int]) -> float:
        """In which the channel that loads has nothing to do. fetched: behind which layer each of its first constants is."""
        known = self._known[index]
        there = sum(since < index for since in fetched)
        asked = sum(self._block_cycles(b) for b in islice(known.constants, there, None))
        return max(known.cycles, known.moved_cycles + asked) - known.moved_cycles - asked

    def _block_cycles(self, block: Block) -> float:
        return block.size_bytes / self._chip.dram.read_bytes_per_cycle

    def _changed(self, index: int, planned: PlannedLayer, fetched: Sequence[int]) -> PlannedLayer:
        if planned.plan is None or not fetched:
            return planned
        known = self._known[index]
        parts = parts_of(known.constants, ((len(list(own)), since) for since, own in groupby(fetched)), self._pitch)
        plan = replace(planned.plan, slots=known.slots, staging_bytes=staging_bytes(known.slots, self._chip), ahead=parts)
        return replace(planned, plan=replace(plan, cycles=known.cycles, busy_cycles=known.busy_cycles))
