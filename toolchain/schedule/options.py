"""The input of planning: one region, and what each optimization level switches on."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, Node


@dataclass(frozen=True)
class Options:
    """The switches of one optimization level.

    `fuse`: tables and residual sums into their producers; clamps always are. `double_buffer`: load while computing.
    `residency`: tensors stay in SRAM between layers. `cascades`: layers run in turns, and in other orders. `prefetch`: constants
    are prefetched. `in_place`: slices are views, Concat parts are written in place. `tilings`: how many are timed for each
    layer. `repeat_cycles`: a batch is the repeated program of one sample, unless that takes more than so many times the cycles
    of a program for the batch. `call_cycles`: repeated code becomes a called block, unless that takes more than so many times
    the cycles. `near`: the search of cascades ends within so many times its lower bound. `rounds`: paths that it takes at most.
    `simulated`: plans are compared by simulated cycles, not expected ones.
    """

    fuse: bool
    double_buffer: bool
    residency: bool
    cascades: bool
    prefetch: bool
    in_place: bool
    tilings: int
    repeat_cycles: float
    call_cycles: float
    near: float
    rounds: int
    simulated: bool


LEVELS = (
    Options(False, False, False, False, False, False, 1, math.inf, math.inf, 1.0, 200, False),
    Options(True, True, True, False, False, False, 4, 1.05, 1.01, 1.0, 200, False),
    Options(True, True, True, True, True, True, 12, 1.05, 1.01, 1.005, 40, False),
    Options(True, True, True, True, True, True, 40, 1.0, 1.0, 1.0, 200, True),
)


class SearchSteps:
    """Count the steps of a build's searches, and end them.

    A step is one candidate that is costed: a tiling of a layer in a plan, a cascade, or a placed plan. A search that is over
    still gives a plan, of what it has costed so far.
    """

    def __init__(
        self,
        most: int | None = None,
        is_late: Callable[[], bool] | None = None,
        show: Callable[[str, int, int], None] | None = None,
    ):
        """Set the limit of the searches.

        `most`: steps until searches end. `is_late`: is called before each step; searches end once it is true, and at the same
        step with `most` equal to the `count`. `show`: is called with the stage, the layer at work
        and the number of layers.
        """
        self._most, self._is_late, self._show = most, is_late, show
        self.count, self.over = 0, False

    def take(self, stage: str = "", layer: int = 0, layers: int = 0) -> None:
        """Count a step, unless this one ends the searches or they are over.

        `stage`: is shown with the layer at work, where given.
        """
        self.over = self.over or self.count == self._most or (self._is_late is not None and self._is_late())
        if not self.over:
            self.count += 1
        if self._show is not None and stage:
            self._show(stage, layer, layers)


@dataclass(frozen=True)
class RegionInput:
    """The input of planning: nodes of one region, in an order that runs, of an integer graph.

    `inputs`, `outputs`: tensors that enter and leave the region. `inline`: data-movement operators, by name, whose data units
    read and write where it lies, or not; it is open for others. `steps`: of all searches of the build.
    """

    graph: Graph
    nodes: Sequence[Node]
    inputs: Collection[str]
    outputs: Collection[str]
    chip: Chip
    options: Options
    inline: Mapping[str, bool] = field(default_factory=dict[str, bool])
    steps: SearchSteps = field(default_factory=SearchSteps, compare=False)
