"""Correct double-buffered programs: load on dma0, compute, store on dma1, ordered by four semaphores."""

from __future__ import annotations

from typing import Any

import numpy as np
from machine_programs import DMA0, DMA1, VECTOR, load, make, store

from toolchain.machine import Elementwise, ElementwiseKind, End, MachineOp, Signal, Wait

LOADED, FREED, COMPUTED, STORED = range(4)
INPUT, OUTPUT = 0x0000, 0x4000  # in dram


def rescale(source: int, target: int, elements: int) -> Elementwise:
    """One row of `elements`, halved."""
    return make(
        Elementwise,
        kind=ElementwiseKind.RESCALE,
        height=1,
        width=elements // 16,
        channels=16,
        a_address=source,
        a_row_stride=elements,
        a_column_stride=16,
        a_channel_stride=1,
        output_address=target,
        output_row_stride=elements,
        output_column_stride=16,
        output_multiplier=1 << 30,
        output_shift=31,
        clamp_low=-128,
        clamp_high=127,
    )


def pipeline(tiles: int, tile_bytes: int = 64) -> list[MachineOp]:
    """tile i: dram[INPUT..] to sram, halved on the vector engine, to dram[OUTPUT..]; two buffers on each side.

    Every Wait is needed: without it two operations race for a buffer.
    """
    ops: list[MachineOp] = []
    for i in range(tiles):
        source, target = (i % 2) * tile_bytes, (2 + i % 2) * tile_bytes
        if i >= 2:
            ops.append(Wait(DMA0, FREED))
        ops += [load(INPUT + i * tile_bytes, source, tile_bytes, 0), Signal(DMA0, LOADED), Wait(VECTOR, LOADED)]
        if i >= 2:
            ops.append(Wait(VECTOR, STORED))
        ops += [rescale(source, target, tile_bytes), Signal(VECTOR, COMPUTED)]
        if i < tiles - 2:
            ops.append(Signal(VECTOR, FREED))
        ops += [Wait(DMA1, COMPUTED), store(target, OUTPUT + i * tile_bytes, tile_bytes, 1)]
        if i < tiles - 2:
            ops.append(Signal(DMA1, STORED))
    return [*ops, End()]


def random_program(rng: np.random.Generator, count: int) -> list[MachineOp]:
    """Loads, rescales and stores of random sizes on random engines and random matched semaphores; hazards are likely."""
    ops: list[MachineOp] = []
    pending: list[tuple[int, int]] = []  # (semaphore, waiting engine)
    pairs = [(a, b) for a in (VECTOR, DMA0, DMA1) for b in (VECTOR, DMA0, DMA1) if a != b]
    for _ in range(count):
        choice = int(rng.integers(0, 5))
        size = 16 * int(rng.integers(1, 40))
        address = 16 * int(rng.integers(0, 256))
        if choice == 0:
            ops.append(load(address, address, size, int(rng.integers(0, 2))))
        elif choice == 1:
            ops.append(store(address, address, size, int(rng.integers(0, 2))))
        elif choice == 2:
            ops.append(rescale(address, (address + 0x2000) % 0x4000, size))
        elif choice == 3:
            semaphore = int(rng.integers(0, len(pairs)))
            ops.append(Signal(pairs[semaphore][0], semaphore))
            pending.append((semaphore, pairs[semaphore][1]))
        elif pending:
            semaphore, engine = pending.pop(int(rng.integers(0, len(pending))))
            ops.append(Wait(engine, semaphore))
    ops += [Wait(engine, semaphore) for semaphore, engine in pending]
    return [*ops, End()]


def without(ops: list[MachineOp], *indexes: int) -> list[MachineOp]:
    return [op for i, op in enumerate(ops) if i not in indexes]


def signal_of(ops: list[MachineOp], wait: int) -> int:
    """The Signal that the Wait at index `wait` takes: the k-th of its semaphore."""
    semaphore: Any = getattr(ops[wait], "semaphore", None)
    k = sum(isinstance(op, Wait) and op.semaphore == semaphore for op in ops[:wait])
    signals = [i for i, op in enumerate(ops) if isinstance(op, Signal) and op.semaphore == semaphore]
    return signals[k]
