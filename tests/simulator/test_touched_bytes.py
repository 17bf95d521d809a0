"""Memories and peaks of operations that are looked at once are those of the accesses of each."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import random_operations
from machine_programs import accumulator_changes, load, make, small_chip, store
from random_operations import Draw
from test_operations import CHIPS, KINDS

from simulator import touched_bytes
from simulator.touched_bytes import TouchedBytes
from toolchain.errors import ProgramError
from toolchain.machine import Copy, End, MachineOp, Signal, Wait, accesses, dispatch_program


def shift_addresses(op: MachineOp, rng: np.random.Generator) -> MachineOp:
    """Return the operation at other addresses."""
    names = [name for name in op.parameters() if name.endswith("address")]
    return replace(op, **{name: getattr(op, name) + 2 * int(rng.integers(0, 500)) for name in names})


@pytest.mark.parametrize("chip", CHIPS)
def test_memories_and_peaks_are_those_of_accesses(chip: str):
    machine, rng = CHIPS[chip], np.random.default_rng(0)
    drawn = [op for n, kind in enumerate(KINDS) for op in getattr(random_operations, kind)(Draw(machine, n))]
    ops = [
        Signal(0, 0),
        Wait(0, 0),
        *(copy for op in drawn for copy in (op, shift_addresses(op, rng), shift_addresses(op, rng))),
        End(),
    ]
    for prefix in (ops, *(ops[: 2 + 3 * n] for n in range(1, len(drawn)))):
        touched, peaks = TouchedBytes(machine, dispatch_program(machine, prefix)), Counter[int]()
        for index, op in enumerate(prefix):
            op_accesses = () if isinstance(op, Signal | Wait | End) else accesses(op, machine)
            assert touched[index] == op_accesses
            for access in op_accesses:
                peaks[access.space] = max(peaks[access.space], access.end)
            reads, writes = ({a.space for a in op_accesses if a.write == write} for write in (False, True))
            assert touched.spaces(index) == (sum(1 << s for s in reads), sum(1 << s for s in writes))
        assert touched.peak_bytes == {space.name: peaks[code] for code, space in enumerate(machine.spaces)}


def test_accesses_are_made_once_for_operations_that_differ_in_addresses(monkeypatch: pytest.MonkeyPatch):
    calls: list[int] = []

    def counting(ops, index, chip):
        calls.append(index)
        return accesses(ops[index], chip)

    monkeypatch.setattr(touched_bytes, "accesses_at", counting)
    chip = small_chip()
    flow = dispatch_program(chip, [*(load(64 * k, 128 * k, 64) for k in range(20)), *(load(64 * k, 0, 32) for k in range(20))])
    touched = TouchedBytes(chip, flow)
    assert calls == [0, 20]
    assert touched.peak_bytes == {"dram": 20 * 64, "sram": 19 * 128 + 64}


def test_copies_are_apart_where_their_bytes_have_a_gap():
    """b reads 64 bytes that begin from 70 bytes before those that a writes to 70 bytes behind them."""
    chip = small_chip()
    pairs = [(load(0, 1024, 64), store(1024 + distance, 4096, 64)) for distance in range(-70, 71)]
    flow = dispatch_program(chip, [op for pair in pairs for op in pair])
    touched = TouchedBytes(chip, flow)
    gaps = [touched.are_apart(2 * k + 1, 2 * k) for k in range(len(pairs))]
    assert gaps == [abs(distance) >= 64 for distance in range(-70, 71)]
    assert touched.are_apart(0, 1)  # one reads the DRAM from 0 on, the other writes it from 4096 on
    reader = dispatch_program(chip, [Signal(0, 0), load(0, 0, 8)])
    assert not TouchedBytes(chip, reader).are_apart(1, 0)  # nothing is known of a signal


def test_a_memory_that_is_none_is_named():
    chip = small_chip(**accumulator_changes())
    wrong = make(Copy, source_space=9, destination_space=1, inner_bytes=8)
    with pytest.raises(ProgramError, match=r"^op 1 copy \(dma.*\): "):
        TouchedBytes(chip, dispatch_program(chip, [load(0, 0, 8), wrong]))
