"""When each operation runs: in-order queues, semaphores, a front end, and memories that serve one request after another.

Every time is a maximum of sums of durations that shrink when anything gets faster (a max-plus system), so more bandwidth,
less latency or a faster front end never makes a program slower. That needs the order in which a memory serves the engines
to be fixed by the program and not by the race: fair sharing among whoever is active at a moment does not have this
property (`docs/simulator.md` shows a program that it slows down). The order is the one in which the operations would
start on a machine whose DMA keeps pace with its arithmetic, and depends on no bandwidth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from simulator.order import NO_ENGINE, Order, issue_cycles, queue_depths
from toolchain.hw.chip import Chip
from toolchain.machine import Demand, MachineOp, Signal, Space, Traffic, Wait, demand

BOUNDS = ("compute", "dispatch", "wait", "unknown")  # besides the memories, which follow
_COMPUTE, _DISPATCH, _WAIT, UNKNOWN_BOUND = range(len(BOUNDS))  # unknown: of times that were measured elsewhere


@dataclass(frozen=True)
class Timeline:
    """start, end: int64[op] cycles; bound: int8[op], index into `bounds`. End operations start and end at `cycles`."""

    start: np.ndarray
    end: np.ndarray
    bound: np.ndarray
    cycles: int
    busy_cycles: dict[str, int]
    bounds: tuple[str, ...]


def bound_names(chip: Chip) -> tuple[str, ...]:
    """What an operation's end can have waited for."""
    return (*BOUNDS, *(space.name for space in chip.spaces))


def demands(chip: Chip, ops: Sequence[MachineOp]) -> list[Demand]:
    return [demand(op, chip) for op in ops]


def timeline(
    chip: Chip, ops: Sequence[MachineOp], order: Order, wanted: Sequence[Demand], words: Sequence[int] | None
) -> Timeline:
    """Times of every operation. words: instruction words of each operation, which the front end reads (None: one each)."""
    costs = [chip.isa.word_cycles * n for n in words] if words is not None else [chip.isa.word_cycles] * len(ops)
    sweep = _Sweep(chip, order, [isinstance(op, Wait | Signal) for op in ops])
    start, end = sweep.unbounded(_balanced_cycles(chip, order, wanted))
    # A Wait counts from its end: that is when its Signal has run.
    keys = {i: end[i] if isinstance(ops[i], Wait) else start[i] for i in order.legal}
    sequence = sorted(order.legal, key=keys.__getitem__)  # stable: ties stay in legal order
    services = _services(chip, wanted)
    start, end, bound = sweep.served(sequence, costs, wanted, services)
    return _finished(chip, ops, order, start, end, bound)


def _balanced_cycles(chip: Chip, order: Order, wanted: Sequence[Demand]) -> list[int]:
    """Durations on a machine of unlimited memories, its DMA as fast as its busiest other unit needs over the whole program."""
    moves = [unit.kind == "dma" for unit in chip.units]
    arithmetic, moved = [0] * len(moves), 0
    for queue, d in zip(order.engine, wanted):
        if queue == NO_ENGINE or moves[queue]:
            moved += _moved(d)
        else:
            arithmetic[queue] += d.compute_cycles
    pace = max(arithmetic) / moved if moved else 0.0
    return [
        ceil(_moved(d) * pace) if queue == NO_ENGINE or moves[queue] else d.compute_cycles
        for queue, d in zip(order.engine, wanted)
    ]


def _moved(d: Demand) -> int:
    """Bytes at the memory that sees most of them: on the chip in whole bursts, as scattered runs cost them."""
    return max((_at_memory(t) for t in d.traffic), default=0)


def _at_memory(t: Traffic) -> int:
    return t.read_bytes + t.write_bytes if t.space == Space.DRAM else t.read_burst_bytes + t.write_burst_bytes


def _services(chip: Chip, wanted: Sequence[Demand]) -> list[tuple[tuple[int, int, int], ...]]:
    """For each operation (port, cycles, index into `bounds`) of each memory port it uses. Shared ports are one port."""
    ports: list[tuple[tuple[int, float], tuple[int, float]]] = []
    for i, memory in enumerate(space.memory for space in chip.spaces):
        read, write = memory.read_bytes_per_cycle, memory.write_bytes_per_cycle
        both = max(read, write)
        ports.append(((2 * i, both), (2 * i, both)) if memory.shared_ports else ((2 * i, read), (2 * i + 1, write)))
    found = []
    for d in wanted:
        used: list[tuple[int, int, int]] = []
        for t in d.traffic:
            (reader, read_rate), (writer, write_rate) = ports[t.space]
            if t.read_burst_bytes:
                used.append((reader, ceil(t.read_burst_bytes / read_rate), len(BOUNDS) + t.space))
            if t.write_burst_bytes:
                used.append((writer, ceil(t.write_burst_bytes / write_rate), len(BOUNDS) + t.space))
        found.append(tuple(used))
    return found


class _Sweep:
    """Passes over a program in an order that can run; each time is known when it is needed."""

    def __init__(self, chip: Chip, order: Order, sync: Sequence[bool]):
        self.order, self.issue, self.sync, self.ports = order, issue_cycles(chip), sync, 2 * len(chip.spaces)
        self.slot = _slots(order, queue_depths(chip))

    def unbounded(self, durations: Sequence[int]) -> tuple[list[int], list[int]]:
        """Start and end with memories of no limit and a front end that takes no time but stops at a full queue."""
        engine, taken, slot = self.order.engine, self.order.taken, self.slot
        count = len(engine)
        start, end = [0] * count, [0] * count
        free = [0] * len(self.order.names)
        front, dispatched = 0, 0
        dispatch = [0] * count
        for i in self.order.legal:
            while front <= i:
                at = slot[front]
                if at >= 0 and end[at] > dispatched:
                    dispatched = end[at]
                dispatch[front] = dispatched
                front += 1
            queue = engine[i]
            begin = max(free[queue], dispatch[i])
            done = begin + durations[i]
            if i in taken:
                done = max(done, end[taken[i]])
            start[i], end[i], free[queue] = begin, done, done
        return start, end

    def served(
        self,
        sequence: Sequence[int],
        costs: Sequence[float],
        wanted: Sequence[Demand],
        services: Sequence[tuple[tuple[int, int, int], ...]],
    ) -> tuple[list[int], list[int], list[int]]:
        """Start, end and bound, each memory port serving the operations in `sequence`."""
        engine, taken, slot, issue, sync = self.order.engine, self.order.taken, self.slot, self.issue, self.sync
        count = len(engine)
        start, end, bound = [0] * count, [0] * count, [0] * count
        free, port = [0] * len(self.order.names), [0] * self.ports
        front, fetched = 0, 0.0
        dispatch = [0] * count
        for i in sequence:
            while front <= i:
                at = slot[front]
                fetched += costs[front]
                if at >= 0 and end[at] > fetched:
                    fetched = float(end[at])
                dispatch[front] = ceil(fetched)
                front += 1
            queue = engine[i]
            idle = free[queue]
            begin = idle if idle > dispatch[i] else dispatch[i]
            begun = begin + issue[queue]
            if sync[i]:
                done, why = begun, _DISPATCH
                if i in taken and end[taken[i]] > begun:
                    done, why = end[taken[i]], _WAIT
            else:
                d = wanted[i]
                ready = begun + d.latency_cycles
                done, why = ready + d.compute_cycles, _COMPUTE
                for p, cycles, reason in services[i]:
                    served = (port[p] if port[p] > ready else ready) + cycles
                    port[p] = served
                    if served > done:
                        done, why = served, reason
                if begin - idle > done - begin:
                    why = _DISPATCH
            start[i], end[i], bound[i], free[queue] = begin, done, why, done
        return start, end, bound


def _slots(order: Order, depths: Sequence[int]) -> list[int]:
    """For each operation the one whose end makes room for it in its queue: `depth` + 1 places before it; -1: none."""
    slot = [-1] * len(order.engine)
    queues: list[list[int]] = [[] for _ in depths]
    for i, queue in enumerate(order.engine):
        if queue == NO_ENGINE:
            continue
        entries = queues[queue]
        back = depths[queue] + 1
        if len(entries) >= back:
            slot[i] = entries[-back]
        entries.append(i)
    return slot


def _finished(chip: Chip, ops: Sequence[MachineOp], order: Order, start: list[int], end: list[int], bound: list[int]) -> Timeline:
    cycles = max(end, default=0)
    busy = [0] * len(order.names)
    for i, queue in enumerate(order.engine):
        if queue == NO_ENGINE:
            start[i] = end[i] = cycles
        elif not isinstance(ops[i], Wait | Signal):
            busy[queue] += end[i] - start[i]
    return Timeline(
        np.array(start, np.int64),
        np.array(end, np.int64),
        np.array(bound, np.int8),
        cycles,
        dict(zip(order.names, busy)),
        bound_names(chip),
    )
