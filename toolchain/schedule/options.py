"""The input of planning: one region (`RegionInput`), the switches of each optimization level, and a counter of search
steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, Node


@dataclass(frozen=True)
class Options:
    """The switches of one optimization level; `LEVELS[n]` has those of -On.

    `fuse`: tables and residual sums become epilogues of their producers; clamps always do. `double_buffer`: tiles are
    loaded while others are computed. `residency`: tensors stay in SRAM between layers. `cascades`: layers may take
    turns stripe by stripe, and run in other orders. `prefetch`: constants of later layers are loaded early. `hoist`:
    constants that several layers read are loaded once where there is room. `in_place`: slices are views, and parts of a
    Concat are written in its storage. `tilings`: how many are timed for each layer.
    `repeat_cycles`: a batch repeats the program of one sample where that takes at most so many times the cycles.
    `call_cycles`: repeated code becomes a called block where that takes at most so many times the cycles. `near`: the
    search of cascades ends within so many times its lower bound. `rounds`: paths that it plans at most. `simulated`:
    plans are compared by simulated cycles instead of expected ones.
    """

    fuse: bool
    double_buffer: bool
    residency: bool
    cascades: bool
    prefetch: bool
    hoist: bool
    in_place: bool
    tilings: int
    repeat_cycles: float
    call_cycles: float
    near: float
    rounds: int
    simulated: bool


LEVELS = (
    Options(False, False, False, False, False, False, False, 1, math.inf, math.inf, 1.0, 200, False),
    Options(True, True, True, False, False, True, False, 4, 1.05, 1.01, 1.0, 200, False),
    Options(True, True, True, True, True, True, True, 12, 1.05, 1.01, 1.005, 40, False),
    Options(True, True, True, True, True, True, True, 40, 1.0, 1.0, 1.0, 200, True),
)


class SearchSteps:
    """A counter of the search steps of a build, which also ends the searches.

    A step is one candidate that is costed: a tiling of a layer, a cascade, or a placed plan. A search that is ended
    still gives a plan, of what it has costed so far. `count`: steps so far. `over`: the searches are to end.
    """

    def __init__(
        self,
        most: int | None = None,
        is_late: Callable[[], bool] | None = None,
        show: Callable[[str, int, int], None] | None = None,
    ):
        """Set when searches end and how they are shown.

        `most`: number of steps; None: any number. `is_late`: called before each step; searches end once it returns
        true. None: no deadline. With `most` equal to the `count` of such a run they end at the same step. `show`:
        called with the stage, the index of the layer and the number of layers; None: nothing is shown.
        """
        self._most, self._is_late, self._show = most, is_late, show
        self.count, self.over = 0, False

    def take(self, stage: str = "", layer: int = 0, layers: int = 0) -> None:
        """Count one step, or set `over` where the limit is reached. It raises nothing: searches look at `over`.

        `stage`: if given, it is shown with the layer.
        """
        self.over = self.over or self.count == self._most or (self._is_late is not None and self._is_late())
        if not self.over:
            self.count += 1
        if self._show is not None and stage:
            self._show(stage, layer, layers)


@dataclass(frozen=True)
class RegionInput:
    """The input of planning: the nodes of one region of an integer graph, in an order that can run.

    `inputs`, `outputs`: tensors that enter and leave the region. `inline`: for data-movement operators by name, whether
    units use their data in place (True) or they are moved (False). Others are decided by the planner. `steps`: the
    counter of all searches of the build; it changes.
    """

    graph: Graph
    nodes: Sequence[Node]
    inputs: Collection[str]
    outputs: Collection[str]
    chip: Chip
    options: Options
    inline: Mapping[str, bool] = field(default_factory=dict[str, bool])
    steps: SearchSteps = field(default_factory=SearchSteps, compare=False)
