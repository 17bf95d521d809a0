#!/usr/bin/env python3
"""CPU seconds and peak memory of npu-build and of npu-sim, each a process of its own, start of Python included.

    python scripts/bench_build.py zoo/networks/resnet50_224.onnx zoo/networks/mobilenet_v2_224.onnx [--hw edge16] [-O2]

Calibration inputs are random: they cost what real ones cost. npu-build imports, calibrates, quantizes, schedules, emits,
and runs the emitted bytes once against the integer reference. npu-sim runs the file on another input, with hazards and
timeline; its outputs must be those of `python -m toolchain.reference`. Exit code 1 when a bit differs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from toolchain.cli.application import reported, require_writable
from toolchain.cli.inputs import machine_inputs, model_inputs
from toolchain.files import write_whole
from toolchain.frontend import load_model
from toolchain.runtime import Session, random_feeds

BUILD = ("-c", "from toolchain.cli import build; build()")
SIMULATE = ("-c", "from toolchain.cli import sim; sim()")
REFERENCE = ("-m", "toolchain.reference")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Cost:
    """CPU seconds of user and system together; peak resident memory."""

    cpu_s: float
    peak_mib: float


@dataclass(frozen=True)
class Result:
    model: str
    machine: str
    build: Cost
    simulate: Cost
    cycles: int
    mac_utilization: float
    file_bytes: int
    equal: bool


def cost(command: Sequence[str]) -> Cost:
    """Runs `python COMMAND`. Raises SystemExit with its exit code when it fails."""
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL, env={**os.environ, **ONE_THREAD})
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(process.returncode)
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def calibration(path: str, inputs: int, target: Path) -> None:
    """An .npz of `inputs` standard normal samples."""
    model = load_model(path, {})
    rng = np.random.default_rng(0)
    arrays = {}
    for port in model.proto.graph.input:
        shape = model.types[port.name].shape
        arrays[port.name] = rng.standard_normal((inputs * shape[0], *shape[1:]), np.float32)
    np.savez(target, **arrays)  # type: ignore[arg-type]


def measure(path: str, machine: str, level: int, inputs: int, scratch: Path) -> Result:
    data, compiled, feeds, report = scratch / "calib.npz", scratch / "out.npu", scratch / "in.npz", scratch / "build.json"
    got, expected = scratch / "got.npz", scratch / "expected.npz"
    calibration(path, inputs, data)
    options = ["--hw", machine, "--calib", str(data), "-O", str(level), "-o", str(compiled), "--json", str(report)]
    building = cost([*BUILD, path, *options])
    np.savez(feeds, **random_feeds(Session(compiled).get_inputs(), seed=1))  # type: ignore[arg-type]
    simulating = cost([*SIMULATE, str(compiled), "--input", str(feeds), "--output", str(got)])
    cost([*REFERENCE, str(compiled), "--input", str(feeds), "--output", str(expected)])
    with np.load(got) as a, np.load(expected) as b:
        equal = set(a.files) == set(b.files) and all(np.array_equal(a[n], b[n]) for n in a.files)
    figures = json.loads(report.read_text())
    return Result(
        Path(path).stem,
        machine,
        building,
        simulating,
        figures["cycles"],
        figures["mac_utilization"],
        compiled.stat().st_size,
        equal,
    )


def line(found: Result) -> str:
    return (
        f"{found.model} on {found.machine}: build {found.build.cpu_s:.1f} CPU s, {found.build.peak_mib:.0f} MiB; "
        f"simulate {found.simulate.cpu_s:.1f} CPU s, {found.simulate.peak_mib:.0f} MiB; {found.cycles:,} cycles, "
        f"MAC {100 * found.mac_utilization:.1f} %, {'equal to' if found.equal else 'DIFFERS FROM'} the reference"
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="ONNX models with float inputs of static shape")
    parser.add_argument("--hw", default="edge16")
    parser.add_argument("-O", dest="level", type=int, default=2)
    parser.add_argument("--inputs", type=int, default=16, help="calibration inputs (default 16)")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> int:
    given = arguments()
    with reported():
        require_writable({"--json": given.json}, {**model_inputs(*given.models), **machine_inputs(given.hw)})
        results = run(given)
        if given.json is not None:
            write_whole(given.json, (json.dumps([asdict(found) for found in results], indent=1) + "\n").encode())
    return 0 if all(found.equal for found in results) else 1


def run(given: argparse.Namespace) -> list[Result]:
    results = []
    for path in given.models:
        with tempfile.TemporaryDirectory() as scratch:
            results.append(measure(path, given.hw, given.level, given.inputs, Path(scratch)))
        print(line(results[-1]), flush=True)
    return results


if __name__ == "__main__":
    sys.exit(main())
