"""Test that more of a resource never makes a program slower.

There are random programs on random machines, and on those with one figure multiplied.
`MONOTONE_PROGRAMS=1000 pytest tests/simulator/test_monotone.py` runs as many programs (100 otherwise).
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from machine_programs import DMA0, DMA1, MAC, VECTOR, functions, load, make, small_chip, store
from pipelines import rescale

from simulator import Simulation, simulate
from toolchain.errors import ProgramError
from toolchain.hw.chip import Chip
from toolchain.machine import End, MachineOp, MatrixProduct, Signal, Wait

PROGRAMS = int(os.environ.get("MONOTONE_PROGRAMS", "100"))
IMAGE = np.zeros(0x8000, np.uint8)
ENGINES = (MAC, VECTOR, DMA0, DMA1)
PAIRS = [(a, b) for a in ENGINES for b in ENGINES if a != b]
Keys = dict[str, Any]


def random_machine(rng: np.random.Generator) -> Keys:
    """Every figure that is multiplied, small; all else is `small_chip`'s."""

    def one(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    keys: Keys = {"isa__word_cycles": one(0.25, 1.0, 3.0, 24.0), "engines__dma__bytes_per_cycle": one(1.0, 4.0, 7.5)}
    keys |= {f"engines__{name}__queue_depth": one(1, 2, 3, 4) for name in ("mac", "vector", "dma")}
    keys |= {f"engines__{name}__issue_cycles": one(0, 4, 12) for name in ("mac", "vector", "dma")}
    keys |= {f"engines__dma__{key}_cycles": one(0, 2, 15) for key in ("request", "run")}
    keys |= {"engines__dma__outstanding": one(1, 1, 2, 4), "engines__dma__in_flight_bytes": one(8, 64, 4096)}
    keys |= {"engines__dma__runs": one("packed", "whole_beats"), "engines__vector__functions": functions(one(1, 2, 8), one(0, 6))}
    for name, rates in (("dram", (1.0, 2.5, 8.0)), ("sram", (4.0, 12.0, 64.0))):
        keys |= {f"memories__{name}__read_bytes_per_cycle": one(*rates), f"memories__{name}__write_bytes_per_cycle": one(*rates)}
        keys |= {f"memories__{name}__latency_cycles": one(0, 12, 60), f"memories__{name}__write_latency_cycles": one(0, 24)}
        keys |= {f"memories__{name}__shared_ports": one(True, False), f"memories__{name}__burst_bytes": one(1, 16, 64)}
        keys |= {f"memories__{name}__banks": one(1, 2, 3, 8), f"memories__{name}__bank_bytes": one("any", 1, 4, 16)}
        keys |= {f"memories__{name}__bank_cycles": one(1, 4), f"memories__{name}__words": one("whole", "packed")}
    keys["isa__program_memory"] = one("own", "dram", "sram")
    keys["engines__mac__timing"] = {
        "input_edge_bytes": one(1, 2, 4),
        "weight_edge_bytes": one(1, 2, 8),
        "output": {"lanes": one(1, 2, 8), "overlaps": one(True, False)},
    }
    return keys


def faster(keys: Keys, factor: int) -> dict[str, Keys]:
    """Return by path each figure that is larger, or smaller where it is a delay."""
    more = {
        key: {key: value * factor}
        for key, value in keys.items()
        if key.endswith(("_per_cycle", "queue_depth", "outstanding", "in_flight_bytes", "banks"))
    }
    delays = ("latency_cycles", "issue_cycles", "request_cycles", "run_cycles")
    less = {key: {key: value // factor} for key, value in keys.items() if key.endswith(delays)}
    less |= {key: {key: value / factor} for key, value in keys.items() if key.endswith("bank_cycles")}
    rate = keys["engines__vector__functions"]["add"]
    timing = keys["engines__mac__timing"]
    edges = ("input_edge_bytes", "weight_edge_bytes")
    lanes = {"output": {**timing["output"], "lanes": timing["output"]["lanes"] * factor}}
    return {
        **more,
        **less,
        "word_cycles": {"isa__word_cycles": keys["isa__word_cycles"] / factor},
        "vector lanes": {"engines__vector__functions": functions(rate["lanes"] * factor, rate["startup"])},
        "startup": {"engines__vector__functions": functions(rate["lanes"], rate["startup"] // factor)},
        "output lanes": {"engines__mac__timing": {**timing, **lanes}},
        **{edge: {"engines__mac__timing": {**timing, edge: timing[edge] * factor}} for edge in edges},
        "all queues": {key: value * factor for key, value in keys.items() if key.endswith("queue_depth")},
    }


def make_operation(rng: np.random.Generator, engine: int) -> MachineOp:
    """Make an operation of a random size."""
    size, address = 16 * int(rng.integers(1, 40)), 16 * int(rng.integers(0, 256))
    if engine == MAC:
        rows, inner, columns = (int(n) for n in rng.integers(1, 24, 3))
        return make(MatrixProduct, rows=rows, inner=inner, columns=columns, emit=1, a_address=address, output_address=0x4000)
    if engine == VECTOR:
        return rescale(address, (address + 0x2000) % 0x4000, size)
    return (load, store)[int(rng.integers(0, 2))](address, address, size, engine - DMA0)


def random_program(rng: np.random.Generator) -> list[MachineOp]:
    """Make a program on all engines, with matched semaphores. Some Waits stand before their Signals; hazards and
    deadlocks are likely.
    """
    ops: list[MachineOp] = []
    pending: list[tuple[int, int]] = []
    early = rng.random() < 0.4
    for _ in range(int(rng.integers(5, 70))):
        choice = int(rng.integers(0, 6))
        if choice < 4:
            ops.append(make_operation(rng, ENGINES[choice]))
        elif choice == 4:
            semaphore = int(rng.integers(len(PAIRS)))
            source, target = PAIRS[semaphore]
            if early and rng.random() < 0.3 and all(semaphore != s for s, _ in pending):
                waiting_ops = [make_operation(rng, target) for _ in range(int(rng.integers(0, 4)))]
                ops += [Wait(target, semaphore), *waiting_ops, Signal(source, semaphore)]
            else:
                ops.append(Signal(source, semaphore))
                pending.append((semaphore, target))
        elif pending:
            semaphore, engine = pending.pop(int(rng.integers(0, len(pending))))
            ops.append(Wait(engine, semaphore))
    return [*ops, *(Wait(engine, semaphore) for semaphore, engine in pending), End()]


def run(chip: Chip, ops: list[MachineOp]) -> Simulation:
    return simulate(chip, ops, None, IMAGE, [(0, IMAGE.size)], word_bytes=12, values=False, check=False)


FEW = PROGRAMS * 3 // 10


@pytest.mark.parametrize("cases", [range(FEW), pytest.param(range(FEW, PROGRAMS), marks=pytest.mark.exhaustive)])
def test_more_never_slows(cases: range) -> None:
    """Neither the program nor any of its operations, whatever is multiplied by 2, 3 or 5."""
    slower: list[tuple[int, str]] = []
    ran = deeper = 0
    for case in cases:
        rng = np.random.default_rng(case)
        ops, keys, factor = random_program(rng), random_machine(rng), int(rng.choice([2, 3, 5]))
        try:
            before = run(small_chip(**keys, sync__semaphores=16), ops)
        except ProgramError:
            continue
        ran += 1
        deeper += max(before.order.least_depths) > 1
        for name, change in faster(keys, factor).items():
            after = run(small_chip(**(keys | change), sync__semaphores=16), ops)
            if (after.end > before.end).any():
                slower.append((case, name))
    assert slower == []
    assert ran > len(cases) / 2
    assert deeper  # programs that need more than one entry of a queue are among them
