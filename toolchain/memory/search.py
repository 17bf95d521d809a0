"""The decision search over items: several rules in turn, effort in nodes doubling, so that no rule can get stuck."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import NamedTuple

import numpy as np

from toolchain.memory import kernel
from toolchain.memory.greedy import bank_between
from toolchain.memory.items import Item
from toolchain.memory.problem import NO_LIMIT, Problem, as_lists, build_problem, build_work, sections_of, unit_of

TOTAL_SIZE, TOTAL_LIFE, TOTAL_AREA = "total, size", "total, life, area", "total, area, life"


# Nodes x items below which the search runs uncompiled: loading numba takes as long as this (about half a second).
PLAIN_WORK = 300_000


class Strategy(NamedTuple):
    """How to rank the items, which section to branch at, in which order to try the candidates."""

    rank: str
    rule: int
    order: int


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


@dataclass(frozen=True)
class Verdict:
    """bases: a plan within the target. refuted: proved that there is none. Neither: the effort ran out."""

    bases: tuple[int, ...] | None
    refuted: bool
    nodes: int


@dataclass
class Plan:
    """The best known of one piece while it is worked on."""

    bases: list[int] | None
    bound_bytes: int
    nodes: int = 0


class Decider:
    """Items prepared once for many targets. Holds only what is derived from the items."""

    def __init__(self, items: Sequence[Item], compiled: bool | None = None) -> None:
        self.items = list(items)
        self.unit = unit_of(self.items)
        self.exact = all(len(item.parts) == 1 for item in items)
        self._compiled = compiled
        self._nodes = 0
        self._ranked: dict[str, tuple[list[int], Problem, Problem]] = {}

    def decide(self, target_bytes: int, strategy: Strategy, node_limit: int) -> Verdict:
        """Is there a plan with peak <= target_bytes?"""
        ranked, arrays, lists = self._problem(strategy.rank)
        problem = arrays
        work = build_work(problem)
        for i, n in enumerate(ranked):
            item = self.items[n]
            limit = target_bytes if item.high is None else min(target_bytes, item.high)
            top = (limit - item.size_bytes) // self.unit
            work.top[i] = min(top, item.low // self.unit) if item.fixed else top
        fast = compiled_kernel() if self._worth_compiling(node_limit) else None
        run: Callable[..., tuple[int, int]] = kernel.decide if fast is None else fast.decide
        if fast is None:
            problem, work = lists, as_lists(work)
        target = min(-(-target_bytes // self.unit), NO_LIMIT)
        found, nodes = run(problem, work, target, node_limit, strategy.rule, strategy.order)
        self._nodes += int(nodes)
        if found != kernel.FOUND:
            return Verdict(None, bool(found == kernel.REFUTED and self.exact), int(nodes))
        bases = [0] * len(ranked)
        for i, n in enumerate(ranked):
            bases[n] = int(work.address[i]) * self.unit
        return Verdict(tuple(bases), False, int(nodes))

    def attempts(self, target_bytes: int, node_limit: int) -> Verdict:
        """Every strategy in turn, with a node cap that doubles, until one decides or the nodes are used up."""
        return self._run(target_bytes, node_limit, _doubling(2 * len(self.items) + 200))

    def sweep(self, target_bytes: int, node_limit: int, cap: int) -> Verdict:
        """All strategies once, each with at most `cap` nodes."""
        return self._run(target_bytes, node_limit, ((strategy, cap) for strategy in ALL_STRATEGIES))

    def next_peak(self, refuted_bytes: int) -> int:
        """The smallest peak above a refuted one that some item could reach."""
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
        return _loaded() or (self._nodes + node_limit) * len(self.items) > PLAIN_WORK

    def _problem(self, rank: str) -> tuple[list[int], Problem, Problem]:
        if rank not in self._ranked:
            order = _rank(self.items, rank)
            items = [self.items[n] for n in order]
            problem = build_problem(items, self.unit, _banks(items))
            self._ranked[rank] = (order, problem, as_lists(problem))
        return self._ranked[rank]


def _loaded() -> bool:
    return compiled_kernel.cache_info().currsize > 0


def _doubling(cap: int) -> Iterator[tuple[Strategy, int]]:
    while True:
        for strategy in STRATEGIES:
            yield strategy, cap
        cap *= 2


def _rank(items: Sequence[Item], rank: str) -> list[int]:
    first, last, sections = sections_of(items)
    total = np.zeros(sections, dtype=np.int64)
    for n, item in enumerate(items):
        total[first[n] : last[n]] += item.size_bytes
    most = [int(total[first[n] : last[n]].max()) for n in range(len(items))]

    def key(n: int) -> tuple[int, ...]:
        life, size = items[n].end - items[n].start, items[n].size_bytes
        if rank == TOTAL_SIZE:
            return (-most[n], -size, -life, n)
        if rank == TOTAL_LIFE:
            return (-most[n], -life, -life * size, n)
        return (-most[n], -life * size, -life, n)

    return sorted(range(len(items)), key=key)


def _banks(items: Sequence[Item]) -> dict[tuple[int, int], int]:
    banked = [n for n, item in enumerate(items) if item.apart]
    out = {}
    for a in banked:
        for b in range(len(items)):
            bank = bank_between(items[a], items[b]) if a != b else 0
            if bank:
                out[a, b] = out[b, a] = bank
    return out


@cache
def compiled_kernel() -> ModuleType | None:
    """The kernel compiled by numba, where the extra `fast` is installed; its functions are compiled on first use."""
    if importlib.util.find_spec("numba") is None:
        return None
    import numba  # pyright: ignore[reportMissingImports]

    # A second instance of the module, so that the plain one stays callable from Python.
    spec = importlib.util.find_spec(kernel.__name__)
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in kernel.COMPILED:
        setattr(module, name, numba.njit(cache=True)(getattr(module, name)))
    return module
