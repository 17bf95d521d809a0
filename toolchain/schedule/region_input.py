"""What is planned."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, Node
from toolchain.schedule.options import Options


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
