"""Compute the least bytes that a network reads again with a memory of this size, whatever the schedule (docs/bounds.md).

The module report.bounds.dram calls `min_reload_bytes` with a stage for each layer. The bound comes from cuts at the moments at
which layers make their first element. Before that, the constants of the layers in front have been used whole, and all of the
layer's elements must still be made. So the bytes in the memory at that moment, and those that come again, cut every way from
those constants to the layer's tensor. Their least number is a maximum flow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, inf

SPAN = 24  # layers in front of a moment that are looked at


@dataclass(frozen=True)
class Edge:
    """A use of another stage's tensor by a layer.

    `source`: index of the stage that makes the tensor.
    `even`: all elements of that tensor have an equal part in those of the layer's own, so that the flow spreads evenly.
    `mixes`: each element is made of all channels of some pixel of that tensor, as in a convolution of one group.
    `keeps`: each element is made of its own channel, as in a depthwise convolution or an Add.
    """

    source: int
    even: bool = True
    mixes: bool = False
    keeps: bool = True


@dataclass(frozen=True)
class FlowStage:
    """The part of one layer in the flow network.

    `constant_bytes`: bytes of its constants that every output pixel, with all its channels, needs.
    `tensor_bytes`: bytes that the layer makes.
    `edges`: the tensors of earlier stages that it reads.
    `requires_all`: the outputs need every element of the tensor, and an operator in tiles makes it. Otherwise its moment gives
    no bound.
    `summed`: number of its elements that may be held as partial sums; 0 where the operator has none.
    """

    constant_bytes: int
    tensor_bytes: int
    edges: tuple[Edge, ...] = ()
    requires_all: bool = True
    summed: int = 0


@dataclass(frozen=True)
class ChipCapacity:
    """The room on the chip from one operation to the next: bytes of codes, and beside them sums, each instead of one element.

    `size_bytes`: bytes of codes.
    `sums`: number of sums.
    `element_bytes`: bytes of an element that a sum stands for.
    `sum_bytes`: bytes of a sum on its way to DRAM and back; infinite where none goes there.
    """

    size_bytes: int
    sums: int = 0
    element_bytes: int = 1
    sum_bytes: float = inf


def min_reload_bytes(stages: Sequence[FlowStage], room: ChipCapacity, span: int = SPAN) -> tuple[int, ...]:
    """Return for each stage the bytes that must come again after its moment, 0 for most.

    Moments that share no byte add up; the moments are chosen for the largest total.

    `stages`: stages in order, each after those that it reads.
    `room`: the chip's memories.
    `span`: number of stages in front of a moment that are considered. Fewer give a lower bound that still holds.
    """
    best: list[int] = []  # of stages before each
    choices: list[tuple[int, int] | None] = []
    for target in range(len(stages)):
        most_bytes, where = best[-1] if best else 0, None
        for first, again in _ranges(stages, target, room, span):
            if best[first] + again > most_bytes:
                most_bytes, where = best[first] + again, (first, again)
        best.append(most_bytes)
        choices.append(where)
    parts = [0] * len(stages)
    at = len(stages) - 1
    while at >= 0:
        where = choices[at]
        if where is None:
            at -= 1
        else:
            at, parts[at] = where
    return tuple(parts)


def list_earlier_constants(stages: Sequence[FlowStage], target: int, first: int = 0) -> frozenset[int]:
    """Return the stages from `first` on whose constants have been used whole when the first element of stage `target` is
    there."""
    uses_all_channels: dict[int, bool] = {target: False}
    for at in range(target, first - 1, -1):
        if at in uses_all_channels:
            for edge in stages[at].edges:
                all_channels = edge.mixes or (edge.keeps and uses_all_channels[at])
                uses_all_channels[edge.source] = uses_all_channels.get(edge.source, False) or all_channels
    return frozenset(at for at, all_channels in uses_all_channels.items() if all_channels and first <= at < target)


def _ranges(stages: Sequence[FlowStage], target: int, room: ChipCapacity, span: int) -> list[tuple[int, int]]:
    """Return pairs (first, bytes that come again) for the target's moment, from the stages [first, target); pairs of 0 are left
    out."""
    stage, first = stages[target], max(0, target - span)
    if not stage.requires_all or not stage.edges:
        return []
    used = list_earlier_constants(stages, target, first)
    if _again(sum(stages[i].constant_bytes for i in used), stage, room) <= 0:
        return []
    flow, cuts = _Flow(stages, target, first), list[tuple[int, int]]()
    for start in range(target - 1, first - 1, -1):
        flow.reach(start, stages[start].constant_bytes if start in used else 0)
        again = _again(flow.total, stage, room)
        if again > 0:
            cuts.append((start, again))
    return cuts


def _again(cut_bytes: int, target: FlowStage, room: ChipCapacity) -> int:
    """Return the bytes that every schedule must have at the target's moment and that fit no memory of the chip. Below 1, all
    fit.

    A sum is at most an element of some tensor, or of the target's own, each of which has an equal part.
    """
    uncovered_bytes, each = float(cut_bytes), float(room.element_bytes)
    if target.summed:
        uncovered_bytes = min(uncovered_bytes, room.sum_bytes * target.summed)
        each = max(each, uncovered_bytes / target.summed)
    return ceil(uncovered_bytes - room.sums * each - room.size_bytes - 1e-6)


class _Flow:
    """A maximum flow from constants through tensors to the target that grows stage by stage, from the target backwards.

    The attribute `total` is the flow in bytes. Vertex 2 i enters the tensor of stage i of the range, 2 i + 1 leaves it; the
    last vertex is the target.
    """

    def __init__(self, stages: Sequence[FlowStage], target: int, first: int):
        count = 2 * (target - first)
        self.total, self._first, self._sink = 0, first, count
        self._residual: list[dict[int, float]] = [{} for _ in range(count + 1)]
        self._supply: dict[int, int] = {}
        for at in range(first, target + 1):
            enter = self._sink if at == target else 2 * (at - first)
            for edge in stages[at].edges:
                if edge.even and edge.source >= first:
                    self._open(2 * (edge.source - first) + 1, enter, inf)
        self._sizes = [stages[at].tensor_bytes for at in range(first, target)]

    def reach(self, stage: int, constant_bytes: int) -> None:
        """Extend the flow to the tensor and the constants of this stage. Stages must be given from target - 1 backwards."""
        at = stage - self._first
        self._open(2 * at, 2 * at + 1, self._sizes[at])
        self._supply[2 * at] = constant_bytes
        while (path := self._path()) is not None:
            start, *_ = path
            amount = min(self._supply[start], *(self._residual[a][b] for a, b in pairwise(path)))
            self._supply[start] -= int(amount)
            self.total += int(amount)
            for a, b in pairwise(path):
                self._residual[a][b] -= amount
                self._residual[b][a] += amount

    def _open(self, start: int, end: int, most: float) -> None:
        """Add capacity to the edge from `start` to `end`, and its reverse edge."""
        self._residual[start][end] = self._residual[start].get(end, 0) + most
        self._residual[end].setdefault(start, 0)

    def _path(self) -> list[int] | None:
        """Return the vertices of the shortest path on which more can flow; None where there is none."""
        came: dict[int, int] = {start: -1 for start, capacity in self._supply.items() if capacity > 0}
        waiting = deque(came)
        while waiting:
            at = waiting.popleft()
            for to, capacity in self._residual[at].items():
                if capacity > 0 and to not in came:
                    came[to] = at
                    if to == self._sink:
                        path = [to]
                        while path[-1] >= 0:
                            path.append(came[path[-1]])
                        return path[-2::-1]
                    waiting.append(to)
        return None
