"""Words of a memory that lie in banks: those that runs fill in part, and those that wait for others of their bank."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from simulator import simulate
from tests.simulator.machine_programs import make, small_chip
from toolchain.hw.chip import Chip
from toolchain.hw.timing_terms import idealize_terms
from toolchain.machine import (
    Convolution,
    Copy,
    Elementwise,
    ElementwiseKind,
    End,
    MachineOp,
    MatrixProduct,
    Space,
    demand,
)
from toolchain.machine.access import Access
from toolchain.machine.bank_conflicts import add_bank_conflicts
from toolchain.machine.demand_columns import demands
from toolchain.machine.registry import OPERATIONS
from toolchain.machine.timing_model import services, services_of
from toolchain.machine.traffic import Traffic


def chip(banks: int = 8, **keys: Any) -> Chip:
    """Banks of 8 bytes, which give the 64 bytes that the sram's port reads in a cycle where they are 8."""
    return small_chip(memories__sram__banks=banks, memories__sram__bank_bytes=8, **keys)


Softmax = OPERATIONS["softmax"]


def read(**fields: Any) -> Convolution:
    """A convolution 1x1 that reads 16 of the channels of each of 8 x 8 pixels once, and emits nothing."""
    sizes = {"input_height": 8, "input_width": 8, "output_height": 8, "output_width": 8}
    channels = {"input_channels": 16, "output_channels": 8, "input_row_stride": 8 * 64, "input_column_stride": 64}
    return make(Convolution, **(sizes | channels | fields))


def rescale(**fields: Any) -> Elementwise:
    """16 pixels of 16 channels."""
    shape = {"kind": ElementwiseKind.RESCALE, "height": 1, "width": 16, "channels": 16}
    strides = {"a_channel_stride": 1, "a_column_stride": 16, "output_address": 4096, "output_column_stride": 16}
    return make(Elementwise, **(shape | strides | fields))


def load(inner: int, count: int, stride: int) -> Copy:
    """Runs of `inner` bytes to sram, `stride` apart there."""
    spaces = {"source_space": Space.DRAM, "destination_space": Space.SRAM}
    return make(Copy, **spaces, inner_bytes=inner, count0=count, source_stride0=inner, destination_stride0=stride)


def make_transposing_copy() -> Copy:
    """4 columns of 16 bytes to rows 68 apart."""
    spaces = {"source_space": Space.DRAM, "destination_space": Space.SRAM}
    return make(Copy, **spaces, inner_bytes=4, count2=16, source_stride2=4, destination_stride2=68, transpose=1)


# operation, bytes and cycles of reads, bytes and cycles of writes, by hand
CASES = [
    # 1,024 bytes of inputs in 128 words, and 128 of weights in 16. Pixels without gaps: 16 and 2 words of each bank.
    (read(input_row_stride=128, input_column_stride=16), 1152, 18, 0, 0),
    # pixels 64 bytes apart begin in one bank: its 64 words one after another, and 2 of the weights
    (read(), 1152, 66, 0, 0),
    # 32 bytes apart: in two banks in turn, which have half of these each
    (read(input_row_stride=256, input_column_stride=32), 1152, 34, 0, 0),
    # 72 bytes apart: in each bank in turn; rows of 576 bytes begin in the same
    (read(input_row_stride=576, input_column_stride=72), 1152, 18, 0, 0),
    # from byte 4 on 16 bytes touch three words: 192 words, a third of them in a bank
    (read(input_address=4), 1536 + 128, 66, 0, 0),
    # every second pixel of every second row of those without gaps: 16 pixels of 2 words, of which 4 begin in a row of banks
    (read(output_height=4, output_width=4, stride_height=2, stride_width=2, input_row_stride=128, input_column_stride=16),
     256 + 128, 8 + 2, 0, 0),
    # twice, for 8 output channels each, and 256 bytes of weights once
    (read(input_row_stride=128, input_column_stride=16, output_channels=16), 2304, 36, 0, 0),
    (rescale(), 256, 4, 256, 4),
    (rescale(a_address=1), 264, 5, 256, 4),  # 33 words
    (rescale(a_column_stride=64, output_column_stride=128), 256, 16, 256, 16),
    # two operands one after another
    (rescale(kind=ElementwiseKind.ADD, a_column_stride=64, b_address=2048, b_column_stride=16, b_channel_stride=1),
     512, 16 + 4, 256, 4),
    (load(64, 8, 64), 0, 0, 512, 8),
    (load(4, 8, 64), 0, 0, 64, 8),  # half of a word each, in one bank
    (load(4, 8, 8), 0, 0, 64, 1),
    # [4, 16] times [16, 8], whose columns lie 64 bytes apart; each element of one byte is a word
    (make(MatrixProduct, rows=4, inner=16, columns=8, a_row_stride=16, b_address=1024, b_row_stride=1, b_column_stride=64),
     64 + 128 * 8, 1 + 64, 0, 0),
    # [4, 16] twice, times [16, 16] without gaps
    (make(MatrixProduct, rows=4, inner=16, columns=16, a_row_stride=16, b_address=1024, b_row_stride=16, b_column_stride=1),
     128 + 256, 2 + 4, 0, 0),
    # four rows of 16 bytes, 64 bytes apart: three times two words of two banks each
    (make(Softmax, rows=4, columns=16, input_row_stride=64, output_row_stride=64, output_address=1024), 192, 12, 64, 4),
    # words 0 and 1, 8 to 10, 17 and 18, 25 to 27: 4 of bank 1
    (make_transposing_copy(), 0, 0, 80, 4),
]  # fmt: skip


@pytest.mark.parametrize(("op", "read_bytes", "read_cycles", "write_bytes", "write_cycles"), CASES)
def test_words_and_cycles_of_an_operation(
    op: MachineOp, read_bytes: int, read_cycles: int, write_bytes: int, write_cycles: int
) -> None:
    moved = demand(op, chip()).at(Space.SRAM)
    assert (moved.read_burst_bytes, moved.read_bank_cycles) == (read_bytes, read_cycles)
    assert (moved.write_burst_bytes, moved.write_bank_cycles) == (write_bytes, write_cycles)
    assert demand(op, chip(memories__sram__bank_cycles=3)).at(Space.SRAM).read_bank_cycles == 3 * read_cycles
    half = chip(memories__sram__frequency=250_000_000)  # of the chip's 500 MHz
    assert demand(op, half).at(Space.SRAM).write_bank_cycles == 2 * write_cycles
    ports = dict(services_of(chip(), demand(op, chip()).traffic))
    assert (ports.get(2, 0) >= read_cycles, ports.get(3, 0) >= write_cycles) == (True, True)
    assert [*ports.items()] == [*next(services(chip(), demands([op], chip())))]


def test_a_program_takes_what_the_busiest_bank_takes() -> None:
    """The vector engine and the ports need 4 cycles behind the first, in which the front end reads; two banks their 16 words."""

    def cycles(op: MachineOp, *left_out: str) -> int:
        return simulate(
            idealize_terms(banked, left_out), [op, End()], None, np.zeros(0, np.uint8), (), values=False, check=False
        ).cycles

    lanes = {"rescale": {"lanes": 64, "startup": 0}}
    banked = chip(engines__vector__functions=lanes, memories__sram__write_bytes_per_cycle=64.0)
    spread, odd = rescale(a_column_stride=64), rescale(a_address=1)
    assert [cycles(rescale()), cycles(spread), cycles(spread, "banks")] == [5, 17, 5]
    assert [cycles(odd), cycles(odd, "banks"), cycles(odd, "alignment"), cycles(odd, "banks", "alignment")] == [6, 6, 5, 5]


def block(rng: np.random.Generator) -> Access:
    """A read of the sram, of up to three strided counts."""
    dimensions = int(rng.integers(0, 4))
    counts, strides = (tuple(int(n) for n in rng.integers(1, most, dimensions)) for most in (7, 150))
    return Access(Space.SRAM, int(rng.integers(0, 300)), counts, strides, int(rng.integers(1, 40)), False)


def charge(access: Access, reads: int, banks: Chip) -> tuple[int, int]:
    """Bytes of words, and cycles of the busiest bank."""
    moved = [(access, reads * access.bytes)]
    (traffic,) = add_bank_conflicts([Traffic(Space.SRAM)], moved, banks)
    return traffic.read_burst_bytes, traffic.read_bank_cycles


def test_loads_are_those_of_each_run_counted_word_by_word() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        access, (count, word, reads) = block(rng), (int(rng.choice(n)) for n in ([1, 2, 3, 8], [1, 4, 8], [1, 3]))
        keys = {"memories__sram__banks": count, "memories__sram__bank_bytes": word}
        words, bank_words = np.zeros(count, int), np.zeros(count, int)
        run, outer = access.inner_bytes, list(zip(access.counts, access.strides))
        while outer and outer[-1][1] in (run, outer[-1][1] * (outer[-1][0] == 1)):  # what continues a run is part of it
            run, outer = run * outer[-1][0], outer[:-1]
        for at in itertools.product(*(range(n) for n, _ in outer)):
            first = access.address + sum(i * stride for i, (_, stride) in zip(at, outer))
            np.add.at(words, np.arange(first // word, (first + run - 1) // word + 1) % count, 1)
            np.add.at(bank_words, np.arange(first, first + run) // word % count, 1)
        assert charge(access, reads, small_chip(**keys)) == (reads * word * words.sum(), reads * words.max()), access
        packed = small_chip(**keys, memories__sram__words="packed")
        assert charge(access, reads, packed) == (reads * access.bytes, reads * -(-bank_words.max() // word)), access


def test_columns_are_charged_as_each_block_alone_however_large() -> None:
    """Bytes times bytes of the last block have more than 64 bits."""
    banks, sizes = chip(), [1, 24, 2**40]
    alone = [charge(Access(Space.SRAM, 3, (), (), size, False), 1, banks) for size in sizes]
    column = Access(Space.SRAM, 3, (), (), np.array(sizes), False)  # type: ignore[arg-type]
    words, busiest = charge(column, 1, banks)
    assert list(zip(words, busiest, strict=True)) == alone  # type: ignore[call-overload]


def test_more_banks_are_never_busier() -> None:
    rng = np.random.default_rng(1)
    for _ in range(300):
        access, word, fewer = block(rng), int(rng.choice([1, 4, 8])), int(rng.integers(1, 9))
        keys = {"memories__sram__bank_bytes": word, "memories__sram__words": str(rng.choice(["whole", "packed"]))}
        cycles = [charge(access, 1, small_chip(**keys, memories__sram__banks=fewer * times))[1] for times in (1, 2, 3, 30)]
        assert cycles[0] >= max(cycles[1:3]) and min(cycles[1:3]) >= cycles[3], (access, fewer)
