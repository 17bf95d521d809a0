"""Define the result of one run of a program: bytes, times, traffic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from simulator.dead_stores import DeadStore
from simulator.program_order import RunOrder
from simulator.timeline import Timeline
from toolchain.machine import Demands, InstructionStream, Traffic


@dataclass(frozen=True)
class Simulation:
    """A result of one run, of `simulate` or `PreparedProgram.run`.

    Arrays are per operation of `flow`, the program with repeats and calls written out, in the order of dispatch.
    Times are in cycles.

    `memory`: uint8 by the memory's name, after the run (values=False: the DRAM as it was, and no other).
    `engines`: names of the queues. `engine`: int8, index into them, -1 for End.
    `cycles`: when the last operation ends; 0 with timing=False.
    `start`, `end`: int64; empty with timing=False. An operation takes the cycles start .. end - 1.
    At `start` the engine begins the operation, at `end` the next may begin.
    `bound_by`: 'compute' or a memory's name (what the end waited for), 'dispatch' or 'wait'.
    'dispatch': the front end or a full queue kept the engine idle for longer than the operation ran; 'wait': a
    semaphore.
    `op_macs`: int64, products of each operation, those with padding included.
    `traffic`: by memory, bytes the program moves, and the same in whole bursts, as charged to the bandwidth.
    `peak_bytes`: by memory, one past the highest byte touched.
    `busy_cycles`: per engine, without signals and waits.
    `unread`: bytes that are written, or constant, and never read (empty with check=False).
    `op_demands`: demands of each operation.
    `order`: queue of each operation and the Signal that it takes.
    `times`: causes of the delays of operations (None with timing=False).
    """

    memory: Mapping[str, np.ndarray]
    engines: tuple[str, ...]
    engine: np.ndarray
    cycles: int
    start: np.ndarray
    end: np.ndarray
    bound_by: tuple[str, ...]
    op_macs: np.ndarray
    traffic: dict[str, Traffic]
    peak_bytes: dict[str, int]
    flow: InstructionStream
    op_demands: Demands
    order: RunOrder
    times: Timeline | None
    busy_cycles: dict[str, int] = field(default_factory=dict[str, int])
    unread: tuple[DeadStore, ...] = ()

    @property
    def macs(self) -> int:
        """The products of all operations."""
        return int(self.op_macs.sum())

    @property
    def dram(self) -> np.ndarray:
        """The DRAM after the run, uint8."""
        return self.memory["dram"]

    @property
    def dram_read_bytes(self) -> int:
        return self.traffic["dram"].read_bytes

    @property
    def dram_write_bytes(self) -> int:
        return self.traffic["dram"].write_bytes

    @property
    def dram_read_burst_bytes(self) -> int:
        return self.traffic["dram"].read_burst_bytes

    @property
    def dram_write_burst_bytes(self) -> int:
        return self.traffic["dram"].write_burst_bytes

    @property
    def sram_read_bytes(self) -> int:
        """Return the bytes read from the SRAM, as charged to the port."""
        return self.traffic["sram"].read_burst_bytes

    @property
    def sram_write_bytes(self) -> int:
        """Return the bytes written to the SRAM, as charged to the port."""
        return self.traffic["sram"].write_burst_bytes

    @property
    def sram_peak_bytes(self) -> int:
        return self.peak_bytes["sram"]
