"""Test the simulator's refusals, with the exact words, and every mutation of a correct program."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from machine_programs import DMA0, DMA1, MAC, VECTOR, functions, load, make, small_chip, store
from pipelines import INPUT, OUTPUT, pipeline, rescale, signal_of, without

from simulator import simulate
from toolchain.errors import ProgramError
from toolchain.hw.chip import Chip
from toolchain.machine import (
    Access,
    Convolution,
    Copy,
    Depthwise,
    Elementwise,
    ElementwiseKind,
    End,
    Fill,
    MachineOp,
    MatrixProduct,
    Pool,
    PoolKind,
    Signal,
    Space,
    Wait,
    overlap,
    overlaps_itself,
)

CHIP = small_chip()
SIZE = 0x8000


def check(ops: list[MachineOp], chip: Chip = CHIP, written: tuple[int, int] = (0, 0x4000)) -> None:
    simulate(chip, ops, None, np.zeros(SIZE, np.uint8), [written], values=False, timing=False)


def assert_refused(ops: list[MachineOp], message: str, chip: Chip = CHIP, written: tuple[int, int] = (0, 0x4000)) -> None:
    with pytest.raises(ProgramError) as fault:
        check(ops, chip, written)
    assert str(fault.value) == message


def test_a_correct_pipeline_passes():
    check(pipeline(6))


@pytest.mark.parametrize("dropped", [i for i, op in enumerate(pipeline(6)) if isinstance(op, Signal | Wait)])
def test_any_dropped_signal_or_wait_is_refused(dropped):
    with pytest.raises(ProgramError):
        check(without(pipeline(6), dropped))


@pytest.mark.parametrize("wait", [i for i, op in enumerate(pipeline(6)) if isinstance(op, Wait)])
def test_any_dropped_pair_is_a_race(wait):
    """Counts still match, so only the order of accesses can tell."""
    ops = pipeline(6)
    with pytest.raises(ProgramError, match=r"nothing orders the two|was never written"):
        check(without(ops, wait, signal_of(ops, wait)))


def test_race_names_both_operations_and_their_bytes():
    ops = [load(0, 0, 64), load(64, 32, 64, 1), End()]
    assert_refused(
        ops,
        "op 1 copy (dma1) writes sram[0x20..0x60) and op 0 copy (dma0) writes sram[0x0..0x40): nothing orders the two; "
        "put a Signal after the one that comes first and a Wait for it before the other",
    )


def test_read_after_unordered_write_in_dram():
    ops = [load(0, 0, 64), store(0, 0x100, 64), load(0x13F, 0x200, 1, 1), End()]
    assert_refused(
        ops,
        "op 2 copy (dma1) reads dram[0x13f..0x140) and op 1 copy (dma0) writes dram[0x100..0x140): nothing orders the two; "
        "put a Signal after the one that comes first and a Wait for it before the other",
    )
    check([load(0, 0, 64), store(0, 0x100, 64), load(0x140, 0x200, 1, 1), End()])


def test_unordered_reads_are_no_hazard():
    check([load(0, 0, 64), load(0, 64, 64, 1), End()])


def test_order_goes_through_a_third_engine():
    ops = [
        load(0, 0, 64),
        Signal(DMA0, 0),
        Wait(VECTOR, 0),
        Signal(VECTOR, 1),
        Wait(DMA1, 1),
        load(64, 0, 64, 1),
        End(),
    ]
    check(ops)
    with pytest.raises(ProgramError, match="nothing orders"):
        check([*ops[:2], ops[3], ops[4], ops[5], ops[2], End()])


def test_an_order_by_full_queues_alone_does_not_count():
    """Ten Waits on the vector engine let it lag behind; its queue keeps order in time, not by the program."""
    ops = [load(0, 0, 64), *[load(1024 + 64 * i, 1024, 64) for i in range(20)], load(64, 0, 64, 1), End()]
    with pytest.raises(ProgramError, match=re.escape("op 21 copy (dma1)")):
        check(ops)


def make_strided_copy(address: int, inner: int, count: int, stride: int, channel: int) -> Copy:
    return make(
        Copy,
        channel=channel,
        source_address=0,
        destination_space=Space.SRAM,
        destination_address=address,
        inner_bytes=inner,
        count2=count,
        source_stride2=inner,
        destination_stride2=stride,
    )


def test_interleaved_channels_are_told_apart():
    check([make_strided_copy(0, 8, 10, 16, 0), make_strided_copy(8, 8, 10, 16, 1), End()])
    with pytest.raises(ProgramError, match=re.escape("sram[0x7..0x9f) as 10@16x8 bytes")):
        check([make_strided_copy(0, 8, 10, 16, 0), make_strided_copy(7, 8, 10, 16, 1), End()])


def test_deadlock_names_the_blocked():
    assert_refused(
        [Wait(VECTOR, 0), Signal(VECTOR, 1), Wait(DMA0, 1), Signal(DMA0, 0), End()],
        "deadlock: op 0 wait semaphore 0 (vector); op 2 wait semaphore 1 (dma0) can never go on; "
        "each Wait needs a Signal that runs without it",
    )


def test_deadlock_by_a_full_queue():
    blocked = [Wait(VECTOR, 0), *[rescale(0, 64, 16) for _ in range(5)], Signal(DMA0, 0), End()]
    assert_refused(
        blocked,
        "deadlock: op 0 wait semaphore 0 (vector); op 5 elementwise (vector) (not dispatched: its queue is full) can never "
        "go on; each Wait needs a Signal that runs without it",
    )


def test_reads_of_bytes_never_written():
    assert_refused([store(0, 0, 64), End()], "op 0 copy (dma0) reads sram[0x0..0x40), but byte 0x0 was never written")
    ops = [make_strided_copy(0, 8, 4, 16, 0), store(0, 0x5000, 64), End()]
    assert_refused(ops, "op 1 copy (dma0) reads sram[0x0..0x40), but byte 0x8 was never written")
    assert_refused([load(0x3FF0, 0, 64), End()], "op 0 copy (dma0) reads dram[0x3ff0..0x4030), but byte 0x4000 was never written")


def test_reads_of_written_parts_pass():
    back = make(
        Copy,
        source_space=Space.SRAM,
        source_address=0,
        destination_address=0x5000,
        inner_bytes=8,
        count2=4,
        source_stride2=16,
        destination_stride2=8,
    )
    check([make_strided_copy(0, 8, 4, 16, 0), back, End()])
    check([make_strided_copy(0, 8, 4, 16, 0), make_strided_copy(8, 8, 4, 16, 0), store(0, 0x5000, 64), End()])


def test_columns_that_a_stride_and_a_dilation_skip_are_not_read():
    """A pool of 257 outputs and 257 taps reads every second one of 1025 columns and writes between them."""
    window = {"kernel_width": 257, "stride_width": 2, "dilation_width": 2, "input_height": 1, "input_width": 1025}
    output = {"output_address": 1, "output_height": 1, "output_width": 257, "output_column_stride": 2}
    limits = {"kind": PoolKind.MAX, "clamp_low": -128, "clamp_high": 127}
    pool = make(Pool, **(window | output | limits | {"channels": 1, "input_column_stride": 1}))
    ordered_pool = [Signal(DMA0, 0), Wait(VECTOR, 0), pool]
    check([make_strided_copy(0, 1, 513, 2, 0), *ordered_pool, End()])
    assert_refused(
        [make_strided_copy(0, 1, 512, 2, 0), *ordered_pool, End()],
        "op 3 pool (vector) reads sram[0x0..0x401) as 513@2x1 bytes, but byte 0x400 was never written",
    )


def test_addresses_outside_a_memory():
    assert_refused([load(0, 0x7FF0, 32), End()], "op 0 copy (dma0) writes sram[0x7ff0..0x8010), outside sram of 0x8000 bytes")
    assert_refused([load(SIZE - 16, 0, 32), End()], "op 0 copy (dma0) reads dram[0x7ff0..0x8010), outside dram of 0x8000 bytes")
    assert_refused([load(-1, 0, 32), End()], "op 0 copy (dma0): address -1 with strides (0, 0, 0, 0); none may be negative")


def test_writes_that_overlap_themselves_or_what_is_read():
    assert_refused(
        [make_strided_copy(0, 8, 4, 4, 0), End()],
        "op 0 copy (dma0) writes sram[0x0..0x14) as 4@4x8 bytes: its elements overlap one another",
    )
    start = [load(0, 0, 256), Signal(DMA0, 0), Wait(VECTOR, 0)]
    check([*start, rescale(0, 0, 64), End()])
    assert_refused(
        [*start, rescale(0, 16, 64), End()],
        "op 3 elementwise (vector) writes sram[0x10..0x50) over sram[0x0..0x40), which it reads",
    )


def test_semaphore_rules():
    assert_refused(
        [Signal(DMA0, 16), End()], "op 0 signal semaphore 16 (dma0): the machine has semaphores 0..15 (sync.semaphores=16)"
    )
    assert_refused(
        [Signal(DMA0, 0), Signal(DMA1, 0), Wait(MAC, 0), Wait(MAC, 0), End()],
        "op 1 signal semaphore 0 (dma1): the semaphore is signalled on dma0 too (op 0), so which Wait takes which Signal depends "
        "on timing; use a semaphore for each pair of engines",
    )
    assert_refused(
        [Signal(DMA0, 0), Signal(DMA0, 0), Wait(MAC, 0), Wait(VECTOR, 0), End()],
        "op 3 wait semaphore 0 (vector): the semaphore is waited for on mac too (op 2), so which Wait takes which Signal depends "
        "on timing; use a semaphore for each pair of engines",
    )
    assert_refused(
        [Signal(DMA0, 0), Signal(DMA0, 0), Wait(MAC, 0), End()],
        "op 1 signal semaphore 0 (dma0): the semaphore is signalled 2 times and waited for 1 times; it must end at 0, the next "
        "run starts from it",
    )
    assert_refused(
        [make(Signal, engine=4), End()], "op 0 signal: names engine or channel 4; the machine has mac, vector, dma0, dma1"
    )
    assert_refused([load(0, 0, 8, 2), End()], "op 0 copy: names engine or channel 2; the machine has mac, vector, dma0, dma1")
    assert_refused([End(), Signal(DMA0, 0)], "op 0 end: 1 operations follow it; end must be the last")


def test_semaphore_counts_stay_below_their_limit():
    chip = small_chip(sync={"semaphores": 4, "max_count": 2})
    three = [Signal(DMA0, 0)] * 3 + [Wait(MAC, 0)] * 3
    assert_refused(
        [*three, End()],
        "op 2 signal semaphore 0 (dma0): the count may reach 3, above sync.max_count=2; nothing orders this Signal after Wait "
        "number 1 of the semaphore",
        chip,
    )
    check([*three, End()])
    ordered = [Signal(DMA0, 0), Signal(DMA0, 0), Wait(MAC, 0), Signal(MAC, 1), Wait(DMA0, 1), Signal(DMA0, 0)]
    check([*ordered, Wait(MAC, 0), Wait(MAC, 0), End()], chip)


CONVOLUTION = {"input_channels": 4, "output_channels": 4, "output_height": 2, "output_width": 2, "input_height": 2}
CONVOLUTION |= {"input_width": 2, "emit": 1, "clamp_high": 1}
POOL = {"output_height": 1, "output_width": 1, "input_height": 1, "input_width": 1, "channels": 1}
LOOKUP = {"height": 1, "width": 1, "channels": 1}


@pytest.mark.parametrize(
    ("changes", "op", "message"),
    [
        ({}, make(Fill, inner_elements=0), "op 0 fill (dma0): inner_elements=0, must be at least 1"),
        ({}, make(Fill, inner_elements=1, value=128), "op 0 fill (dma0): value=128, must be -128..127 (int8)"),
        (
            {"engines__mac__accumulators": {"entries": 15}},
            make(Convolution, **CONVOLUTION),
            "op 0 convolution (mac): needs 16 accumulators, the machine has engines.mac.accumulators.entries=15",
        ),
        (
            {"engines__mac__types": ({"activation": "int8", "weight": "int4"},)},
            make(Convolution, **CONVOLUTION),
            "op 0 convolution (mac): engines.mac.types has no int8 by int8",
        ),
        (
            {"engines__mac__post": ()},
            make(Convolution, **CONVOLUTION, use_table=1),
            "op 0 convolution (mac): use_table=1, engines.mac.post has no table",
        ),
        (
            {"engines__mac__post": ()},
            make(Convolution, **CONVOLUTION, use_add=1),
            "op 0 convolution (mac): use_add=1, engines.mac.post has no add",
        ),
        (
            {"limits": {"convolution": {"max_kernel": (3, 3)}}},
            make(Convolution, **CONVOLUTION, kernel_width=5),
            "op 0 convolution (mac): kernel 1x5, limits.convolution.max_kernel=3x3",
        ),
        (
            {"limits": {"convolution": {"max_input_channels": 3}}},
            make(Convolution, **CONVOLUTION),
            "op 0 convolution (mac): 4 input channels, limits.convolution.max_input_channels=3",
        ),
        (
            {"engines__mac__depthwise": "none"},
            make(Depthwise, output_height=1, output_width=1, channels=1),
            "op 0 depthwise (mac): engines.mac.depthwise is none",
        ),
        (
            {"limits": {"matrix_product": {"max_k": 7}}},
            make(MatrixProduct, rows=1, inner=8, columns=1),
            "op 0 matrix_product (mac): inner size 8, limits.matrix_product.max_k=7",
        ),
        (
            {"engines__dma__dimensions": 1},
            make(Copy, inner_bytes=1, count1=2),
            "op 0 copy (dma0): counts 1x2x1, the machine has engines.dma.dimensions=1",
        ),
        (
            {"engines__vector__functions": functions(names=["add"])},
            make(Pool, **POOL),
            "op 0 pool (vector): engines.vector.functions has no max_pool",
        ),
        (
            {"engines__vector__functions": functions(names=["add"])},
            make(Elementwise, **LOOKUP, kind=ElementwiseKind.MUL),
            "op 0 elementwise (vector): engines.vector.functions has no mul",
        ),
        (
            {},
            make(Convolution, **CONVOLUTION, accumulate=1),
            "op 0 convolution (mac): accumulate=1, but the operation before it on the array left no sums",
        ),
    ],
)
def test_what_the_machine_cannot_do(changes, op, message):
    assert_refused([op, End()], message, small_chip(**changes))


def test_accumulators_of_another_shape():
    """Emitted sums are gone; sums of another shape cannot be added to."""
    fields = CONVOLUTION | {"weight_address": 64, "emit": 0}
    start = [load(0, 0, 256), Signal(DMA0, 0), Wait(MAC, 0), make(Convolution, **fields)]
    check([*start, make(Convolution, **fields, accumulate=1), End()])
    other = fields | {"output_channels": 2, "accumulate": 1}
    assert_refused(
        [*start, make(Convolution, **other), End()],
        "op 4 convolution (mac): accumulate=1 with output shape 2x2x2, but the accumulators hold 2x2x4",
    )
    assert_refused(
        [*start, make(Convolution, **fields, accumulate=1, dataflow=1), End()],
        "op 4 convolution (mac): accumulate=1 with dataflow=1, but the accumulators hold sums of dataflow=0",
        small_chip(engines__mac__more_dataflows=("ws",)),
    )
    output = {"output_address": 512, "output_row_stride": 8, "output_column_stride": 4}
    emitted = make(Convolution, **(fields | {"emit": 1, "parameter_address": 128} | output))
    assert_refused(
        [*start, emitted, make(Convolution, **fields, accumulate=1), End()],
        "op 5 convolution (mac): accumulate=1, but the operation before it on the array left no sums",
    )


def test_parameters_that_describe_no_arithmetic():
    image = np.zeros(256, np.uint8)
    bad = replace(rescale(0, 64, 16), output_shift=63)
    ops = [load(0, 0, 64), Signal(DMA0, 0), Wait(VECTOR, 0), bad, End()]
    with pytest.raises(ProgramError, match=re.escape("op 3 elementwise (vector): Requant: shifts 63..63; must be 0..62")):
        simulate(CHIP, ops, None, image, [(0, 256)])


def test_without_checks_addresses_still_stay_inside():
    ops = [store(0x7FF0, 0, 32), End()]
    with pytest.raises(ProgramError, match=re.escape("op 0 copy (dma0): strides is incompatible")):
        simulate(CHIP, ops, None, np.zeros(256, np.uint8), [(0, 256)], check=False)


def test_images_and_lengths():
    with pytest.raises(ProgramError, match="2 instruction lengths for 1 operations"):
        simulate(CHIP, [End()], [1, 1], np.zeros(8, np.uint8), [])
    with pytest.raises(ProgramError, match=re.escape("dram image is int8[8]; must be uint8")):
        simulate(CHIP, [End()], None, np.zeros(8, np.int8), [])
    dram_bytes = CHIP.dram.size
    simulate(CHIP, [End()], None, np.zeros(dram_bytes, np.uint8), [])
    with pytest.raises(ProgramError, match=f"must be uint8 of at most {dram_bytes} bytes"):
        simulate(CHIP, [End()], None, np.zeros(dram_bytes + 1, np.uint8), [])


def random_access(rng: np.random.Generator) -> Access:
    dimensions = int(rng.integers(0, 4))
    counts = rng.integers(1, 6, dimensions)
    strides = tuple(int(n) for n in rng.integers(0, 14, dimensions))
    address, inner_bytes = rng.integers(0, 30), int(rng.integers(1, 7))
    if dimensions and rng.random() < 0.3:
        counts[0], address, inner_bytes = rng.integers(1, 200), rng.integers(0, 200), 1
    return Access(Space.SRAM, int(address), tuple(counts.tolist()), strides, inner_bytes, False)


def list_bytes(access: Access) -> list[int]:
    starts = [access.address]
    for n, stride in zip(access.counts, access.strides):
        starts = [s + i * stride for s in starts for i in range(n)]
    return [s + j for s in starts for j in range(access.inner_bytes)]


def test_overlap_is_exact():
    rng = np.random.default_rng(0)
    overlap_count = 0
    for _ in range(4000):
        a, b = random_access(rng), random_access(rng)
        expected = bool(set(list_bytes(a)) & set(list_bytes(b)))
        assert overlap(a, b) == expected, (a, b)
        overlap_count += expected
        if not overlaps_itself(a):
            assert len(list_bytes(a)) == len(set(list_bytes(a))), a
    assert 1500 < overlap_count < 3500


def test_overlap_of_many_parts_is_exact():
    longer = Access(Space.SRAM, 500, (200,), (14,), 1, False)
    starts = range(0, 1000, 7)
    others = [Access(Space.SRAM, start, (9, 250), (42, 6), 1, False) for start in starts]
    expected = [bool(set(list_bytes(longer)) & set(list_bytes(other))) for other in others]
    assert [overlap(longer, other) for other in others] == expected
    assert [overlap(other, longer) for other in others] == expected
    assert sum(expected) == len(starts) // 2 + 1


def test_written_output_can_be_read_back():
    ops = pipeline(4)[:-1]
    check([*ops, Signal(DMA1, 5), Wait(DMA0, 5), load(OUTPUT, 0x100, 256), End()])
    check([*ops, load(INPUT, 0x100, 256), End()])
    with pytest.raises(ProgramError, match="nothing orders"):
        check([*ops, load(OUTPUT, 0x100, 256), End()])
