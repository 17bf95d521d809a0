"""Make a program ready to run: its rules are checked and its times found once, since they do not depend on values.

`prepare_program` makes it ready, `PreparedProgram.run` computes the bits of one image, `simulate` does both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from quant.fixed_point import FixedPointError
from simulator.check_program import PROGRESS_EVERY, Progress, check_program
from simulator.dead_stores import DeadStore
from simulator.decode_constants import ConstantDecoder
from simulator.dram_ranges import DramRange
from simulator.execute import execute
from simulator.machine_state import MachineState
from simulator.program_order import NO_ENGINE, RunOrder, describe, program_order
from simulator.semantics.context import Context
from simulator.simulation import Simulation
from simulator.timeline import UNKNOWN_BOUND, Timeline, bound_names, timeline
from simulator.touched_bytes import TouchedBytes
from toolchain.errors import ProgramError
from toolchain.hw.chip import Chip
from toolchain.machine import (
    Demands,
    InstructionStream,
    MachineOp,
    Signal,
    Traffic,
    Wait,
    demands,
    dispatch_program,
    resolve_addresses,
    tables_by_unit,
)

Observe = Callable[[int, Sequence[np.ndarray]], None]  # index in the flow of the operation that ran, bytes of each memory


@dataclass(frozen=True)
class PreparedProgram:
    """A program with everything that is known of it without values. Runs do not change it.

    The fields not listed here are those of its `Simulation`s.
    `dram_bytes`: size of the images that it runs on.
    `peak_bytes`: one past the highest byte touched, by memory.
    `times`: None with timing=False.
    `checked`: whether its rules were checked.
    """

    chip: Chip
    dram_bytes: int
    flow: InstructionStream
    order: RunOrder
    op_demands: Demands
    peak_bytes: Mapping[str, int]
    times: Timeline | None
    unread: tuple[DeadStore, ...] = ()
    checked: bool = False

    @cached_property
    def decoder(self) -> ConstantDecoder:
        """The decoder of all runs, so that the constants of later ones are decoded already."""
        return ConstantDecoder(self.chip)

    @cached_property
    def _engine(self) -> np.ndarray:
        return np.array(self.order.engine, np.int8)

    @cached_property
    def _bound_by(self) -> tuple[str, ...]:
        return tuple(map(self.times.bounds.__getitem__, self.times.bound.tolist())) if self.times else ()

    @cached_property
    def _traffic(self) -> dict[str, Traffic]:
        return {space.name: self.op_demands.traffic(i) for i, space in enumerate(self.chip.spaces)}

    def run(
        self,
        dram: np.ndarray,
        *,
        initial_memory: Mapping[str, np.ndarray] | None = None,
        in_place: bool = False,
        until: int | None = None,
        observe: Observe | None = None,
        progress: Progress | None = None,
    ) -> Simulation:
        """Compute values and return the result; threads may run side by side. Arguments and faults are those of `simulate`.

        `in_place`: `dram` becomes the memory of the run, and is changed. Raise ProgramError for an image of another size, too.
        """
        _require_image(self.chip, dram)
        if dram.size != self.dram_bytes:
            raise ProgramError(f"dram image has {dram.size} bytes, the program was prepared for {self.dram_bytes}")
        legal = self.order.legal if until is None else _prefix(self.flow, self.order, until)
        return self.result(
            _values(self, legal, MachineState(self.chip, dram if in_place else dram.copy(), initial_memory), observe, progress)
        )

    def result(self, memory: Mapping[str, np.ndarray]) -> Simulation:
        """Return the result of a run. `memory`: contents after the run, by name."""
        times, nothing = self.times, np.zeros(0, np.int64)
        return Simulation(
            memory=memory,
            engines=self.order.names,
            engine=self._engine,
            cycles=times.cycles if times else 0,
            start=times.start if times else nothing,
            end=times.end if times else nothing,
            bound_by=self._bound_by,
            op_macs=self.op_demands.macs,
            traffic=dict(self._traffic),
            peak_bytes=dict(self.peak_bytes),
            busy_cycles=times.busy_cycles if times else {},
            flow=self.flow,
            unread=self.unread,
            op_demands=self.op_demands,
            order=self.order,
            times=times,
        )


def prepare_program(
    chip: Chip,
    ops: Sequence[MachineOp],
    words: Sequence[int] | None,
    dram_bytes: int,
    written: Sequence[tuple[int, int]],
    *,
    word_bytes: int = 0,
    timing: bool = True,
    check: bool = True,
    parts: Sequence[DramRange] = (),
    initialized_memories: Collection[str] = (),
    progress: Progress | None = None,
) -> PreparedProgram:
    """Return a program made ready to run. Arguments and faults are those of `simulate`.

    `dram_bytes`: size of the DRAM image. `initialized_memories`: names of other memories that hold data at the start.
    """
    if words is not None and len(words) != len(ops):
        raise ProgramError(f"{len(words)} instruction lengths for {len(ops)} operations; give one each")
    flow = dispatch_program(chip, ops, words)
    order = program_order(chip, flow)
    tables = tables_by_unit(flow)
    touched = TouchedBytes(chip, flow, tables)
    unread: tuple[DeadStore, ...] = ()
    if check:
        unread = check_program(chip, flow, order, list(touched), dram_bytes, written, parts, initialized_memories, progress)
    op_demands = demands(flow, chip, tables)
    times = timeline(chip, flow, order, op_demands, touched, flow.words, word_bytes) if timing else None
    return PreparedProgram(chip, dram_bytes, flow, order, op_demands, touched.peak_bytes, times, unread, check)


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
    parts: Sequence[DramRange] = (),
    initial_memory: Mapping[str, np.ndarray] | None = None,
    until: int | None = None,
    observe: Observe | None = None,
    progress: Progress | None = None,
) -> Simulation:
    """Run the program `ops` on the machine, repeats and calls included; `dram` is not changed.

    Raise ProgramError where the program breaks a rule, deadlocks, or holds parameters that describe no
    arithmetic.
    docs/simulator.md lists the rules. With check=False only deadlocks and such parameters are found.

    `words`: instruction words of each operation (None: one each).
    `word_bytes`: bytes of a word, 0: reading words loads no memory.
    `dram`: uint8, the whole address space that the program may use.
    `written`: ranges [first, last) of DRAM that hold data and may be overwritten.
    `parts`: constants and inputs, which hold data and may not be overwritten, and outputs.
    `initial_memory`: initial contents of other memories by name, uint8 of the whole memory.
    None: nothing; a program that reads these memories must have written there.
    `until`: values are computed as if the program ended after this operation; rules and times cover the whole
    program.
    `values`: False computes none; the result's memory is `dram` as it was. `timing`: False finds no times.
    `observe`: called after each operation with its index in the flow and the bytes of each memory, in the order in which values
    are computed.
    `progress`: called as (stage, done, total).
    """
    _require_image(chip, dram)
    ready = prepare_program(
        chip,
        ops,
        words,
        dram.size,
        written,
        word_bytes=word_bytes,
        timing=timing,
        check=check,
        parts=parts,
        initialized_memories=initial_memory or (),
        progress=progress,
    )
    if not values:
        return ready.result({"dram": dram})
    return ready.run(dram, initial_memory=initial_memory, until=until, observe=observe, progress=progress)


def _require_image(chip: Chip, dram: np.ndarray) -> None:
    """Raise ProgramError unless `dram` is uint8[n], no larger than the machine's DRAM."""
    if dram.dtype != np.uint8 or dram.ndim != 1 or dram.size > chip.dram.size:
        raise ProgramError(
            f"dram image is {dram.dtype}{list(dram.shape)}; must be uint8 of at most {chip.dram.size} bytes (memories.dram.size)"
        )


def wrap_measured_run(
    chip: Chip, ops: Sequence[MachineOp], memory: Mapping[str, np.ndarray], start: np.ndarray, end: np.ndarray
) -> Simulation:
    """Return a simulation with measured times, int64 cycles of each operation, as a backend reports them.

    What bounds the operations is not known. `memory`: contents after the run, by name.
    """
    flow = dispatch_program(chip, ops)
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
    peaks = TouchedBytes(chip, flow).peak_bytes
    return PreparedProgram(chip, chip.dram.size, flow, order, demands(flow, chip), peaks, times).result(memory)


def _prefix(ops: Sequence[MachineOp], order: RunOrder, until: int) -> list[int]:
    """Return the operations up to `until`, in an order that can run.

    Raise ProgramError where there is no such operation, or one of them waits for a later one.
    """
    if not 0 <= until < len(ops):
        raise ProgramError(f"op {until}: there is none; the program has operations 0 to {len(ops) - 1}")
    late = {wait: signal for wait, signal in order.signal_by_wait.items() if wait <= until < signal}
    if late:
        wait, signal = min(late.items())
        last = until
        while later_signals := [s for w, s in order.signal_by_wait.items() if w <= last < s]:
            last = max(later_signals)
        raise ProgramError(
            f"{describe(wait, ops, order.chip)} waits for {describe(signal, ops, order.chip)}: the program "
            f"cannot stop behind op {until}; stop behind op {last} or later"
        )
    return [i for i in order.legal if i <= until]


def _values(
    ready: PreparedProgram, legal: Sequence[int], state: MachineState, observe: Observe | None, progress: Progress | None
) -> dict[str, np.ndarray]:
    """Run the operations `legal`, in an order that can run, and return the memories after them, by name.

    `state` is changed. A program without hazards gives the same values in any such order.
    Raise ProgramError where an operation's parameters describe no arithmetic.
    """
    chip, flow, context = ready.chip, ready.flow, Context(ready.chip, state, ready.decoder)
    # numpy refuses views outside a memory; in a checked program that would be our fault
    faults = (FixedPointError,) if ready.checked else (FixedPointError, ValueError, TypeError)
    numbers: dict[int, int] = {}
    for done, index in enumerate(legal):
        op = resolve_addresses(flow, index, numbers)
        try:
            execute(op, context)
        except faults as fault:
            raise ProgramError(f"{describe(index, flow, chip)}: {fault}") from fault
        if op.STALLS:
            numbers[index] = context.state.number
        if observe:
            observe(index, context.state.memory)
        if progress and not done % PROGRESS_EVERY:
            progress("run", done, len(legal))
    return dict(zip((space.name for space in chip.spaces), context.state.memory))
