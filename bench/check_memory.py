#!/usr/bin/env python3
"""Builds networks with less memory than they need: check_memory.py [--points N]; exit code 1 where one ends in a bad way.

Each of three networks is built under limits of address space (`ulimit -v`) from 1.3 times what `npu-build --help` needs upward,
until the build passes. A build that does not must end with exit code 2 and one sentence on stderr, and leave no file. Needs
Linux, and minutes.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples" / "networks"))

COMMAND = (sys.executable, "-c", "from toolchain.cli import build; build()")
OVER_HELP = 1.3
CPU_S = 300  # of one build; what takes more hangs
MIB = 1 << 20
CLASSIFIER = ROOT / "examples" / "classifier"
NETWORKS = {  # name -> arguments of npu-build behind the model
    "classifier": ("--hw", "edge16", "--calib", str(CLASSIFIER / "calib.npz"), "--samples", "8", "--repair", "none"),
    "bert_tiny_relu_l2h128_s128": ("--hw", "transformer64", "--repair", "none"),
    "resnet8_cifar": ("--hw", "edge16", "--repair", "none", "--host-node", "/b.0.0/b.0.0.0/Conv", "--host-node", "/Add"),
}


def model_file(name: str, folder: Path) -> Path:
    """Return the file of the network of this name of examples/, with weights."""
    from fill_weights import GRAPHS, fill_model  # pyright: ignore[reportMissingImports]

    if name == "classifier":
        return CLASSIFIER / "classifier.onnx"
    path = folder / f"{name}.onnx"
    path.write_bytes(fill_model(next(g for g in GRAPHS if g.name == f"{name}.graph.onnx")).SerializeToString())
    return path


def run_limited(arguments: Sequence[str], address_bytes: int) -> subprocess.CompletedProcess[str]:
    """Run npu-build in at most so much address space and CPU_S seconds, and return how it ended."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (address_bytes, address_bytes))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))

    return subprocess.run([*COMMAND, *arguments], preexec_fn=limit, check=False, capture_output=True, text=True, cwd=ROOT)


def measure_least_bytes() -> int:
    """Return the least address space in bytes, to 4 MiB, in which `npu-build --help` works."""
    low, high = 0, 1 << 10
    while high - low > 4:
        middle = (low + high) // 2
        low, high = (low, middle) if run_limited(["--help"], middle * MIB).returncode == 0 else (middle, high)
    return high * MIB


def ending_fault(ended: subprocess.CompletedProcess[str], files: Sequence[str]) -> str | None:
    """Return the fault in how a build ended; None where there is none.

    `files`: in its folder of outputs.
    """
    if ended.returncode == 0:
        return None if files == ["m.npu"] else f"passed, and left {files}"
    lines = ended.stderr.splitlines()
    if ended.returncode != 2 or len(lines) != 1 or not lines[0].startswith("out of memory"):
        return f"exit code {ended.returncode}, {len(lines)} lines: {lines[-1] if lines else ''}"
    return f"left {', '.join(files)}" if files else None


def built_in(name: str, limits: Sequence[int]) -> Iterator[tuple[int, bool, str | None]]:
    """Yield each limit of address space in bytes, whether the build passed, and the fault in its end; stop at the first pass."""
    with tempfile.TemporaryDirectory() as folder:
        model = model_file(name, Path(folder))
        for limit in limits:
            with tempfile.TemporaryDirectory() as outputs:
                ended = run_limited([str(model), *NETWORKS[name], "-o", f"{outputs}/m.npu"], limit)
                files = sorted(p.name for p in Path(outputs).iterdir())
            yield limit, ended.returncode == 0, ending_fault(ended, files)
            if ended.returncode == 0:
                return


def main() -> int:
    """Run the command; return 1 where a build ended neither well nor in one sentence, else 0."""
    parser = argparse.ArgumentParser(description="Builds networks with less memory than they need.")
    parser.add_argument("--points", type=int, default=20, help="limits for each network (20)")
    parser.add_argument("--step", type=float, default=1.03, help="from each limit to the next (1.03)")
    parser.add_argument("--network", action="append", choices=NETWORKS, help="this one alone; repeatable")
    args = parser.parse_args()
    first, faults = measure_least_bytes() * OVER_HELP, 0
    for name in args.network or NETWORKS:
        for limit, passed, fault in built_in(name, [int(first * args.step**i) for i in range(args.points)]):
            faults += fault is not None
            print(f"{name} {limit / MIB:.0f} MiB: {fault or ('passes' if passed else 'one sentence')}", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
