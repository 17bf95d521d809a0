#!/usr/bin/env python3
"""Build and simulate networks on machines and compare the outputs, bit for bit, with the integer reference.

    `python bench/check_matrix.py MODEL.onnx[:NAME=1,3,640,640] ... [--hw NAME ...] [-O2] [--json OUT.json]`.

One line a pair: verdict, cycles, MAC utilization, nodes left to the host, CPU seconds of build and of simulation.
Exit code 1 when any pair fails, 2 when a model or an option is refused.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from pathlib import Path

import numpy as np

from toolchain.api import BuildOptions, build
from toolchain.cli.application import report_errors, require_writable
from toolchain.cli.files import machine_inputs
from toolchain.cli.option_values import input_shapes
from toolchain.errors import CompileError, ToolchainError
from toolchain.foundation.atomic_files import write_atomically
from toolchain.frontend import load_model
from toolchain.hw import list_shipped_names
from toolchain.isa import load_machine
from toolchain.runtime import Session, random_feeds
from toolchain.schedule.options import LEVELS

Shapes = dict[str, tuple[int, ...]]


def check(path: str, shapes: Shapes, machine: str, level: int) -> dict:
    """Return the figures of one pair; `verdict` is "equal", or says what went wrong. Nothing is raised for a failed build."""
    start = time.process_time()
    try:
        built = build(path, BuildOptions(machine, shapes=shapes, level=level))
    except ToolchainError as fault:
        return {"verdict": f"refused: {str(fault).splitlines()[0]}", "build_s": time.process_time() - start}
    except Exception as fault:
        traceback.print_exc()
        return {"verdict": f"{type(fault).__name__}: {fault}", "build_s": time.process_time() - start}
    middle = time.process_time()
    session = Session(built.data, timing=True)
    feeds = random_feeds(session.get_inputs(), seed=1)
    run = session.run_detailed(feeds)
    end = time.process_time()
    expected = Session(built.data, backend="reference").run_detailed(feeds)
    wrong = [n for n, v in expected.outputs.items() if not np.array_equal(v, run.outputs[n], equal_nan=True)]
    wrong += [n for n, v in expected.codes.items() if n in run.codes and not np.array_equal(v, run.codes[n])]
    figures = built.figures
    return {
        "verdict": f"DIFFERS in {wrong[0]}" if wrong else "equal",
        "cycles": figures["cycles"],
        "mac_utilization": figures["mac_utilization"],
        "host_nodes": len(figures["fallbacks"]),
        "layers": len(figures["layers"]),
        "build_s": middle - start,
        "sim_s": end - middle,
    }


def bound_model(text: str) -> tuple[str, Shapes]:
    """Return the path and the bound shapes by input of MODEL.onnx[:NAME=1,3,640,640]. Raise ArgumentTypeError."""
    path, *bindings = text.split(":")
    try:
        return path, input_shapes(bindings)
    except CompileError:
        raise argparse.ArgumentTypeError(f"{text}: must be MODEL.onnx or MODEL.onnx:NAME=1,3,640,640") from None


def refusal(path: str, shapes: Shapes) -> str | None:
    """Return the refusal of the model that every machine would give, or None."""
    try:
        load_model(path, shapes)
    except CompileError as fault:
        return str(fault)
    return None


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=bound_model, metavar="MODEL.onnx[:NAME=1,3,640,640]")
    parser.add_argument("--hw", nargs="*", default=None, help="machines; default all shipped")
    parser.add_argument("-O", dest="level", type=int, choices=range(len(LEVELS)), default=2)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def run(args: argparse.Namespace) -> int:
    """Check every model on every machine and print a line for each pair.

    Return 2 where a model is refused, else 1 where a pair fails, else 0. Behind a refused model the others are still checked.
    """
    results, failed, refused = {}, 0, 0
    machines = args.hw or list_shipped_names()
    for machine in machines:
        load_machine(machine)
    inputs = {"the model": [path for path, _ in args.models], **machine_inputs(*machines)}
    require_writable({"--json": args.json}, inputs)
    for path, shapes in args.models:
        reason = refusal(path, shapes)
        if reason is not None:
            print(reason, file=sys.stderr)
            refused += 1
            continue
        for machine in machines:
            result = check(path, shapes, machine, args.level)
            results[f"{Path(path).stem} {machine}"] = result
            failed += result["verdict"] != "equal"
            print(line(Path(path).stem, machine, result), flush=True)
    if args.json is not None:
        write_atomically(args.json, (json.dumps(results, indent=1) + "\n").encode())
    if results:
        print(f"{len(results) - failed} of {len(results)} pairs equal bit for bit")
    return 2 if refused else 1 if failed else 0


def main() -> int:
    """Run the command and return the exit code of `run`."""
    args = arguments()
    with report_errors():
        return run(args)


def line(model: str, machine: str, result: dict) -> str:
    """Return one line of the printed table."""
    if "cycles" not in result:
        return f"{model:28s} {machine:14s} {result['verdict']} ({result['build_s']:.1f} s)"
    return (
        f"{model:28s} {machine:14s} {result['verdict']:6s} {result['cycles']:>12,} cycles  "
        f"MAC {100 * result['mac_utilization']:5.1f} %  {result['layers']:4d} layers {result['host_nodes']:3d} on host  "
        f"build {result['build_s']:6.1f} s  sim {result['sim_s']:5.1f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
