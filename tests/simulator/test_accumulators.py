"""Programs on accumulators that are a memory: what they may not do there, and what is seen of it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from machine_programs import MAC, VECTOR, accumulator_changes, around, load, make, small_chip

from simulator import simulate
from toolchain.errors import ProgramError
from toolchain.machine import Convolution, Emit, MachineOp, Signal, Wait, find_unsupported

CHIP = small_chip(**accumulator_changes())
PLAIN = small_chip()
SIZE = 256


def sums(address: int = 0, **fields: Any) -> Convolution:
    """One product for each of two channels: weights at 0, input at 32."""
    shape = dict.fromkeys(("output_height", "output_width", "input_height", "input_width", "input_channels"), 1)
    return make(Convolution, **{**shape, "output_channels": 2, "input_address": 32, "sums_address": address, **fields})


def emit(address: int = 0, output: int = 128, **fields: Any) -> Emit:
    """Parameters at 64."""
    shape = {"height": 1, "width": 1, "channels": 2, "parameter_address": 64, "clamp_low": -128, "clamp_high": 127}
    return make(Emit, **{**shape, "sums_address": address, "output_address": output, **fields})


def run(ops: list[MachineOp], image: np.ndarray | None = None):
    image = np.zeros(SIZE, np.uint8) if image is None else image
    engines = [MAC if isinstance(op, Convolution) else VECTOR for op in ops]
    return simulate(CHIP, around(ops, engines, SIZE), None, image, [(0, SIZE)])


def test_sums_are_added_to_and_taken_out() -> None:
    """3 x 5 twice, and a bias of 4: 34."""
    image = np.zeros(SIZE, np.uint8)
    image[[0, 32]] = 3, 5
    image[64:72] = np.frombuffer(np.array([4], "<i8").tobytes(), np.uint8)
    image[72:80] = np.frombuffer(np.array([1 << 30, 30], "<i4").tobytes(), np.uint8)
    done = run([sums(), sums(accumulate=1), emit()], image)
    assert done.dram[128:130].tolist() == [34, 0]


@pytest.mark.parametrize(
    ("chip", "op", "message"),
    [
        (CHIP, sums(emit=1), "emit=1, engines.mac.accumulators.memory is acc: sums leave it by the operation emit"),
        (CHIP, sums(2), "sums_address=2, must be a multiple of the 4 bytes of a sum"),
        (CHIP, sums(output_channels=4097), "needs 4097 accumulators, the machine has engines.mac.accumulators.entries=4096"),
        (CHIP, emit(6), "sums_address=6, must be a multiple of the 4 bytes of a sum"),
        (PLAIN, sums(4), "sums_address=4, engines.mac.accumulators names no memory"),
        (small_chip(engines__vector__functions={}), emit(), "engines.vector.functions has no emit"),
        (
            small_chip(**accumulator_changes(), engines__mac__post=()),
            emit(use_add=1),
            "use_add=1, engines.mac.post has no add",
        ),
        (
            small_chip(**accumulator_changes(), engines__mac__post=("add",)),
            emit(use_table=1),
            "use_table=1, engines.mac.post has no table",
        ),
    ],
)
def test_what_a_machine_cannot_do(chip: Any, op: MachineOp, message: str) -> None:
    assert find_unsupported(op, chip) == message


def test_a_machine_without_such_a_memory_refuses_an_emit() -> None:
    with pytest.raises(ProgramError, match=re.escape("engines.vector.memories names no sums")):
        simulate(PLAIN, around([emit()], [VECTOR], SIZE), None, np.zeros(SIZE, np.uint8), [(0, SIZE)])


def test_sums_that_were_never_made_are_not_added_to() -> None:
    with pytest.raises(ProgramError, match=re.escape("reads memory2[0x8..0x10), but byte 0x8 was never written")):
        run([sums(), sums(8, accumulate=1)])


def test_two_chains_may_lie_side_by_side() -> None:
    run([sums(0), sums(8), sums(0, accumulate=1), emit(8, 132), emit(0)])


def test_an_emit_waits_for_its_sums() -> None:
    ops = around([sums(), emit()], [MAC, VECTOR], SIZE)
    signal = next(i for i, op in enumerate(ops) if isinstance(op, Signal) and op.engine == MAC)
    del ops[signal : signal + 2]  # and its Wait
    ops[1:1] = [load(0, 0, SIZE), Signal(2, 9), Wait(VECTOR, 9)]
    with pytest.raises(ProgramError, match=re.escape("memory2[0x0..0x8): nothing orders the two")):
        simulate(CHIP, ops, None, np.zeros(SIZE, np.uint8), [(0, SIZE)])


def test_sums_that_nothing_takes_out_are_said() -> None:
    assert [dead_store.text for dead_store in run([sums(0), sums(8), emit(0)]).unread if dead_store.space == 2] == [
        "8 bytes of memory2[0x8..0x10)"
    ]
