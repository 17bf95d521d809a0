#!/usr/bin/env python3
"""Compare plans with what was possible (docs/bounds.md), as Markdown: a table for each machine and size of its SRAM.

    `python examples/networks/fill_weights.py networks && python bench/make_mobilenet_chain.py networks/mb28.onnx`.
    `python bench/make_bound_tables.py networks/*.onnx [--hw edge16 ...] [--sram 512KiB --sram 64KiB ...] [-O2]`.

Columns are cycles, and cycles as a multiple of the bound of these units.
The next is cycles over the cycles of layers alone (the sum of each one's own bound).
Then come DRAM bytes, and bytes as a multiple of the least for this size.
The last are the unit or port that bounds most cycles, and the layer with most cycles beyond its own bound.
Ranges are of random inputs: they move no cycle but by zero points and padding.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolchain.api import BuildOptions, build
from toolchain.cli.application import report_errors
from toolchain.errors import CompileError
from toolchain.hw.section import read_bytes
from toolchain.isa import Machine, load_machine
from toolchain.schedule.goals import CYCLES
from toolchain.schedule.options import LEVELS

HEADS = ("network", "cycles", "x units", "x alone", "DRAM bytes", "x least", "by", "most beyond its own bound")


def sram_bytes(text: str) -> int:
    """Parse a size such as 64KiB into bytes. Raise CompileError."""
    try:
        return read_bytes(text)
    except ValueError as fault:
        raise CompileError(f"--sram {text}: {fault}") from None


def row(figures: Mapping[str, Any]) -> list[str]:
    """Return the row of one network."""
    bounds, layers = figures["bounds"], [layer for layer in figures["layers"] if layer["bounds"]]
    moved = figures["dram_read_bytes"] + figures["dram_write_bytes"]
    alone = sum(layer["bounds"]["cycles"] for layer in layers)
    beyond = max(layers, key=lambda layer: layer["cycles"] - layer["bounds"]["cycles"])
    more = beyond["cycles"] - beyond["bounds"]["cycles"]
    cycles_by_limit: dict[str, int] = {}
    for region in bounds["regions"]:
        cycles_by_limit[region["by"]] = cycles_by_limit.get(region["by"], 0) + region["cycles"]
    return [
        figures["name"],
        f"{figures['cycles']:,}",
        ratio(figures["cycles"], bounds["cycles"]),
        ratio(figures["cycles"], alone),
        f"{moved:,}",
        ratio(moved, bounds["dram_bytes"]),
        max(cycles_by_limit, key=cycles_by_limit.__getitem__),
        f"{beyond['name']} {more:+,} ({100 * more / figures['cycles']:.1f} %)",
    ]


def figures_of(model: Path, options: BuildOptions) -> Mapping[str, Any] | None:
    """Return the figures of the build; None where the SRAM is too small, which is printed. Raise CompileError for all else."""
    try:
        return build(model, options).figures
    except CompileError as fault:
        if "smallest tile needs" not in str(fault):
            raise
        print(f"{model.stem}: {str(fault).splitlines()[0]}", file=sys.stderr)
        return None


def ratio(value: float, bound: float) -> str:
    """Return a value as a multiple of its bound, as text; `-` without a bound."""
    return f"{value / bound:.3f}" if bound else "-"


def table(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of the table in Markdown, with the geometric means below."""
    rows = [row(figures) for figures in results if figures["layers"]]
    means = [math.exp(sum(math.log(float(r[column])) for r in rows) / len(rows)) for column in (2, 3, 5)] if rows else []
    if rows:
        rows.append(["geometric mean", "", f"{means[0]:.3f}", f"{means[1]:.3f}", "", f"{means[2]:.3f}", "", ""])
    lines = ["| " + " | ".join(HEADS) + " |", "|" + " --- |" + " --: |" * 5 + " --- |" * 2]
    return [*lines, *("| " + " | ".join(r) + " |" for r in rows)]


def main() -> None:
    """Print the tables. A model or option that is refused ends the command with one sentence."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--hw", action="append")
    parser.add_argument("--sram", action="append", help="its bytes, such as 64KiB; those of the machine's file without it")
    parser.add_argument("-O", dest="level", type=int, default=2, choices=range(len(LEVELS)))
    args = parser.parse_args()
    with report_errors():
        run(args.models, args.hw or ["edge16"], args.sram or [], args.level)


def run(models: Sequence[Path], machines: Sequence[str], sizes: Sequence[str], level: int) -> None:
    """Build each model for each machine and size of the SRAM and print a table for each pair. No `sizes`: the machine's own."""
    for machine in machines:
        loaded = load_machine(machine)
        for size in [sram_bytes(s) for s in sizes] or [loaded.chip.sram.size]:
            small_machine, results = Machine(loaded.chip.with_sram(size), loaded.isa), list[Mapping[str, Any]]()
            for model in models:
                figures = figures_of(model, BuildOptions(small_machine, level=level, goal=CYCLES))
                results += [] if figures is None else [figures]
            print(f"**{small_machine.chip.name}, {size / 1024:g} KiB**\n")
            print("\n".join(table(results)) + "\n", flush=True)


if __name__ == "__main__":
    main()
