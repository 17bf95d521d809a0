"""Runs of programs with repeats and calls: the bytes, the rules and the cycles of what the front end dispatches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from simulator import Simulation, chrome_trace, simulate
from tests.support.control_flow_machines import CONTROL, with_control
from toolchain.errors import ProgramError
from toolchain.isa import load_machine
from toolchain.machine import (
    BlockBegin,
    BlockEnd,
    Call,
    Copy,
    End,
    MachineOp,
    Repeat,
    RepeatEnd,
    SetBase,
    Signal,
    Space,
    Wait,
    dispatch_program,
)

MACHINE = with_control(load_machine("wide32_w4a16"))
CHIP, DMA0, DMA1 = MACHINE.chip, 2, 3
SIZE = 4096
IMAGE = (np.arange(SIZE) * 7 % 251).astype(np.uint8)


def copy(source: int, target: int, channel: int = 0, load: bool = True) -> Copy:
    """64 bytes from dram by base 1, or to dram by base 2."""
    spaces = (Space.DRAM, Space.SRAM) if load else (Space.SRAM, Space.DRAM)
    bases = (1, 0) if load else (0, 2)
    return Copy(channel, spaces[0], source, spaces[1], target, 64, 1, 1, 1, 0, 0, 0, 0, 0, 0, *bases)


LOAD, STORE = copy(0, 0), copy(0, 2048, 1, load=False)
# The store of one channel waits for the load of the other, and the next load for the store.
BODY: Sequence[MachineOp] = (Wait(DMA0, 1), LOAD, Signal(DMA0, 0), Wait(DMA1, 0), STORE, Signal(DMA1, 1))
STEPS = (SetBase(1, 1, 64), SetBase(2, 2, 64))
LOOP: list[MachineOp] = [Signal(DMA1, 1), Repeat(8), *BODY, *STEPS, RepeatEnd(), Wait(DMA0, 1), End()]


def run(ops: Sequence[MachineOp], words: Sequence[int] | None = None, buffer_words: int = 0) -> Simulation:
    control = {**CONTROL, "repeat": {**CONTROL["repeat"], "buffer_words": buffer_words}}
    chip = with_control(load_machine("wide32_w4a16"), control=control).chip
    slow = chip.isa.model_copy(update={"word_cycles": 64.0})  # the front end keeps the others waiting
    return simulate(chip.model_copy(update={"isa": slow}), ops, words, IMAGE, [(0, SIZE)])


def test_the_bytes_are_those_of_each_iteration():
    after = run(LOOP).dram
    assert (after[2048 : 2048 + 512] == IMAGE[:512]).all() and (after[2560:] == IMAGE[2560:]).all()


def test_a_block_gives_the_same_as_a_repeat():
    calls = [op for _ in range(7) for op in (*STEPS, Call(0))]
    result = run([Signal(DMA1, 1), BlockBegin(0), *BODY, BlockEnd(), *calls, Wait(DMA0, 1), End()])
    assert (result.dram == run(LOOP).dram).all()


def test_cycles_are_those_of_the_program_written_out():
    """The program has its own words in front of each operation, and a front end that is faster where a buffer keeps
    the body.
    """
    looped = run(LOOP)
    flow = dispatch_program(CHIP, LOOP)
    written_out = run([*flow], [*flow.words])
    assert (looped.start == written_out.start).all() and (looped.end == written_out.end).all()
    assert looped.cycles == written_out.cycles > run(LOOP, buffer_words=9).cycles
    assert run(LOOP, buffer_words=8).cycles == looped.cycles  # the body is one word longer


def test_a_trace_says_operation_and_iteration():
    result = run(LOOP)
    events = chrome_trace(CHIP, result.flow, result)["traceEvents"]
    stores = [e["args"] for e in events if e.get("tid") == DMA1 + 1 and e.get("cat") == "copy"]
    assert [(a["op"], a["iterations"]) for a in stores] == [(6, [i]) for i in range(1, 9)]


@pytest.mark.parametrize(
    ("program", "fault"),
    [
        (
            [*LOOP[:2], *LOOP[3:]],
            "op 2, iteration 2 of 8 copy (dma0) writes sram[0x0..0x40) and op 5, iteration 1 of 8 ",
        ),
        ([*LOOP[:4], *LOOP[5:]], "deadlock: op 2, iteration 2 of 8 wait semaphore 1 (dma0)"),
        ([*LOOP[:9], End(), *LOOP[9:]], "op 9, iteration 1 of 8 end: "),
    ],
)
def test_a_rule_that_iterations_break_names_them(program: list[MachineOp], fault: str):
    with pytest.raises(ProgramError) as caught:
        run(program)
    assert str(caught.value).startswith(fault), caught.value


def test_an_address_that_an_iteration_takes_outside_is_refused():
    with pytest.raises(ProgramError, match=r"op 6, iteration 5 of 8 copy \(dma1\) writes dram\[0x1000..0x1040\), outside dram"):
        run([*LOOP[:9], SetBase(2, 2, 448), *LOOP[9:]])


def test_bytes_that_nothing_reads_are_those_of_an_iteration():
    dead_stores = run([Repeat(3), LOAD, SetBase(1, 1, 64), RepeatEnd(), End()]).unread
    assert [(u.index, u.bytes) for u in dead_stores] == [(0, 64), (1, 64), (2, 64)]
