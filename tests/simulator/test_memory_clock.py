"""A memory with a clock of its own: rates and latencies of its cycles, in those of the chip, by hand."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from machine_programs import load, small_chip
from pipelines import pipeline

from simulator import simulate
from toolchain.hw.describe import chip_differences, chip_lines
from toolchain.isa import load_machine
from toolchain.isa.encoding_needs import find_encoding_gaps
from toolchain.machine import End

IMAGE = np.zeros(0x8000, np.uint8)


def cycles(**keys: Any) -> int:
    """Return the cycles of a load of 800 bytes on a chip of 500 MHz."""
    chip = small_chip(**{f"memories__dram__{key}": value for key, value in keys.items()})
    return simulate(chip, [load(0, 0, 800), End()], None, IMAGE, [(0, IMAGE.size)], values=False, check=False).cycles


@pytest.mark.parametrize(
    ("frequency", "bytes_per_cycle", "latency"),
    [("250 MHz", 4.0, 42), ("1 GHz", 16.0, 11), ("750 MHz", 12.0, 14), ("500 MHz", 8.0, 21)],
)
def test_rates_and_latencies_in_cycles_of_the_chip(frequency: str, bytes_per_cycle: float, latency: int) -> None:
    """8 bytes and a latency of 21, of its own cycles."""
    cycle_count = cycles(frequency=frequency, latency_cycles=21)
    assert cycle_count == 1 + latency + -(-800 // bytes_per_cycle)
    assert cycle_count == cycles(read_bytes_per_cycle=bytes_per_cycle, latency_cycles=latency)


def test_a_faster_clock_is_never_slower() -> None:
    ends = []
    for megahertz in (100, 300, 500, 1000, 3000):
        chip = small_chip(memories__dram__frequency=f"{megahertz} MHz", memories__dram__latency_cycles=33)
        result = simulate(chip, pipeline(9, 256), None, IMAGE, [(0, IMAGE.size)], values=False, check=False)
        ends.append(result.end)
    assert all((later <= earlier).all() for earlier, later in pairwise(ends))
    assert ends[-1][-1] < ends[0][-1]


def test_the_file_keeps_what_it_says() -> None:
    clocked, none = small_chip(memories__dram__frequency="250 MHz"), small_chip()
    assert "    frequency: 250 MHz" in chip_lines(clocked)
    assert "    frequency: null  # the chip's" in chip_lines(none)
    assert chip_differences(clocked, none) == [("memories.dram.frequency", "250 MHz", "none")]
    assert (clocked.dram.read_bytes_per_cycle, clocked.memories["dram"].read_bytes_per_cycle) == (4.0, 8.0)


def test_a_machine_with_its_own_clock_has_an_instruction_table() -> None:
    machine = load_machine("edge16")
    memories = {
        name: memory.model_copy(update={"frequency": machine.chip.clock.frequency / 2})
        for name, memory in machine.chip.memories.items()
    }
    assert find_encoding_gaps(machine.chip.model_copy(update={"memories": memories}), machine.isa) == []
