"""A model built for a machine, held against onnxruntime on the file itself: the bits of both engines, and a floor in dB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from same_outputs import session

from toolchain.api import Build, BuildOptions, build
from toolchain.isa import Machine
from toolchain.runtime import Session


def against_file(path: Path, machine: Machine | str = "edge16", least_db: float = 30.0, level: int = 2) -> Build:
    """Calibrated on the inputs that are compared. Each output: its shape, the bits of program and reference, its distance."""
    on_file = session(str(path))
    feeds: dict[str, Any] = {
        i.name: np.random.default_rng(7).standard_normal(i.shape).astype(np.float32) for i in on_file.get_inputs()
    }
    np.savez(path.parent / "calib.npz", **{name: value[None] for name, value in feeds.items()})
    built = build(path, BuildOptions(machine, calibration=str(path.parent / "calib.npz"), level=level))
    names = [o.name for o in on_file.get_outputs()]
    on_floats = [np.asarray(value) for value in on_file.run(names, feeds)]
    program = Session(built.data).run(names, feeds)
    reference = Session(built.data, backend="reference").run(names, feeds)
    for name, expected, got, bits in zip(names, on_floats, program, reference):
        assert got.shape == expected.shape, f"{name}: {got.shape}, not {expected.shape}"
        assert np.array_equal(got, bits), f"{name}: the program differs from the reference"
        assert (db := sqnr_db(expected, got)) >= least_db, f"{name}: {db:.1f} dB on {built.container.machine.chip.name}"
    return built


def sqnr_db(expected: np.ndarray, got: np.ndarray) -> float:
    signal, noise = (float(np.square(v, dtype=np.float64).sum()) for v in (expected, expected - got))
    return 99.0 if noise == 0 else 10 * float(np.log10(max(signal, 1e-30) / noise))
