"""One run of a program: its bits, its cycles, and the proof that neither depends on luck."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from quant.fixed_point import FixedPointError
from simulator.check import PROGRESS_EVERY, Progress, check_program
from simulator.execute import execute
from simulator.order import Order, describe, program_order
from simulator.parts import DramPart
from simulator.state import State
from simulator.timeline import Timeline, demands, timeline
from simulator.unread import Unread
from simulator.values.context import Context
from toolchain.errors import ProgramError
from toolchain.hw.chip import Chip
from toolchain.machine import Access, Demand, MachineOp, Traffic, accesses

Observe = Callable[[int, Sequence[np.ndarray]], None]  # index of the operation that ran, bytes of each memory


@dataclass(frozen=True)
class Simulation:
    """What a run left behind. Arrays are per operation, in program order; times in cycles.

    dram: uint8, the memory afterwards (values=False: as it was). start, end: int64; empty with timing=False.
    engine: index into `engines`, -1 for End. bound_by: 'compute' or a memory's name (what its end waited for), 'dispatch'
    (the front end or a full queue kept its engine idle for longer than it ran) or 'wait' (a semaphore).
    traffic: by memory, bytes the program moves, and the same in whole bursts, as charged to the bandwidth.
    peak_bytes: by memory, one past the highest byte touched. busy_cycles: per engine, without signals and waits.
    unread: bytes that are written, or constant, and never read (empty with check=False).
    """

    dram: np.ndarray
    engines: tuple[str, ...]
    engine: np.ndarray
    cycles: int
    start: np.ndarray
    end: np.ndarray
    bound_by: tuple[str, ...]
    macs: int
    traffic: dict[str, Traffic]
    peak_bytes: dict[str, int]
    busy_cycles: dict[str, int] = field(default_factory=dict)
    unread: tuple[Unread, ...] = ()

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
        """As charged to the port."""
        return self.traffic["sram"].read_burst_bytes

    @property
    def sram_write_bytes(self) -> int:
        """As charged to the port."""
        return self.traffic["sram"].write_burst_bytes

    @property
    def sram_peak_bytes(self) -> int:
        return self.peak_bytes["sram"]


def _traffic(names: Sequence[str], wanted: Sequence[Demand]) -> dict[str, Traffic]:
    sums = [[0, 0, 0, 0] for _ in names]
    for found in wanted:
        for t in found.traffic:
            total = sums[t.space]
            for i, size_bytes in enumerate(t[1:]):
                total[i] += size_bytes
    return {name: Traffic(i, *sums[i]) for i, name in enumerate(names)}


def simulate(
    chip: Chip,
    ops: Sequence[MachineOp],
    words: Sequence[int] | None,
    dram: np.ndarray,
    written: Sequence[tuple[int, int]],
    *,
    values: bool = True,
    timing: bool = True,
    check: bool = True,
    parts: Sequence[DramPart] = (),
    observe: Observe | None = None,
    progress: Progress | None = None,
) -> Simulation:
    """Runs `ops` on the machine; `dram` is not changed.

    words: instruction words of each operation (None: one each). dram: uint8, the whole address space that the program
    may use. written: the ranges [first, last) of it that hold data and may be overwritten; parts: its constants and inputs,
    which hold data too and may not, and its outputs. observe: called behind each operation, in the order in which values are
    computed. progress: called as (stage, done, total).
    Raises ProgramError where the program breaks a rule of the machine, deadlocks, or holds parameters that describe no
    arithmetic (docs/simulator.md lists the rules). With check=False only deadlocks and such parameters are found.
    """
    if words is not None and len(words) != len(ops):
        raise ProgramError(f"{len(words)} instruction lengths for {len(ops)} operations; give one each")
    if dram.dtype != np.uint8 or dram.ndim != 1 or dram.size > chip.dram.size:
        raise ProgramError(
            f"dram image is {dram.dtype}{list(dram.shape)}; must be uint8 of at most {chip.dram.size} bytes (memories.dram.size)"
        )
    order = program_order(chip, ops)
    touched = _accesses(chip, ops, order)
    unread = check_program(chip, ops, order, touched, dram.size, written, parts, progress) if check else ()
    wanted = demands(chip, ops)
    times = timeline(chip, ops, order, wanted, words) if timing else None
    after = _values(chip, ops, order, dram.copy(), check, observe, progress) if values else dram
    return _result(chip, order, after, touched, wanted, times, unread)


def _accesses(chip: Chip, ops: Sequence[MachineOp], order: Order) -> list[tuple[Access, ...]]:
    found = []
    for index, op in enumerate(ops):
        try:
            found.append(accesses(op, chip))
        except ValueError as fault:  # an address space that is none
            raise ProgramError(f"{describe(index, op, order.chip)}: {fault}") from fault
    return found


def _values(
    chip: Chip,
    ops: Sequence[MachineOp],
    order: Order,
    dram: np.ndarray,
    checked: bool,
    observe: Observe | None,
    progress: Progress | None,
) -> np.ndarray:
    """In an order that can run: a program without hazards gives the same values in any of them."""
    context = Context(chip, State(chip, dram))
    # numpy refuses views outside a memory; in a checked program that would be our fault
    faults = (FixedPointError,) if checked else (FixedPointError, ValueError, TypeError)
    for done, index in enumerate(order.legal):
        try:
            execute(ops[index], context)
        except faults as fault:
            raise ProgramError(f"{describe(index, ops[index], order.chip)}: {fault}") from fault
        if observe:
            observe(index, context.state.memory)
        if progress and not done % PROGRESS_EVERY:
            progress("run", done, len(order.legal))
    return dram


def _result(
    chip: Chip,
    order: Order,
    dram: np.ndarray,
    touched: Sequence[Sequence[Access]],
    wanted: Sequence[Demand],
    times: Timeline | None,
    unread: tuple[Unread, ...],
) -> Simulation:
    nothing = np.zeros(0, np.int64)
    peaks = [0] * len(chip.spaces)
    for access in (a for found in touched for a in found if a.bytes):
        peaks[access.space] = max(peaks[access.space], access.end)
    names = [space.name for space in chip.spaces]
    return Simulation(
        dram=dram,
        engines=order.names,
        engine=np.array(order.engine, np.int8),
        cycles=times.cycles if times else 0,
        start=times.start if times else nothing,
        end=times.end if times else nothing,
        bound_by=tuple(times.bounds[b] for b in times.bound) if times else (),
        macs=sum(d.macs for d in wanted),
        traffic=_traffic(names, wanted),
        peak_bytes=dict(zip(names, peaks)),
        busy_cycles=times.busy_cycles if times else {},
        unread=unread,
    )
