"""Proves whether two programs order their accesses alike, by all ways through a graph, without the simulator's clocks.

bench/mutate_programs.py judges mutants by it.
"""

from __future__ import annotations

from collections.abc import Iterator

from program_mutations import Program

from toolchain.hw.chip import Chip
from toolchain.machine import Access, End, MachineOp, Signal, Wait, accesses, overlap

Place = tuple[int | None, int]  # engine, and how many operations of work ran there before


class Ordered:
    """The pairs of operations of a correct program whose order matters, and the test of other programs by them."""

    def __init__(self, chip: Chip, original: Program):
        self._chip, self._engine_ops = chip, _list_engine_ops(chip, original)
        self._conflicts = list(_conflicts(chip, original))

    def same(self, mutant: Program) -> bool:
        """Return whether the mutant is equivalent to the original.

        It has the same operations on each engine, orders them as the original does wherever bytes meet, and cannot block.
        It keeps every semaphore within its limit and at 0 at the end, one engine on each side.
        """
        if _list_engine_ops(self._chip, mutant) != self._engine_ops or not _semaphores_sound(mutant):
            return False
        before = _before(self._chip, mutant)
        if before is None or not _counts_hold(self._chip, mutant, before):
            return False
        place = {_key(self._chip, mutant, i): i for i, op in enumerate(mutant.ops) if not isinstance(op, Signal | Wait | End)}
        return all(before[place[second]] >> place[first] & 1 for first, second in self._conflicts)


def _key(chip: Chip, program: Program, index: int) -> Place:
    """Return an operation's engine, and how many operations other than signals and waits run there before it."""
    engine = program.ops[index].queue(chip)
    rank = sum(op.queue(chip) == engine and not isinstance(op, Signal | Wait) for op in program.ops[:index])
    return engine, rank


def _list_engine_ops(chip: Chip, program: Program) -> list[list[MachineOp]]:
    """Return the operations of each engine in order, without signals and waits."""
    queues: list[list[MachineOp]] = [[] for _ in chip.units]
    for op in program.ops:
        engine = op.queue(chip)
        if engine is not None and not isinstance(op, Signal | Wait):
            queues[engine].append(op)
    return queues


def _conflicts(chip: Chip, program: Program) -> Iterator[tuple[Place, Place]]:
    """Yield pairs of operations on two engines that touch a common byte, one writing, the earlier of the program first."""
    touched = [(i, op.queue(chip), accesses(op, chip)) for i, op in enumerate(program.ops)]
    keys = {i: _key(chip, program, i) for i, _, touches in touched if touches}
    for k, (j, engine, mine) in enumerate(touched):
        for i, other, theirs in touched[:k]:
            if other != engine and any(_meet(a, b) for a in mine for b in theirs):
                yield keys[i], keys[j]


def _meet(a: Access, b: Access) -> bool:
    """Return whether two accesses share a byte and one writes."""
    return a.space == b.space and (a.write or b.write) and a.address < b.end and b.address < a.end and overlap(a, b)


def _semaphores_sound(program: Program) -> bool:
    """Return whether every semaphore ends at 0 and has at most one engine that signals and one that waits."""
    ends: dict[int, tuple[set[int], set[int]]] = {}
    counts: dict[int, int] = {}
    for op in program.ops:
        if isinstance(op, Signal | Wait):
            waits = isinstance(op, Wait)
            ends.setdefault(op.semaphore, (set(), set()))[waits].add(op.engine)
            counts[op.semaphore] = counts.get(op.semaphore, 0) + (-1 if waits else 1)
    return not any(counts.values()) and all(len(side) <= 1 for sides in ends.values() for side in sides)


def _edges(chip: Chip, program: Program) -> list[list[int]]:
    """Return for each operation its direct predecessors: on its engine, and the Signal that a Wait takes."""
    last: dict[int, int] = {}
    signals: dict[int, list[int]] = {}
    for i, op in enumerate(program.ops):
        if isinstance(op, Signal):
            signals.setdefault(op.semaphore, []).append(i)
    waits_by_semaphore: dict[int, int] = {}
    edges: list[list[int]] = []
    for i, op in enumerate(program.ops):
        engine = op.queue(chip)
        predecessors = [] if engine is None or engine not in last else [last[engine]]
        if isinstance(op, Wait):
            k = waits_by_semaphore.get(op.semaphore, 0)
            waits_by_semaphore[op.semaphore] = k + 1
            predecessors.append(signals.get(op.semaphore, [])[k])
        if engine is not None:
            last[engine] = i
        edges.append(predecessors)
    return edges


def _before(chip: Chip, program: Program) -> list[int] | None:
    """Return for each operation the set (bits) of all that must have run before it; None where there is a cycle."""
    edges = _edges(chip, program)
    followers: list[list[int]] = [[] for _ in edges]
    for i, predecessors in enumerate(edges):
        for j in predecessors:
            followers[j].append(i)
    open_edges = [len(predecessors) for predecessors in edges]
    ready = [i for i, n in enumerate(open_edges) if n == 0]
    before, done = [0] * len(edges), 0
    while ready:
        i = ready.pop()
        done += 1
        for k in followers[i]:
            before[k] |= before[i] | 1 << i
            open_edges[k] -= 1
            if not open_edges[k]:
                ready.append(k)
    return before if done == len(edges) else None


def _counts_hold(chip: Chip, program: Program, before: list[int]) -> bool:
    """Return whether the Wait that makes room for each Signal has run before it."""
    signals: dict[int, list[int]] = {}
    waits: dict[int, list[int]] = {}
    for i, op in enumerate(program.ops):
        if isinstance(op, Signal | Wait):
            (signals if isinstance(op, Signal) else waits).setdefault(op.semaphore, []).append(i)
    limit = chip.sync.max_count
    pairs = ((late, waits[s][k]) for s, signal_ops in signals.items() for k, late in enumerate(signal_ops[limit:]))
    return all(before[late] >> wait & 1 for late, wait in pairs)
