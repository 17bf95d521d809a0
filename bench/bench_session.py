#!/usr/bin/env python3
"""Measure the runs of a session: CPU seconds of the first, which decodes and checks the programs, and of the later ones.

    `python bench/bench_session.py OUT.npu [--runs N] [--backend NAME] [--entry NAME] [--against MODEL.onnx]`.

Each run has random inputs of its own. CPU seconds, of all threads, since others may share the machine.
`unmerged`: the simulator with every operation by itself.
`--against`: a float model, which onnxruntime's quantize_static makes QDQ of int8, a scale a channel.
Both sessions then run by turns in this process, one thread each, five rounds of 1 CPU s each, and the median ratio is printed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from make_quantized import quantize_form

from quant.fixed_point.sums.sessions import single_thread_session
from toolchain.cli.application import report_errors
from toolchain.runtime import Session, random_feeds
from toolchain.runtime.builtin_backends import Simulator

ROUNDS, ROUND_SECONDS = 5, 1.0
BACKENDS: dict[str, Any] = {"simulator": "simulator", "unmerged": Simulator(merges=False), "reference": "reference"}


def resident_mib() -> float:
    """Return the memory of this process that is resident now, in MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


def seconds_of(call: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def seconds_a_run(call: Callable[[], object]) -> float:
    """Return CPU seconds of one call, from as many as take `ROUND_SECONDS`."""
    total, count = 0.0, 0
    while total < ROUND_SECONDS:
        total += seconds_of(call)
        count += 1
    return total / count


def open_quantized(model: Path) -> tuple[Any, dict[str, np.ndarray]]:
    """Return onnxruntime's session of the model in int8, and inputs for it."""
    loaded, rng = onnx.load(model), np.random.default_rng(0)
    initializers = {i.name for i in loaded.graph.initializer}
    feeds: dict[str, np.ndarray] = {}
    for value in loaded.graph.input:
        if value.name in initializers:
            continue
        shape = [max(1, d.dim_value) for d in value.type.tensor_type.shape.dim]
        feeds[value.name] = rng.random(shape, np.float32)
    return single_thread_session(quantize_form(loaded, [feeds], "qdq_s8_channel")), feeds


def compare(session: Session, model: Path) -> None:
    """Print the ratio to onnxruntime's int8, round by round and the median."""
    theirs, their_feeds = open_quantized(model)
    feeds = random_feeds(session.get_inputs(), seed=0)
    theirs.run(None, their_feeds)
    ratios: list[float] = []
    for number in range(ROUNDS):
        ours_s = seconds_a_run(lambda: session.run(None, feeds))
        theirs_s = seconds_a_run(lambda: theirs.run(None, their_feeds))
        ratios.append(ours_s / theirs_s)
        print(f"round {number + 1}: {1e3 * ours_s:.2f} ms a run, onnxruntime {1e3 * theirs_s:.2f} ms, ratio {ratios[-1]:.2f}")
    print(f"median ratio: {median(ratios):.2f}")


def main() -> None:
    """Open a session and print the CPU seconds and resident memory of its runs; compare with onnxruntime where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model", type=Path, help="a compiled .npu")
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--backend", default="simulator", choices=sorted(BACKENDS))
    parser.add_argument("--entry")
    parser.add_argument("--against", type=Path, help="the float model, for onnxruntime's int8")
    args = parser.parse_args()
    if args.runs < 1:
        parser.error(f"--runs {args.runs}: must be 1 or more")
    with report_errors():
        print(f"resident: {resident_mib():.0f} MiB")
        start = time.process_time()
        session = Session(args.model, backend=BACKENDS[args.backend], entry=args.entry)
        print(f"open: {time.process_time() - start:.2f} CPU s")
        for number in range(args.runs):
            feeds = random_feeds(session.get_inputs(), seed=number)
            seconds = seconds_of(lambda feeds=feeds: session.run(None, feeds))
            if number < 4 or number == args.runs - 1:
                print(f"run {number + 1}: {seconds:.3f} CPU s, resident {resident_mib():.0f} MiB")
        if args.against is not None:
            compare(session, args.against)


if __name__ == "__main__":
    main()
