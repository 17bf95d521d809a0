"""The input of planning: one region, and what each optimization level switches on."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, Node


@dataclass(frozen=True)
class Options:
    """The switches of one optimization level.

    `fuse`: tables and residual sums into their producers; clamps always are. `double_buffer`: load while computing. `residency`:
    tensors stay in SRAM between layers. `ahead`: constants are prefetched. `in_place`: slices are views, Concat parts are written
    in place. `tilings`: how many are timed for each layer. `repeat_cycles`: a batch is the repeated program of one sample, unless
    that takes more than so many times the cycles of a program for the batch. `call_cycles`: repeated code becomes a called block,
    unless that takes more than so many times the cycles. `near`: the search of cascades ends within so many times its lower
    bound. `rounds`: paths that it takes at most. `simulated`: plans are compared by simulated cycles, not expected ones.
    """

    fuse: bool
    double_buffer: bool
    residency: bool
    ahead: bool
    in_place: bool
    tilings: int
    repeat_cycles: float
    call_cycles: float
    near: float
    rounds: int
    simulated: bool


LEVELS = (
    Options(False, False, False, False, False, 1, math.inf, math.inf, 1.0, 200, False),
    Options(True, True, False, False, False, 4, 1.05, 1.01, 1.0, 200, False),
    Options(True, True, True, True, True, 12, 1.05, 1.01, 1.002, 40, False),
    Options(True, True, True, True, True, 40, 1.0, 1.0, 1.0, 200, True),
)


@dataclass(frozen=True)
class RegionInput:
    """The input of planning: nodes of one region, in an order that runs, of an integer graph.

    `inputs`, `outputs`: tensors that enter and leave the region. `inline`: data-movement operators, by name, whose data units
    read and write where it lies, or not; it is open for others.
    """

    graph: Graph
    nodes: Sequence[Node]
    inputs: Collection[str]
    outputs: Collection[str]
    chip: Chip
    options: Options
    inline: Mapping[str, bool] = field(default_factory=dict[str, bool])
