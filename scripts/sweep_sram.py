#!/usr/bin/env python3
"""Cycles and DRAM bytes of a network over sizes of the SRAM, as Markdown, by what is asked of its plans.

    python scripts/sweep_sram.py NETWORK.onnx [--hw edge16] [--optimize cycles --optimize traffic] [-O2] [--sizes 24]

Sizes go from 32 KiB to 4 MiB in equal ratios. A figure that is above that of a smaller size says by how much; below the table
stands the largest of those, and whether any objective moves more bytes than `cycles` does. Ranges are of random inputs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast

from bound_tables import figures_of

from toolchain.api import BuildOptions
from toolchain.cli.application import reported
from toolchain.curve import LAST, sized
from toolchain.isa import Machine, load_machine
from toolchain.schedule.goals import OBJECTIVES, Goal, Objective
from toolchain.schedule.options import LEVELS
from toolchain.schedule.sizes import FIRST


class Point(NamedTuple):
    cycles: int
    dram_bytes: int


def sizes(count: int) -> list[int]:
    """Whole KiB, which banks divide."""
    ratio = (LAST / FIRST) ** (1 / (count - 1))
    return [round(FIRST * ratio**k / 1024) * 1024 for k in range(count)]


def point(network: Path, machine: Machine, level: int, objective: Objective) -> Point | None:
    """None where the SRAM is too small. Raises CompileError."""
    figures = figures_of(network, BuildOptions(machine, level=level, goal=Goal(objective)))
    if figures is None:
        return None
    return Point(figures["cycles"], figures["dram_read_bytes"] + figures["dram_write_bytes"])


def run(network: Path, name: str, objectives: Sequence[Objective], level: int, count: int) -> None:
    machine = load_machine(name)
    fewest: dict[Objective, int] = {}
    worst = dict.fromkeys(objectives, 0.0)
    moved_more = 0
    print(f"**{network.stem} on {machine.chip.name}, -O{level}**\n")
    print("| SRAM bytes | " + " | ".join(f"{o}: cycles | DRAM bytes" for o in objectives) + " |")
    print("| --: |" + " --: |" * (2 * len(objectives)), flush=True)
    for size in sizes(count):
        cells, bytes_of_cycles = [f"{size:,}"], 0
        for objective in objectives:
            found = point(network, sized(machine, size), level, objective)
            if found is None:
                cells += ["too small", ""]
                continue
            more = max(0.0, found.cycles / fewest.get(objective, found.cycles) - 1)
            fewest[objective] = min(fewest.get(objective, found.cycles), found.cycles)
            worst[objective] = max(worst[objective], more)
            bytes_of_cycles = found.dram_bytes if objective == "cycles" else bytes_of_cycles
            moved_more += 0 < bytes_of_cycles < found.dram_bytes
            cells += [f"{found.cycles:,}" + (f" (+{100 * more:.3f} %)" if more else ""), f"{found.dram_bytes:,}"]
        print("| " + " | ".join(cells) + " |", flush=True)
    print("\n" + "; ".join(f"{o}: at most {100 * more:.3f} % above a smaller size" for o, more in worst.items()))
    if len(objectives) > 1 and "cycles" in objectives:
        print(f"{moved_more} sizes at which another objective moves more bytes than cycles")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("network", type=Path)
    parser.add_argument("--hw", default="edge16")
    parser.add_argument("--optimize", action="append", choices=OBJECTIVES)
    parser.add_argument("-O", dest="level", type=int, default=2, choices=range(len(LEVELS)))
    parser.add_argument("--sizes", type=int, default=24)
    asked = parser.parse_args()
    if asked.sizes < 2:
        parser.error("--sizes: at least 2, the smallest and the largest")
    objectives = sorted(cast(list[Objective], asked.optimize or ["cycles"]), key=OBJECTIVES.index)
    with reported():
        run(asked.network, asked.hw, objectives, asked.level, asked.sizes)


if __name__ == "__main__":
    main()
