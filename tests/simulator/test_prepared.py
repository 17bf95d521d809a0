"""A program that is prepared once gives, on every image, what a simulation of its own gives."""

from __future__ import annotations

import numpy as np
import pytest
from machine_programs import small_chip
from pipelines import OUTPUT, pipeline, without

import simulator.prepared_program
from simulator import prepare_program, simulate
from toolchain.errors import ProgramError
from toolchain.machine import Wait

CHIP, SIZE, WRITTEN = small_chip(), 0x8000, [(0, 0x4000)]


def test_every_image_has_the_values_and_times_of_its_own_simulation() -> None:
    ops, ready = pipeline(6), prepare_program(CHIP, pipeline(6), None, SIZE, WRITTEN)
    seen = set()
    for seed in range(3):
        dram = np.random.default_rng(seed).integers(0, 256, SIZE, np.uint8)
        given = dram.copy()
        found, own = ready.run(dram), simulate(CHIP, ops, None, dram, WRITTEN)
        assert np.array_equal(dram, given)
        assert all(np.array_equal(found.memory[name], own.memory[name]) for name in own.memory)
        assert (found.start.tolist(), found.end.tolist(), found.bound_by) == (own.start.tolist(), own.end.tolist(), own.bound_by)
        assert (found.traffic, found.peak_bytes, found.unread) == (own.traffic, own.peak_bytes, own.unread)
        seen.add(found.dram[OUTPUT : OUTPUT + 384].tobytes())
    assert len(seen) == 3


def test_rules_are_checked_once_before_the_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ops = pipeline(6)
    wait = next(i for i, op in enumerate(ops) if isinstance(op, Wait))
    with pytest.raises(ProgramError):
        prepare_program(CHIP, without(ops, wait), None, SIZE, WRITTEN)
    ready = prepare_program(CHIP, ops, None, SIZE, WRITTEN)
    monkeypatch.setattr(simulator.prepared_program, "check_program", None)
    monkeypatch.setattr(simulator.prepared_program, "timeline", None)
    assert ready.run(np.zeros(SIZE, np.uint8)).cycles == ready.run(np.ones(SIZE, np.uint8)).cycles > 0


def test_an_image_of_another_size_is_refused() -> None:
    ready = prepare_program(CHIP, pipeline(2), None, SIZE, WRITTEN)
    with pytest.raises(ProgramError, match="dram image has 64 bytes, the program was prepared for 32768"):
        ready.run(np.zeros(64, np.uint8))
    with pytest.raises(ProgramError, match="must be uint8"):
        ready.run(np.zeros(SIZE, np.int8))
