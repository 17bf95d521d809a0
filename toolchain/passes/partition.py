"""Regions of chip nodes and islands of host nodes, in an order that runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from toolchain.errors import InternalError
from toolchain.ir.graph import Graph, Node, OnnxOp
from toolchain.ops.data_movement import ModelConcat, Pad, ResizeNearest, Slice
from toolchain.ops.permutation import Reshape, Transpose

_MOVES = (ModelConcat, Pad, Reshape, ResizeNearest, Slice, Transpose)


@dataclass(frozen=True)
class Segment:
    """Nodes of one kind that run together; inputs come from outside or earlier segments, outputs go on."""

    on_chip: bool
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def partition_graph(graph: Graph) -> list[Segment]:
    """Greedy: as many chip nodes as are ready, then as many host nodes, and so on; or host nodes first, where that makes fewer
    parts. A chip tensor that no chip node makes is read from the model tensor of its origin."""
    made = {n for node in graph.nodes for n in node.outputs}.union(graph.inputs)
    source = {n: origin.tensor for n, origin in graph.origins.items() if n not in made}
    turns = min((_settled(graph, source, begin) for begin in (0, 1)), key=len)
    return _bounded(graph, [(turn % 2 == 0, nodes) for turn, nodes in turns.items()], source)


def _settled(graph: Graph, source: Mapping[str, str], begin: int) -> dict[int, list[Node]]:
    """As `_turns`, with each state read where its next value is made."""
    lasting = {state.made: state.past for state in graph.states}
    turns = _turns(graph, source, {}, begin)
    late = {lasting[n]: turn for turn, nodes in turns.items() for node in nodes for n in node.outputs if n in lasting}
    return _turns(graph, source, late, begin) if late else turns


def _turns(graph: Graph, source: Mapping[str, str], late: Mapping[str, int], begin: int) -> dict[int, list[Node]]:
    """What runs by turn, the even ones the chip's. late: tensors that nothing reads before so many turns; begin: the first."""
    done = set(graph.inputs) | set(graph.constants) | {""}
    waiting = list(graph.nodes)
    found: dict[int, list[Node]] = {}
    turn, idle = begin, 0
    while waiting:
        if idle > 1:
            raise InternalError(f"{waiting[0].name}: reads what nothing makes: {', '.join(waiting[0].inputs)}")
        taken: list[Node] = []
        rest: list[Node] = []
        for node in waiting:
            ready = all(source.get(n, n) in done and late.get(n, 0) <= turn for n in node.inputs)
            if ready and isinstance(node.op, OnnxOp) == bool(turn % 2):
                taken.append(node)
                done.update(node.outputs)
            else:
                rest.append(node)
        idle = 0 if taken or turn < max(late.values(), default=0) else idle + 1
        if taken:
            found[turn] = taken
        waiting, turn = rest, turn + 1
    return found


def _bounded(graph: Graph, groups: list[tuple[bool, list[Node]]], source: Mapping[str, str]) -> list[Segment]:
    found = []
    for index, (on_chip, nodes) in enumerate(groups):
        made = {n for node in nodes for n in node.outputs if n}
        read = dict.fromkeys(n for node in nodes for n in node.inputs if n)
        later = {source.get(n, n) for _, others in groups[index + 1 :] for node in others for n in node.inputs}
        later |= {n for _, others in groups[index + 1 :] for node in others for n in node.inputs} | set(graph.outputs)
        inputs = tuple(n for n in read if n not in made and n not in graph.constants)
        outputs = tuple(n for node in nodes for n in node.outputs if n in later)
        found.append(Segment(on_chip, tuple(nodes), inputs, outputs))
    return found


def moves_for_host(graph: Graph) -> set[str]:
    """graph: as selected. The sources of the nodes in parts of regions that compute nothing and whose data the host makes or
    reads: on the chip they would be quantized for no gain."""
    host = [n for n in graph.nodes if isinstance(n.op, OnnxOp)]
    made_there, read_there = {t for n in host for t in n.outputs}, {t for n in host for t in n.inputs}
    found: set[str] = set()
    for segment in partition_graph(graph) if host else []:
        for part in _parts(segment.nodes) if segment.on_chip else []:
            if not all(isinstance(n.op, _MOVES) for n in part):
                continue
            read = {graph.origins[t].tensor if t in graph.origins else t for n in part for t in n.inputs}
            if read & made_there or read_there.intersection(t for n in part for t in n.outputs):
                found.update(source for n in part for source in n.sources)
    return found


def _parts(nodes: Sequence[Node]) -> list[list[Node]]:
    """Nodes that hang together by tensors that one makes and another reads."""
    part_of: dict[str, list[Node]] = {}  # tensor -> the part that makes it
    parts: list[list[Node]] = []
    for node in nodes:
        joined = [node]
        for part in {id(p): p for t in node.inputs if (p := part_of.get(t)) is not None}.values():
            joined = [*part, *joined]
            parts = [p for p in parts if p is not part]
        parts.append(joined)
        part_of |= {t: joined for n in joined for t in n.outputs}
    return parts
