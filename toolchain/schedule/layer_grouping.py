"""Dynamic programming cuts a region into single layers and cascades, and keeps tensors in SRAM across each cut.

A state is the set of roots that lie in SRAM at a cut. The cost of a cascade is bounded from below first: by its layers with all
tensors in SRAM, and by the bytes that cross its ends. Cascades on the best path are planned, until the best path of planned ones
is as good as the bound.
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
from toolchain.schedule.cascade_candidates import PlannedCascade
from toolchain.schedule.plan import Storage
from toolchain.schedule.plan_cost import CostWeights
from toolchain.schedule.stripes import WHOLE, Sweep

_WIDTHS = 3  # of blocks of columns

Roots = frozenset[str]


@dataclass(frozen=True)
class GroupingBounds:
    """What a region's layers touch. roots: of each layer; heights: rows of its output. layer_cycles: of a layer by itself with
    these roots in SRAM, in so many bytes of it; None where it does not fit. open: layers that run while some tensor is spilled,
    layer by layer. settled: roots that lie in SRAM then, and none of those layers touches."""

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
        """In SRAM."""
        return sum(round_up(self.storages[r].size_bytes, self.alignment_bytes) for r in roots)

    def moved_bytes(self, first: int, end: int, inside: Roots) -> int:
        """Of what these layers touch and does not lie in SRAM, once."""
        return sum(self.storages[r].size_bytes for r in self.touched(first, end) - inside)

    def touched(self, first: int, end: int) -> Roots:
        """By these layers."""
        return frozenset().union(*self.roots[first:end])


class CascadeBounds:
    """Cycles that cascades of one region take at least, for so many bytes of SRAM; by: how plans are compared."""

    def __init__(self, cascades: CascadePlanner, bounds: GroupingBounds, usable: int, by: CostWeights):
        self._cascades, self._bounds, self._usable, self._by = cascades, bounds, usable, by
        self._least: dict[tuple[int, int, Roots], tuple[float, int, int] | None] = {}
        self._inside: dict[int, float | None] = {}
        self._columns: dict[tuple[int, int, Roots, int], Mapping[int, float]] = {}

    def cycles(self, first: int, end: int, own: Roots, room: int) -> float | None:
        """The cycles that a cascade takes at least: all that its layers compute, and all that it moves, constants that do not
        stay once more for each stripe. None where it keeps more than there is room for."""
        fixed = self._fixed(first, end, own)
        if fixed is None:
            return None
        cycles, moved, constants = fixed
        least = max(cycles, (moved + constants) / self._bounds.bytes_per_cycle)
        best: float | None = None
        total, blocks = self._bounds.heights[end - 1], self._cascades.blocks(first, end, own)
        for height in halvings(total)[1:]:
            free = room - self._cascades.rows_bytes(first, end, height, own)
            if free <= 0 and blocks and self._cascades.rows_bytes(first, end, height, own, sweep=Sweep(blocks[-1])) < room:
                return least
            if free > 0:
                again = max(0, constants - free) * (-(-total // height) - 1)
                found = max(cycles, (moved + constants + again) / self._bounds.bytes_per_cycle)
                if found <= least:
                    return least
                best = found if best is None else min(best, found)
        return min(self.in_columns(first, end, own, room).values(), default=None) if best is None else best

    def in_columns(self, first: int, end: int, own: Roots, room: int) -> Mapping[int, float]:
        """As `cycles`, of the widest blocks of columns of which stripes fit: constants that do not stay come once more for each
        stripe of each block."""
        key = first, end, own, room
        if key not in self._columns:
            self._columns[key] = self._found_in_columns(first, end, own, room)
        return self._columns[key]

    def _found_in_columns(self, first: int, end: int, own: Roots, room: int) -> Mapping[int, float]:
        fixed, found = self._fixed(first, end, own), dict[int, float]()
        if fixed is None:
            return found
        (_, moved, constants), total = fixed, self._bounds.heights[end - 1]
        for columns in self._cascades.columns(first, end, own):
            least = math.inf
            for height in halvings(total)[1:]:
                free = room - self._cascades.rows_bytes(first, end, height, own, sweep=Sweep(columns=columns))
                if free > 0:
                    stripes = self._cascades.blocks_of(end, columns) * -(-total // height)
                    again = max(0, constants - free) * (stripes - 1)
                    least = min(least, (moved + constants + again) / self._bounds.bytes_per_cycle)
            if least < math.inf:
                found[columns] = max(least, self._cycles_in_columns(first, end, columns))
            if len(found) == _WIDTHS:
                break
        return found

    def _cycles_in_columns(self, first: int, end: int, columns: int) -> float:
        """That these layers compute at least, with all in SRAM, in blocks of so many columns: what blocks share is made again."""
        found = (self._inside_cycles(i) or 0 for i in range(first, end))
        return sum(cycles * times for cycles, times in zip(found, self._cascades.made_again(first, end, columns)))

    def _inside_cycles(self, index: int) -> float | None:
        """Of a layer by itself, with all that it touches in SRAM."""
        if index not in self._inside:
            bounds = self._bounds
            self._inside[index] = bounds.layer_cycles(index, bounds.roots[index], self._usable, self._by)
        return self._inside[index]

    def _fixed(self, first: int, end: int, own: Roots) -> tuple[float, int, int] | None:
        """Of a cascade, whatever its stripes: cycles of its layers with all in SRAM, bytes of tensors that it moves, of
        constants; None where it keeps nothing."""
        key = first, end, own
        if key not in self._least:
            self._least[key] = self._found_fixed(first, end, own)
        return self._least[key]

    def _found_fixed(self, first: int, end: int, own: Roots) -> tuple[float, int, int] | None:
        bounds = self._bounds
        kept = set(self._cascades.kept(first, end, own).values())
        if not kept:
            return None
        total = 0.0
        for index in range(first, end):
            cycles = self._inside_cycles(index)
            if cycles is None:
                return None
            total += cycles
        moved = bounds.moved_bytes(first, end, own.union(kept))
        return total, moved, sum(self._cascades.constant_bytes(i) for i in range(first, end))


_STATES = 12  # kept at a cut
_LONGEST = 12  # layers of a cascade
_CHOICES = 3  # roots of which it is open whether they stay in SRAM, at one cut
_HEIGHTS = 4  # of stripes that are planned for one cascade
_LITTLE_TRAFFIC = 0.02  # of its cycles: enough that of equal ways the one that moves least is taken
_BLOCKS, _HEIGHTS_OF_BLOCKS = 4, 3  # sizes of blocks of channels, and heights of each

_Turns = tuple[int, int, Roots]  # layers [first, end) and what of theirs lies in SRAM whole


class LayerGroup(NamedTuple):
    """Layers [first, end) in one go, with these roots in SRAM; cascade: None for a layer by itself."""

    first: int
    end: int
    resident: Roots
    cascade: PlannedCascade | None


class _Step(NamedTuple):
    """cycles: at least; of a layer by itself exactly. cost: with what it moves. room: bytes of SRAM beside what is resident."""

    first: int
    end: int
    resident: Roots
    left: Roots  # in SRAM behind it
    own: Roots  # of the resident ones, which it touches
    room: int
    cycles: float
    cost: float
    key: _Turns


class _Found(NamedTuple):
    """cascade: None where none but of blocks of columns is left, which is not planned yet; cost: then at least."""

    cascade: PlannedCascade | None
    cost: float


Turns = dict[_Turns, dict[int, _Found | None]]  # by room


class _State(NamedTuple):
    """last: the step to it from the state before; None: where all begin."""

    cost: float
    before: _State | None
    last: _Step | None

    @property
    def steps(self) -> list[_Step]:
        found: list[_Step] = []
        state = self
        while state.before is not None and state.last is not None:
            found.append(state.last)
            state = state.before
        return found[::-1]


class GroupingSearch:
    """For so many bytes of SRAM; others: of the other memories; by: how plans are compared. Where bytes count nothing there, they
    do a little, so that of equal ways the one that moves least is taken. turns: what was planned for other numbers of bytes
    already, to which nothing else adds while these are searched."""

    def __init__(
        self,
        cascades: CascadePlanner,
        bounds: GroupingBounds,
        usable: int,
        others: Mapping[int, int],
        by: CostWeights,
        turns: Turns,
    ):
        self.by, self._byte = by, by.byte or _LITTLE_TRAFFIC / bounds.bytes_per_cycle
        self._cascades, self._bounds, self._usable, self._others = cascades, bounds, usable, others
        self._turns = turns
        self._known: dict[tuple[int, Roots], list[_Step]] = {}
        self._costs: defaultdict[int, dict[tuple[Roots, bool], list[tuple[_Step, float]]]] = defaultdict(dict)  # by first layer
        self._least = CascadeBounds(cascades, bounds, usable, by)

    def room(self, resident: Roots, first: int, end: int) -> int:
        """Bytes of SRAM beside these while layers [first, end) run, which make some of them in the place of others."""
        apart = resident.difference(self._cascades.in_place(first, end, resident))
        return self._usable - self._bounds.size_bytes(apart)

    def best(self, near: float, rounds: int) -> list[LayerGroup] | None:
        """That is at most so many times what any way takes at least, or the best that is known after so many paths. None where no
        way was found."""
        known: _State | None = None
        for _ in range(rounds):
            path = self._path(only_planned=False)
            if path is None:
                return None
            known = self._path(only_planned=True)
            if known is not None and known.cost <= near * path.cost:
                break
            for step in path.steps:
                if step.end - step.first > 1:
                    better = math.inf if known is None else step.cost + known.cost - path.cost
                    self._settle(step, better)
        return None if known is None else [self._cut(step) for step in known.steps]

    def _in_turns(self, step: _Step) -> tuple[int | None, _Found | None]:
        """What was planned for it, or for the least more room, and that room; None where nothing was tried."""
        by_room = self._turns.get(step.key)
        if by_room is None:
            return None, None
        room = step.room if step.room in by_room else min((r for r in by_room if r >= step.room), default=None)
        return room, None if room is None else by_room[room]

    def _worth(self, step: _Step, only_planned: bool) -> float | None:
        """What it costs, at least where it is not planned; None where it cannot be planned. More room never costs more."""
        if step.end - step.first == 1:
            return step.cost
        room, found = self._in_turns(step)
        if room is None:
            return None if only_planned else step.cost
        if found is None:
            return None
        if found.cascade is not None and room == step.room:
            return found.cost
        return None if only_planned else max(step.cost, found.cost)

    def _cut(self, step: _Step) -> LayerGroup:
        found = self._turns.get(step.key, {}).get(step.room)
        return LayerGroup(step.first, step.end, step.resident, None if found is None else found.cascade)

    @cached_property
    def _count(self) -> int:
        return len(self._bounds.roots)

    @cached_property
    def _ends(self) -> list[int]:
        """How far a cascade that begins with each layer could go."""
        cut = [i in self._bounds.open and self._cascades.can_be_cut(i) for i in range(self._count)]
        ends = [next((i for i in range(at, self._count) if not cut[i]), self._count) for at in range(self._count)]
        return [min(end, at + _LONGEST) for at, end in enumerate(ends)]

    def _path(self, only_planned: bool) -> _State | None:
        """That of least cost, of cascades that are not planned yet at least so much."""
        states: list[dict[Roots, _State]] = [{} for _ in range(self._count + 1)]
        states[0][frozenset()] = _State(0, None, None)
        for at in range(self._count):
            for live, state in sorted(states[at].items(), key=lambda s: s[1].cost)[:_STATES]:
                for step, own in self._steps_with_costs(at, live, only_planned):
                    behind, cost = states[step.end], state.cost + own
                    old = behind.get(step.left)
                    if old is None or cost < old.cost:
                        behind[step.left] = _State(cost, state, step)
        return min(states[-1].values(), key=lambda s: s.cost, default=None)

    def _steps_with_costs(self, at: int, live: Roots, only_planned: bool) -> list[tuple[_Step, float]]:
        """That can be planned, as far as it is known."""
        found = self._costs[at].get((live, only_planned))
        if found is None:
            worth = ((step, self._worth(step, only_planned)) for step in self._steps(at, live))
            found = self._costs[at][live, only_planned] = [(step, cost) for step, cost in worth if cost is not None]
        return found

    def _steps(self, at: int, live: Roots) -> list[_Step]:
        key = at, live
        if key not in self._known:
            self._known[key] = list(self._possible(at, live))
        return self._known[key]

    def _possible(self, at: int, live: Roots) -> Iterator[_Step]:
        for end in (at + 1, *range(at + 2, self._ends[at] + 1)):
            for resident in self._choices(at, end, live):
                room = self.room(resident, at, end)
                own = resident & self._bounds.touched(at, end)
                cycles = (
                    self._bounds.layer_cycles(at, own, room, self.by) if end == at + 1 else self._least.cycles(at, end, own, room)
                )
                if cycles is not None:
                    left = frozenset(r for r in resident if self._bounds.storages[r].end > end)
                    kept = self._cascades.kept(at, end, own).values() if end > at + 1 else ()
                    counted = end == at + 1 and self.by.byte > 0
                    moved = 0 if counted else self._bounds.moved_bytes(at, end, own.union(kept))
                    yield _Step(at, end, resident, left, own, room, cycles, cycles + self._byte * moved, (at, end, own))

    def _choices(self, first: int, end: int, live: Roots) -> Iterator[Roots]:
        """What may lie in SRAM while layers [first, end) run: what does already, and some of what they make for others."""
        storages = self._bounds.storages
        made = [
            r
            for r in sorted(self._bounds.touched(first, end) - frozenset(self._bounds.ports) - live)
            if first <= storages[r].start and (storages[r].end > end or end - first == 1)
        ]
        settled = self._bounds.settled.intersection(made)
        made = sorted(settled.symmetric_difference(made), key=lambda r: storages[r].size_bytes)[:_CHOICES]
        for n in range(len(made) + 1):
            for some in combinations(made, n):
                found = live.union(settled, some)
                if self.room(found, first, end) > 0:
                    yield found

    def _settle(self, step: _Step, better: float) -> None:
        """Plans a cascade, as far as it could cost less than `better`, which a way through it must that is better than what is
        known: blocks of columns, which take longest to plan, once nothing else fits and the best path still goes through it."""
        by_room = self._turns.setdefault(step.key, {})
        self._costs.pop(step.first, None)
        if step.room not in by_room:
            by_room[step.room] = found = self._in_rows(step) or self._least_in_columns(step)
            if found is not None and found.cost > step.cost:
                return
        found = by_room[step.room]
        if found is not None and found.cascade is None:
            by_room[step.room] = self._cheapest(self._in_columns(step, better))

    def _in_rows(self, step: _Step) -> _Found | None:
        """Stripes as high as fit, and some lower ones; those of blocks of channels."""
        found = self._highest(step, WHOLE, _HEIGHTS)
        for channels in self._cascades.blocks(step.first, step.end, step.own)[:_BLOCKS]:
            for stay in (False, True):
                found += self._highest(step, Sweep(channels), _HEIGHTS_OF_BLOCKS, stay)
        return self._cheapest(found)

    def _cheapest(self, found: Sequence[PlannedCascade]) -> _Found | None:
        return min((_Found(f, self._cost(f)) for f in found), key=lambda f: f.cost, default=None)

    def _least_in_columns(self, step: _Step) -> _Found | None:
        """What blocks of columns cost at least; None where there are none."""
        found = self._least.in_columns(step.first, step.end, step.own, step.room)
        return _Found(None, min(found.values()) + step.cost - step.cycles) if found else None

    def _in_columns(self, step: _Step, better: float) -> list[PlannedCascade]:
        """The highest stripes of each of the widest blocks that could be faster in spite of what they make again."""
        found: list[PlannedCascade] = []
        better -= step.cost - step.cycles  # what it moves
        for columns, least in self._least.in_columns(step.first, step.end, step.own, step.room).items():
            if least < better and all(least < planned.plan.cycles for planned in found):
                found += self._highest(step, Sweep(columns=columns), 1)
        return found

    def _cost(self, planned: PlannedCascade) -> float:
        return self.by(planned.plan) + self._byte * planned.moved_bytes

    def _highest(self, step: _Step, sweep: Sweep, most: int, stay: bool = False) -> list[PlannedCascade]:
        """The highest stripes that fit. stay: what is read is brought once for all blocks of channels."""
        room = {**self._others, int(Space.SRAM): step.room}
        found: list[PlannedCascade] = []
        heights = halvings(self._bounds.heights[step.end - 1])[1:]
        if not heights or not self._cascades.could_fit(step.first, step.end, heights[-1], step.own, room, sweep):
            return found
        for height in heights:
            planned = self._cascades.plan(step.first, step.end, height, step.own, room, sweep, stay)
            found += [planned] if planned is not None else []
            if len(found) >= most:
                break
        return found
