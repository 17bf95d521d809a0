#!/usr/bin/env python3
"""Count the drawn cases in which the plan for another objective is expected to be faster than the plan of fewest cycles.

    `python bench/compare_goals.py [--cases 300] [--seed 0] [--hw edge16 --hw ethos_u55_256] [-O2]`.

A case is a drawn network, one of the machines, and an SRAM of 32 KiB to 512 KiB.
Networks are chains of convolutions, depthwise convolutions, sums with an earlier tensor and pools, or of matrix products.
The planner of `--optimize cycles` searches for no other objective, so that a few such cases are its misses.
Prints those above 2 %, one a line, then how many there are.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import onnx

from toolchain.api import BuildOptions, build
from toolchain.cli.application import report_errors
from toolchain.errors import CompileError
from toolchain.isa import Machine, load_machine
from toolchain.judging.sram_sweep import with_sram_size
from toolchain.schedule.goals import OBJECTIVES, Goal, Objective

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from onnx_builder import GraphBuilder

FAULT = 0.02  # fewer cycles than those of the plan of fewest cycles, beyond which that is a miss
SIZES = tuple(1024 * kib for kib in (32, 48, 64, 96, 128, 192, 256, 512))
MACHINES = ("edge16", "ethos_u55_256", "ethos_u65_512", "transformer64")


class DrawnGraph:
    """Collects the layers of one drawn network. `shape`: of the tensor `x`, which the next layer reads."""

    def __init__(self, rng: random.Random, shape: tuple[int, ...]):
        self.rng, self.shape, self.x, self.count = rng, shape, "x", 0
        self.values = np.random.default_rng(rng.randrange(1 << 30))
        self.graph = GraphBuilder("drawn")
        self.earlier: dict[tuple[int, ...], str] = {}

    def add(self, op: str, inputs: Sequence[str], shape: tuple[int, ...], **attributes: object) -> None:
        """Append a node that reads the current tensor and `inputs`; its output, of this shape, is the current one then."""
        self.count += 1
        self.x, self.shape = self.graph.node(op, f"t{self.count}", [self.x, *inputs], **attributes), shape

    def weight(self, *shape: int) -> str:
        """Add random weights of this shape and return their name."""
        scale = np.sqrt(2 / np.prod(shape[1:]))
        return self.graph.constant(f"w{self.count}", (self.values.standard_normal(shape) * scale).astype(np.float32))

    def convolution(self, channels: int, kernel: int, stride: int = 1, depthwise: bool = False) -> None:
        _, c, h, w = self.shape
        h, w = ((n + 2 * (kernel // 2) - kernel) // stride + 1 for n in (h, w))
        weight = self.weight(channels, 1 if depthwise else c, kernel, kernel)
        attributes = {"pads": [kernel // 2] * 4, "strides": [stride] * 2, "group": c if depthwise else 1}
        self.add("Conv", [weight], (1, channels, h, w), **attributes)
        if self.rng.random() < 0.7:
            self.add("Relu", [], self.shape)

    def draw_map_layer(self) -> None:
        """Append one layer of a map [1, channels, rows, columns]."""
        _, c, h, _ = self.shape
        kind = self.rng.choice(("full", "pointwise", "pointwise", "depthwise", "depthwise", "sum", "pool"))
        if kind == "sum" and self.earlier.get(self.shape, self.x) != self.x:
            self.add("Add", [self.earlier[self.shape]], self.shape)
        elif kind == "pool" and h >= 8:
            self.add("MaxPool", [], (1, c, h // 2, self.shape[3] // 2), kernel_shape=[2, 2], strides=[2, 2])
        elif kind == "depthwise":
            self.convolution(c, self.rng.choice((3, 3, 5)), self.rng.choice((1, 1, 2)) if h >= 8 else 1, depthwise=True)
        else:
            self.convolution(self.rng.choice((16, 24, 32, 48, 64, 96, 128, 192)), 3 if kind == "full" else 1)
        self.earlier.setdefault(self.shape, self.x)

    def draw_row_layer(self) -> None:
        """Append one layer of rows [rows, features]."""
        rows, features = self.shape
        if self.rng.random() < 0.25 and self.earlier.get(self.shape, self.x) != self.x:
            self.add("Add", [self.earlier[self.shape]], self.shape)
        else:
            wide = self.rng.choice((64, 96, 128, 256, 384, 512))
            self.add("MatMul", [self.weight(features, wide)], (rows, wide))
            if self.rng.random() < 0.5:
                self.add("Relu", [], self.shape)
        self.earlier.setdefault(self.shape, self.x)


def draw_network(rng: random.Random) -> onnx.ModelProto:
    """Return a network of 3 to 12 layers, of maps or of rows."""
    is_map, sizes = rng.random() < 0.75, (14, 20, 28, 32, 48, 56)
    size = rng.choice(sizes)
    shape = (1, rng.choice((3, 16, 24, 32)), size, size) if is_map else (rng.choice((16, 64, 128)), rng.choice((64, 128, 256)))
    drawn = DrawnGraph(rng, shape)
    for _ in range(rng.randint(3, 12)):
        drawn.draw_map_layer() if is_map else drawn.draw_row_layer()
    return drawn.graph.build({"x": list(shape)}, {drawn.x: list(drawn.shape)}, opset=17)


def predict_cycles(model: onnx.ModelProto, machine: Machine, level: int, objective: Objective) -> int:
    """Return the cycles that the plan for an objective is expected to take. Raise CompileError where the SRAM is too small."""
    return cast(int, build(model, BuildOptions(machine, level=level, goal=Goal(objective))).figures["expected_cycles"])


def judge_case(rng: random.Random, machines: Sequence[str], level: int) -> tuple[str, float] | None:
    """Return a case in words, and by which share its best other plan is faster. None: the SRAM is too small."""
    model, size = draw_network(rng), rng.choice(SIZES)
    machine = with_sram_size(load_machine(rng.choice(machines)), size)
    try:
        fewest = predict_cycles(model, machine, level, "cycles")
        others = {o: predict_cycles(model, machine, level, o) for o in OBJECTIVES if _goes_with(o, machine)}
    except CompileError as refusal:
        if "smallest tile needs" not in str(refusal):
            raise
        return None
    best = min(others, key=others.__getitem__)
    text = f"{machine.chip.name}, {size >> 10} KiB, {len(model.graph.node)} nodes: cycles {fewest:,}, {best} {others[best]:,}"
    return text, 1 - others[best] / fewest


def _goes_with(objective: Objective, machine: Machine) -> bool:
    """Return whether the machine can plan for the objective, and that it is not `cycles`."""
    return objective != "cycles" and (objective != "energy" or machine.chip.energy is not None)


def main() -> None:
    """Judge the cases and print those in which another objective's plan is faster, then their number."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hw", action="append")
    parser.add_argument("-O", dest="level", type=int, default=2)
    args = parser.parse_args()
    with report_errors():
        results = [judge_case(random.Random(f"{args.seed}/{k}"), args.hw or MACHINES, args.level) for k in range(args.cases)]
    gains = [gain for result in results if result for gain in (result[1],)]
    for text, gain in sorted((r for r in results if r and r[1] > FAULT), key=lambda r: -r[1]):
        print(f"{100 * gain:5.1f} % fewer: {text}")
    print(f"{sum(g > FAULT for g in gains)} of {len(gains)} cases above {100 * FAULT:.0f} %; the SRAM is too small in "
          f"{len(results) - len(gains)}")  # fmt: skip


if __name__ == "__main__":
    main()
