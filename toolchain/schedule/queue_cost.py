"""What operations that follow one another on one queue ask of time together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

from toolchain.hw.chip import Chip
from toolchain.machine import MachineOp, demand
from toolchain.machine.queues import Service
from toolchain.machine.timing_model import flights_of, services_of


class QueueCost(NamedTuple):
    """How many they are; cycles in which they wait for memories, in which their unit computes, and in which ports serve them;
    what they take on an idle machine."""

    operations: int
    latency_cycles: int
    compute_cycles: int
    services: tuple[Service, ...]
    alone_cycles: int


def sum_queue_cost(ops: Iterable[MachineOp], chip: Chip) -> QueueCost:
    """ops: of one queue. Where several may be in flight, what one waits for memories goes by while those before it are moved."""
    count, latency, compute, served = 0, 0, 0, dict[int, int]()
    for op in ops:
        asked = demand(op, chip)
        moved = int(asked.compute_cycles)
        for port, cycles in services_of(chip, asked.traffic):
            served[port] = served.get(port, 0) + cycles
            moved = max(moved, cycles)
        waited, queue = int(asked.latency_cycles), op.queue(chip)
        flying = 1 if queue is None or not count else flights_of(chip.units[queue])
        latency += waited if flying == 1 else max(0, (waited + moved) // flying - moved)
        count, compute = count + 1, compute + int(asked.compute_cycles)
    return QueueCost(count, latency, compute, tuple(served.items()), latency + max((compute, *served.values())))


def mean(same: Sequence[QueueCost]) -> QueueCost:
    """Of as many operations each, which differ in where they lie."""
    if len(same) == 1:
        return same[0]
    ports = dict.fromkeys(port for one in same for port, _ in one.services)
    served = tuple((port, round(fmean(dict(one.services).get(port, 0) for one in same))) for port in ports)
    latency, compute, alone = (
        round(fmean(found)) for found in zip(*((w.latency_cycles, w.compute_cycles, w.alone_cycles) for w in same))
    )
    return QueueCost(same[0].operations, latency, compute, served, alone)
