"""Addresses that are read from memory: what a run reaches, what it might reach, when, and in what order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator import DramRange, DramRangeKind, Simulation, simulate
from tests.support.control_flow_machines import with_control
from toolchain.errors import ProgramError
from toolchain.isa import assemble, decode, disassemble, encode, load_machine
from toolchain.machine import (
    Access,
    Copy,
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
    accesses_at,
    dispatch_program,
    find_unsupported,
)

EDGE16 = load_machine("edge16")
MACHINES = {
    "descriptors": with_control(EDGE16),
    "registers": with_control(EDGE16, "registers", 32),
    "two channels": with_control(load_machine("wide32_w4a16")),
}
CHIP = MACHINES["two channels"].chip
DMA0, DMA1 = 2, 3  # queues of the channels
ROWS, ROW, SIZE = 8, 48, 4096
TABLE, INDEX, RESULT = 64, 1024, 2048
IMAGE = (np.arange(SIZE) * 7 % 251).astype(np.uint8)
# Row dram[1024] of the table to sram, and from there to dram[2048].
GATHER = """isa edge16_descriptors
load_base base=1 source=0 offset=64 scale=48 limit=7 space=0 address=1024 word_bytes=4 address_base=0
copy source_space=0 source_address=0 destination_space=1 destination_address=32 inner_bytes=48 count0=1 count1=1
     count2=1 source_stride0=0 source_stride1=0 source_stride2=0 destination_stride0=0 destination_stride1=0
     destination_stride2=0 source_base=1 destination_base=0
copy source_space=1 source_address=32 destination_space=0 destination_address=2048 inner_bytes=48 count0=1 count1=1
     count2=1 source_stride0=0 source_stride1=0 source_stride2=0 destination_stride0=0 destination_stride1=0
     destination_stride2=0 source_base=0 destination_base=0
end
"""


def copy(source: int, target: int, size: int = ROW, load: bool = True, channel: int = 0, bases: tuple[int, int] = (0, 0)) -> Copy:
    spaces = (Space.DRAM, Space.SRAM) if load else (Space.SRAM, Space.DRAM)
    return Copy(channel, spaces[0], source, spaces[1], target, size, 1, 1, 1, 0, 0, 0, 0, 0, 0, *bases)


def load(limit: int = ROWS - 1, address: int = INDEX, word_bytes: int = 4, **more: Any) -> LoadBase:
    instruction = LoadBase(0, 1, 0, TABLE, ROW, limit, Space.DRAM, address, word_bytes)
    return replace(instruction, **more)


def with_index(value: int, word_bytes: int = 4, address: int = INDEX) -> np.ndarray:
    image = IMAGE.copy()
    image[address : address + word_bytes] = np.frombuffer(value.to_bytes(word_bytes, "little", signed=True), np.uint8)
    return image


def run(ops: Sequence[MachineOp], image: np.ndarray = IMAGE, **more: Any) -> Simulation:
    return simulate(CHIP, [*ops, End()], None, image, [(0, SIZE)], **more)


@pytest.mark.parametrize("index", [0, 1, 5, 7, 8, 1 << 30, -1, -(1 << 31)])
def test_a_listing_in_which_an_index_in_memory_chooses_a_row(index: int):
    machine = MACHINES["descriptors"]
    listing = GATHER.replace("edge16_descriptors", machine.isa.name)
    program = assemble(listing, machine.isa)
    assert assemble(disassemble(program, machine.isa), machine.isa) == program
    decoded = decode(program, machine.isa)
    row = min(max(index, 0), ROWS - 1)
    parts = [
        DramRange(DramRangeKind.INPUT, "table and index", 0, RESULT),
        DramRange(DramRangeKind.OUTPUT, "row", RESULT, RESULT + ROW),
    ]
    image = with_index(index)
    after = simulate(machine.chip, decoded.ops, decoded.words, image, (), parts=parts).dram
    first = TABLE + ROW * row
    assert (after[RESULT : RESULT + ROW] == image[first : first + ROW]).all()
    after[RESULT : RESULT + ROW] = image[RESULT : RESULT + ROW]
    assert (after == image).all()


@pytest.mark.parametrize("kind", ["descriptors", "registers"])
def test_both_kinds_of_table_hold_it(kind: str):
    isa = MACHINES[kind].isa
    ops: list[MachineOp] = [load(), load(0, -(-SIZE // 4), 1, base=3, source=2, offset=-640, address_base=1), copy(0, 0), End()]
    program = encode(ops, isa)
    assert [*decode(program, isa).ops] == ops
    assert assemble(disassemble(program, isa), isa) == program


@pytest.mark.parametrize(("word_bytes", "index"), [(1, 5), (2, 5), (4, 5), (1, -3), (2, -3), (1, 127), (2, 300)])
def test_words_of_all_sizes_are_signed(word_bytes: int, index: int):
    image = with_index(index, word_bytes)
    image[INDEX + word_bytes : INDEX + 4] = 0x41  # is not of the word
    after = run([load(word_bytes=word_bytes), copy(0, 0, bases=(1, 0)), copy(0, RESULT, load=False)], image).dram
    first = TABLE + ROW * min(max(index, 0), ROWS - 1)
    assert (after[RESULT : RESULT + ROW] == image[first : first + ROW]).all()


def test_a_number_leads_to_the_next():
    """A list in memory: each entry says where the one behind it lies."""
    image = with_index(3)
    for place, following in ((3, 6), (6, 2)):
        image[INDEX + 4 * place : INDEX + 4 * place + 4] = np.frombuffer(following.to_bytes(4, "little"), np.uint8)
    follow = LoadBase(0, 2, 0, 0, 4, 7, Space.DRAM, INDEX, 4, 2)
    last = load(address_base=2)
    after = run([follow, follow, last, copy(0, 0, bases=(1, 0)), copy(0, RESULT, load=False)], image).dram
    assert (after[RESULT : RESULT + ROW] == image[TABLE + 2 * ROW : TABLE + 3 * ROW]).all()


def test_rows_and_columns_add_up():
    image = with_index(2)
    image[INDEX + 4 : INDEX + 8] = [1, 0, 0, 0]
    column = LoadBase(0, 1, 1, 0, 8, 4, Space.DRAM, INDEX + 4, 4)
    ops = [load(), column, copy(4, 0, 4, bases=(1, 0)), copy(0, RESULT, 4, load=False)]
    after = run(ops, image).dram
    first = TABLE + 2 * ROW + 8 + 4
    assert (after[RESULT : RESULT + 4] == image[first : first + 4]).all()
    box = Access(Space.DRAM, TABLE + 4, (8, 5, 1, 1, 1, 1), (ROW, 8, 0, 0, 0, 0), 4, False, exact=False)
    assert accesses_at(dispatch_program(CHIP, ops), 2, CHIP)[0] == box


def test_an_access_is_a_box_of_all_that_it_may_be():
    flow = dispatch_program(CHIP, [load(), copy(16, 0, 8, bases=(1, 0)), copy(16, 0, 8), End()])
    source, target = accesses_at(flow, 1, CHIP)
    assert source == Access(Space.DRAM, TABLE + 16, (8, 1, 1, 1, 1), (ROW, 0, 0, 0, 0), 8, False, exact=False)
    assert target.exact and target.end == 8
    assert all(a.exact for i in (0, 2) for a in accesses_at(flow, i, CHIP))


def test_places_that_meet_are_one_range():
    """However many there are, so that a program of a stranger costs no more than its memory."""
    ops = [
        load(1000, scale=1),
        load(1000, scale=1, source=1),
        copy(16, 0, 8, bases=(1, 0)),
        load(0),
        copy(16, 0, 8, bases=(1, 0)),
    ]
    flow = dispatch_program(CHIP, [*ops, load(1000, scale=0), copy(16, 0, 8, bases=(1, 0)), End()])
    assert accesses_at(flow, 2, CHIP)[0] == Access(Space.DRAM, 2 * TABLE + 16, (), (), 2008, False, exact=False)
    assert all(accesses_at(flow, i, CHIP)[0].exact for i in (4, 6))


@pytest.mark.parametrize(
    ("ops", "fault"),
    [
        (
            [load(100), copy(0, 0, bases=(1, 0))],
            "op 1 copy (dma0) reads dram[0x40..0x1330), outside dram of 0x1000 bytes, with the number that "
            "op 0 (load_base) reads, 0 to 100, at its largest or smallest",
        ),
        (
            [load(address=INDEX - 2, offset=-ROW), copy(0, 0, bases=(1, 0))],
            "op 1 copy (dma0): address -48 with strides (48, 0, 0, 0, 0); none may be negative",
        ),
        ([load(1001)], "op 0 load_base (dma0): limit=1001, must be 0 to 1000 (control.indirect.max_index)"),
        ([load(-1)], "op 0 load_base (dma0): limit=-1, must be 0 to 1000 (control.indirect.max_index)"),
        ([load(word_bytes=3)], "op 0 load_base (dma0): word_bytes=3, must be 1, 2 or 4"),
        ([load(scale=-1)], "op 0 load_base (dma0): scale=-1, must be at least 0"),
        ([load(address_base=4)], "op 0 load_base (dma0): address_base=4, the machine has control.bases=3"),
        ([load(base=0)], "op 0 load_base: base=0, must be 1 to 3 (control.bases)"),
        ([load(source=4)], "op 0 load_base: source=4, must be 0 to 3 (control.bases)"),
        ([load(address=SIZE - 3)], "op 0 load_base (dma0) reads dram[0xffd..0x1001), outside dram of 0x1000 bytes"),
        ([load(space=Space.SRAM)], "op 0 load_base (dma0) reads sram[0x400..0x404), but byte 0x400 was never written"),
        (
            # Row 7 of a table of which rows 0 to 6 are there.
            [copy(0, 0, 7 * ROW), load(offset=0), replace(copy(0, 512, bases=(1, 0)), source_space=Space.SRAM)],
            "op 2 copy (dma0) reads sram[0x0..0x180), but byte 0x150 was never written, with the number that "
            "op 1 (load_base) reads, 0 to 7, at its largest or smallest",
        ),
        (
            # Any row may be the one that is written, so that nobody knows of one that it is.
            [copy(0, 0), load(offset=0), replace(copy(0, 512, bases=(0, 1)), source_space=Space.SRAM), copy(512, 0, load=False)],
            "op 3 copy (dma0) reads sram[0x200..0x230), but byte 0x200 was never written",
        ),
        (
            [Wait(DMA0, 0), load(), Signal(DMA1, 0)],
            "deadlock: op 0 wait semaphore 0 (dma0); op 1 load_base (dma0) (the front end waits for it) can never go on; each "
            "Wait needs a Signal that runs without it",
        ),
    ],
)
def test_what_is_refused(ops: list[MachineOp], fault: str):
    with pytest.raises(ProgramError) as caught:
        run(ops)
    assert str(caught.value).startswith(fault)


def test_a_constant_that_an_index_may_reach_is_not_to_be_written():
    parts = [DramRange(DramRangeKind.CONSTANT, "", TABLE + 5 * ROW, TABLE + 6 * ROW)]
    ops = [copy(0, 0), load(), copy(0, 0, load=False, bases=(0, 1))]
    with pytest.raises(ProgramError, match=r"^op 2 copy \(dma0\) writes dram\[0x40\.\.0x1c0\) over constant"):
        simulate(CHIP, [*ops, End()], None, IMAGE, [(0, TABLE + 5 * ROW), (TABLE + 6 * ROW, SIZE)], parts=parts)


def test_a_machine_without_it():
    chip = with_control(EDGE16, control={"bases": 3}).chip
    with pytest.raises(ProgramError, match=r"^op 0 load_base: the machine has no control\.indirect$"):
        dispatch_program(chip, [load(), End()])
    assert find_unsupported(load(), chip) == "limit=7, must be 0 to 0 (control.indirect.max_index)"


def test_a_word_that_another_channel_writes_needs_an_order():
    """The load runs on channel 0; channel 1 stores the number."""
    store = copy(0, INDEX, 4, load=False, channel=1)
    before = [Fill(1, Space.SRAM, 0, 2, 1, 1, 1, 0, 0, 0, 3), store]
    with pytest.raises(
        ProgramError, match=r"^op 2 load_base \(dma0\) reads dram\[0x400\.\.0x404\) and op 1 copy \(dma1\) writes"
    ):
        run([*before, load()])
    ops = [*before, Signal(DMA1, 0), Wait(DMA0, 0), load(2000 // ROW), copy(0, 64, bases=(1, 0)), copy(64, RESULT, load=False)]
    run(ops)


def test_what_is_dispatched_behind_a_load_comes_after_it():
    """No signal orders the store of the other channel, which writes over the word; nor what channel 0 did before."""
    fill = Fill(1, Space.SRAM, 0, 2, 1, 1, 1, 0, 0, 0, 3)
    store = copy(0, INDEX, 4, load=False, channel=1)
    after = run([load(), copy(0, 64, bases=(1, 0)), fill, store], with_index(4))
    assert (after.memory["sram"][64 : 64 + ROW] == IMAGE[TABLE + 4 * ROW : TABLE + 5 * ROW]).all()
    early = [copy(0, 256), load(), copy(256, RESULT, load=False, channel=1)]
    run(early)
    with pytest.raises(ProgramError, match="nothing orders the two"):
        run([load(), *(early[0], early[2])])


def test_what_waits_for_a_signal_behind_a_load_comes_after_it():
    """The store is dispatched before the load; its signal, of an engine that does nothing else, is not."""
    store = copy(0, INDEX, 4, load=False, channel=1)
    before = [copy(0, 0, 4, channel=1), Wait(DMA1, 0), store, load(), Signal(0, 0), copy(0, 64, bases=(1, 0))]
    after = run(before, with_index(5))
    assert (after.memory["sram"][64 : 64 + ROW] == IMAGE[TABLE + 5 * ROW : TABLE + 6 * ROW]).all()
    with pytest.raises(ProgramError, match=r"^op 4 load_base \(dma0\) reads .* and op 3 copy \(dma1\) writes .*nothing orders"):
        run([before[0], Signal(0, 0), *before[1:4]])


def test_the_front_end_waits_for_it():
    """Both channels would start at once if there were no load."""
    other, word_cycles = copy(RESULT, 512, channel=1), CHIP.isa.word_cycles
    free = run([copy(0, 0), other])
    assert free.start[1] == 2 * word_cycles < free.end[0]
    result = run([load(), other])
    assert result.start[0] == word_cycles and result.end[0] > CHIP.dram.latency_cycles
    assert result.start[1] == result.end[0] > 2 * word_cycles
    assert result.traffic["dram"].read_bytes == 4 + ROW


def test_in_a_repeat_each_iteration_reads_its_own():
    image = IMAGE.copy()
    picks = [6, 0, 3]
    image[INDEX : INDEX + 12] = np.frombuffer(np.array(picks, "<i4").tobytes(), np.uint8)
    body = [load(address_base=2), copy(0, 0, bases=(1, 0)), copy(0, RESULT, load=False, bases=(0, 3))]
    steps = [SetBase(2, 2, 4), SetBase(3, 3, ROW)]
    result = run([Repeat(3), *body, *steps, RepeatEnd()], image)
    rows, table = result.dram[RESULT : RESULT + 3 * ROW].reshape(3, ROW), image[TABLE : TABLE + ROWS * ROW].reshape(ROWS, ROW)
    assert (rows == table[picks]).all()
    assert [result.flow.name(i) for i in (0, 3)] == ["op 1, iteration 1 of 3", "op 1, iteration 2 of 3"]


def test_memory_behind_an_operation_stops_there():
    result = run([load(), copy(0, 0, bases=(1, 0)), Fill(0, Space.SRAM, 0, 4, 1, 1, 1, 0, 0, 0, 1)], with_index(2), until=1)
    assert (result.memory["sram"][:ROW] == IMAGE[TABLE + 2 * ROW : TABLE + 3 * ROW]).all()


class Plain:
    """A front end and memories that do one thing after another, at the addresses of the run."""

    def __init__(self, image: np.ndarray):
        self.memory = {Space.DRAM: image.copy(), Space.SRAM: np.zeros(CHIP.sram.size, np.uint8)}
        self.bases = [0] * 4

    def do(self, ops: Sequence[MachineOp]) -> None:
        at, back = 0, list[list[int]]()
        while at < len(ops):
            op = ops[at]
            if isinstance(op, Repeat):
                back.append([at, op.count])
            elif isinstance(op, RepeatEnd):
                back[-1][1] -= 1
                at = back[-1][0] if back[-1][1] else at
                if not back[-1][1]:
                    back.pop()
            elif isinstance(op, SetBase):
                self.bases[op.base] = self.bases[op.source] + op.offset
            elif isinstance(op, LoadBase):
                first = op.address + self.bases[op.address_base]
                word = self.memory[op.space][first : first + op.word_bytes].tobytes()
                number = min(max(int.from_bytes(word, "little", signed=True), 0), op.limit)
                self.bases[op.base] = self.bases[op.source] + op.offset + op.scale * number
            elif isinstance(op, Copy):
                source = op.source_address + self.bases[op.source_base]
                target = op.destination_address + self.bases[op.destination_base]
                data = self.memory[op.source_space][source : source + op.inner_bytes].copy()
                self.memory[op.destination_space][target : target + op.inner_bytes] = data
            at += 1


@pytest.mark.parametrize("seed", range(120))
def test_random_programs_do_what_a_plain_machine_does(seed: int):
    """Everything on one channel. Numbers lie in dram below 256, data up to 3072 is read, results are written behind it; a part
    of them by an index too."""
    rng = random.Random(seed)
    image = np.array([rng.randrange(256) for _ in range(SIZE)], np.uint8)
    ops: list[MachineOp] = [copy(0, 0, 2048)]  # so that every byte of sram that is read has been written

    def one() -> MachineOp:
        kind = rng.randrange(6)
        if kind == 0:
            return SetBase(rng.randrange(1, 4), 0, rng.randrange(0, 64))
        if kind <= 2:
            space, limit = rng.choice([Space.DRAM, Space.SRAM]), rng.randrange(1, 20)
            source = rng.choice([0, 0, 3])
            size = rng.choice([1, 2, 4])
            return LoadBase(
                0, rng.randrange(1, 3), source, rng.randrange(64), rng.randrange(24), limit, space, rng.randrange(200), size
            )
        bases = rng.choice([(0, 0), (1, 0), (2, 0), (0, 2), (3, 1)])
        if kind <= 4:
            return copy(rng.randrange(1000), 2048 + rng.randrange(512), rng.randrange(1, 40), bases=bases)
        return copy(rng.randrange(1000), 3072 + rng.randrange(300), rng.randrange(1, 40), load=False, bases=bases)

    body = [one() for _ in range(rng.randrange(3, 12))]
    # Base 3 only steps, from 0 on, a few times.
    body = [op for op in body if not (isinstance(op, SetBase) and op.base == 3)]
    ops += [SetBase(3, 0, 0), Repeat(rng.randrange(1, 4)), *body, SetBase(3, 3, rng.randrange(16)), RepeatEnd()]
    plain = Plain(image)
    plain.do(ops)
    result = simulate(CHIP, [*ops, End()], None, image, [(0, SIZE)])
    assert (result.dram == plain.memory[Space.DRAM]).all()
    assert (result.memory["sram"] == plain.memory[Space.SRAM]).all()
