"""Programs with repeats and calls in both kinds of table: to bits, to text and back; registers hold nothing behind a jump."""

from __future__ import annotations

import pytest

from tests.support.control_flow_machines import with_control
from toolchain.errors import ProgramError
from toolchain.isa import Machine, assemble, decode, disassemble, encode, load_machine
from toolchain.isa.constants import c_header
from toolchain.isa.manual import manual
from toolchain.isa.verilog import verilog_package
from toolchain.machine import (
    BlockBegin,
    BlockEnd,
    Call,
    End,
    Fill,
    LoadBase,
    MachineOp,
    Repeat,
    RepeatEnd,
    SetBase,
    Signal,
    Space,
    Wait,
)

MACHINES = {
    "descriptors": with_control(load_machine("edge16")),
    "registers": with_control(load_machine("edge16"), "registers", 32),
    "narrow": with_control(load_machine("ws8_pow2"), "registers", 24),
}


def fill(address: int = 0, base: int = 0) -> Fill:
    return Fill(0, Space.SRAM, address, 8, 1, 1, 1, 0, 0, 0, 5, base)


PROGRAM: list[MachineOp] = [
    *(Wait(2, 1), Repeat(5), Wait(2, 1), fill(0, 1), Signal(2, 1), fill(0, 1), SetBase(1, 1, 48), RepeatEnd(), Signal(2, 1)),
    *(BlockBegin(1), fill(0, 2), SetBase(2, 2, -1024), BlockEnd(), fill(0, 2), Call(1), fill(0, 2)),
    *(LoadBase(0, 1, 2, -4, 64, 9, Space.DRAM, 40, 4, 3), End()),
]


@pytest.mark.parametrize("name", MACHINES)
def test_control_survives_bits_and_text(name: str):
    isa = MACHINES[name].isa
    program = encode(PROGRAM, isa)
    assert [*decode(program, isa).ops] == PROGRAM
    assert assemble(disassemble(program, isa), isa) == program


@pytest.mark.parametrize("name", MACHINES)
def test_manual_header_and_package_know_control(name: str):
    machine = MACHINES[name]
    texts = manual(machine), c_header(machine).lower(), verilog_package(machine).lower()
    for operation in ("repeat", "again", "set_base", "block", "call", "return", "load_base"):
        assert all(operation in text for text in texts), operation
    assert "all bases are 0 where a program starts" in texts[0].lower()


def test_no_wait_or_signal_crosses_the_border_of_a_repeat():
    listing = disassemble(encode(PROGRAM, MACHINES["descriptors"].isa), MACHINES["descriptors"].isa)
    lines = [line.partition(": ")[2].partition("  ;")[0] for line in listing.splitlines() if ": " in line]
    assert lines[:8] == ["wait", "repeat", "fill wait=1 signal=1", "fill", "set_base", "again", "signal", "block"]


def words_of(machine: Machine, ops: list[MachineOp]) -> dict[int, int]:
    return dict(enumerate(decode(encode(ops, machine.isa), machine.isa).words))


def test_registers_hold_nothing_behind_a_jump():
    machine = MACHINES["registers"]
    words = words_of(machine, PROGRAM)
    first = words[3]
    assert first > 8 and words[5] == 1  # all registers of a fill; none of them again
    # Behind repeat, again, block, return and call they are written anew.
    assert words[10] == first and words[13] == first and words[15] == first


@pytest.mark.parametrize("jump", [Repeat(2), RepeatEnd(), BlockBegin(1), Call(1), BlockEnd()])
def test_a_register_that_only_another_iteration_has_written_is_refused(jump: MachineOp):
    """Operations before a jump in the program need not have run just before those after it."""
    isa = MACHINES["registers"].isa
    listing = disassemble(encode([fill(), Signal(2, 1), fill(), End()], isa), isa)
    start = next(line for line in listing.splitlines() if "start signal" in line)
    jump_lines = [line for line in disassemble(encode([jump], isa), isa).splitlines() if ":" in line]
    with pytest.raises(ProgramError) as caught:
        decode(assemble(listing.replace(start, "\n".join(jump_lines)), isa), isa)
    text = str(caught.value)
    assert "fill uses " in text and text.endswith(", where registers hold nothing (control)"), text
