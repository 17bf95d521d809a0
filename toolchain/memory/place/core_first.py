"""Place thousands of allocations: the fullest sections by the decision search, the rest around them by first fit.

Only few sections of a large instance come near its bound. The allocations that live there, the core, are few enough to search;
those that live elsewhere have room to spare. Where first fit leaves some above the target, the sections in which they live
join the core. A core that cannot be placed proves that nothing can. `placement` uses this above 3,000 allocations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from toolchain.memory.place.allocations import Allocation
from toolchain.memory.place.compiled_fit import Fitter
from toolchain.memory.place.greedy import NoRoom
from toolchain.memory.place.search import Decider, Plan
from toolchain.memory.place.window_search import improve_by_windows, make_columns

CORE_ITEMS = (400, 800, 1600, 3000)  # cores tried, small ones first
GROWTHS = 6  # times a core takes in sections where the rest found no room
HOPELESS = 0.02  # share of the items above the target at which other orders are not tried
BUMPS = 2  # times the items above the target are moved to the front of an order
CAP_A_SEARCH = 2  # nodes of the first search of a core, in times its items
# What counts as one node, so that a node takes about as long as in a small instance:
PAIRS_A_NODE = 150_000  # pairs of items first fit may have to compare
CORE_A_NODE = 256  # a node of the search, for so many items of the core
STEPS = (2, 3, 5, 7, 9)  # steps down from the best plan: these shares (2^-k) of the gap to the floor


class CoreFirst:
    """A large piece prepared once: its columns for first fit, its orders, and the best plan so far.

    `plan`: changed by `run` and what it calls.
    """

    def __init__(self, items: Sequence[Allocation], bound: int, effort: int) -> None:
        """Prepare the items. `bound`: proved lower bound of the peak, in bytes. `effort`: nodes that may be used."""
        self.items = items
        self.effort = effort
        self.plan = Plan(None, bound)
        self._fitter = Fitter(items)
        self._columns = make_columns(items)
        self._orders = large_orders(items)
        self._cap = CAP_A_SEARCH

    def run(self, target: int, minimize: bool) -> Plan:
        """Return the first plan whose peak is at most `target` bytes; where none is found, the best known.

        `minimize`: where the target is not met, also try targets between plan and target, while effort is left.
        The plan's `bases` are None where no order places all items, and its bound is raised where a core was refuted.
        """
        for order in self._orders:
            self._offer(self._fit(order, {}))
            if self.peak <= target or 4 * self.plan.nodes >= self.effort:
                break
        while self._lasts(target):
            before = self.plan.nodes
            self._decide(max(target, self.plan.bound_bytes))
            while minimize and self._lasts(target) and self._step_down(target):
                pass
            if self.plan.nodes == before:  # no core is small enough, and no target lies between plan and bound
                break
            self._cap *= 2
        return self.plan

    def _lasts(self, target: int) -> bool:
        """Return whether there is something left to gain, and effort left."""
        return self.plan.nodes < self.effort and self.peak > max(target, self.plan.bound_bytes)

    def _step_down(self, target: int) -> bool:
        """Try targets below the best plan, coarse steps first, windows before cores. Return True at the first success."""
        peak, floor = self.peak, max(target, self.plan.bound_bytes)
        goals = [peak - (peak - floor >> k) for k in STEPS]
        goals = [goal for goal in goals if floor < goal < peak] + [floor]
        return any(self._by_windows(goal) for goal in goals) or any(self._decide(goal) for goal in goals[:2])

    def _by_windows(self, target: int) -> bool:
        """Return whether windows bring the best plan down to the target; an improved plan is kept in any case."""
        if self.plan.bases is None or not self._fitter.plain or not self._lasts(target):
            return False
        bases, remaining_nodes = np.array(self.plan.bases, dtype=np.int64), self.effort - self.plan.nodes
        bases, nodes = improve_by_windows(self.items, self._columns, bases, target, remaining_nodes, self._cap // CAP_A_SEARCH)
        self.plan.nodes += nodes
        self._offer(bases)
        return self.peak <= target

    @property
    def peak(self) -> int:
        """Return the peak of the best plan in bytes, a value above every peak where there is none."""
        return self._peak_of(np.array(self.plan.bases)) if self.plan.bases is not None else 1 << 62

    def _peak_of(self, bases: np.ndarray) -> int:
        return int((bases + self._columns.size).max())

    def _offer(self, bases: np.ndarray | None) -> None:
        """Keep the plan of these bases where it is the best so far. None: no plan."""
        if bases is not None and self._peak_of(bases) < self.peak:
            self.plan.bases = bases.tolist()

    def _fit(self, order: np.ndarray, fixed: Mapping[int, int]) -> np.ndarray | None:
        """Return the bases by first fit in this order, None where that fails; its time is counted as nodes.

        `fixed`: item -> base, for those that keep theirs.
        """
        self.plan.nodes += len(order) ** 2 // PAIRS_A_NODE + 1
        try:
            return self._fitter.fit(order, fixed)
        except NoRoom:
            return None

    def _decide(self, target: int) -> bool:
        """Return whether a plan within the target is found. The best plan is kept, and the bound raised by a refuted core."""
        until = min(self.effort, self.plan.nodes + self.effort // 8)
        for most in CORE_ITEMS:
            core = self._fullest(most)
            for _ in range(GROWTHS):
                if not len(core) or len(core) > CORE_ITEMS[-1] or self.plan.nodes >= until:
                    break
                core_bases = self._place_core(core, target)
                if core_bases is None:
                    break
                failing = self._fit_rest(core_bases, target)
                if not len(failing):
                    return True
                core = np.union1d(core, self._live_at(failing))
            if self.plan.bound_bytes > target:
                break
        return False

    def _fullest(self, most: int) -> np.ndarray:
        """Return the items of the fullest sections: as many sections as have together at most `most` items."""
        chosen = np.zeros(len(self.items), dtype=bool)
        for section in np.argsort(-self._columns.live_bytes, kind="stable"):
            grown = chosen | self._columns.live_in(section, section + 1)
            if grown.sum() > most:
                break
            chosen = grown
        return np.nonzero(chosen)[0]

    def _live_at(self, failing: np.ndarray) -> np.ndarray:
        """Return the items live at the fullest section of each failing one."""
        chosen = np.zeros(len(self.items), dtype=bool)
        for n in failing:
            section = self._columns.fullest_section(n)
            chosen |= self._columns.live_in(section, section + 1)
        return np.nonzero(chosen)[0]

    def _place_core(self, core: np.ndarray, target: int) -> dict[int, int] | None:
        """Return item -> base of a core placed within the target; None where it is refuted or the effort ends.

        A refuted core raises the plan's bound.
        """
        places: list[int] = core.tolist()
        decider = Decider([self.items[n] for n in places])
        weight = 1 + len(core) // CORE_A_NODE
        remaining_nodes = (self.effort - self.plan.nodes) // weight
        verdict = decider.attempts(target, min(remaining_nodes, self._cap * (2 * len(core) + 200)))
        self.plan.nodes += max(verdict.nodes, 1) * weight
        if verdict.refuted:
            self.plan.bound_bytes = max(self.plan.bound_bytes, decider.next_peak(target))
        if verdict.bases is None:
            return None
        return dict(zip(places, verdict.bases))

    def _fit_rest(self, core: Mapping[int, int], target: int) -> np.ndarray:
        """Keep the best plan around the placed core. Return the items above the target in it; none: success."""
        fewest = np.array(sorted(core), dtype=np.int64)
        for order in self._orders:
            for _ in range(1 + BUMPS):
                bases = self._fit(order, core)
                if bases is None:
                    break
                self._offer(bases)
                above = np.nonzero(bases + self._columns.size > target)[0]
                if len(above) < len(fewest):
                    fewest = above
                if not len(above) or self.plan.nodes >= self.effort:
                    return fewest
                if len(above) > HOPELESS * len(self.items):
                    break
                order = np.concatenate([above, order[~np.isin(order, above)]])
            if len(fewest) > HOPELESS * len(self.items):
                break
        return fewest


def large_orders(items: Sequence[Allocation]) -> list[np.ndarray]:
    """Return orders for first fit, each the indices of all items as int64[n], best first by experience.

    Fixed items lead, then those with a highest address. Ties matter: equal sizes go by start.
    """
    start = np.array([item.start for item in items])
    end = np.array([item.end for item in items])
    size = np.array([item.size_bytes for item in items], dtype=np.int64)
    life = end - start
    fixed = np.array([not item.fixed for item in items])
    bound = np.array([item.high is None for item in items])
    return [np.lexsort((*keys[::-1], bound, fixed)) for keys in _keys(start, end, size, life)]


def _keys(start: np.ndarray, end: np.ndarray, size: np.ndarray, life: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield the sort keys of each order, the most important first."""
    yield (-size, start)
    yield (-size, -life, start)
    yield (-size, -end)
    yield (-(size**4.0 * life), start)
    yield (-life, -size, start)
    yield (-(size.astype(float) * life), -size, start)
