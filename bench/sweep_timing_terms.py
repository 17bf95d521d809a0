#!/usr/bin/env python3
"""Tabulate the cost of each term of a machine's time as Markdown: programs of the complete machine, timed again without terms.

    `python examples/networks/fill_weights.py networks`.
    `python bench/sweep_timing_terms.py networks/*.onnx [--hw NAME|FILE ...] [-O2]`.

There is one table for each machine: cycles where every term of `npu-sim --without` is ideal, and the machine's own cycles.
Between them is how many more each term alone costs, in percent of the ideal ones.
Columns of terms that cost no network anything are left out.
Ranges are of random inputs: they move no cycle but by zero points and padding.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from simulator import simulate
from toolchain.api import BuildOptions, build
from toolchain.cli.application import report_errors
from toolchain.codegen import Container, Region
from toolchain.hw import list_shipped_names
from toolchain.hw.timing_terms import TERMS, idealize_terms
from toolchain.isa import load_machine
from toolchain.runtime.backend import Program
from toolchain.schedule.options import LEVELS

IDEAL, ALL = "ideal", "all"  # beside the names of terms: none is charged, each is


def variants() -> Mapping[str, tuple[str, ...]]:
    """Return the terms that are ideal, by what is then charged: none, one, all."""
    return {IDEAL: tuple(TERMS), **{name: tuple(t for t in TERMS if t != name) for name in TERMS}, ALL: ()}


def cycles_of(container: Container) -> dict[str, int]:
    """Return the cycles of all regions of a network, by what is charged (`variants`)."""
    chip = container.machine.chip
    chips = {name: idealize_terms(chip, left_out) for name, left_out in variants().items()}
    cycles_by_name = dict.fromkeys(chips, 0)
    for region in (s for s in container.segments if isinstance(s, Region)):
        flow = Program(container.machine, region, container.graph).flow
        for name, timed in chips.items():
            nothing, width = np.zeros(0, np.uint8), container.machine.isa.word_bytes
            run = simulate(timed, flow, flow.words, nothing, (), word_bytes=width, values=False, check=False)
            cycles_by_name[name] += run.cycles
    return cycles_by_name


def table(cycles_by_network: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return the lines of a table in Markdown, a row for each network.

    `cycles_by_network`: cycles by network and by what is charged.
    """
    charged = [name for name in TERMS if any(cycles[name] != cycles[IDEAL] for cycles in cycles_by_network.values())]
    lines = [_row(["network", IDEAL, *charged, ALL, ""]), _row(["---", *["--:"] * (len(charged) + 3)])]
    for network, cycles in cycles_by_network.items():
        each = [_more(cycles[name], cycles[IDEAL]) for name in charged]
        lines.append(_row([network, f"{cycles[IDEAL]:,}", *each, f"{cycles[ALL]:,}", _more(cycles[ALL], cycles[IDEAL])]))
    return lines


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _more(cycles: int, ideal: int) -> str:
    """Return the percentage beyond the ideal cycles, as text; `0` where there is none."""
    return f"{100 * (cycles - ideal) / ideal:+.1f}" if cycles != ideal else "0"


def run(models: Sequence[Path], machines: Sequence[str], level: int) -> None:
    """Build each model for each machine and print a table for each machine."""
    for machine in machines:
        loaded, cycles_by_network = load_machine(machine), {}
        for model in models:
            cycles_by_network[model.stem] = cycles_of(build(model, BuildOptions(loaded, level=level)).container)
        print(f"**{loaded.chip.name}**\n")
        print("\n".join(table(cycles_by_network)) + "\n", flush=True)


def main() -> None:
    """Run the command. A model or machine that is refused ends it with one sentence."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--hw", nargs="*", default=None, help="machines; default all shipped")
    parser.add_argument("-O", dest="level", type=int, choices=range(len(LEVELS)), default=2)
    args = parser.parse_args()
    with report_errors():
        run(args.models, args.hw or list_shipped_names(), args.level)


if __name__ == "__main__":
    main()
