#!/usr/bin/env python3
r"""Survey how much of each network runs on a machine: regions, host subgraphs, host operators and why; each is built and run
once.

    `python scripts/survey_models.py zoo/models zoo/networks --hw transformer64 edge16 \
        --shape 'silero*:input=1,576' --value 'silero*:sr=16000' --json survey.json`.

A folder stands for its *.onnx. PATTERN of --shape and --value is of file names without `.onnx`.
Values for inputs that a network does not have are skipped.
A network counts as complete where no node with float operands is the host's.
A front end of integers alone, such as a token look-up, may stay there, and is listed.
Exit code 1 where a network is refused or its bits differ.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from toolchain.api import BuildOptions, build
from toolchain.cli.application import report_errors, require_writable
from toolchain.cli.files import machine_inputs
from toolchain.cli.option_values import input_shapes
from toolchain.codegen import Container, HostSubgraph, Region
from toolchain.errors import ToolchainError
from toolchain.foundation.atomic_files import write_atomically
from toolchain.isa import load_machine
from toolchain.runtime import Session, random_feeds, verify
from toolchain.schedule.options import LEVELS

MOST_TOLD = 4  # reasons of a network


@dataclass(frozen=True)
class Survey:
    """The result of one network on one machine.

    `verdict`: "equal", or "refused: ..." or "DIFFERS: ..." of the simulator against the reference.
    `regions`: parts on the chip.
    `islands`: host subgraphs, without front ends of integers, which `fronts` counts.
    `nodes`: nodes on the host.
    `host_macs`: share of the multiply-accumulates on the host, 0..1.
    `hosted`: reason by `OPERATOR node` that stays on the host, but for fronts.
    """

    network: str
    machine: str
    verdict: str
    cycles: int = 0
    regions: int = 0
    islands: int = 0
    fronts: int = 0
    nodes: int = 0
    host_macs: float = 0.0
    hosted: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def is_complete(self) -> bool:
        """True where the bits are equal and no host subgraph has float operands."""
        return self.verdict == "equal" and not self.islands

    def row(self) -> str:
        """Return one line of the printed table."""
        verdict = "whole" if self.is_complete else "cut" if self.verdict == "equal" else self.verdict
        counts = f"{self.regions:3d} regions {self.islands:3d} islands {self.fronts:2d} fronts {self.nodes:3d} nodes on host"
        if not self.regions:
            return f"{self.network:32s} {self.machine:14s} {verdict}"
        return f"{self.network:32s} {self.machine:14s} {verdict:6s} {self.cycles:>12,} cycles {counts} {self.host_macs:6.1%} MACs"


def survey_model(path: Path, options: BuildOptions, machine: str) -> Survey:
    """Build a network and run it once on random inputs; return the result, with a refusal as its verdict."""
    try:
        built = build(str(path), options)
    except ToolchainError as fault:
        return Survey(path.stem, machine, f"refused: {str(fault).splitlines()[0]}")
    feeds = random_feeds(built.container.inputs, seed=1)
    _, difference = verify(Session(built.data), Session(built.data, backend="reference"), feeds)
    islands = [s for s in built.container.segments if isinstance(s, HostSubgraph)]
    fronts = [island for island in islands if _is_front(island, built.container)]
    at_front = {node for island in fronts for node in island.nodes}
    reasons = {f"{n['op']} {n['node']}": n["reason"] for n in built.figures["fallbacks"] if n["node"] not in at_front}
    return Survey(
        path.stem,
        machine,
        "equal" if difference is None else f"DIFFERS: {difference}",
        built.figures["cycles"],
        sum(isinstance(s, Region) for s in built.container.segments),
        len(islands) - len(fronts),
        len(fronts),
        built.figures["host"]["nodes"],
        built.figures["host"]["mac_share"],
        reasons,
    )


def _is_front(island: HostSubgraph, container: Container) -> bool:
    """Return whether the host subgraph reads only integer or bool inputs of the model."""
    dtype_by_input = {t.name: np.dtype(t.dtype) for t in container.inputs}
    return all(name in dtype_by_input and dtype_by_input[name].kind in "iub" for name in island.inputs)


def _of(pairs: list[tuple[str, str]], path: Path) -> list[str]:
    """Return the texts NAME=NUMBERS of an option that apply to a network: its file name matches and it has that input."""
    names = {i.name for i in onnx.ModelProto.FromString(path.read_bytes()).graph.input}
    return [text for pattern, text in pairs if fnmatchcase(path.stem, pattern) and text.rpartition("=")[0] in names]


def options_of(path: Path, args: argparse.Namespace, machine: str) -> BuildOptions:
    """Return the build options of a network, with the shapes and values of the options that match it."""
    values = dict(text.rsplit("=", 1) for text in _of(args.value, path))
    return BuildOptions(
        machine,
        shapes=input_shapes(_of(args.shape, path)),
        values={name: tuple(numbers.split(",")) for name, numbers in values.items()},
        level=args.level,
    )


def _parse_scoped(text: str) -> tuple[str, str]:
    """Parse PATTERN:NAME=NUMBERS into (PATTERN, NAME=NUMBERS). Raise ArgumentTypeError."""
    pattern, colon, rest = text.partition(":")
    if not colon or "=" not in rest:
        raise argparse.ArgumentTypeError(f"{text}: must be PATTERN:NAME=NUMBERS")
    return pattern, rest


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+", type=Path, metavar="MODEL.onnx|FOLDER")
    parser.add_argument("--hw", nargs="+", default=["transformer64"], help="machines; default transformer64")
    parser.add_argument("--shape", action="append", type=_parse_scoped, default=[], metavar="PATTERN:NAME=D0,D1")
    parser.add_argument("--value", action="append", type=_parse_scoped, default=[], metavar="PATTERN:NAME=V0,V1")
    parser.add_argument("-O", dest="level", type=int, choices=range(len(LEVELS)), default=1)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def run(args: argparse.Namespace) -> int:
    """Survey all networks on all machines, print rows, reasons and summaries; return 1 where one is refused or differs, else
    0."""
    paths = [results for path in args.networks for results in (sorted(path.glob("*.onnx")) if path.is_dir() else [path])]
    for machine in args.hw:
        load_machine(machine)
    require_writable({"--json": args.json}, {"a network": [str(p) for p in paths], **machine_inputs(*args.hw)})
    results: list[Survey] = []
    for machine in args.hw:
        for path in paths:
            results.append(survey_model(path, options_of(path, args, machine), machine))
            print(results[-1].row(), flush=True)
            for reason, nodes in _by_reason(results[-1])[:MOST_TOLD]:
                print(
                    f"    {', '.join(nodes[:3])}{f' and {len(nodes) - 3} more' if len(nodes) > 3 else ''}: {reason}", flush=True
                )
        print(summary(machine, [s for s in results if s.machine == machine]), flush=True)
    if args.json is not None:
        rows: list[dict[str, Any]] = [{**vars(s), "whole": s.is_complete} for s in results]
        write_atomically(args.json, (json.dumps(rows, indent=1) + "\n").encode())
    return int(any(s.verdict != "equal" for s in results))


def _by_reason(survey: Survey) -> list[tuple[str, list[str]]]:
    """Return (reason, its nodes), the most common reason first."""
    counts = Counter(survey.hosted.values())
    return [(reason, [n for n, r in survey.hosted.items() if r == reason]) for reason, _ in counts.most_common()]


def summary(machine: str, surveys: list[Survey]) -> str:
    """Return one line on all networks of a machine."""
    complete, islands = sum(s.is_complete for s in surveys), sum(s.islands for s in surveys)
    share, fronts = f"{complete} of {len(surveys)} whole ({complete / len(surveys):.0%})", sum(s.fronts for s in surveys)
    return f"{machine}: {share}, {islands} islands ({islands / len(surveys):.2f} a network), {fronts} fronts of whole numbers"


def main() -> int:
    args = arguments()
    with report_errors():
        return run(args)


if __name__ == "__main__":
    sys.exit(main())
