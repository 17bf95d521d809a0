"""One run of a program: its bits, its cycles, and the proof that neither depends on luck."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from quant.fixed_point import FixedPointError
from simulator.check import PROGRESS_EVERY, Progress, check_program
from simulator.execute import execute
from simulator.order import NO_ENGINE, RunOrder, describe, program_order
from simulator.parts import DramPart
from simulator.state import State
from simulator.timeline import UNKNOWN_BOUND, Timeline, bound_names, timeline
from simulator.unread import Unread
from simulator.values.context import Context
from toolchain.errors import ProgramError
from toolchain.hw.chip import Chip
from toolchain.machine import Access, Demands, Flow, MachineOp, Signal, Traffic, Wait, accesses_at, demands, dispatched, reached

Observe = Callable[[int, Sequence[np.ndarray]], None]  # index in the flow of the operation that ran, bytes of each memory


@dataclass(frozen=True)
class Simulation:
    """What a run left behind. Arrays are per operation of `flow`, the program with repeats and calls written out, in the order
    of dispatch; times in cycles.

    memory: uint8 by the memory's name, afterwards (values=False: the DRAM as it was, and no other). start, end: int64; empty with
    timing=False. An operation takes the cycles start .. end - 1: at `start` its engine takes it up, at `end` the next may begin.
    engine: index into `engines`, -1 for End. bound_by: 'compute' or a memory's name (what its end waited for), 'dispatch'
    (the front end or a full queue kept its engine idle for longer than it ran) or 'wait' (a semaphore).
    op_macs: int64, products of each operation, those with padding included.
    traffic: by memory, bytes the program moves, and the same in whole bursts, as charged to the bandwidth.
    peak_bytes: by memory, one past the highest byte touched. busy_cycles: per engine, without signals and waits.
    unread: bytes that are written, or constant, and never read (empty with check=False). wanted, order, times: what each
    operation asks for, its queue and the Signal that it takes, and what held it (None with timing=False).
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
    flow: Flow
    wanted: Demands
    order: RunOrder
    times: Timeline | None
    busy_cycles: dict[str, int] = field(default_factory=dict)
    unread: tuple[Unread, ...] = ()

    @property
    def macs(self) -> int:
        return int(self.op_macs.sum())

    @property
    def dram(self) -> np.ndarray:
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
        """As charged to the port."""
        return self.traffic["sram"].read_burst_bytes

    @property
    def sram_write_bytes(self) -> int:
        """As charged to the port."""
        return self.traffic["sram"].write_burst_bytes

    @property
    def sram_peak_bytes(self) -> int:
        return self.peak_bytes["sram"]


def simulate(
    chip: Chip,
    ops: Sequence[MachineOp],
    words: Sequence[int] | None,
    dram: np.ndarray,
    written: Sequence[tuple[int, int]],
    *,
    word_bytes: int = 0,
    values: bool = True,
    timing: bool = True,
    check: bool = True,
    parts: Sequence[DramPart] = (),
    held: Mapping[str, np.ndarray] | None = None,
    until: int | None = None,
    observe: Observe | None = None,
    progress: Progress | None = None,
) -> Simulation:
    """Runs the program `ops` on the machine, repeats and calls included; `dram` is not changed.

    words: instruction words of each operation (None: one each); word_bytes: of one, 0: reading them loads no memory. dram: uint8,
    the whole address space that the program may use. written: the ranges [first, last) of it that hold data and may be
    overwritten; parts: its constants and inputs, which hold data too and may not, and its outputs. held: by name what other
    memories hold at the start, uint8 of the whole memory (None: nothing; a program that reads them must have written there).
    until: values are computed as if the program ended behind this operation; rules and times are the whole program's. observe:
    called behind each operation, in the order in which values are computed. progress: called as (stage, done, total).
    Raises ProgramError where the program breaks a rule of the machine, deadlocks, or holds parameters that describe no
    arithmetic (docs/simulator.md lists the rules). With check=False only deadlocks and such parameters are found.
    """
    if words is not None and len(words) != len(ops):
        raise ProgramError(f"{len(words)} instruction lengths for {len(ops)} operations; give one each")
    if dram.dtype != np.uint8 or dram.ndim != 1 or dram.size > chip.dram.size:
        raise ProgramError(
            f"dram image is {dram.dtype}{list(dram.shape)}; must be uint8 of at most {chip.dram.size} bytes (memories.dram.size)"
        )
    flow = dispatched(chip, ops, words)
    order = program_order(chip, flow)
    touched = _accesses(chip, flow, order)
    unread = check_program(chip, flow, order, touched, dram.size, written, parts, held or (), progress) if check else ()
    wanted = demands(flow, chip)
    times = timeline(chip, flow, order, wanted, touched, flow.words, word_bytes) if timing else None
    legal = order.legal if until is None else _prefix(flow, order, until)
    state = State(chip, dram.copy(), held) if values else None
    after = {"dram": dram} if state is None else _values(chip, flow, order, legal, state, check, observe, progress)
    return _result(chip, flow, order, after, touched, wanted, times, unread)


def measured(
    chip: Chip, ops: Sequence[MachineOp], memory: Mapping[str, np.ndarray], start: np.ndarray, end: np.ndarray
) -> Simulation:
    """What a run was whose times somebody else has taken: int64 cycles of each operation. What bounds them is not known."""
    flow = dispatched(chip, ops)
    order = program_order(chip, flow)
    lasted = [0] * len(order.names)
    for i, queue in enumerate(order.engine):
        if queue != NO_ENGINE and not isinstance(flow[i], Signal | Wait):
            lasted[queue] += int(end[i] - start[i])
    times = Timeline(
        start,
        end,
        np.full(len(flow), UNKNOWN_BOUND, np.int8),
        int(end.max(initial=0)),
        dict(zip(order.names, lasted)),
        bound_names(chip),
    )
    return _result(chip, flow, order, memory, _accesses(chip, flow, order), demands(flow, chip), times, ())


def _prefix(ops: Sequence[MachineOp], order: RunOrder, until: int) -> list[int]:
    """The operations up to `until`, in an order that can run. Raises ProgramError: there is no such operation, or one of them
    waits for a later one."""
    if not 0 <= until < len(ops):
        raise ProgramError(f"op {until}: there is none; the program has operations 0 to {len(ops) - 1}")
    late = {wait: signal for wait, signal in order.taken.items() if wait <= until < signal}
    if late:
        wait, signal = min(late.items())
        last = until
        while ahead := [s for w, s in order.taken.items() if w <= last < s]:
            last = max(ahead)
        raise ProgramError(
            f"{describe(wait, ops, order.chip)} waits for {describe(signal, ops, order.chip)}: the program "
            f"cannot stop behind op {until}; stop behind op {last} or later"
        )
    return [i for i in order.legal if i <= until]


def _accesses(chip: Chip, ops: Sequence[MachineOp], order: RunOrder) -> list[tuple[Access, ...]]:
    found = []
    for index in range(len(ops)):
        try:
            found.append(accesses_at(ops, index, chip))
        except ValueError as fault:  # an address space that is none
            raise ProgramError(f"{describe(index, ops, order.chip)}: {fault}") from fault
    return found


def _values(
    chip: Chip,
    flow: Flow,
    order: RunOrder,
    legal: Sequence[int],
    state: State,
    checked: bool,
    observe: Observe | None,
    progress: Progress | None,
) -> dict[str, np.ndarray]:
    """Of the operations `legal`, in an order that can run: a program without hazards gives the same values in any of them."""
    context = Context(chip, state)
    # numpy refuses views outside a memory; in a checked program that would be our fault
    faults = (FixedPointError,) if checked else (FixedPointError, ValueError, TypeError)
    numbers: dict[int, int] = {}
    for done, index in enumerate(legal):
        op = reached(flow, index, numbers)
        try:
            execute(op, context)
        except faults as fault:
            raise ProgramError(f"{describe(index, flow, order.chip)}: {fault}") from fault
        if op.STALLS:
            numbers[index] = context.state.number
        if observe:
            observe(index, context.state.memory)
        if progress and not done % PROGRESS_EVERY:
            progress("run", done, len(legal))
    return dict(zip((space.name for space in chip.spaces), context.state.memory))


def _result(
    chip: Chip,
    flow: Flow,
    order: RunOrder,
    memory: Mapping[str, np.ndarray],
    touched: Sequence[Sequence[Access]],
    wanted: Demands,
    times: Timeline | None,
    unread: tuple[Unread, ...],
) -> Simulation:
    nothing = np.zeros(0, np.int64)
    peaks = [0] * len(chip.spaces)
    for access in (a for found in touched for a in found if a.bytes):
        peaks[access.space] = max(peaks[access.space], access.end)
    names = [space.name for space in chip.spaces]
    return Simulation(
        memory=memory,
        engines=order.names,
        engine=np.array(order.engine, np.int8),
        cycles=times.cycles if times else 0,
        start=times.start if times else nothing,
        end=times.end if times else nothing,
        bound_by=tuple(times.bounds[b] for b in times.bound) if times else (),
        op_macs=wanted.macs,
        traffic={name: wanted.traffic(i) for i, name in enumerate(names)},
        peak_bytes=dict(zip(names, peaks)),
        busy_cycles=times.busy_cycles if times else {},
        flow=flow,
        unread=unread,
        wanted=wanted,
        order=order,
        times=times,
    )
