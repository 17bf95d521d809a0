"""Reduce a region over a batch to one sample, where no node mixes samples, so that its program can be repeated for each."""

from __future__ import annotations

from dataclasses import dataclass, replace

from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, Node
from toolchain.ops.kit.operator import Layer, per_sample, sample_axis, sample_shape
from toolchain.passes.partition import Segment


@dataclass(frozen=True)
class SampleGraph:
    """A region for one sample of a batch.

    `count`: size of the batch.
    `graph`, `segment`: for one sample; tensors keep their names.
    `counted`: the tensors that have a part for each sample; all samples share the others.
    """

    count: int
    graph: Graph
    segment: Segment
    counted: frozenset[str]


def extract_sample(graph: Graph, segment: Segment, chip: Chip) -> SampleGraph | None:
    """Return the region for one sample; None where its outputs have no batch in common, or a node mixes samples.

    `graph`: integer.
    """
    shapes = {graph.types[n].shape[:1] for n in segment.outputs}
    if len(shapes) != 1 or min(shapes) <= (1,):
        return None
    (count,) = min(shapes)
    counted: set[str] = set()
    shared: set[str] = set()
    nodes: list[Node] = []
    for node in segment.nodes:
        sample = per_sample(Layer(node, graph.types, graph.constants, chip), count)
        if sample is None:
            return None
        counted.update((*sample.inputs, *node.outputs))
        shared.update(n for n in node.inputs if n and n not in sample.inputs)
        nodes.append(replace(node, op=sample.op))
    if counted & shared or (chip.layout.feature_maps is not None and not all(_leads(graph.types[n].shape) for n in counted)):
        return None
    single = {n: replace(graph.types[n], shape=sample_shape(graph.types[n].shape, count)) for n in sorted(counted)}
    types = {**graph.types, **single}
    return SampleGraph(count, replace(graph, types=types), replace(segment, nodes=tuple(nodes)), frozenset(counted))


def _leads(shape: tuple[int, ...]) -> bool:
    """Return whether samples of a tensor lie one behind the other, whatever the order of its channels.

    Samples then run along no rows or columns of a feature map.
    """
    return len(shape) != 4 or sample_axis(shape) == 0
