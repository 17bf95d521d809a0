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
    """Return the nodes by turn, in the order of the turns; even turns are the chip's.

    `late`: by tensor, the turn before which nothing reads it.
    `begin`: the first turn.
    """
    turn_by_tensor = dict.fromkeys((*graph.inputs, *graph.constants, ""), begin)  # from which on a tensor can be read
    nodes_by_turn: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if not all(source.get(n, n) in turn_by_tensor for n in node.inputs):
            raise InternalError(f"{node.name}: reads what nothing makes: {', '.join(node.inputs)}")
        first = max((max(turn_by_tensor[source.get(n, n)], late.get(n, 0)) for n in node.inputs), default=begin)
        turn = first if isinstance(node.op, OnnxOp) == bool(first % 2) else first + 1
        turn_by_tensor.update(dict.fromkeys(node.outputs, turn))
        nodes_by_turn.setdefault(turn, []).append(node)
    return dict(sorted(nodes_by_turn.items()))


def _make_segments(graph: Graph, groups: list[tuple[bool, list[Node]]], source: Mapping[str, str]) -> list[Segment]:
    """Return a segment for each group of nodes, with what it reads and what later segments need."""
    segments: list[Segment] = []
    last_reads: dict[str, int] = {}  # by tensor, the last group that reads it
    for index, (_, nodes) in enumerate(groups):
        last_reads.update((name, index) for node in nodes for n in node.inputs for name in (n, source.get(n, n)))
    last_reads.update(dict.fromkeys(graph.outputs, len(groups)))
    for index, (on_chip, nodes) in enumerate(groups):
        produced_tensors = {n for node in nodes for n in node.outputs if n}
        read = dict.fromkeys(n for node in nodes for n in node.inputs if n)
        inputs = tuple(n for n in read if n not in produced_tensors and n not in graph.constants)
        outputs = tuple(n for node in nodes for n in node.outputs if last_reads.get(n, -1) > index)
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
    for node in nodes:
        joined = [node]
        for part in {id(p): p for t in node.inputs if (p := part_of.get(t)) is not None}.values():
            smaller, joined = sorted((part, joined), key=len)  # each node is moved a few times, however long a chain is
            joined += smaller
            part_of |= {t: joined for n in smaller for t in n.outputs}
        part_of |= dict.fromkeys(node.outputs, joined)
    return list({id(part): part for part in part_of.values()}.values())
