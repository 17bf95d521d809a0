#!/usr/bin/env python3
"""Judge the plans of drawn cases: by those for other objectives, and by tilings beside those of their layers.

    `python bench/compare_goals.py [--cases 300] [--seed 0] [--hw edge16 --hw ethos_u55_256] [-O2]`.

A case is a drawn network, one of the machines, and an SRAM of 32 KiB to 512 KiB.
Networks are chains of convolutions, depthwise convolutions, sums with an earlier tensor and pools, or of matrix products.
The planner of `--optimize cycles` searches for no other objective, so that a few such cases are its misses.
Nothing is linked: cycles are those that plans are expected to take. The best of all plans for another objective counts.
Plans for energy are those for traffic. Balanced ones differ by a plan that moves less, and are left out.

Each layer outside cascades gets the tilings that are one step smaller or larger in one loop, one at a time.
Those that have a place are timed in the plan.
Constants that are fetched ahead stay so, and then the layer is timed alone.
Prints a line for each miss as soon as it is known, with the counts so far.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx

from toolchain.api import BuildOptions, build
from toolchain.cli.application import report_errors
from toolchain.codegen import Region
from toolchain.errors import CompileError
from toolchain.isa import Machine, load_machine
from toolchain.judging.sram_sweep import with_sram_size
from toolchain.machine import Space
from toolchain.ops.kit.tile import Tiling
from toolchain.schedule.all_resident import reorder_layers
from toolchain.schedule.goals import Goal, Objective, candidate_plans
from toolchain.schedule.options import LEVELS, RegionInput
from toolchain.schedule.plan import PlannedRegion, TiledLayer, replace_layers
from toolchain.schedule.prefetch import with_constants_there
from toolchain.schedule.region_planner import RegionPlanner

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from onnx_builder import GraphBuilder

FAULT = 0.02  # fewer cycles than those of the plan of fewest cycles, beyond which it is a miss; of a layer, of its cycles
SIZES = tuple(1024 * kib for kib in (32, 48, 64, 96, 128, 192, 256, 512))
SEARCHED: tuple[Objective, ...] = ("cycles", "memory", "traffic")
LOOPS = ("rows", "columns", "channels", "inner", "taps", "batches")
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


class Judged(NamedTuple):
    """The result of judging one case.

    `text`: the case in words, with its cycles. `gain`: by which share the best other plan is faster.
    `layers`: layers outside cascades. `misses`: those that another tiling makes faster, in words.
    """

    text: str
    gain: float
    layers: int
    misses: tuple[str, ...]


def make_planning(model: onnx.ModelProto, machine: Machine, level: int) -> RegionInput:
    """Return the network, quantized on random inputs, as the planner gets it at a level."""
    container = build(model, BuildOptions(machine, level=1)).container
    (region,) = container.segments
    assert isinstance(region, Region)
    nodes = [node for node in container.graph.nodes if node.name in {*region.nodes}]
    ports = [port.tensor for port in region.inputs], [port.tensor for port in region.outputs]
    return RegionInput(container.graph, nodes, *ports, machine.chip, LEVELS[level])


def judge_case(rng: random.Random, machines: Sequence[str], level: int) -> Judged | None:
    """Draw a case and judge its plan. None: the SRAM is too small."""
    model, size = draw_network(rng), rng.choice(SIZES)
    machine = with_sram_size(load_machine(rng.choice(machines)), size)
    try:
        planning = make_planning(model, machine, level)
        plans = {o: min(candidate_plans(planning, Goal(o)), key=lambda plan: plan.cycles) for o in SEARCHED}
    except CompileError as refusal:
        if "smallest tile needs" not in str(refusal):
            raise
        return None
    fewest = plans["cycles"]
    best = min((o for o in SEARCHED if o != "cycles"), key=lambda o: plans[o].cycles)
    text = (
        f"{machine.chip.name}, {size >> 10} KiB, {len(model.graph.node)} nodes: "
        f"cycles {fewest.cycles:,}, {best} {plans[best].cycles:,}"
    )
    layers, misses = judge_tilings(planning, fewest)
    return Judged(text, 1 - plans[best].cycles / fewest.cycles, layers, misses)


def judge_tilings(planning: RegionInput, plan: PlannedRegion) -> tuple[int, tuple[str, ...]]:
    """Return the number of tiled layers outside cascades, and those that a tiling beside theirs makes faster, in words."""
    planner = RegionPlanner(planning)
    if [layer.node.name for layer in planner.layers] != [planned.name for planned in plan.layers]:
        reordered = reorder_layers(planning)
        assert reordered is not None
        planner = RegionPlanner(reordered)
    candidates, count, misses = planner.layerwise.candidates(), 0, list[str]()
    used = planner.allocation(plan.parts, plan.resident).count_used_bytes(Space.SRAM)
    before = planner.costs.cycles(plan)
    for index in (run for run in plan.runs if isinstance(run, int)):
        tiled = plan.layers[index]
        if not isinstance(tiled, TiledLayer):
            continue
        count += 1
        free = planner.size - used[index] + tiled.staging_bytes.get(Space.SRAM, 0)
        inside = {n for n in (*tiled.layer.activations, *tiled.layer.node.outputs) if n in plan.residents}
        tilings, best = planner.layerwise.tilings(tiled.layer, inside), 0.0
        for tiling in list_neighbours(tiled.tiling, [t for _, t in candidates[index][1]]):
            other = tilings.evaluate(tiling, {**planner.sizes, int(Space.SRAM): free})
            if other is None:
                continue
            if tiled.fetches:
                best = max(best, tiled.cycles - time_with_constants(planner, plan, index, other.as_layer(tiled.layer)))
                continue
            layers = [*plan.layers[:index], other.as_layer(tiled.layer), *plan.layers[index + 1 :]]
            placed = planner.place(replace_layers(plan.parts, layers), plan.resident, searched=False, near=plan)
            if placed is not None:
                best = max(best, before - placed.cycles)
        if best > FAULT * tiled.cycles:
            misses.append(f"{tiled.name} {tiled.cycles:,} - {best:,.0f}")
    return count, tuple(misses)


def time_with_constants(planner: RegionPlanner, plan: PlannedRegion, index: int, other: TiledLayer) -> float:
    """Return the cycles of a layer of the plan with another tiling, alone and with its constants there."""
    layers = [*plan.layers[:index], other, *plan.layers[index + 1 :]]
    cost = with_constants_there(replace(plan, parts=replace_layers(plan.parts, layers)), index, planner.model, index, {})
    return other.cycles if cost is None else cost.plan.cycles


def list_neighbours(tiling: Tiling, tilings: Sequence[Tiling]) -> list[Tiling]:
    """Return the tilings that are one step smaller or larger than this one in one loop, and the same in all others."""
    neighbours: list[Tiling] = []
    for loop in LOOPS:
        sizes = sorted({getattr(t, loop) for t in tilings if replace(t, **{loop: getattr(tiling, loop)}) == tiling})
        at = sizes.index(getattr(tiling, loop)) if getattr(tiling, loop) in sizes else None
        steps = () if at is None else (at - 1, at + 1)
        neighbours += [replace(tiling, **{loop: sizes[k]}) for k in steps if 0 <= k < len(sizes)]
    return neighbours


def main() -> None:
    """Judge the cases and print those in which another objective's plan is faster, then their number."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hw", action="append")
    parser.add_argument("-O", dest="level", type=int, default=2)
    args = parser.parse_args()
    cases = misses = too_small = layers = slow = 0
    with report_errors():
        for number in range(args.cases):
            judged = judge_case(random.Random(f"{args.seed}/{number}"), args.hw or MACHINES, args.level)
            if judged is None:
                too_small += 1
                continue
            cases, layers, slow = cases + 1, layers + judged.layers, slow + len(judged.misses)
            misses += judged.gain > FAULT
            lines = [f"{100 * judged.gain:5.1f} % fewer: {judged.text}"] if judged.gain > FAULT else []
            lines += [f"  tiling: {judged.text.partition(':')[0]}: {miss}" for miss in judged.misses]
            if lines or number == args.cases - 1:
                lines.append(
                    f"{misses} of {cases} cases above {100 * FAULT:.0f} %, {slow} of {layers} layers; "
                    f"the SRAM is too small in {too_small}"
                )
            print(*lines, sep="\n" if lines else "", end="\n" if lines else "", flush=True)


if __name__ == "__main__":
    main()
