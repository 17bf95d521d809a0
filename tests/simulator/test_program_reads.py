"""The front end's reads on the port of the memory that the program lies in, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from machine_programs import load, small_chip, store
from pipelines import pipeline, rescale

from simulator import Simulation, simulate
from toolchain.hw.chip import Chip
from toolchain.machine import End, MachineOp

IMAGE = np.zeros(0x8000, np.uint8)


def run(chip: Chip, ops: list[MachineOp], words: list[int], word_bytes: int = 16) -> Simulation:
    return simulate(chip, ops, words, IMAGE, [(0, IMAGE.size)], word_bytes=word_bytes, values=False, check=False)


def chip(memory: str, **keys: Any) -> Chip:
    return small_chip(isa__word_cycles=1.0, isa__program_memory=memory, **keys)


def list_port_cycles(result: Simulation, port: int) -> list[int]:
    """Cycles of the port, service by service."""
    assert result.times is not None and result.times.record is not None
    rows = np.array(result.times.record.served).reshape(-1, 4)
    return [int(last - first) for _, at, first, last in rows if at == port]


def test_words_take_no_less_than_their_memory_gives() -> None:
    """Words of 16 bytes at 8 bytes a cycle: 2 cycles each, 3 words; 80 bytes of data and 48 of words on the port."""
    ops = [load(0, 0, 80), End()]
    assert run(chip("dram"), ops, [3, 0]).end.tolist() == [6 + 16] * 2
    assert run(chip("own"), ops, [3, 0]).end.tolist() == [3 + 10] * 2
    assert run(chip("sram"), ops, [3, 0]).end.tolist() == [3 + 10] * 2  # 64 bytes a cycle
    assert run(chip("dram"), ops, [3, 0], word_bytes=0).cycles == 3 + 10


def test_words_of_operations_that_the_port_does_not_serve_go_with_the_next() -> None:
    """The words are 5, 2, 1, 4 and 1: 7 go with the first load, 5 and those after it with the second."""
    ops = [rescale(0, 0x1000, 16), load(0, 0, 80), rescale(0, 0x1000, 16), load(80, 80, 80), End()]
    result = run(chip("dram"), ops, [5, 2, 1, 4, 1])
    assert list_port_cycles(result, 0) == [(80 + 7 * 16) // 8, (80 + 6 * 16) // 8]
    shared = run(chip("dram", memories__dram__shared_ports=True), [*ops[:3], store(0, 0x100, 80), End()], [5, 2, 1, 4, 1])
    assert list_port_cycles(shared, 0) == [(80 + 7 * 16) // 8, 10 + 6 * 2]


@pytest.mark.parametrize("memory", ["dram", "sram"])
def test_the_port_gives_data_and_program(memory: str) -> None:
    """Whole cycles all of them, so that nothing is lost to rounding; figures of data are what they were."""
    rates = {f"memories__{m}__{w}_bytes_per_cycle": 16.0 for m in ("dram", "sram") for w in ("read", "write")}
    ops = pipeline(7, 64)
    words = [3] * len(ops)
    separate, charged = run(chip("own", **rates), ops, words), run(chip(memory, **rates), ops, words)
    port = {"dram": 0, "sram": 2}[memory]
    assert (sum(list_port_cycles(charged, port)) - sum(list_port_cycles(separate, port))) * 16 == sum(words) * 16
    assert charged.traffic == separate.traffic
    assert charged.cycles >= separate.cycles
