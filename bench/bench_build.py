#!/usr/bin/env python3
"""Measure CPU seconds and peak memory of npu-build and of npu-sim, each in its own process, start of Python included.

    `python bench/bench_build.py zoo/networks/resnet50_224.onnx zoo/networks/mobilenet_v2_224.onnx [--hw edge16] [-O2]`.
    `python bench/bench_build.py zoo/networks/resnet50_224.onnx --against ../before     # builds only, beside another clone's`.

Calibration inputs are random: they cost what real ones cost.
The build imports, calibrates, quantizes, schedules, emits, and runs the emitted bytes once against the integer reference.
Then npu-sim runs the file on another input, with hazards and timeline.
Its outputs must be those of `python -m toolchain.reference`. Exit code 1 when a bit differs.
With --against, builds by this tree and by the other alternate, and the medians of their CPU seconds are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from toolchain.cli.application import report_errors, require_writable
from toolchain.cli.files import machine_inputs, model_inputs
from toolchain.errors import CompileError
from toolchain.foundation.atomic_files import write_atomically
from toolchain.frontend import load_model
from toolchain.runtime import Session, random_feeds

BUILD = ("-c", "from toolchain.cli import build; build()")
SIMULATE = ("-c", "from toolchain.cli import sim; sim()")
REFERENCE = ("-m", "toolchain.reference")
ROOT = Path(__file__).resolve().parents[1]
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Cost:
    """CPU seconds of user and system together, and peak resident memory in MiB."""

    cpu_s: float
    peak_mib: float


@dataclass(frozen=True)
class Result:
    """Costs of building a model and simulating it, and figures of the build. `equal`: the outputs are those of the reference."""

    model: str
    machine: str
    build: Cost
    simulate: Cost
    cycles: int
    mac_utilization: float
    file_bytes: int
    equal: bool


@dataclass(frozen=True)
class Comparison:
    """Median CPU seconds of a build, by this tree and by another."""

    model: str
    machine: str
    cpu_s: float
    against_cpu_s: float


def cost(command: Sequence[str], tree: Path = ROOT) -> Cost:
    """Run `python COMMAND` with the code of a tree and return its cost. Raise SystemExit with its exit code where it fails."""
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(tree.resolve())}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # a user's modules are compiled once
    process = subprocess.Popen([sys.executable, "-P", *command], stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(process.returncode)
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def calibration(path: str, inputs: int, target: Path) -> None:
    """Write an .npz of `inputs` standard normal samples to `target`."""
    model = load_model(path, {})
    rng = np.random.default_rng(0)
    arrays = {}
    for port in model.proto.graph.input:
        shape = model.types[port.name].shape
        arrays[port.name] = rng.standard_normal((inputs * shape[0], *shape[1:]), np.float32)
    np.savez(target, **arrays)  # type: ignore[arg-type]


def build_options(machine: str, level: int, scratch: Path) -> list[str]:
    """Return npu-build's options for a model whose files lie in `scratch`."""
    files = {"--calib": "calib.npz", "-o": "out.npu", "--json": "build.json"}
    return [
        "--hw",
        machine,
        "-O",
        str(level),
        "--repair",
        "none",
        *(word for o, name in files.items() for word in (o, str(scratch / name))),
    ]


def compare(path: str, machine: str, level: int, inputs: int, scratch: Path, against: Path, times: int) -> Comparison:
    """Return the median CPU seconds of `times` builds by each of both trees, which take turns."""
    calibration(path, inputs, scratch / "calib.npz")
    command = [*BUILD, path, *build_options(machine, level, scratch)]
    pairs = [(cost(command).cpu_s, cost(command, against).cpu_s) for _ in range(times)]
    ours, other = (statistics.median(side) for side in zip(*pairs))
    return Comparison(Path(path).stem, machine, ours, other)


def measure(path: str, machine: str, level: int, inputs: int, scratch: Path) -> Result:
    """Return the costs of one build and one simulation, and whether its outputs are the reference's."""
    compiled, feeds, report = scratch / "out.npu", scratch / "in.npz", scratch / "build.json"
    got, expected = scratch / "got.npz", scratch / "expected.npz"
    calibration(path, inputs, scratch / "calib.npz")
    building = cost([*BUILD, path, *build_options(machine, level, scratch)])
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


def line(result: Result | Comparison) -> str:
    """Return one line of the printed table."""
    if isinstance(result, Comparison):
        ratio = result.cpu_s / result.against_cpu_s
        return (
            f"{result.model} on {result.machine}: {result.cpu_s:.2f} CPU s, other {result.against_cpu_s:.2f}, ratio {ratio:.3f}"
        )
    return (
        f"{result.model} on {result.machine}: build {result.build.cpu_s:.1f} CPU s, {result.build.peak_mib:.0f} MiB; "
        f"simulate {result.simulate.cpu_s:.1f} CPU s, {result.simulate.peak_mib:.0f} MiB; {result.cycles:,} cycles, "
        f"MAC {100 * result.mac_utilization:.1f} %, {'equal to' if result.equal else 'DIFFERS FROM'} the reference"
    )


def arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="ONNX models with float inputs of static shape")
    parser.add_argument("--hw", default="edge16")
    parser.add_argument("-O", dest="level", type=int, default=2)
    parser.add_argument("--inputs", type=int, default=16, help="calibration inputs (default 16)")
    parser.add_argument(
        "--against", type=Path, metavar="DIR", help="another clone, whose builds are timed in turn with this one's"
    )
    parser.add_argument("--times", type=int, default=5, help="builds of each side with --against (default 5)")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> int:
    """Run the command; return 1 where an output differs from the reference, else 0."""
    args = arguments()
    with report_errors():
        require_writable({"--json": args.json}, {**model_inputs(*args.models), **machine_inputs(args.hw)})
        results = run(args)
        if args.json is not None:
            write_atomically(args.json, (json.dumps([asdict(result) for result in results], indent=1) + "\n").encode())
    return 0 if all(isinstance(result, Comparison) or result.equal for result in results) else 1


def run(args: argparse.Namespace) -> list[Result | Comparison]:
    """Measure or compare every model, print a line for each and return the results."""
    results: list[Result | Comparison] = []
    if args.against is not None and not (args.against / "toolchain").is_dir():
        raise CompileError(f"--against {args.against}: holds no toolchain; give the directory of another clone")
    for path in args.models:
        with tempfile.TemporaryDirectory() as name:
            options = (path, args.hw, args.level, args.inputs, Path(name))
            results.append(measure(*options) if args.against is None else compare(*options, args.against, args.times))
        print(line(results[-1]), flush=True)
    return results


if __name__ == "__main__":
    sys.exit(main())
