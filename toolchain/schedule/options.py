"""The input of planning: one region, and what each optimization level switches on."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, Node


@dataclass(frozen=True)
class Options:
    """fuse: tables and residual sums into their producers (clamps always are). double_buffer: load while computing.
    residency: tensors stay in SRAM between layers. ahead: constants are fetched while layers before theirs run. in_place: slices
    are views, concat parts are made in place. tilings: how many are costed for each layer. repeat_cycles: where the machine has a
    repeat, a batch is the program of one sample, repeated, unless that takes more than so many times the cycles of a program that
    works through the batch layer by layer. call_cycles: where it has a call, what a program says several times becomes a block
    that is called, unless that takes more than so many times the cycles. near: layers in turns are searched until what is found
    is expected to take no more than so many times the cycles that any such plan takes at least. rounds: paths that are looked at
    at most, then the best of them is taken. simulated: plans are compared by what their programs are simulated to take, not by
    what is expected.
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
    """Nodes of one region, in an order that runs, of an integer graph; the tensors that enter and leave it; for which machine and
    with what of its ways to plan. inline: of these movers, by name, whether units read and write what they move where it lies; of
    others it is open."""

    graph: Graph
    nodes: Sequence[Node]
    inputs: Collection[str]
    outputs: Collection[str]
    chip: Chip
    options: Options
    inline: Mapping[str, bool] = field(default_factory=dict[str, bool])
