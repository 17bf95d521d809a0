"""Programs for the merging of tiles: operations in an order, run both ways."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "bench"))
from mutate_programs import Subject  # type: ignore[import-not-found]
from program_mutations import KINDS, mutate  # type: ignore[import-not-found]

from simulator import DramRange, DramRangeKind, MergedProgram, merge_program, prepare_program
from tests.simulator.machine_programs import make, small_chip
from toolchain.codegen import Region
from toolchain.errors import CompileError, ProgramError
from toolchain.hw.chip import Chip
from toolchain.machine import Copy, End, MachineOp, Pool, PoolKind, Signal, Space, Wait, dispatch_program
from toolchain.runtime import Session
from toolchain.runtime.builtin_backends import dram_parts

COLUMN_BYTES, ROW_BYTES, OUT = 8, 32, 512  # of the maps in sram, and where outputs lie there
PARTS = [DramRange(DramRangeKind.INPUT, "x", 0, 256), DramRange(DramRangeKind.OUTPUT, "y", 256, 512)]


def in_order(ops: Sequence[MachineOp], chip: Chip) -> list[MachineOp]:
    """The operations one after another, with signals between engines."""
    ordered: list[MachineOp] = []
    semaphores: dict[tuple[int, int], int] = {}
    for before, op in zip((None, *ops), ops):
        engines = (before.queue(chip) if before else op.queue(chip), op.queue(chip))
        if engines[0] != engines[1]:
            semaphore = semaphores.setdefault(engines, len(semaphores))  # type: ignore[arg-type]
            ordered += [Signal(engines[0], semaphore), Wait(engines[1], semaphore)]  # type: ignore[arg-type]
        ordered.append(op)
    return [*ordered, End()]


def run_both_ways(
    ops: Sequence[MachineOp],
    parts: Sequence[DramRange] = PARTS,
    size_bytes: int = 512,
    chip: Chip | None = None,
    constants: bytes = b"",
) -> tuple[MergedProgram, bool]:
    """Return the merged program, and whether it leaves the same bytes on an image other than that it was merged with.

    `constants`: the last bytes of the image, whose other bytes are random.
    """
    chip = chip or small_chip()
    flow = dispatch_program(chip, in_order(ops, chip))
    prepared = prepare_program(chip, flow, None, size_bytes, (), parts=parts, timing=False)
    rng = np.random.default_rng(7)
    image = rng.integers(0, 256, size_bytes, np.uint8)
    image[size_bytes - len(constants) :] = np.frombuffer(constants, np.uint8)
    merged = merge_program(chip, flow, prepared.order.legal, parts, image)
    assert merged is not None
    for part in parts:
        if part.kind in (DramRangeKind.INPUT, DramRangeKind.STATE):
            image[part.first : part.last] = rng.integers(0, 256, part.last - part.first, np.uint8)
    expected = prepared.run(image).memory["dram"]
    assert merged.run(image)
    return merged, np.array_equal(image, expected)


def pool(at: int, rows: int, **fields: Any) -> Pool:
    """The largest of each window; without fields, of one pixel of 4 columns and 8 channels."""
    sizes = {"input_height": rows, "output_height": rows, "input_width": 4, "output_width": 4, "channels": 8}
    strides = {f"{side}_{axis}_stride": n for side in ("input", "output") for axis, n in (("row", 32), ("column", 8))}
    limits = {"kind": PoolKind.MAX, "clamp_low": -128, "clamp_high": 127}
    return make(Pool, **(limits | sizes | strides | {"input_address": at, "output_address": OUT + at} | fields))


def move(source: int, target: int, size_bytes: int, **fields: Any) -> Copy:
    """Inside sram, or from where the fields say."""
    base = {"source_space": Space.SRAM, "destination_space": Space.SRAM}
    places = {"source_address": source, "destination_address": target, "inner_bytes": size_bytes}
    return make(Copy, **(base | places | fields))


def compare_regions(data: bytes, seed: int) -> Iterator[tuple[MergedProgram | None, bool]]:
    """Yield each region's merged program, and whether it leaves other bytes than its operations one by one."""
    session = Session(data)
    rng = np.random.default_rng(seed)
    for index, region in enumerate(session.container.segments):
        if not isinstance(region, Region):
            continue
        program, parts = session.program(index), dram_parts(region)
        chip, flow = program.machine.chip, program.flow
        prepared = prepare_program(chip, flow, flow.words, region.dram_bytes, (), parts=parts, timing=False)
        image = np.zeros(region.dram_bytes, np.uint8)
        for address, constant in region.constants:
            image[address : address + len(constant)] = np.frombuffer(constant, np.uint8)
        merged = merge_program(chip, flow, prepared.order.legal, parts, image)
        for port in region.inputs:
            image[port.address : port.address + port.size_bytes] = rng.integers(0, 256, port.size_bytes, np.uint8)
        expected = prepared.run(image).memory["dram"]
        yield merged, merged is not None and merged.run(image) and not np.array_equal(image, expected)


def require_merged(subjects: Sequence[Subject]) -> None:
    """Require that the programs are merged and leave the same bytes as their operations one by one."""
    for subject in subjects:
        results = list(compare_regions(subject.file(subject.program), 1))
        assert not any(differs for _, differs in results)
        assert all(merged is not None for merged, _ in results)


def compare_mutants(subjects: Sequence[Subject], seed: int, draws: int) -> int:
    """Require that merged mutants leave the same bytes as their operations one by one; return how many were merged.

    A mutant that the rules refuse is never merged.
    """
    rng, compared = np.random.default_rng(seed), 0
    for number in range(draws):
        subject = subjects[number % len(subjects)]
        drawn = mutate(KINDS[number // len(subjects) % len(KINDS)], subject.program, rng)
        if drawn is None:
            continue
        try:
            results = list(compare_regions(subject.file(drawn[1]), number))
        except (CompileError, ProgramError):
            continue
        assert not any(differs for _, differs in results), drawn[0]
        compared += sum(merged is not None for merged, _ in results)
    return compared
