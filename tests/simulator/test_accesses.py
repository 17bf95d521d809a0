"""Compare `accesses` with the bytes that operations really touch, found by memories that take notes.

Synchronisation and hazard checks both use this table, so that nothing else sees an access that it leaves out.
The plain machine, written from the operations' docstrings, runs on memories that note every byte read and
written.
The simulator's own executor runs twice.
All bytes that an operation does not claim to read are exchanged for others in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import random_operations
from machine_programs import MAC, make, random_bytes
from plain_machine import PlainMachine
from random_operations import Draw
from test_operations import CHIPS, KINDS

from toolchain.hw.chip import Chip
from toolchain.machine import (
    Access,
    Convolution,
    Copy,
    Depthwise,
    Elementwise,
    ElementwiseKind,
    EmitKind,
    Fill,
    MachineOp,
    PoolKind,
    Space,
    WeightedWindowOp,
    accesses,
    demand,
)
from toolchain.machine.registry import OPERATIONS
from toolchain.plugin_check.access_check import executor_fault, state_of

SPACES = (Space.DRAM, Space.SRAM)
CASES = 10
SILENT = {op.NAME for op in OPERATIONS.values() if op.ENGINE is None}
Bytes = set[tuple[Space, int]]


class Noted(bytearray):
    """Memory that notes which bytes are read and written."""

    read: set[int]
    written: set[int]

    def __getitem__(self, key: Any) -> Any:
        self.read.update(self._indexes(key))
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.written.update(self._indexes(key))
        super().__setitem__(key, value)

    def _indexes(self, key: Any) -> range:
        return range(*key.indices(len(self))) if isinstance(key, slice) else range(key, key + 1)


def drawn(name: str, kind: str, seed: int) -> tuple[list[MachineOp], dict[Space, np.ndarray]]:
    """Operations of one kind, and random memories with sound parameters in them. Moves go between the memories too."""
    draw = Draw(CHIPS[name], 10_000 * KINDS.index(kind) + 100 * list(CHIPS).index(name) + seed)
    ops = getattr(random_operations, kind)(draw)
    spaces = [Space.DRAM, Space.SRAM]
    for i, op in enumerate(ops):
        if isinstance(op, Copy):
            ops[i] = replace(op, source_space=spaces[draw.between(0, 1)], destination_space=spaces[draw.between(0, 1)])
        elif isinstance(op, Fill):
            ops[i] = replace(op, destination_space=spaces[draw.between(0, 1)])
    memories = {space: random_bytes(draw.rng, draw.next + 64) for space in SPACES}
    memories |= {Space(code): random_bytes(draw.rng, s.memory.size) for code, s in enumerate(CHIPS[name].spaces) if code > 1}
    draw.fill_parameters(memories[Space.SRAM])
    return ops, memories


def all_drawn() -> Iterator[tuple[Chip, list[MachineOp], dict[Space, np.ndarray]]]:
    for name, chip in CHIPS.items():
        for kind in KINDS:
            for seed in range(CASES):
                yield chip, *drawn(name, kind, seed)


def list_claimed(op_accesses: tuple[Access, ...], write: bool) -> Bytes:
    return {(Space(a.space), b) for a in op_accesses if a.write == write for b in bytes_of(a)}


def bytes_of(access: Access) -> list[int]:
    """Return the bytes by the definition of an access, not by the simulator's views."""
    starts = [access.address]
    for n, stride in zip(access.counts, access.strides):
        starts = [s + i * stride for s in starts for i in range(n)]
    return [s + j for s in starts for j in range(access.inner_bytes)]


def noting(chip: Chip, memories: dict[Space, np.ndarray]) -> PlainMachine:
    machine = PlainMachine(chip, b"")
    machine.memory[:] = [Noted(memory.tobytes()) for _, memory in sorted(memories.items())]
    return machine


def run_and_note(machine: PlainMachine, op: MachineOp) -> tuple[Bytes, Bytes]:
    """Return the bytes that the plain machine reads and writes."""
    for memory in machine.memory:
        memory.read, memory.written = set(), set()  # type: ignore[attr-defined]
    getattr(machine, f"run_{op.NAME}")(op)
    pairs = list(zip(Space, machine.memory))
    read = {(space, b) for space, memory in pairs for b in memory.read}  # type: ignore[attr-defined]
    return read, {(space, b) for space, memory in pairs for b in memory.written}  # type: ignore[attr-defined]


def faults(op: MachineOp, op_accesses: tuple[Access, ...], read: Bytes, written: Bytes) -> list[str]:
    """Return the differences between the table and the notes. A table is read as a whole."""
    texts = []
    if read - list_claimed(op_accesses, False):
        texts.append("reads bytes that it does not claim")
    if written != list_claimed(op_accesses, True):
        texts.append("does not write the bytes that it claims")
    spare = list_claimed(op_accesses, False) - read
    spare -= {(Space.SRAM, b) for a in op_accesses if not a.write and may_spare(op, a) for b in bytes_of(a)}
    if spare:
        texts.append("claims bytes that it does not read")
    return texts


def may_spare(op: MachineOp, access: Access) -> bool:
    """Tables by the codes that occur, weights where a tap meets only padding."""
    if access.address == getattr(op, "table_address", -1):
        return True
    return isinstance(op, WeightedWindowOp) and access.address == op.weight_address


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chip", CHIPS)
def test_the_table_is_what_the_plain_machine_touches(chip, kind):
    for seed in range(CASES):
        ops, memories = drawn(chip, kind, seed)
        machine = noting(CHIPS[chip], memories)
        for op in ops:
            read, written = run_and_note(machine, op)
            assert faults(op, accesses(op, CHIPS[chip]), read, written) == [], (seed, op)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chip", CHIPS)
def test_the_executor_reads_and_writes_nothing_else(chip, kind):
    """Other bytes where it claims no read: the same results, in every byte that it claims to write, and nowhere else."""
    rng = np.random.default_rng(0)
    for seed in range(CASES):
        ops, memories = drawn(chip, kind, seed)
        state = state_of(CHIPS[chip], memories)
        for op in ops:
            assert executor_fault(op, accesses(op, CHIPS[chip]), CHIPS[chip], state, rng) is None, (seed, op)


def test_an_access_that_the_table_leaves_out_is_found():
    """Any one of any operation, the second operand of a product, sum or slope among them."""
    left_out = set()
    for chip, ops, memories in all_drawn():
        machine = noting(chip, memories)
        for op in ops:
            read, written = run_and_note(machine, op)
            op_accesses = accesses(op, chip)
            for k, access in enumerate(op_accesses):
                assert faults(op, (*op_accesses[:k], *op_accesses[k + 1 :]), read, written) or is_unreached(op, access, read), (
                    op,
                    k,
                )
                left_out.add((op.NAME, getattr(op, "kind", None), k))
    for name, count in {"convolution": 6, "depthwise": 5, "pool": 2}.items():  # more where windows pass over rows or columns
        assert {k for n, _, k in left_out if n == name} >= set(range(count)), name
    assert {k for n, kind, k in left_out if (n, kind) == ("emit", EmitKind.CONVOLUTION)} == set(range(5))
    for name, count in {"matrix_product": 4, "table": 3, "copy": 2, "fill": 1}.items():
        assert {k for n, _, k in left_out if n == name} == set(range(count)), name
    for kind in ElementwiseKind:
        count = 2 if kind == ElementwiseKind.RESCALE else 3
        assert {k for name, of, k in left_out if (name, of) == ("elementwise", kind)} == set(range(count)), kind


def is_unreached(op: MachineOp, access: Access, read: Bytes) -> bool:
    """Return whether nothing of the access was read: its windows are disjoint from it, or all its taps meet padding."""
    return may_spare(op, access) and not any((access.space, b) in read for b in bytes_of(access))


def test_the_executor_is_seen_to_depend_on_a_second_operand_left_out():
    """The dependence shows on most random values: a clamp may hide it."""
    rng, detection_count, all_of = np.random.default_rng(0), 0, 0
    for name, chip in CHIPS.items():
        for kind in ("elementwise", "matrix_product"):
            for seed in range(CASES):
                ops, memories = drawn(name, kind, seed)
                op, op_accesses = ops[-1], accesses(ops[-1], chip)
                if len(ops) > 1 or len(op_accesses) < 3:
                    continue
                all_of += 1
                detection_count += (
                    executor_fault(op, (op_accesses[0], *op_accesses[2:]), chip, state_of(chip, memories), rng) is not None
                )
    assert all_of > 60 and detection_count > 0.6 * all_of, (detection_count, all_of)


def test_every_operation_and_every_kind_of_parameter_has_a_case():
    cases: set[tuple[Any, ...]] = set()
    for _, ops, _ in all_drawn():
        for op in ops:
            cases.add((op.NAME,))
            names = ("kind", "emit", "accumulate", "use_table", "use_add", "source_space", "destination_space")
            cases |= {(op.NAME, name, getattr(op, name)) for name in names if hasattr(op, name)}
            if isinstance(op, Elementwise):
                cases |= {(f"{o}_{d}", getattr(op, f"{o}_{d}_stride") == 0) for o in "ab" for d in ("row", "column", "channel")}
    steering = {op.NAME for op in OPERATIONS.values() if op.STALLS}  # change no memory; test_load_base.py has their cases
    assert {name for (name,) in (s for s in cases if len(s) == 1)} == set(OPERATIONS) - SILENT - steering
    expected = {("pool", "kind", k) for k in PoolKind} | {("elementwise", "kind", k) for k in ElementwiseKind}
    for name in (Convolution.NAME, Depthwise.NAME):
        expected |= {(name, flag, v) for flag in ("emit", "accumulate", "use_table") for v in (0, 1)}
    expected |= {(name, "use_add", v) for name in ("convolution", "emit") for v in (0, 1)}
    expected |= {("emit", "use_table", v) for v in (0, 1)} | {("emit", "kind", kind) for kind in EmitKind}
    expected |= {("matrix_product", flag, v) for flag in ("emit", "accumulate") for v in (0, 1)}
    expected |= {("copy", f"{end}_space", space) for end in ("source", "destination") for space in SPACES}
    expected |= {("fill", "destination_space", space) for space in SPACES}
    expected |= {(f"{o}_{d}", flat) for o in "ab" for d in ("row", "column", "channel") for flat in (False, True)}
    assert expected <= cases, expected - cases


def test_an_operation_is_charged_for_what_it_touches():
    """The charge is exact to the byte; bytes that are read again, or in whole bursts, are charged more often."""
    again = {"matrix_product", "convolution", "depthwise", "copy", "fill", "softmax"}
    for chip, ops, _ in all_drawn():
        for op in ops:
            op_accesses, charged = accesses(op, chip), demand(op, chip)
            touched = {
                (s, w): sum(a.bytes for a in op_accesses if (a.space, a.write) == (s, w))
                for s in (Space.DRAM, Space.SRAM, Space.MEMORY2)
                for w in (False, True)
            }
            assert charged.at(Space.DRAM).read_bytes == touched[Space.DRAM, False], op
            assert charged.at(Space.DRAM).write_bytes == touched[Space.DRAM, True], op
            assert charged.at(Space.MEMORY2).read_bytes == touched[Space.MEMORY2, False], op
            assert charged.at(Space.MEMORY2).write_bytes == touched[Space.MEMORY2, True], op
            assert charged.at(Space.SRAM).read_burst_bytes >= touched[Space.SRAM, False], op
            assert charged.at(Space.SRAM).write_burst_bytes >= touched[Space.SRAM, True], op
            assert op.NAME in again or charged.at(Space.SRAM).read_burst_bytes == touched[Space.SRAM, False], op
            assert (
                op.NAME in again - {"matrix_product"} or charged.at(Space.SRAM).write_burst_bytes == touched[Space.SRAM, True]
            ), op


def test_what_moves_nothing_touches_nothing():
    for name in SILENT:
        engine = {"engine": MAC} if "engine" in OPERATIONS[name].parameters() else {}
        assert accesses(make(OPERATIONS[name], **engine), CHIPS["int8"]) == ()
