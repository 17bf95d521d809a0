"""What operations that follow one another on one queue ask of time together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from toolchain.hw.chip import Chip
from toolchain.machine import MachineOp, demand
from toolchain.machine.recurrence import Service, services_of


class Wanted(NamedTuple):
    """How many they are; cycles in which they wait for memories, in which their unit computes, and in which ports serve them;
    what they take on an idle machine."""

    operations: int
    latency_cycles: int
    compute_cycles: int
    services: tuple[Service, ...]
    alone_cycles: int


def wanted(ops: Iterable[MachineOp], chip: Chip) -> Wanted:
    """ops: of one queue."""
    count, latency, compute, served = 0, 0, 0, dict[int, int]()
    for op in ops:
        asked = demand(op, chip)
        count, latency, compute = count + 1, latency + int(asked.latency_cycles), compute + int(asked.compute_cycles)
        for port, cycles in services_of(chip, asked.traffic):
            served[port] = served.get(port, 0) + cycles
    return Wanted(count, latency, compute, tuple(served.items()), latency + max((compute, *served.values())))
