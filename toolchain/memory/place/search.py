"""Decide whether allocations can be placed within a target, by the kernel's search under several strategies.

No strategy is best for all instances, so they take turns with an effort in nodes that doubles, and none can get stuck.
`Decider` is the entry, for `placement`, `core_first` and `window_search`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import ModuleType
from typing import NamedTuple
from zlib import crc32

import numpy as np

from toolchain.memory.place import kernel
from toolchain.memory.place.allocations import Allocation
from toolchain.memory.place.greedy import bank_between
from toolchain.memory.place.numba_support import compiler
from toolchain.memory.place.problem import (
    NO_LIMIT,
    Column,
    Problem,
    build_problem,
    build_work,
    problem_as_lists,
    sections_of,
    state_as_lists,
    unit_of,
)

TOTAL_SIZE, TOTAL_LIFE, TOTAL_AREA = "total, size", "total, life, area", "total, area, life"


# Nodes x items below which the search runs uncompiled: loading numba takes as long as this (about half a second).
PLAIN_WORK = 300_000


class Strategy(NamedTuple):
    """A choice of item ranking (`rank`), of the section to branch at (`rule`) and of the order of candidates (`order`).

    `rank`: one of TOTAL_SIZE, TOTAL_LIFE, TOTAL_AREA; `rule` and `order` are numbers of `kernel`.
    `mirrored`: time runs backwards: other ties, and pieces are worked on in the opposite order.
    `jitter`: 0: none. Otherwise a seed by which ranks change by up to 1 % (even) or 3 % (odd).
    """

    rank: str
    rule: int
    order: int
    mirrored: bool = False
    jitter: int = 0


# Measured on MiniMalloc's A to K: what solves most of them first comes first.
STRATEGIES = (
    Strategy(TOTAL_SIZE, kernel.FULLEST, kernel.BY_RANK),
    Strategy(TOTAL_SIZE, kernel.LOWEST, kernel.BY_RANK),
    Strategy(TOTAL_LIFE, kernel.LOW_AND_TIGHT, kernel.BY_RANK),
    Strategy(TOTAL_SIZE, kernel.FULLEST, kernel.BY_NEED),
    Strategy(TOTAL_LIFE, kernel.LOWEST, kernel.BY_RANK),
    Strategy(TOTAL_AREA, kernel.FULLEST, kernel.BY_WASTE),
    Strategy(TOTAL_LIFE, kernel.LOW_TIGHT_FAILING, kernel.BY_RANK),
    Strategy(TOTAL_SIZE, kernel.LOWEST, kernel.BY_NEED),
    Strategy(TOTAL_AREA, kernel.LOW_AND_TIGHT, kernel.BY_NEED),
    Strategy(TOTAL_AREA, kernel.LOWEST, kernel.BY_RANK),
    Strategy(TOTAL_LIFE, kernel.FULLEST, kernel.BY_WASTE),
    Strategy(TOTAL_SIZE, kernel.LOW_TIGHT_FAILING, kernel.BY_WASTE),
    Strategy(TOTAL_AREA, kernel.LOW_TIGHT_FAILING, kernel.BY_WASTE),
    Strategy(TOTAL_LIFE, kernel.TIGHT_FAILING, kernel.BY_NEED),
    Strategy(TOTAL_SIZE, kernel.TIGHT_FAILING, kernel.BY_WASTE),
    Strategy(TOTAL_AREA, kernel.TIGHT_FAILING, kernel.BY_RANK),
)
ALL_STRATEGIES = STRATEGIES + tuple(
    strategy
    for rank in (TOTAL_SIZE, TOTAL_LIFE, TOTAL_AREA)
    for rule in range(kernel.TIGHT_FAILING + 1)
    for order in range(kernel.BY_WASTE + 1)
    if (strategy := Strategy(rank, rule, order)) not in STRATEGIES
)


def draw_strategy(k: int) -> Strategy:
    """Return the k-th strategy of an endless row, the same on every machine.

    Every strategy comes as it is and mirrored; later rounds jitter two times out of three.
    """
    lap, n = divmod(k, len(ALL_STRATEGIES))
    jitter = 0 if lap // 2 % 3 == 0 else k
    return ALL_STRATEGIES[n]._replace(mirrored=(lap + n) % 2 == 1, jitter=jitter)


@dataclass(frozen=True)
class Verdict:
    """An answer of the search. Without bases and not refuted, the effort ran out.

    `bases`: bytes, the base of each allocation in a plan within the target, or None.
    `refuted`: it is proved that there is no such plan.
    `nodes`: search nodes used.
    """

    bases: tuple[int, ...] | None
    refuted: bool
    nodes: int


@dataclass
class Plan:
    """The best known so far for one piece, changed while it is worked on.

    `bases`: bytes, the base of each allocation; None: no plan yet.
    `bound_bytes`: no plan has a smaller peak.
    `nodes`: search nodes used so far.
    `impossible`: it is proved that no plan exists, whatever the peak.
    """

    bases: list[int] | None
    bound_bytes: int
    nodes: int = 0
    impossible: bool = False


class Decider:
    """Allocations prepared once for many targets and strategies; it holds only what is derived from them.

    `unit`: bytes that all addresses in question are multiples of.
    `exact`: all are single rectangles. Otherwise hulls are placed, and nothing can be refuted.
    """

    def __init__(self, items: Sequence[Allocation], compiled: bool | None = None) -> None:
        """Prepare the allocations. `compiled`: whether numba runs the search; None: where the effort is worth loading it."""
        self.items = list(items)
        self.unit = unit_of(self.items)
        self.exact = all(len(item.parts) == 1 for item in items)
        self._compiled = compiled
        self._nodes = 0
        self._most = _most_live(self.items)
        self._ranked: dict[tuple[str, bool], tuple[list[int], Problem[Column]]] = {}
        self._lists: dict[tuple[str, bool], Problem[list[int]]] = {}

    def decide(self, target_bytes: int, strategy: Strategy, node_limit: int) -> Verdict:
        """Return whether one strategy finds a plan with peak <= target_bytes, or proves that there is none, in so many nodes.

        The verdict's bases are in the order of the allocations. The peak is the highest end of an allocation, in bytes from 0.
        """
        ranked, problem = self._problem(strategy)
        state = build_work(problem)
        for i, n in enumerate(ranked):
            item = self.items[n]
            limit = target_bytes if item.high is None else min(target_bytes, item.high)
            top = (limit - item.size_bytes) // self.unit
            state.top[i] = min(top, item.low // self.unit) if item.fixed else top
        fast = find_compiled_kernel() if self._worth_compiling(node_limit) else None
        target = min(-(-target_bytes // self.unit), NO_LIMIT)
        arguments = (target, node_limit, strategy.rule, strategy.order)
        if fast is None:
            lists = problem_as_lists(problem) if strategy.jitter else self._list_problem(strategy, problem)
            plain_state = state_as_lists(state)
            outcome, nodes = kernel.decide(lists, plain_state, *arguments)
            addresses = plain_state.address
        else:
            outcome, nodes = map(int, fast.decide(problem, state, *arguments))
            addresses: list[int] = state.address.tolist()
        self._nodes += nodes
        if outcome != kernel.PLACED:
            return Verdict(None, outcome == kernel.REFUTED and self.exact, nodes)
        bases = [0] * len(ranked)
        for i, n in enumerate(ranked):
            bases[n] = addresses[i] * self.unit
        return Verdict(tuple(bases), False, nodes)

    def attempts(self, target_bytes: int, node_limit: int) -> Verdict:
        """Return the first verdict that decides, or one without an answer where the nodes are used up.

        Strategies take turns, with a node cap that doubles.
        """
        return self._run(target_bytes, node_limit, _doubling(2 * len(self.items) + 200))

    def next_peak(self, refuted_bytes: int) -> int:
        """Return the smallest peak above a refuted one that any plan can have."""
        return min(refuted_bytes + 1 + (item.size_bytes - refuted_bytes - 1) % self.unit for item in self.items)

    def _run(self, target_bytes: int, node_limit: int, schedule: Iterable[tuple[Strategy, int]]) -> Verdict:
        used = 0
        for strategy, cap in schedule:
            cap = min(cap, node_limit - used)
            if cap <= 0:
                break
            verdict = self.decide(target_bytes, strategy, cap)
            used += verdict.nodes
            if verdict.bases is not None or verdict.refuted:
                return Verdict(verdict.bases, verdict.refuted, used)
            if verdict.nodes == 0:  # shapes the search cannot prove anything about
                break
        return Verdict(None, False, used)

    def _worth_compiling(self, node_limit: int) -> bool:
        if self._compiled is not None:
            return self._compiled
        return _is_kernel_loaded() or (self._nodes + node_limit) * len(self.items) > PLAIN_WORK

    def _problem(self, strategy: Strategy) -> tuple[list[int], Problem[Column]]:
        key = strategy.rank, strategy.mirrored
        if not strategy.jitter and key in self._ranked:
            return self._ranked[key]
        order = _rank(self.items, self._most, strategy)
        items = [self.items[n] for n in order]
        if strategy.mirrored:
            items = [replace(item, start=-item.end, end=-item.start) for item in items]
        problem = build_problem(items, self.unit, _banks(items))
        if not strategy.jitter:
            self._ranked[key] = order, problem
        return order, problem

    def _list_problem(self, strategy: Strategy, problem: Problem[Column]) -> Problem[list[int]]:
        key = strategy.rank, strategy.mirrored
        if key not in self._lists:
            self._lists[key] = problem_as_lists(problem)
        return self._lists[key]


def _is_kernel_loaded() -> bool:
    """Return whether numba was loaded for an earlier search of this process."""
    return find_compiled_kernel.cache_info().currsize > 0


def _doubling(cap: int) -> Iterator[tuple[Strategy, int]]:
    """Yield STRATEGIES again and again, with a node cap that doubles after each round."""
    while True:
        for strategy in STRATEGIES:
            yield strategy, cap
        cap *= 2


def _most_live(items: Sequence[Allocation]) -> list[int]:
    """Return for each item the largest sum of live bytes over its life."""
    first, last, sections = sections_of(items)
    total = np.zeros(sections, dtype=np.int64)
    for n, item in enumerate(items):
        total[first[n] : last[n]] += item.size_bytes
    return [int(total[first[n] : last[n]].max()) for n in range(len(items))]


def _rank(items: Sequence[Allocation], most: Sequence[int], strategy: Strategy) -> list[int]:
    """Return the indices of the allocations by rank. `most`: by allocation, the most live bytes during its life."""

    def key(n: int) -> tuple[int, ...]:
        life, size = items[n].end - items[n].start, items[n].size_bytes
        if strategy.rank == TOTAL_SIZE:
            return (-most[n], -_jitter(size, strategy.jitter), -life, n)
        if strategy.rank == TOTAL_LIFE:
            return (-most[n], -_jitter(life, strategy.jitter), -life * size, n)
        return (-most[n], -_jitter(life * size, strategy.jitter), -life, n)

    return sorted(range(len(items)), key=key)


def _jitter(value: int, seed: int) -> int:
    """Return about 1000 x the value, up to 1 % (even seeds) or 3 % (odd ones) off. Equal values stay equal; seed 0: exact."""
    if not seed:
        return 1000 * value
    most = 30 if seed % 2 else 10
    return value * (1000 - most + crc32(b"%d %d" % (seed, value)) % (2 * most + 1))


def _banks(items: Sequence[Allocation]) -> dict[tuple[int, int], int]:
    """Return (i, j) -> bytes of the banks of which allocations i and j may share none, in both orders of each pair."""
    banked = [n for n, item in enumerate(items) if item.must_not_share]
    out: dict[tuple[int, int], int] = {}
    for a in banked:
        for b in range(len(items)):
            bank = bank_between(items[a], items[b]) if a != b else 0
            if bank:
                out[a, b] = out[b, a] = bank
    return out


@cache
def find_compiled_kernel() -> ModuleType | None:
    """Return the kernel as a second module whose functions numba compiles on first use.

    None where the extra `fast` is not installed, or numba refuses.
    """
    compiled = compiler()
    # A second instance of the module, so that the plain one stays callable from Python.
    spec = importlib.util.find_spec(kernel.__name__)
    if compiled is None or spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module).update(_fall=module.fall_array, _pile=module.pile_array, _level=module.level_array)
    for name in kernel.COMPILED:
        setattr(module, name, compiled(getattr(module, name)))
    return module
