"""Cut a region into single layers and cascades, and choose the tensors that lie in SRAM across each cut, by dynamic
programming.

`schedule.region_planner` uses it where tensors would be spilled. A state is a cut with the set of roots that lie in
SRAM there. Each cascade's cost is first bounded from below: by its layers with all tensors in SRAM, and by the bytes
that it must move. Cascades on the best path are then planned (`schedule.cascade`). This goes on until the best path of
planned ones is close to the bound.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

from toolchain.machine import Space
from toolchain.ops.kit.tile import halvings, round_up
from toolchain.schedule.cascade import CascadePlanner
from toolchain.schedule.equal_windows import Window
from toolchain.schedule.options import SearchSteps
from toolchain.schedule.plan import PlannedCascade, Storage
from toolchain.schedule.plan_cost import CostWeights
from toolchain.schedule.stripes import UNCUT, Sweep

_STATES = 12  # kept at a cut
_LONGEST = 12  # layers of a cascade
_CHOICES = 3  # roots of which it is open whether they stay in SRAM, at one cut
_HEIGHTS = 4  # of stripes that are planned for one cascade
_LITTLE_TRAFFIC = 0.02  # of its cycles: enough that of equal ways the one that moves least is taken
_BLOCKS, _HEIGHTS_OF_BLOCKS = 4, 3  # sizes of blocks of channels, and heights of each
_WIDTHS = 3  # of blocks of columns

Roots = frozenset[str]


@dataclass(frozen=True)
class GroupingBounds:
    """Facts about a region's layers by which cascades are bounded. A root is a tensor with storage of its own.

    `storages`: size and live range of each root. `ports`: roots of inputs and outputs, which stay in DRAM. `roots`:
    roots that each layer touches. `heights`: rows of its output. `layer_cycles`: returns the cost of a layer by itself,
    by index, resident roots and bytes of SRAM; None where it does not fit. `bytes_per_cycle`: of DRAM reads.
    `alignment_bytes`: of the SRAM. `open`: the layers that may join cascades: all of a small region, else those that
    run while some tensor is spilled. `settled`: roots in SRAM that none of those layers touches.
    """

    storages: Mapping[str, Storage]
    ports: Collection[str]
    roots: Sequence[Roots]
    heights: Sequence[int]
    layer_cycles: Callable[[int, Roots, int, CostWeights], float | None]
    bytes_per_cycle: float
    alignment_bytes: int
    open: frozenset[int]
    settled: Roots

    def size_bytes(self, roots: Collection[str]) -> int:
        """Return the bytes that these roots take of the SRAM."""
        return sum(round_up(self.storages[r].size_bytes, self.alignment_bytes) for r in roots)

    def count_moved_bytes(self, first: int, end: int, inside: Roots) -> int:
        """Return the bytes of the roots that layers first .. end - 1 touch outside `inside`, each counted once."""
        return sum(self.storages[r].size_bytes for r in self.list_roots(first, end) - inside)

    def list_roots(self, first: int, end: int) -> Roots:
        """Return the roots that layers first .. end - 1 touch."""
        return frozenset[str]().union(*self.roots[first:end])


class CascadeBounds:
    """Lower bounds of the cost of cascades, as costs are weighted by `by`.

    `usable`: bytes of SRAM that plans may use. Methods name layers first .. end - 1, and the roots that are resident.
    """

    def __init__(self, cascades: CascadePlanner, bounds: GroupingBounds, usable: int, by: CostWeights):
        self._cascades, self._bounds, self._usable, self._by = cascades, bounds, usable, by
        self._least: dict[tuple[int, int, Roots], tuple[float, int, int] | None] = {}
        self._inside: dict[int, float | None] = {}
        self._columns: dict[tuple[int, int, Roots, int], Mapping[int, float]] = {}

    def cycles(self, first: int, end: int, resident: Roots, room: int) -> float | None:
        """Return a lower bound of the cascade's cost in `room` bytes of SRAM.

        It is the larger of what its layers compute and what it moves. Constants that do not fit are moved once more for
        each stripe; in channel blocks each is moved once. Column blocks count where nothing else fits. None: it has no
        tensor for a rolling buffer, a layer does not fit, or its buffers never do.
        """
        fixed = self._get_fixed_part(first, end, resident)
        if fixed is None:
            return None
        cycles, moved, constants = fixed
        least = max(cycles, (moved + constants) / self._bounds.bytes_per_cycle)
        best: float | None = None
        total, blocks = self._bounds.heights[end - 1], self._cascades.blocks(first, end, resident)
        for height in halvings(total)[1:]:
            free = room - self._cascades.rows_bytes(first, end, height, resident)
            if free <= 0 and blocks and self._cascades.rows_bytes(first, end, height, resident, sweep=Sweep(blocks[-1])) < room:
                return least
            if free > 0:
                again = max(0, constants - free) * (-(-total // height) - 1)
                bound = max(cycles, (moved + constants + again) / self._bounds.bytes_per_cycle)
                if bound <= least:
                    return least
                best = bound if best is None else min(best, bound)
        return min(self.in_columns(first, end, resident, room).values(), default=None) if best is None else best

    def in_columns(self, first: int, end: int, resident: Roots, room: int) -> Mapping[int, float]:
        """Return lower bounds by width, of the widest column blocks whose stripes fit; empty where none does.

        Constants that do not fit are loaded once more for each stripe of each block.
        """
        key = first, end, resident, room
        if key not in self._columns:
            self._columns[key] = self._search_columns(first, end, resident, room)
        return self._columns[key]

    def _search_columns(self, first: int, end: int, resident: Roots, room: int) -> Mapping[int, float]:
        """Return what `in_columns` does, without its cache: the bounds of the first widths that fit, at most _WIDTHS."""
        fixed, bounds_of_columns = self._get_fixed_part(first, end, resident), dict[int, float]()
        if fixed is None:
            return bounds_of_columns
        (_, moved, constants), total = fixed, self._bounds.heights[end - 1]
        for columns in self._cascades.columns(first, end, resident):
            least = math.inf
            for height in halvings(total)[1:]:
                free = room - self._cascades.rows_bytes(first, end, height, resident, sweep=Sweep(columns=columns))
                if free > 0:
                    stripes = self._cascades.blocks_of(end, columns) * -(-total // height)
                    again = max(0, constants - free) * (stripes - 1)
                    least = min(least, (moved + constants + again) / self._bounds.bytes_per_cycle)
            if least < math.inf:
                bounds_of_columns[columns] = max(least, self._cycles_in_columns(first, end, columns))
            if len(bounds_of_columns) == _WIDTHS:
                break
        return bounds_of_columns

    def _cycles_in_columns(self, first: int, end: int, columns: int) -> float:
        """Return the least cost of these layers with all tensors in SRAM, columns at block borders computed again."""
        cycles_inside = (self._inside_cycles(i) or 0 for i in range(first, end))
        return sum(cycles * times for cycles, times in zip(cycles_inside, self._cascades.count_recomputed(first, end, columns)))

    def _inside_cycles(self, index: int) -> float | None:
        """Return the cost of a layer by itself with all of its tensors in SRAM; None where it does not fit."""
        if index not in self._inside:
            bounds = self._bounds
            self._inside[index] = bounds.layer_cycles(index, bounds.roots[index], self._usable, self._by)
        return self._inside[index]

    def _get_fixed_part(self, first: int, end: int, resident: Roots) -> tuple[float, int, int] | None:
        """Return (cost with all tensors in SRAM, tensor bytes that must move, constant bytes), which stripes do not
        change.

        None: it has no tensor for a rolling buffer, or a layer does not fit.
        """
        key = first, end, resident
        if key not in self._least:
            self._least[key] = self._measure_fixed_part(first, end, resident)
        return self._least[key]

    def _measure_fixed_part(self, first: int, end: int, resident: Roots) -> tuple[float, int, int] | None:
        """Return what `_get_fixed_part` does, without its cache."""
        bounds = self._bounds
        partial = set(self._cascades.map_inner_roots(first, end, resident).values())
        if not partial:
            return None
        total = 0.0
        for index in range(first, end):
            cycles = self._inside_cycles(index)
            if cycles is None:
                return None
            total += cycles
        moved = bounds.count_moved_bytes(first, end, resident.union(partial))
        return total, moved, sum(self._cascades.constant_bytes(i) for i in range(first, end))


class LayerGroup(NamedTuple):
    """Layers first .. end - 1 as one step of a path, with the roots that are resident meanwhile.

    `cascade`: their plan; None for a single layer.
    """

    first: int
    end: int
    resident: Roots
    cascade: PlannedCascade | None


class _Step(NamedTuple):
    """One layer or cascade on a path.

    `resident`: roots in SRAM while it runs, `resident_after`: of these, those that later layers need,
    `resident_touched`: those that it touches. `room`: bytes of SRAM beside the resident roots. `cycles`: of a single
    layer its cost, of a cascade a lower bound. `cost`: the same with the bytes that it moves. `key`: of the cascade in
    `CascadeCosts`.
    """

    first: int
    end: int
    resident: Roots
    resident_after: Roots
    resident_touched: Roots
    room: int
    cycles: float
    cost: float
    key: Window


class CascadeCost(NamedTuple):
    """A planned cascade, perhaps of equal layers, and its cost.

    `cascade`: None where only column blocks are left, which are not planned yet; the cost is then a lower bound.
    """

    cascade: PlannedCascade | None
    cost: float


CascadeCosts = dict[Window, dict[int, CascadeCost | None]]  # by room


class _State(NamedTuple):
    """The cheapest path to a state. `last`: the step from the state before; None at the beginning."""

    cost: float
    before: _State | None
    last: _Step | None

    @property
    def steps(self) -> list[_Step]:
        """The steps of the path, in order."""
        steps_back: list[_Step] = []
        state = self
        while state.before is not None and state.last is not None:
            steps_back.append(state.last)
            state = state.before
        return steps_back[::-1]


class GroupingSearch:
    """The search of the cheapest path through a region in so many bytes of SRAM."""

    def __init__(
        self,
        cascades: CascadePlanner,
        bounds: GroupingBounds,
        usable: int,
        others: Mapping[int, int],
        by: CostWeights,
        planned: CascadeCosts,
        steps: SearchSteps,
        byte: float | None = None,
    ):
        """Prepare a search.

        `usable`: bytes of SRAM. `others`: bytes of the other on-chip memories. `by`: weights by which plans are
        compared. `planned`: cascades of earlier searches; this one adds its own. `steps`: counter of the search steps.
        `byte`: cost of a moved byte. None: that of `by`, or a little where it has none, so that of equal paths the one
        of least traffic wins.
        """
        self.by, self._byte = by, byte or by.byte or _LITTLE_TRAFFIC / bounds.bytes_per_cycle
        self._cascades, self._bounds, self._usable, self._others = cascades, bounds, usable, others
        self._planned, self._search_steps = planned, steps
        self._steps_known: dict[tuple[int, Roots], list[_Step]] = {}
        self._costs: defaultdict[int, dict[tuple[Roots, bool], list[tuple[_Step, float]]]] = defaultdict(dict)  # by first layer
        self._least = CascadeBounds(cascades, bounds, usable, by)

    def room(self, resident: Roots, first: int, end: int) -> int:
        """Return the bytes of SRAM beside resident roots while layers first .. end - 1 run. Roots made in the place of
        others count once.
        """
        separate = resident.difference(self._cascades.in_place(first, end, resident))
        return self._usable - self._bounds.size_bytes(separate)

    def best(self, near: float, rounds: int) -> list[LayerGroup] | None:
        """Return the steps of the best path of planned cascades, or None where no path exists.

        Each round plans the cascades of the path of least lower bound. The search ends once the best path costs at most
        `near` times that bound, after so many `rounds`, or with the search steps.
        """
        for _ in range(rounds):
            path = self._path(only_planned=False)
            if path is None:
                return None
            best_path = self._path(only_planned=True)
            if self._search_steps.over or (best_path is not None and best_path.cost <= near * path.cost):
                break
            for step in path.steps:
                if step.end - step.first > 1 and not self._search_steps.over:
                    better = math.inf if best_path is None else step.cost + best_path.cost - path.cost
                    self._settle(step, better)
        return self.best_of_planned()

    def best_of_planned(self) -> list[LayerGroup] | None:
        """Return the steps of the best path whose cascades were planned earlier, or None."""
        path = self._path(only_planned=True)
        return None if path is None else [self._make_group(step) for step in path.steps]

    def _find_planned_cascade(self, step: _Step) -> tuple[int | None, CascadeCost | None]:
        """Return (room, cascade) that was planned for the step's room or the next larger one; (None, None) where none
        was tried.
        """
        by_room = self._planned.get(step.key)
        if by_room is None:
            return None, None
        room = step.room if step.room in by_room else min((r for r in by_room if r >= step.room), default=None)
        return room, None if room is None else by_room[room]

    def _worth(self, step: _Step, only_planned: bool) -> float | None:
        """Return the cost of a step, a lower bound where it is not planned; None where it cannot be planned."""
        if step.end - step.first == 1:
            return step.cost
        room, planned = self._find_planned_cascade(step)
        if room is None:
            return None if only_planned else step.cost
        if planned is None:
            return None
        if planned.cascade is not None and room == step.room:
            return self._cost(planned.cascade)
        return None if only_planned else max(step.cost, planned.cost)

    def _make_group(self, step: _Step) -> LayerGroup:
        """Return the step as layers with their cascade, None for a single layer."""
        planned = self._planned.get(step.key, {}).get(step.room)
        cascade = None if planned is None else planned.cascade
        named = cascade and self._cascades.give_names(cascade, step.first, step.resident_touched)
        return LayerGroup(step.first, step.end, step.resident, named)

    @cached_property
    def _count(self) -> int:
        return len(self._bounds.roots)

    @cached_property
    def _ends(self) -> list[int]:
        """The furthest end of a cascade that begins with each layer."""
        cut = [i in self._bounds.open and self._cascades.can_be_cut(i) for i in range(self._count)]
        ends = [next((i for i in range(at, self._count) if not cut[i]), self._count) for at in range(self._count)]
        return [min(end, at + _LONGEST) for at, end in enumerate(ends)]

    def _path(self, only_planned: bool) -> _State | None:
        """Return the end of the cheapest path, or None. With `only_planned`, cascades without a plan are left out; else
        their bound counts.
        """
        states: list[dict[Roots, _State]] = [{} for _ in range(self._count + 1)]
        states[0][frozenset()] = _State(0, None, None)
        for at in range(self._count):
            for live, state in sorted(states[at].items(), key=lambda s: s[1].cost)[:_STATES]:
                for step, step_cost in self._steps_with_costs(at, live, only_planned):
                    next_states, cost = states[step.end], state.cost + step_cost
                    old = next_states.get(step.resident_after)
                    if old is None or cost < old.cost:
                        next_states[step.resident_after] = _State(cost, state, step)
        return min(states[-1].values(), key=lambda s: s.cost, default=None)

    def _steps_with_costs(self, at: int, live: Roots, only_planned: bool) -> list[tuple[_Step, float]]:
        """Return the possible steps from a state, with their costs."""
        costs = self._costs[at].get((live, only_planned))
        if costs is None:
            worth = ((step, self._worth(step, only_planned)) for step in self._steps(at, live))
            costs = self._costs[at][live, only_planned] = [(step, cost) for step, cost in worth if cost is not None]
        return costs

    def _steps(self, at: int, live: Roots) -> list[_Step]:
        """Return the possible steps from a state; they are computed once."""
        key = at, live
        if key not in self._steps_known:
            self._steps_known[key] = list(self._possible(at, live))
        return self._steps_known[key]

    def _possible(self, at: int, live: Roots) -> Iterator[_Step]:
        """Yield the layers and cascades that may begin at layer `at` with these roots in SRAM, with their lower bounds."""
        for end in (at + 1, *range(at + 2, self._ends[at] + 1)):
            for resident in self._choices(at, end, live):
                room = self.room(resident, at, end)
                touched = resident & self._bounds.list_roots(at, end)
                cycles = (
                    self._bounds.layer_cycles(at, touched, room, self.by)
                    if end == at + 1
                    else self._least.cycles(at, end, touched, room)
                )
                if cycles is not None:
                    remaining = frozenset(r for r in resident if self._bounds.storages[r].end > end)
                    partial = self._cascades.map_inner_roots(at, end, touched).values() if end > at + 1 else ()
                    counted = end == at + 1 and self.by.byte > 0
                    moved = 0 if counted else self._bounds.count_moved_bytes(at, end, touched.union(partial))
                    yield _Step(
                        at, end, resident, remaining, touched, room, cycles, cycles + self._byte * moved, Window(at, end, touched)
                    )

    def _choices(self, first: int, end: int, live: Roots) -> Iterator[Roots]:
        """Yield the sets of roots that may lie in SRAM while layers first .. end - 1 run.

        They are the live ones, settled outputs, and any of the _CHOICES smallest other outputs. Outputs of a cascade
        are those that later layers read.
        """
        storages = self._bounds.storages
        outputs = [
            r
            for r in sorted(self._bounds.list_roots(first, end) - frozenset(self._bounds.ports) - live)
            if first <= storages[r].start and (storages[r].end > end or end - first == 1)
        ]
        settled = self._bounds.settled.intersection(outputs)
        outputs = sorted(settled.symmetric_difference(outputs), key=lambda r: storages[r].size_bytes)[:_CHOICES]
        for n in range(len(outputs) + 1):
            for some in combinations(outputs, n):
                chosen = live.union(settled, some)
                if self.room(chosen, first, end) > 0:
                    yield chosen

    def _settle(self, step: _Step, better: float) -> None:
        """Plan the cascade of a step for its room, and remember the plan, or that there is none.

        Stripes of rows and channel blocks are planned at the first call. Where none of them fits, column blocks are
        bounded; they take longest to plan. They are planned at once where the bound is at most the step's cost, else at
        the next call. Those whose bound is `better` or more are left out.
        """
        by_room = self._planned.setdefault(step.key, {})
        self._costs.pop(step.first, None)
        if step.room not in by_room:
            by_room[step.room] = planned = self._in_rows(step) or self._least_in_columns(step)
            if planned is not None and planned.cost > step.cost:
                return
        planned = by_room[step.room]
        if planned is not None and planned.cascade is None:
            by_room[step.room] = self._cheapest(self._in_columns(step, better))

    def _in_rows(self, step: _Step) -> CascadeCost | None:
        """Return the cheapest plan of stripes of rows and of channel blocks, or None."""
        cascades = self._highest(step, UNCUT, _HEIGHTS)
        for channels in self._cascades.blocks(step.first, step.end, step.resident_touched)[:_BLOCKS]:
            for stay in (False, True):
                cascades += self._highest(step, Sweep(channels), _HEIGHTS_OF_BLOCKS, stay)
        return self._cheapest(cascades)

    def _cheapest(self, cascades: Sequence[PlannedCascade]) -> CascadeCost | None:
        """Return the cascade of least cost, or None where there is none."""
        return min((CascadeCost(f, self._cost(f)) for f in cascades), key=lambda f: f.cost, default=None)

    def _least_in_columns(self, step: _Step) -> CascadeCost | None:
        """Return the lower bound of all column blocks; None where there are none."""
        bounds = self._least.in_columns(step.first, step.end, step.resident_touched, step.room)
        return CascadeCost(None, min(bounds.values()) + step.cost - step.cycles) if bounds else None

    def _in_columns(self, step: _Step, better: float) -> list[PlannedCascade]:
        """Return plans of the widest column blocks that could cost less than `better` in spite of what they compute
        again.
        """
        cascades: list[PlannedCascade] = []
        better -= step.cost - step.cycles  # what it moves
        for columns, least in self._least.in_columns(step.first, step.end, step.resident_touched, step.room).items():
            if least < better and all(least < planned.layers[-1].cycles for planned in cascades):
                cascades += self._highest(step, Sweep(columns=columns), 1)
        return cascades

    def _cost(self, planned: PlannedCascade) -> float:
        """Return the cost of a planned cascade, with the bytes that it moves."""
        return self.by(planned.layers[-1]) + self._byte * planned.moved_bytes

    def _highest(self, step: _Step, sweep: Sweep, most: int, stay: bool = False) -> list[PlannedCascade]:
        """Return plans with the highest stripes that fit, `most` at most. `stay`: inputs are loaded once for all blocks
        of channels.
        """
        room = {**self._others, int(Space.SRAM): step.room}
        cascades: list[PlannedCascade] = []
        heights = halvings(self._bounds.heights[step.end - 1])[1:]
        if not heights or not self._cascades.could_fit(step.first, step.end, heights[-1], step.resident_touched, room, sweep):
            return cascades
        for height in heights:
            self._search_steps.take("plan cascades", step.end, self._count)
            planned = self._cascades.plan(step.first, step.end, height, step.resident_touched, room, sweep, stay)
            cascades += [planned] if planned is not None else []
            if len(cascades) >= most:
                break
        return cascades
