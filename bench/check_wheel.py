#!/usr/bin/env python3
"""Builds the wheel and tries it on each of some interpreters: check_wheel.py PYTHON ...; exit code 1 where one fails.

For each interpreter the wheel is installed with its dependencies into a virtual environment of its own. There, outside the
checkout, the commands build, simulate and list the bundled classifier, and a script runs it through a pickled `Session`. Needs
the package registry, and about a minute an interpreter.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 300  # by the clock, of one command: what takes longer hangs

SCRIPT = """
import pickle
import numpy as np
from toolchain.api import BuildOptions, Session, build

model = open("c/classifier.onnx", "rb").read()
with np.load("c/calib.npz") as data:
    x = next(iter(data.values()))[:1].astype(np.float32)
built = pickle.loads(pickle.dumps(build(model, BuildOptions("edge16", calibration=[{"x": x}], repair="none"))))
session = pickle.loads(pickle.dumps(Session(built)))
(simulated,), (reference,) = session.run(None, {"x": x.tolist()}), Session(built, backend="reference").run(None, {"x": x})
assert (simulated == reference).all(), "the simulator and the reference differ"
"""

VERSIONS = """
import platform, numpy, onnx, onnxruntime
packages = ", ".join(f"{package.__name__} {package.__version__}" for package in (numpy, onnx, onnxruntime))
print(f"Python {platform.python_version()} ({packages})")
"""

COMMANDS = (
    "npu-hw example classifier c",
    "npu-build c/classifier.onnx --hw edge16 --calib c/calib.npz --samples 8 --repair none -o c.npu",
    "npu-sim c.npu --trace trace.json",
    "npu-dis c.npu -o c.txt",
    "npu-hw manual edge16",
    "python script.py",
)


class FailedStep(Exception):
    """An error: a command did not start, hung, or ended with another exit code than 0."""


def run_step(command: Sequence[str], folder: Path) -> str:
    """Run a command in a folder and return its standard output. Raise FailedStep with the last line of its message."""
    try:
        done = subprocess.run(command, cwd=folder, timeout=TIMEOUT_S, check=False, capture_output=True, text=True)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FailedStep(f"{' '.join(command)}: {error}") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise FailedStep(f"{' '.join(command)}: exit code {done.returncode}: {lines[-1]}")
    return done.stdout


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout into a folder."""
    run_step((sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)), folder)
    return next(folder.glob("*.whl"))


def install_wheel(python: str, wheel: Path, environment: Path) -> Path:
    """Make a virtual environment with the wheel and return its folder of programs.

    This interpreter's pip installs, since Debian's interpreters bring none.
    """
    run_step((python, "-m", "venv", "--without-pip", str(environment)), wheel.parent)
    programs = environment / ("Scripts" if sys.platform == "win32" else "bin")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(programs / "python"))
    run_step((*pip, "install", "--quiet", str(wheel)), wheel.parent)
    return programs


def try_programs(programs: Path, folder: Path) -> Iterator[str]:
    """Run COMMANDS with the programs of an environment, and yield each that passed."""
    (folder / "script.py").write_text(SCRIPT)
    for command in COMMANDS:
        name, *arguments = command.split()
        run_step((str(programs / name), *arguments), folder)
        yield command


def check_interpreter(python: str, wheel: Path, folder: Path) -> str:
    """Try the wheel on one interpreter and return a line for the table."""
    programs = install_wheel(python, wheel, folder / "env")
    versions = run_step((str(programs / "python"), "-c", VERSIONS), folder).strip()
    steps = sum(1 for _ in try_programs(programs, folder))
    return f"{versions}: {steps} of {len(COMMANDS)} steps pass"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with `argv` (None: the process's); return 1 where the wheel or an interpreter failed, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", nargs="+", help="an interpreter: a name or a path")
    arguments = parser.parse_args(argv)
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        try:
            wheel = build_wheel(Path(folder))
        except FailedStep as error:
            print(error)
            return 1
        for index, python in enumerate(arguments.python):
            place = Path(folder) / str(index)
            place.mkdir()
            try:
                print(check_interpreter(python, wheel, place), flush=True)
            except FailedStep as error:
                failures += 1
                print(f"{python}: {error}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
