#!/usr/bin/env python3
"""Build a network with every memory of a machine halved down to 1 KiB: each size is built, or refused in a message.

    `python bench/sweep_memories.py NETWORK.onnx [NETWORK.onnx ...] [--hw edge16 ...] [-O 0 -O 1]`.

The script prints a line for each refused size, and the traceback of a build that neither succeeds nor is refused.
It exits with 1 if there is one. Ranges are of random inputs.
Sizes are changed in the YAML file, as users change them: it may be refused itself.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import yaml

import hw_configs
from toolchain.api import BuildOptions, build
from toolchain.errors import ToolchainError
from toolchain.hw.section import read_bytes
from toolchain.schedule.options import LEVELS

SHIPPED = Path(str(hw_configs.__path__[0]))
LEAST_BYTES = 1024
MOST_DRAM = 2 << 20  # more than the networks of the tests take, so that larger ones build as this does


def iterate_halved(file: Path, folder: Path) -> Iterator[tuple[str, int, Path]]:
    """Yield each memory of a machine with each of its sizes, and a YAML file in the folder that has it.

    Sizes go from half the memory's own down to 1 KiB, the DRAM's from `MOST_DRAM` on.
    """
    keys = yaml.safe_load(file.read_text())
    shutil.copytree(file.parent / "isa", folder / "isa", dirs_exist_ok=True)
    for name, memory in keys["memories"].items():
        original_size = memory["size"]
        size = read_bytes(str(original_size)) // 2
        size = min(size, MOST_DRAM) if name == "dram" else size
        while size >= LEAST_BYTES:
            memory["size"] = size
            changed = folder / f"{file.stem}_{name}_{size}.yaml"
            changed.write_text(yaml.safe_dump(keys, sort_keys=False))
            yield name, size, changed
            size //= 2
        memory["size"] = original_size


def outcome(network: Path, machine: Path, level: int) -> tuple[str, str]:
    """Return 'built', 'refused' or 'failed', and the message or the traceback."""
    try:
        build(network, BuildOptions(str(machine), level=level, samples=1))
    except ToolchainError as fault:
        return "refused", str(fault).partition("\n")[0]
    except Exception:
        return "failed", traceback.format_exc()
    return "built", ""


def main() -> None:
    """Build each network with each size and print the refusals; exit with 1 where a build neither succeeds nor is refused."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("networks", nargs="+", type=Path)
    parser.add_argument("--hw", action="append", help="a shipped name; default: all")
    parser.add_argument("-O", dest="levels", type=int, action="append", choices=range(len(LEVELS)), help="default: 0 and 1")
    args = parser.parse_args()
    counts = Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        for name in args.hw or sorted(file.stem for file in SHIPPED.glob("*.yaml")):
            for memory, size, machine in iterate_halved(SHIPPED / f"{name}.yaml", Path(folder)):
                for network in args.networks:
                    for level in args.levels or (0, 1):
                        kind, detail = outcome(network, machine, level)
                        counts[kind] += 1
                        if kind != "built":
                            print(f"{network.stem} {name} {memory} {size} -O{level}: {kind}: {detail}", flush=True)
    print(", ".join(f"{kind} {count}" for kind, count in sorted(counts.items())))
    sys.exit(1 if counts["failed"] else 0)


if __name__ == "__main__":
    main()
