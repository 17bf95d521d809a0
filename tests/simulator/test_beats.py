"""Contiguous runs of a DMA channel take whole beats, where the machine says so."""

from __future__ import annotations

import numpy as np
import pytest

from tests.simulator.machine_programs import make, small_chip
from toolchain.hw.chip import Chip
from toolchain.machine import Copy, Space
from toolchain.machine.demand_columns import demands


def chip(rate: float, runs: str = "whole_beats") -> Chip:
    return small_chip(engines__dma__bytes_per_cycle=rate, engines__dma__runs=runs)


def copy(inner: int, count: int, *, at: int = 0, source: int = 0, target: int = 0) -> Copy:
    """count runs of `inner` bytes; source, target: their strides, 0: without gaps."""
    spaces = {"source_space": Space.DRAM, "destination_space": Space.SRAM, "source_address": at}
    strides = {"source_stride0": source or inner, "destination_stride0": target or inner}
    return make(Copy, **spaces, **strides, inner_bytes=inner, count0=count)


@pytest.mark.parametrize(
    ("rate", "op", "unpacked", "packed"),
    [
        (16.0, copy(64, 8), 32, 32),
        (16.0, copy(8, 8), 4, 4),  # one run
        (16.0, copy(8, 8, source=32), 8, 4),
        (16.0, copy(8, 8, target=32), 8, 4),  # of the end that is written
        (16.0, copy(8, 8, source=16, at=12), 16, 4),  # each run lies in two beats
        (16.0, copy(20, 4, source=64), 8, 5),
        (0.5, copy(3, 4, source=64), 24, 24),
        (3.75, copy(4, 4, source=64), 5, 5),  # beats of 4 bytes, at 3.75 a cycle
        (3.75, copy(2, 4, source=64), 5, 3),
    ],
)
def test_beats_of_runs(rate: float, op: Copy, unpacked: int, packed: int) -> None:
    wide, shared = op.demand(chip(rate)), op.demand(chip(rate, "packed"))
    assert (wide.compute_cycles, shared.compute_cycles) == (unpacked, packed)
    assert wide.lost.edge_cycles == unpacked - packed
    assert wide.traffic == shared.traffic
    together = demands([op, copy(64, 1), op], chip(rate))
    assert together.compute_cycles[[0, 2]].tolist() == [unpacked, unpacked]


def test_a_wider_channel_is_never_slower() -> None:
    rng = np.random.default_rng(4)
    for _ in range(100):
        inner, count, gap, at = (int(n) for n in rng.integers(1, 70, 4))
        op = copy(inner, count, source=inner + gap, at=at)
        cycles = [op.demand(chip(rate)).compute_cycles for rate in (0.5, 1.0, 2.0, 8.0, 16.0, 64.0)]
        assert cycles == sorted(cycles, reverse=True), op
