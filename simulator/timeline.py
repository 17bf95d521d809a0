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
from toolchain.machine import Demand, MachineOp, Signal, Wait, demand

BOUNDS = ("compute", "dram", "sram", "dispatch", "wait", "unknown")
UNKNOWN_BOUND = BOUNDS.index("unknown")  # of times that were measured elsewhere
_COMPUTE, _DRAM, _SRAM, _DISPATCH, _WAIT = range(5)
_PORT_BOUND = (_DRAM, _DRAM, _SRAM, _SRAM)


@dataclass(frozen=True)
class Timeline:
    """start, end: int64[op] cycles; bound: int8[op], index into BOUNDS. End operations start and end at `cycles`."""

    start: np.ndarray
    end: np.ndarray
    bound: np.ndarray
    cycles: int
    busy_cycles: dict[str, int]


def demands(chip: Chip, ops: Sequence[MachineOp]) -> list[Demand]:
    return [demand(op, chip) for op in ops]


def timeline(
    chip: Chip, ops: Sequence[MachineOp], order: Order, wanted: Sequence[Demand], words: Sequence[int] | None
) -> Timeline:
    """Times of every operation. words: instruction words of each operation, which the front end reads (None: one each)."""
    costs = [chip.isa.word_cycles * n for n in words] if words is not None else [chip.isa.word_cycles] * len(ops)
    sweep = _Sweep(order, queue_depths(chip), issue_cycles(chip), [isinstance(op, Wait | Signal) for op in ops])
    start, end = sweep.unbounded(_balanced_cycles(ops, order, wanted))
    # A Wait counts from its end: that is when its Signal has run.
    keys = {i: end[i] if isinstance(ops[i], Wait) else start[i] for i in order.legal}
    sequence = sorted(order.legal, key=keys.__getitem__)  # stable: ties stay in legal order
    services = _services(chip, wanted)
    start, end, bound = sweep.served(sequence, costs, wanted, services)
    return _finished(ops, order, start, end, bound)


def _balanced_cycles(ops: Sequence[MachineOp], order: Order, wanted: Sequence[Demand]) -> list[int]:
    """Durations on a machine of unlimited memories, its DMA as fast as its busier engine needs over the whole program."""
    arithmetic, moved = [0, 0], 0
    for queue, d in zip(order.engine, wanted):
        if queue in (0, 1):
            arithmetic[queue] += d.compute_cycles
        else:
            moved += _moved(d)
    pace = max(arithmetic) / moved if moved else 0.0
    return [d.compute_cycles if queue in (0, 1) else ceil(_moved(d) * pace) for queue, d in zip(order.engine, wanted)]


def _moved(d: Demand) -> int:
    return max(d.dram_read_bytes + d.dram_write_bytes, d.sram_read_bytes + d.sram_write_bytes)


def _services(chip: Chip, wanted: Sequence[Demand]) -> list[tuple[tuple[int, int, int], ...]]:
    """For each operation (port, cycles, index into BOUNDS) of each memory port it uses. Shared ports are one port."""
    ports: list[tuple[int, float]] = []
    for i, memory in enumerate((chip.memories.dram, chip.memories.sram)):
        read, write = memory.read_bytes_per_cycle, memory.write_bytes_per_cycle
        both = max(read, write)
        ports += [(2 * i, both), (2 * i, both)] if memory.shared_ports else [(2 * i, read), (2 * i + 1, write)]
    found = []
    for d in wanted:
        sizes = (d.dram_read_burst_bytes, d.dram_write_burst_bytes, d.sram_read_bytes, d.sram_write_bytes)
        found.append(tuple((p, ceil(n / rate), _PORT_BOUND[p]) for n, (p, rate) in zip(sizes, ports) if n))
    return found


class _Sweep:
    """Passes over a program in an order that can run; each time is known when it is needed."""

    def __init__(self, order: Order, depths: Sequence[int], issue: Sequence[int], sync: Sequence[bool]):
        self.order, self.issue, self.sync = order, issue, sync
        self.slot = _slots(order, depths)

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
        free, port = [0] * len(self.order.names), [0, 0, 0, 0]
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


def _finished(ops: Sequence[MachineOp], order: Order, start: list[int], end: list[int], bound: list[int]) -> Timeline:
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
    )
