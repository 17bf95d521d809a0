"""Regions of chip nodes and islands of host nodes, in an order that runs."""

from __future__ import annotations

from dataclasses import dataclass

from toolchain.ir.graph import Graph, Node, OnnxOp


@dataclass(frozen=True)
class Segment:
    """Nodes of one kind that run together; inputs come from outside or earlier segments, outputs go on."""

    on_chip: bool
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def segments(graph: Graph, producer_of: dict[str, str], wanted: dict[str, str]) -> list[Segment]:
    """Greedy: as many chip nodes as are ready, then as many host nodes, and so on.

    producer_of: chip tensor that holds a host tensor (read by the chip from outside) -> that host tensor. wanted: tensor
    that the host reads -> the chip tensor that holds it (itself when the host makes it).
    """
    done = set(graph.inputs) | set(graph.constants) | {""}
    waiting = list(graph.nodes)
    groups: list[tuple[bool, list[Node]]] = []
    on_chip = True
    while waiting:
        taken: list[Node] = []
        rest: list[Node] = []
        for node in waiting:
            ready = all(n in done or producer_of.get(n, n) in done or wanted.get(n, n) in done for n in node.inputs)
            if ready and isinstance(node.op, OnnxOp) != on_chip:
                taken.append(node)
                done.update(node.outputs)
            else:
                rest.append(node)
        if taken:
            groups.append((on_chip, taken))
        waiting, on_chip = rest, not on_chip
    return _bounded(graph, groups)


def _bounded(graph: Graph, groups: list[tuple[bool, list[Node]]]) -> list[Segment]:
    found = []
    for index, (on_chip, nodes) in enumerate(groups):
        made = {n for node in nodes for n in node.outputs if n}
        read = dict.fromkeys(n for node in nodes for n in node.inputs if n)
        later = {n for _, others in groups[index + 1 :] for node in others for n in node.inputs} | set(graph.outputs)
        inputs = tuple(n for n in read if n not in made and n not in graph.constants)
        outputs = tuple(n for node in nodes for n in node.outputs if n in later)
        found.append(Segment(on_chip, tuple(nodes), inputs, outputs))
    return found
