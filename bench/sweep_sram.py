#!/usr/bin/env python3
"""Tabulate cycles and DRAM bytes of a network over sizes of the SRAM, as Markdown, by objective of its plans.

    `python bench/sweep_sram.py NETWORK.onnx [--hw edge16] [--optimize cycles --optimize traffic] [-O2] [--sizes 24]`.

Sizes go from 32 KiB to 4 MiB in equal ratios. The plan's expected cycles stand beside simulated ones.
A figure above that of a smaller size is marked with the excess. The largest excesses are listed below the table.
Below stand also the number above 3 %, which is a fault of the planner, and whether any objective moves more bytes than `cycles`.
Ranges are of random inputs.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast

from make_bound_tables import figures_of

from toolchain.api import BuildOptions
from toolchain.cli.application import report_errors
from toolchain.isa import Machine, load_machine
from toolchain.judging.sram_sweep import FIRST, LAST, with_sram_size
from toolchain.schedule.goals import OBJECTIVES, Goal, Objective
from toolchain.schedule.options import LEVELS

FAULT = 0.03  # more cycles than with less SRAM, beyond which a plan is a fault


class Point(NamedTuple):
    """The figures of one size: simulated and expected cycles, and DRAM bytes."""

    cycles: int
    expected: int
    dram_bytes: int


class Least:
    """A record of the least figure of a column so far.

    It has the largest share by which a figure exceeds that of a smaller size, and how many exceed it too much.
    """

    def __init__(self) -> None:
        self.least, self.worst, self.faults = math.inf, 0.0, 0

    def cell(self, figure: int) -> str:
        """Return a figure as a cell, marked where it exceeds the least so far, and record it."""
        more = max(0.0, figure / self.least - 1)
        self.least, self.worst = min(self.least, figure), max(self.worst, more)
        self.faults += more > FAULT
        return f"{figure:,}" + (f" (+{100 * more:.3f} %)" if more else "")


def sizes(count: int) -> list[int]:
    """Return `count` sizes in bytes in equal ratios, rounded to whole KiB, which banks divide."""
    ratio = (LAST / FIRST) ** (1 / (count - 1))
    return [round(FIRST * ratio**k / 1024) * 1024 for k in range(count)]


def point(network: Path, machine: Machine, level: int, objective: Objective) -> Point | None:
    """Return the point, or None where the SRAM is too small. Raise CompileError."""
    figures = figures_of(network, BuildOptions(machine, level=level, goal=Goal(objective)))
    if figures is None:
        return None
    return Point(figures["cycles"], figures["expected_cycles"], figures["dram_read_bytes"] + figures["dram_write_bytes"])


def run(network: Path, name: str, objectives: Sequence[Objective], level: int, count: int) -> None:
    """Print the table of one network and the excesses below it.

    `name`: the machine.
    `count`: number of sizes.
    """
    machine = load_machine(name)
    simulated, expected = ({o: Least() for o in objectives} for _ in range(2))
    moved_more = 0
    print(f"**{network.stem} on {machine.chip.name}, -O{level}**\n")
    print("| SRAM bytes | " + " | ".join(f"{o}: cycles | expected | DRAM bytes" for o in objectives) + " |")
    print("| --: |" + " --: |" * (3 * len(objectives)), flush=True)
    for size in sizes(count):
        cells, bytes_of_cycles = [f"{size:,}"], 0
        for objective in objectives:
            result = point(network, with_sram_size(machine, size), level, objective)
            if result is None:
                cells += ["too small", "", ""]
                continue
            bytes_of_cycles = result.dram_bytes if objective == "cycles" else bytes_of_cycles
            moved_more += 0 < bytes_of_cycles < result.dram_bytes
            cells += [
                simulated[objective].cell(result.cycles),
                expected[objective].cell(result.expected),
                f"{result.dram_bytes:,}",
            ]
        print("| " + " | ".join(cells) + " |", flush=True)
    print()
    for objective in objectives:
        cycles, before = simulated[objective].worst, expected[objective].worst
        print(f"{objective}: at most {100 * cycles:.3f} % (expected: {100 * before:.3f} %) above a smaller size")
        print(f"{objective}: {simulated[objective].faults} sizes above {100 * FAULT:.0f} %")
    if len(objectives) > 1 and "cycles" in objectives:
        print(f"{moved_more} sizes at which another objective moves more bytes than cycles")


def main() -> None:
    """Run the command. A model or machine that is refused ends it with one sentence."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("network", type=Path)
    parser.add_argument("--hw", default="edge16")
    parser.add_argument("--optimize", action="append", choices=OBJECTIVES)
    parser.add_argument("-O", dest="level", type=int, default=2, choices=range(len(LEVELS)))
    parser.add_argument("--sizes", type=int, default=24)
    args = parser.parse_args()
    if args.sizes < 2:
        parser.error("--sizes: at least 2, the smallest and the largest")
    objectives = sorted(cast(list[Objective], args.optimize or ["cycles"]), key=OBJECTIVES.index)
    with report_errors():
        run(args.network, args.hw, objectives, args.level, args.sizes)


if __name__ == "__main__":
    main()
