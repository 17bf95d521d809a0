"""Partition the graph into regions of chip nodes and subgraphs of host nodes, in an order in which they can run."""

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
    """Nodes that run together, on the chip or on the host.

    `inputs`: tensors from outside or earlier segments. `outputs`: tensors that later segments read or the graph gives out.
    """

    on_chip: bool
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def partition_graph(graph: Graph) -> list[Segment]:
    """Return the segments in the order in which they run, chip and host in turn. Each takes all of its nodes that are ready.

    The chip or the host begins, whichever makes fewer segments.
    A chip tensor that no node makes is read from the model tensor of its origin. A state is read no earlier than the segment
    that makes its new value. Raise InternalError where a node reads what nothing makes.
    """
    produced_tensors = {n for node in graph.nodes for n in node.outputs}.union(graph.inputs)
    source = {n: origin.tensor for n, origin in graph.origins.items() if n not in produced_tensors}
    nodes_by_turn = min((_settle_states(graph, source, begin) for begin in (0, 1)), key=len)
    return _make_segments(graph, [(turn % 2 == 0, nodes) for turn, nodes in nodes_by_turn.items()], source)


def _settle_states(graph: Graph, source: Mapping[str, str], begin: int) -> dict[int, list[Node]]:
    """Return the nodes by turn, with each state read in the turn in which its new value is made."""
    lasting = {state.present_tensor: state.past for state in graph.states}
    nodes_by_turn = _group_by_turn(graph, source, {}, begin)
    late = {lasting[n]: turn for turn, nodes in nodes_by_turn.items() for node in nodes for n in node.outputs if n in lasting}
    return _group_by_turn(graph, source, late, begin) if late else nodes_by_turn


def _group_by_turn(graph: Graph, source: Mapping[str, str], late: Mapping[str, int], begin: int) -> dict[int, list[Node]]:
    """Return the nodes by turn; even turns are the chip's.

    `late`: by tensor, the turn before which nothing reads it.
    `begin`: the first turn.
    """
    done = set(graph.inputs) | set(graph.constants) | {""}
    waiting = list(graph.nodes)
    nodes_by_turn: dict[int, list[Node]] = {}
    turn, idle = begin, 0
    while waiting:
        if idle > 1:
            raise InternalError(f"{waiting[0].name}: reads what nothing makes: {', '.join(waiting[0].inputs)}")
        ready_nodes: list[Node] = []
        rest: list[Node] = []
        for node in waiting:
            ready = all(source.get(n, n) in done and late.get(n, 0) <= turn for n in node.inputs)
            if ready and isinstance(node.op, OnnxOp) == bool(turn % 2):
                ready_nodes.append(node)
                done.update(node.outputs)
            else:
                rest.append(node)
        idle = 0 if ready_nodes or turn < max(late.values(), default=0) else idle + 1
        if ready_nodes:
            nodes_by_turn[turn] = ready_nodes
        waiting, turn = rest, turn + 1
    return nodes_by_turn


def _make_segments(graph: Graph, groups: list[tuple[bool, list[Node]]], source: Mapping[str, str]) -> list[Segment]:
    """Return a segment for each group of nodes, with what it reads and what later segments need."""
    segments: list[Segment] = []
    for index, (on_chip, nodes) in enumerate(groups):
        produced_tensors = {n for node in nodes for n in node.outputs if n}
        read = dict.fromkeys(n for node in nodes for n in node.inputs if n)
        later = {source.get(n, n) for _, others in groups[index + 1 :] for node in others for n in node.inputs}
        later |= {n for _, others in groups[index + 1 :] for node in others for n in node.inputs} | set(graph.outputs)
        inputs = tuple(n for n in read if n not in produced_tensors and n not in graph.constants)
        outputs = tuple(n for node in nodes for n in node.outputs if n in later)
        segments.append(Segment(on_chip, tuple(nodes), inputs, outputs))
    return segments


def moves_for_host(graph: Graph) -> set[str]:
    """Return the model's nodes of data movement that the host should do: parts of regions that compute nothing.

    They read or make data of the host, which on the chip would be quantized for no gain.
    `graph`: as selected.
    """
    host = [n for n in graph.nodes if isinstance(n.op, OnnxOp)]
    made_there, read_there = {t for n in host for t in n.outputs}, {t for n in host for t in n.inputs}
    sources: set[str] = set()
    for segment in partition_graph(graph) if host else []:
        for part in _parts(segment.nodes) if segment.on_chip else []:
            if not all(isinstance(n.op, _MOVES) for n in part):
                continue
            read = {graph.origins[t].tensor if t in graph.origins else t for n in part for t in n.inputs}
            if read & made_there or read_there.intersection(t for n in part for t in n.outputs):
                sources.update(source for n in part for source in n.sources)
    return sources


def _parts(nodes: Sequence[Node]) -> list[list[Node]]:
    """Return the nodes in connected parts, by tensors that one makes and another reads."""
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
