"""Test the duties of a program: keep constants and inputs, write its outputs, read the bytes it writes."""

from __future__ import annotations

import re

import numpy as np
import pytest
from machine_programs import DMA0, DMA1, MAC, load, make, small_chip, store
from pipelines import pipeline, rescale, without

from simulator import DeadStore, DramRange, DramRangeKind, simulate
from toolchain.errors import ProgramError
from toolchain.machine import Convolution, Copy, Depthwise, End, MachineOp, Signal, Space, Wait

CHIP = small_chip()
INPUT, OUTPUT, SIZE = 0x0000, 0x4000, 0x8000


def part(kind: DramRangeKind, first: int, size_bytes: int, name: str = "") -> DramRange:
    return DramRange(kind, name, first, first + size_bytes)


X, Y = part(DramRangeKind.INPUT, INPUT, 256, "x"), part(DramRangeKind.OUTPUT, OUTPUT, 256, "y")


def find_dead_stores(ops: list[MachineOp], parts: list[DramRange], written: tuple[int, int] = (0, 0)) -> tuple[DeadStore, ...]:
    return simulate(CHIP, ops, None, np.zeros(SIZE, np.uint8), [written], values=False, timing=False, parts=parts).unread


def assert_refused(ops: list[MachineOp], parts: list[DramRange], message: str) -> None:
    with pytest.raises(ProgramError) as fault:
        find_dead_stores(ops, parts)
    assert str(fault.value) == message


def test_a_correct_program_is_not_accused():
    assert find_dead_stores(pipeline(4), [X, Y]) == ()


def test_every_byte_of_an_output_is_written():
    assert_refused(
        pipeline(3),
        [X, Y],
        "output 'y' dram[0x4000..0x4100): 64 bytes of 256 are never written, the first at 0x40c0",
    )
    assert_refused([End()], [Y], "output 'y' dram[0x4000..0x4100): 256 bytes of 256 are never written, the first at 0x4000")


def test_an_output_that_is_a_view_of_an_input_need_not_be_written():
    assert find_dead_stores([End()], [X, part(DramRangeKind.OUTPUT, INPUT + 64, 128, "y")]) == ()


@pytest.mark.parametrize(("kind", "label"), [(DramRangeKind.CONSTANT, "constant"), (DramRangeKind.INPUT, "input 'x'")])
def test_constants_and_inputs_are_not_overwritten(kind, label):
    read_only_part = part(kind, 0x100, 64, "x" if kind is DramRangeKind.INPUT else "")
    ops = [load(0x100, 0, 64), store(0, 0x13F, 64), End()]
    assert_refused(
        ops,
        [read_only_part],
        f"op 1 copy (dma0) writes dram[0x13f..0x17f) over {label} dram[0x100..0x140): the program would be wrong the next time "
        "it runs on the same memory; give its results a place of their own",
    )
    find_dead_stores([load(0x100, 0, 64), store(0, 0x140, 64), End()], [read_only_part])


def test_a_range_that_is_no_part_may_be_overwritten():
    """A tensor that lasts from run to run is such a range."""
    assert (
        find_dead_stores(
            [load(0x100, 0, 64), store(0, 0x100, 64), End()], [part(DramRangeKind.OUTPUT, 0x100, 64)], (0x100, 0x140)
        )
        == ()
    )


def test_strided_writes_between_constants_are_exact():
    constants = [part(DramRangeKind.CONSTANT, 0x100 + 32 * i, 16) for i in range(4)]
    strided = make(
        Copy,
        source_space=Space.SRAM,
        destination_address=0x110,
        inner_bytes=16,
        count2=4,
        source_stride2=16,
        destination_stride2=32,
    )
    loads = [load(p.first, 16 * i, 16) for i, p in enumerate(constants)]
    find_dead_stores([*loads, strided, End()], constants)
    moved = make(Copy, **(vars_of(strided) | {"destination_address": 0x10F}))
    with pytest.raises(ProgramError, match=re.escape("over constant dram[0x100..0x110)")):
        find_dead_stores([*loads, moved, End()], constants)


def vars_of(op: MachineOp) -> dict[str, int]:
    return {name: getattr(op, name) for name in op.parameters()}


def test_bytes_that_are_overwritten_unread():
    ops = [load(0, 0, 64), load(64, 16, 32), store(0, OUTPUT, 64), End()]
    assert find_dead_stores(ops, [X, part(DramRangeKind.OUTPUT, OUTPUT, 64)]) == (DeadStore(0, Space.SRAM, ((16, 48),)),)


def test_bytes_left_unread_at_the_end():
    ops = [load(0, 0, 64), load(64, 64, 64), store(0, OUTPUT, 100), End()]
    (dead_store,) = find_dead_stores(ops, [X, part(DramRangeKind.OUTPUT, OUTPUT, 100)])
    assert dead_store == DeadStore(1, Space.SRAM, ((100, 128),))
    assert dead_store.text == "28 bytes of sram[0x64..0x80)"


def test_holes_of_a_strided_read_are_unread():
    strided = make(
        Copy,
        source_space=Space.SRAM,
        destination_address=OUTPUT,
        inner_bytes=8,
        count2=4,
        source_stride2=16,
        destination_stride2=8,
    )
    (dead_store,) = find_dead_stores([load(0, 0, 64), strided, End()], [X, part(DramRangeKind.OUTPUT, OUTPUT, 32)])
    assert dead_store.ranges == ((8, 16), (24, 32), (40, 48), (56, 64))


def test_constants_that_nothing_reads():
    constants = [part(DramRangeKind.CONSTANT, 0x200, 64), part(DramRangeKind.CONSTANT, 0x300, 16)]
    ops = [load(0x200, 0, 48), store(0, OUTPUT, 48), End()]
    assert find_dead_stores(ops, [*constants, part(DramRangeKind.OUTPUT, OUTPUT, 48)]) == (
        DeadStore(-1, Space.DRAM, ((0x230, 0x240), (0x300, 0x310))),
    )


def load_weights(operation: type[MachineOp], parameter_address: int) -> list[MachineOp]:
    """One weight of 3 channels, 13 bytes of nothing, parameters: loaded at once."""
    channels = {"input_channels": 1, "output_channels": 3} if operation is Convolution else {"channels": 3}
    sizes = dict.fromkeys(("output_height", "output_width", "input_height", "input_width"), 1)
    op = make(
        operation,
        **channels,
        **sizes,
        input_address=128,
        weight_address=0,
        parameter_address=parameter_address,
        emit=1,
        clamp_high=1,
        output_address=256,
    )
    return [
        load(0x200, 0, parameter_address + 48),
        load(0, 128, 3),
        Signal(DMA0, 0),
        Wait(MAC, 0),
        op,
        Signal(MAC, 1),
        Wait(DMA1, 1),
        store(256, OUTPUT, 3, 1),
        End(),
    ]


@pytest.mark.parametrize("operation", [Convolution, Depthwise])
def test_what_lies_between_weights_and_aligned_parameters_is_no_waste(operation):
    def list_dead_stores(parameter_address: int) -> tuple[DeadStore, ...]:
        block = part(DramRangeKind.CONSTANT, 0x200, parameter_address + 48)
        inputs = 1 if operation is Convolution else 3
        ops = [op if op != load(0, 128, 3) else load(0, 128, inputs) for op in load_weights(operation, parameter_address)]
        return find_dead_stores(ops, [block, X, part(DramRangeKind.OUTPUT, OUTPUT, 3)])

    assert list_dead_stores(16) == ()
    assert list_dead_stores(32) == (DeadStore(0, Space.SRAM, ((3, 32),)),)


def test_a_constant_that_nothing_reads_is_none_of_that_wherever_it_lies():
    """The constant lies at the addresses that hold nothing in SRAM."""
    parts = [part(DramRangeKind.CONSTANT, 0x200, 64), part(DramRangeKind.INPUT, 0, 3), part(DramRangeKind.CONSTANT, 3, 13)]
    assert find_dead_stores(load_weights(Depthwise, 16), [*parts, part(DramRangeKind.OUTPUT, OUTPUT, 3)]) == (
        DeadStore(-1, Space.DRAM, ((3, 16),)),
    )


WAITS = [i for i, op in enumerate(pipeline(6)) if isinstance(op, Wait)]


@pytest.mark.parametrize("wait", WAITS)
def test_a_dropped_wait_is_reported_at_its_place_with_both_operations(wait):
    """The report is not at the last Signal, which is one too many."""
    ops = pipeline(6)
    engine = ops[wait].engine  # type: ignore[attr-defined]
    rest = without(ops, wait)
    place = next(i for i, op in enumerate(rest) if i >= wait and not isinstance(op, Signal | Wait) and engine_of(op) == engine)
    with pytest.raises(ProgramError) as fault:
        find_dead_stores(rest, [part(DramRangeKind.INPUT, INPUT, 384), part(DramRangeKind.OUTPUT, OUTPUT, 384)])
    named = [int(i) for i in re.findall(r"\bop (\d+)", str(fault.value))]
    assert place in named and len(named) == 2 and all(abs(i - place) < 20 for i in named), fault.value
    assert "nothing orders" in str(fault.value)


def engine_of(op: MachineOp) -> int | None:
    return op.queue(CHIP)


def test_a_read_before_an_unordered_write_names_the_write():
    """The reader's engine runs first in the order that is looked at."""
    ops = [Wait(DMA0, 0), load(0, 0, 64), store(0, OUTPUT, 64, 1), Signal(DMA1, 0), End()]
    with pytest.raises(ProgramError) as fault:
        find_dead_stores(ops, [X])
    assert str(fault.value) == (
        "op 2 copy (dma1) reads sram[0x0..0x40), but byte 0x0 was never written; op 1 copy (dma0) writes it and is not ordered "
        "before: it needs a Signal behind it, this a Wait"
    )


def test_a_wait_that_no_operation_needs_is_missed_at_the_last_signal():
    ops = [load(0, 0, 64), Signal(DMA0, 0), Signal(DMA0, 0), Wait(DMA1, 0), store(0, OUTPUT, 64, 1), End()]
    with pytest.raises(ProgramError, match=re.escape("op 2 signal semaphore 0 (dma0): the semaphore is signalled 2 times")):
        find_dead_stores(ops, [X])


def test_a_dropped_signal_is_reported_at_its_place():
    ops = pipeline(6)
    signals = [i for i, op in enumerate(ops) if isinstance(op, Signal) and op.engine == DMA0]
    waits = [i for i, op in enumerate(ops) if isinstance(op, Wait) and op.semaphore == 0]
    for signal, wait in zip(signals, waits):
        with pytest.raises(ProgramError, match=re.escape(f"op {wait - 1} wait semaphore 0 (vector) is the first without")):
            find_dead_stores(without(ops, signal), [])


def test_rescale_in_place_reads_what_it_overwrites():
    ops = [
        load(0, 0, 64),
        Signal(DMA0, 0),
        Wait(1, 0),
        rescale(0, 0, 64),
        Signal(1, 1),
        Wait(DMA0, 1),
        store(0, OUTPUT, 64),
        End(),
    ]
    assert find_dead_stores(ops, [part(DramRangeKind.INPUT, 0, 64, "x"), part(DramRangeKind.OUTPUT, OUTPUT, 64)]) == ()
