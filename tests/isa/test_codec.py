"""Operations to bits and back, on every shipped machine."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from any_operations import MACHINES, machine_of, operations, programs
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from toolchain.errors import CompileError, ProgramError
from toolchain.isa import AssembledProgram, assemble, assemble_words, decode, disassemble, encode
from toolchain.machine import Copy, End, Fill, MachineOp, Pool, PoolKind, Signal, Space, Table, Wait

CASES = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)
MACHINE = pytest.mark.parametrize("name", MACHINES)


def fill(**changes) -> Fill:
    """A fill that any machine can do."""
    return replace(Fill(0, Space.SRAM, 64, 32, 1, 4, 8, 0, 128, 32, -7), **changes)


@MACHINE
@CASES
@given(data=st.data())
def test_decode_is_the_inverse_of_encode(name, data):
    isa = machine_of(name).isa
    ops = data.draw(programs(name))
    program = encode(ops, isa)
    decoded = decode(program, isa)
    assert decoded.ops == tuple(ops)
    assert [type(op) for op in decoded.ops] == [type(op) for op in ops]
    assert sum(decoded.words) * isa.word_bytes == len(program)
    assert encode(decoded.ops, isa) == program


@MACHINE
@CASES
@given(data=st.data())
def test_assemble_is_the_inverse_of_disassemble(name, data):
    isa = machine_of(name).isa
    ops = data.draw(programs(name))
    program = encode(ops, isa)
    layers = data.draw(st.lists(st.integers(-1, 3), min_size=len(ops), max_size=len(ops)))
    names = [f"node/{i} = a;b\nc" for i in range(4)]
    assert assemble(disassemble(program, isa), isa) == program
    assert assemble_words(disassemble(program, isa, layers, names), isa, 4) == AssembledProgram(program, tuple(layers))


@MACHINE
@CASES
@given(data=st.data())
def test_any_word_is_itself_or_refused(name, data):
    isa = machine_of(name).isa
    word = data.draw(st.binary(min_size=isa.word_bytes, max_size=isa.word_bytes))
    near = bytearray(encode([data.draw(operations(name, "copy"))], isa)[-isa.word_bytes :])
    near[data.draw(st.integers(0, len(near) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    for program in (word, bytes(near)):
        try:
            text = disassemble(program, isa)
        except ProgramError as refused:
            assert str(refused).startswith("instruction word 0: ")
        else:
            assert assemble(text, isa) == program


@MACHINE
@CASES
@given(data=st.data())
def test_a_program_with_one_flipped_bit_is_another_program_or_refused(name, data):
    isa = machine_of(name).isa
    ops = data.draw(programs(name).filter(bool))
    program = bytearray(encode(ops, isa))
    program[data.draw(st.integers(0, len(program) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        decoded = decode(bytes(program), isa)
    except ProgramError:
        return
    written = encode(decoded.ops, isa)
    assert decode(written, isa).ops == decoded.ops
    # A flipped register write may set what the register held already, or what is written again unused.
    assert decoded.ops != tuple(ops) or isa.kind == "registers"


@MACHINE
def test_an_empty_program(name):
    isa = machine_of(name).isa
    assert encode([], isa) == b""
    assert decode(b"", isa).ops == ()
    assert disassemble(b"", isa) == f"isa {isa.name}\n"
    assert assemble(f"isa {isa.name}\n", isa) == b""


MISFITS = {
    "too large": (
        "edge16",
        fill(count1=1 << 24 | 1),
        "instruction 1 (fill): count1=16777217 does not fit its 24 bits (1 to 16777216)",
    ),
    "below the bias": ("edge16", fill(count1=0), "instruction 1 (fill): count1=0 does not fit its 24 bits (1 to 16777216)"),
    "negative": (
        "ethos_u55_256",
        fill(destination_stride1=-1),
        "instruction 1 (fill): destination_stride1=-1 does not fit its 40 bits (0 to 1099511627775)",
    ),
    "signed": ("ws8_pow2", fill(value=128), "instruction 1 (fill): value=128 does not fit its 8 bits (-128 to 127)"),
    "fixed": ("ws8_pow2", fill(count0=2), "instruction 1 (fill): count0=2, but this machine has only 1"),
    "beyond 64 bits": (
        "edge16",
        fill(value=1 << 70),
        "instruction 1 (fill): value=1180591620717411303424 does not fit its 16 bits (-32768 to 32767)",
    ),
    "beyond 64 bits and fixed": (
        "ws8_pow2",
        fill(count0=1 << 70),
        "instruction 1 (fill): count0=1180591620717411303424 does not fit 64 bits",
    ),
    "beyond 64 bits beside a negative number": (
        "ws8_pow2",
        fill(count0=-1, value=1 << 70),
        "instruction 1 (fill): value=1180591620717411303424 does not fit its 8 bits (-128 to 127)",
    ),
    "a fraction": ("edge16", fill(value=0.5), "instruction 1 (fill): value=0.5 is not a whole number"),
    "an absent operation": (
        "ws8_pow2",
        Table(1, 1, 1, 0, 0, 0, 0, 0, 0, 0),
        "instruction 1: this machine has no table (instruction set registers32)",
    ),
}


@pytest.mark.parametrize("case", MISFITS)
def test_what_does_not_fit_is_refused(case):
    name, op, message = MISFITS[case]
    with pytest.raises(CompileError) as caught:
        encode([End(), op], machine_of(name).isa)
    assert str(caught.value) == message


def test_a_value_between_steps_is_refused():
    isa = machine_of("ws8_pow2").isa
    op = first(operations("ws8_pow2", "convolution"))
    with pytest.raises(CompileError) as caught:
        encode([replace(op, parameter_address=12)], isa)
    assert str(caught.value) == (
        "instruction 0 (convolution): parameter_address=12 does not fit its 14 bits (0 to 131064, in steps of 8)"
    )


def first(strategy: st.SearchStrategy[MachineOp]) -> MachineOp:
    """The simplest value of a strategy."""
    quick = settings(derandomize=True, max_examples=1, phases=[Phase.generate], database=None)
    return find(strategy, lambda _: True, settings=quick)


def test_numpy_integers_are_integers():
    isa = machine_of("edge16").isa
    assert encode([fill(value=np.int8(-7), count2=np.int64(8))], isa) == encode([fill()], isa)


def test_registers_keep_their_values():
    isa = machine_of("ethos_u65_512").isa
    same = decode(encode([fill(), fill(), fill(value=3), fill(destination_stride1=256)], isa), isa)
    # 2 registers of counts, 3 strides, the destination, the start word; value and channel are in the start word
    assert same.words == (7, 1, 1, 2)


def test_a_wide_register_is_written_part_by_part():
    # 3 counts, 2 strides and the address in two parts each, the start word; then the changed part alone
    isa = machine_of("ws8_pow2").isa
    high = fill(destination_address=3 << 24)
    low = fill(destination_address=(3 << 24) + 64)
    assert decode(encode([high, low], isa), isa).words == (10, 2)
    assert "write DST_ADDRESS.1 = 0x3\n" in disassemble(encode([high], isa), isa)


def test_a_descriptor_carries_its_wait_and_signal():
    isa = machine_of("edge16").isa
    ops = [Wait(2, 5), Wait(2, 6), fill(), Signal(2, 7), Signal(2, 8), Signal(1, 9), End()]
    program = encode(ops, isa)
    assert len(program) == 5 * isa.word_bytes
    decoded = decode(program, isa)
    assert decoded.ops == tuple(ops)
    assert decoded.words == (1, 1, 0, 0, 1, 1, 1)
    assert "00001: fill wait=6 signal=7  ; op 1-3\n" in disassemble(program, isa)


def test_without_a_chip_no_descriptor_carries_a_wait_or_a_signal():
    isa = replace(machine_of("edge16").isa, chip=None)
    ops = (Wait(2, 6), fill(), Signal(2, 7), End())
    assert decode(encode(ops, isa), isa).ops == ops
    assert decode(encode(ops, isa), isa).words == (1, 1, 1, 1)


def test_a_descriptor_carries_no_wait_of_another_engine():
    isa = machine_of("edge16").isa
    ops = [Wait(1, 5), fill(), Signal(0, 7), Wait(2, 1), End(), Signal(2, 1)]
    assert decode(encode(ops, isa), isa).words == (1, 1, 1, 1, 1, 1)


def test_a_comment_is_at_its_operation():
    isa = machine_of("edge16").isa
    text = disassemble(encode([Wait(2, 6), fill(), End()], isa), isa, [0, 1, 2], ["the wait", "the fill", "the end"])
    assert "00000: fill wait=6 layer=0/1  ; op 0-1 the fill\n" in text
    assert "00001: end layer=2  ; op 2 the end\n" in text


def test_a_register_machine_numbers_its_operations_beside_their_start_words():
    isa = machine_of("ethos_u65_512").isa
    text = disassemble(encode([Wait(2, 6), fill(), fill(), End()], isa), isa, [-1, 0, 1], ["the fill", "again"])
    starts = [line for line in text.splitlines() if ": start " in line]
    assert [line.partition("  ; ")[2] for line in starts] == ["op 0", "op 1 the fill", "op 2 again", "op 3"]
    assert [line[:5] for line in starts] == ["00000", "00007", "00008", "00009"]


REFUSED = {
    "part of a word": ("ethos_u55_256", b"\0" * 9, "program of 9 bytes is not whole words of 8 bytes"),
    "part of a descriptor": ("edge16", b"\0" * 64, "program of 64 bytes is not whole words of 128 bytes"),
    "unknown opcode": (
        "edge16",
        b"\xff" + b"\0" * 127,
        "instruction word 0: opcode 255 is unknown (instruction set descriptors1024)",
    ),
    "unknown start": (
        "ws8_pow2",
        b"\0\0\0\x7f",
        "instruction word 0: opcode 127 is unknown (instruction set registers32)",
    ),
    "unknown register": ("ws8_pow2", b"\0\0\0\xff", "instruction word 0: there is no register at address 0x7f"),
    "reserved bits of a register": ("ws8_pow2", b"\0\1\0\xa1", "instruction word 0: reserved bits of PAD are set"),
    "reserved bits of a register that was well written before": (
        "ws8_pow2",
        b"\0\0\0\xa1" + b"\0\1\0\xa1",
        "instruction word 1: reserved bits of PAD are set",
    ),
    "reserved bits of a start": (
        "ws8_pow2",
        b"\1\0\0\x0b",
        "instruction word 0: end has reserved bits [23, 0] set",
    ),
    "reserved bits of one of two alike": (
        "ws8_pow2",
        b"\0\0\0\x0b" + b"\1\0\0\x0b",
        "instruction word 1: end has reserved bits [23, 0] set",
    ),
    "reserved bits of a descriptor": (
        "edge16",
        b"\x0b\0\0\0" + b"\0" * 123 + b"\x80",
        "instruction word 0: end has reserved bits [1023, 32] set",
    ),
    "reserved bits of one of two descriptors alike": (
        "edge16",
        b"\x0b" + b"\0" * 127 + b"\x0b\0\0\0" + b"\0" * 123 + b"\x80",
        "instruction word 1: end has reserved bits [1023, 32] set",
    ),
    "a wait in a signal": (
        "edge16",
        b"\x09\x01" + b"\0" * 126,
        "instruction word 0: signal cannot carry a wait or a signal of its own",
    ),
    "a semaphore without a wait": (
        "edge16",
        b"\x02\x02" + b"\0" * 126,
        "instruction word 0: wait_semaphore is 1 without wait",
    ),
    "a semaphore without a wait behind one with it": (
        "edge16",
        b"\x02\x03" + b"\0" * 126 + b"\x02\x02" + b"\0" * 126,
        "instruction word 1: wait_semaphore is 1 without wait",
    ),
    "registers never written": (
        "ws8_pow2",
        b"\0\0\0\x01",
        "instruction word 0: copy uses SRC_ADDRESS.0, which nothing has written",
    ),
    "writes that nothing uses": (
        "ws8_pow2",
        b"\0\0\0\x0b" + b"\0\0\0\xa1",
        "instruction word 1: the program ends in register writes that no operation uses",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_program_the_machine_does_not_accept(case):
    name, program, message = REFUSED[case]
    with pytest.raises(ProgramError) as caught:
        decode(program, machine_of(name).isa)
    assert str(caught.value) == message


@MACHINE
def test_lines_that_begin_with_blanks_go_on_with_a_statement(name):
    """The first has none before it, and a label may stand on a line of its own."""
    isa = machine_of(name).isa
    program = encode([fill(), fill(value=3), End()], isa)
    first, label_and_statement, *lines = disassemble(program, isa).splitlines()
    label, _, statement = label_and_statement.partition(" ")
    for begin in (f"  {statement}", f"{label}\n  {statement}", statement.replace(" = ", "\n  = ")):
        assert assemble("\n".join((first, begin, *lines)), isa) == program


def test_an_unknown_kind_is_refused():
    isa = machine_of("edge16").isa
    choices = {name: 0 for name, description in Pool.get_descriptions().items() if description.choice}
    op = Pool(**{**dict.fromkeys(Pool.parameters(), 1), "kind": PoolKind.AVERAGE, **choices})
    low = isa.plans["pool"].slot_of["kind"].low
    word = bytearray(encode([op], isa))
    word[low // 8] |= 2 << low % 8
    with pytest.raises(ProgramError) as caught:
        decode(bytes(word), isa)
    assert str(caught.value) == "instruction word 0: pool kind=3 is unknown (0 max, 1 average)"


def test_a_constant_that_the_operation_needs():
    isa = machine_of("ethos_u55_256").isa
    text = disassemble(encode([Table(1, 1, 1, 0, 0, 0, 0, 0, 0, 0)], isa), isa)
    changed = text.replace("write IFM_STEP = 0x0 ", "write IFM_STEP = 0x1000000 ")
    assert changed != text
    with pytest.raises(ProgramError) as caught:
        decode(assemble(changed, isa), isa)
    assert str(caught.value).endswith("table needs IFM_STEP.channel_stride = 0")


LISTINGS = {
    "empty": ("ws8_pow2", "", "listing: is empty; its first line must be 'isa registers32'"),
    "of another machine": ("ws8_pow2", "isa registers64\n", "listing line 1: must be 'isa registers32', got 'isa registers64'"),
    "unknown verb": (
        "ws8_pow2",
        "isa registers32\nrun end\n",
        "listing line 2: must be 'write REGISTER = VALUE' or 'start OPERATION ...', got 'run end'",
    ),
    "unknown register": ("ws8_pow2", "isa registers32\nwrite X = 1\n", "listing line 2: there is no register X"),
    "register without its part": (
        "ws8_pow2",
        "isa registers32\nwrite DST_ADDRESS = 1\n",
        "listing line 2: there is no register DST_ADDRESS; it has DST_ADDRESS.0, DST_ADDRESS.1",
    ),
    "value too large": (
        "ws8_pow2",
        "isa registers32\n\nwrite PAD = 0x1000000\n",
        "listing line 3: PAD = 16777216 does not fit (0 to 16777215)",
    ),
    "value of reserved bits": (
        "ws8_pow2",
        "isa registers32\nwrite PAD = 0x100\n",
        "listing line 2: reserved bits of PAD are set",
    ),
    "no number": ("ws8_pow2", "isa registers32\nwrite PAD = x\n", "listing line 2: 'x' is not a whole number"),
    "missing field": ("ws8_pow2", "isa registers32\nstart wait engine=1\n", "listing line 2: wait lacks semaphore"),
    "unknown field": ("ws8_pow2", "isa registers32\nstart end engine=1\n", "listing line 2: end has no field engine"),
    "field too large": (
        "ws8_pow2",
        "isa registers32\nstart wait engine=4 semaphore=0\n",
        "listing line 2: engine=4 does not fit its 2 bits (0 to 3)",
    ),
    "field twice": (
        "edge16",
        "isa descriptors1024\n00000: wait engine=0\n  engine=1\n",
        "listing line 2: 'engine=1' is given twice",
    ),
    "unknown operation": (
        "edge16",
        "isa descriptors1024\nwait2 engine=0\n",
        "listing line 2: no operation 'wait2'; descriptors1024 has copy, fill, convolution, depthwise, matrix_product, "
        "elementwise, pool, table, end, signal, wait",
    ),
    "a wait in an end": ("edge16", "isa descriptors1024\nend wait=0\n", "listing line 2: end cannot carry a wait"),
    "a semaphore too large": (
        "edge16",
        "isa descriptors1024\ntable wait=256 height=1 width=1 channels=1 input_address=0 input_row_stride=0\n"
        "  input_column_stride=0 output_address=0 output_row_stride=0 output_column_stride=0 table_address=0\n"
        "  function=0 unit=0\n",
        "listing line 2: wait=256 does not fit (0 to 255)",
    ),
}


@pytest.mark.parametrize("case", LISTINGS)
def test_a_listing_that_is_none(case):
    name, text, message = LISTINGS[case]
    with pytest.raises(ProgramError) as caught:
        assemble(text, machine_of(name).isa)
    assert str(caught.value) == message


@pytest.mark.parametrize("name", ["edge16", "ethos_u65_512"])
def test_twenty_thousand_convolutions_come_back(name):
    isa, generator = machine_of(name).isa, random.Random(0)
    base = first(operations(name, "convolution"))
    ops = [replace(base, input_address=generator.randrange(1 << 18), output_height=i % 97 + 1) for i in range(20_000)]
    assert decode(encode(ops, isa), isa).ops == tuple(ops)


def test_channels_of_dma_are_engines_of_their_own():
    isa = machine_of("wide32_w4a16").isa
    copy = Copy(1, Space.DRAM, 0, Space.SRAM, 0, 64, 1, 1, 1, 0, 0, 0, 0, 0, 0)
    assert decode(encode([Wait(3, 0), copy, Signal(2, 0)], isa), isa).words == (1, 0, 1)
