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
    images = set()
    for seed in range(3):
        dram = np.random.default_rng(seed).integers(0, 256, SIZE, np.uint8)
        original = dram.copy()
        shared_run, single_run = ready.run(dram), simulate(CHIP, ops, None, dram, WRITTEN)
        assert np.array_equal(dram, original)
        assert all(np.array_equal(shared_run.memory[name], single_run.memory[name]) for name in single_run.memory)
        assert (shared_run.start.tolist(), shared_run.end.tolist(), shared_run.bound_by) == (
            single_run.start.tolist(),
            single_run.end.tolist(),
            single_run.bound_by,
        )
        assert (shared_run.traffic, shared_run.peak_bytes, shared_run.unread) == (
            single_run.traffic,
            single_run.peak_bytes,
            single_run.unread,
        )
        images.add(shared_run.dram[OUTPUT : OUTPUT + 384].tobytes())
    assert len(images) == 3


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
