"""Chips and operations for the simulator's tests: a small chip with any key replaced, operations with fields left at 0."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import numpy as np

from toolchain.hw.chip import Chip
from toolchain.machine import Copy, End, MachineOp, Signal, Space, Wait
from toolchain.machine.registry import FUNCTIONS

ALL_FUNCTIONS = tuple(FUNCTIONS)
MAC, VECTOR, DMA0, DMA1 = 0, 1, 2, 3


def functions(lanes: int = 8, startup: int = 4, names: Iterable[str] = ALL_FUNCTIONS) -> dict[str, dict[str, int]]:
    """A vector engine's functions, all at one rate."""
    return {name: {"lanes": lanes, "startup": startup} for name in names}


_BASE: dict[str, Any] = {
    "name": "small",
    "clock": {"frequency": 500_000_000},
    "memories": {
        "dram": {"size": 1 << 20, "read_bytes_per_cycle": 8.0, "write_bytes_per_cycle": 8.0},
        "sram": {"size": 1 << 15, "read_bytes_per_cycle": 64.0, "write_bytes_per_cycle": 32.0},
    },
    "engines": {
        "mac": {
            "kind": "mac_array",
            "rows": 4,
            "columns": 8,
            "dataflow": "os",
            "types": (
                {"activation": "int8", "weight": "int8"},
                {"activation": "int8", "weight": "int4"},
                {"activation": "uint8", "weight": "int8"},
                {"activation": "uint8", "weight": "int4"},
                {"activation": "int16", "weight": "int8", "rate": 0.5},
                {"activation": "int16", "weight": "int4", "rate": 0.5},
            ),
            "accumulators": {"entries": 4096},
            "post": ("table", "add"),
            "timing": "ideal",
            "issue_cycles": 0,
        },
        "vector": {
            "kind": "vector",
            "functions": functions(),
            "issue_cycles": 0,
        },
        "dma": {
            "kind": "dma",
            "channels": 2,
            "bytes_per_cycle": 16.0,
            "runs": "packed",
            "request_cycles": 0,
            "run_cycles": 0,
            "dimensions": 4,
            "transpose_block": 4,
            "issue_cycles": 0,
        },
    },
    "numerics": {
        "activation": "int8",
        "weight": "int8",
        "scale": {"kind": "multiplier"},
        "rounding": "double_round",
        "table": {"entries": 256},
    },
    "limits": {"matrix_product": {"max_batches": 4}},
    "isa": {"file": "isa/none.yaml", "word_cycles": 1e-9},
    "sync": {"semaphores": 16},
}


def small_chip(**changes: Any) -> Chip:
    """The base chip with keys replaced: small_chip(engines__mac__rows=8)."""
    data = copy.deepcopy(_BASE)
    for path, value in changes.items():
        *parents, last = path.split("__")
        section = data
        for key in parents:
            section = section.setdefault(key, {})
        section[last] = value
    return Chip(**data)


def accumulator_changes(**accumulators: Any) -> dict[str, Any]:
    """Accumulators that are a memory, from which the vector engine emits."""
    return {
        "memories__acc": {"size": 1 << 15, "read_bytes_per_cycle": 16.0, "write_bytes_per_cycle": 16.0},
        "engines__mac__accumulators": {"entries": 4096, "memory": "acc", **accumulators},
        "engines__vector__memories": {"sums": "acc"},
    }


def int16_changes() -> dict[str, Any]:
    return {"numerics__activation": "int16", "numerics__table": {"entries": 513, "interpolation": "tosa"}}


def make(operation: type[MachineOp], /, **fields: Any) -> Any:
    """An operation whose unnamed parameters are 0, or 1 where 0 means nothing."""
    ones = {name for name in operation.parameters() if name.startswith(("batches", "count", "kernel", "stride_", "dilation"))}
    return operation(**{name: fields.pop(name, 1 if name in ones else 0) for name in operation.parameters()}, **fields)


def load(address: int, sram: int, size_bytes: int, channel: int = 0) -> Copy:
    """dram[address..] to sram."""
    return make(
        Copy,
        channel=channel,
        source_space=Space.DRAM,
        source_address=address,
        destination_space=Space.SRAM,
        destination_address=sram,
        inner_bytes=size_bytes,
    )


def store(sram: int, address: int, size_bytes: int, channel: int = 0) -> Copy:
    """sram to dram[address..]."""
    return make(
        Copy,
        channel=channel,
        source_space=Space.SRAM,
        source_address=sram,
        destination_space=Space.DRAM,
        destination_address=address,
        inner_bytes=size_bytes,
    )


def around(ops: list[MachineOp], engines: list[int], size_bytes: int) -> list[MachineOp]:
    """All of dram[0, size) to sram, `ops` one after another, each on its engine, all of it back."""
    placed_ops: list[MachineOp] = [load(0, 0, size_bytes)]
    semaphores: dict[tuple[int, int], int] = {}
    for op, before, engine in zip((*ops, store(0, 0, size_bytes)), (DMA0, *engines), (*engines, DMA0)):
        if before != engine:
            semaphore = semaphores.setdefault((before, engine), len(semaphores))
            placed_ops += [Signal(before, semaphore), Wait(engine, semaphore)]
        placed_ops.append(op)
    return [*placed_ops, End()]


def random_bytes(rng: np.random.Generator, size_bytes: int) -> np.ndarray:
    return rng.integers(0, 256, size_bytes, dtype=np.uint8)
