"""Find blocks of nodes that repeat, such as the layers of a transformer, so that their tensors can share calibrated ranges.

Nodes are compared in graph order by operator, attributes, types and small or integer constants, but not by float weights.
Where a run of at least four nodes repeats, the tensors at equal places of the blocks share a range.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from toolchain.frontend.model import NormalModel
from toolchain.ir.graph import OnnxGraph, OnnxNode

_LEAST_NODES = 4  # of a run


class RepeatedRun(NamedTuple):
    """A run of `length` nodes from `first` on, each of which is like the one `period` nodes later in the graph."""

    length: int
    period: int
    first: int


def tie_block_ranges(model: NormalModel) -> NormalModel:
    """Return the model with `twin_by_tensor` set: by tensor of a repeated block, the tensor whose range it shares.

    All tensors at one place of the blocks have one such tensor, mostly of the first block. Constants and tensors that share
    with no other have no entry. Calibration reads it.
    """
    graph = model.graph
    id_by_description: dict[Hashable, int] = {}
    ids = np.array(
        [id_by_description.setdefault(_describe_node(node, graph), len(id_by_description)) for node in graph.nodes], np.int64
    )
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            name = parent[name]
        return name

    for at, earlier in _twins(ids).items():
        node, other = graph.nodes[earlier], graph.nodes[at]
        for name, twin in zip((*node.inputs, *node.outputs), (*other.inputs, *other.outputs), strict=True):
            if name and name not in graph.constants and twin not in graph.constants:
                parent[root(twin)] = root(name)
    return replace(model, twin_by_tensor={name: root(name) for name in parent if root(name) != name})


def _describe_node(node: OnnxNode, graph: OnnxGraph) -> Hashable:
    """Return a key that is equal for nodes that differ at most in names and in float weights of several elements."""

    def operand(name: str) -> Hashable:
        value = graph.constants.get(name)
        if value is None:
            return graph.types.get(name)
        is_in_program = value.size == 1 or value.dtype.kind in "iub"
        return str(value.dtype), value.shape, value.tobytes() if is_in_program else b""

    attributes = tuple(sorted((key, repr(value)) for key, value in node.op.attributes.items()))
    outputs = tuple(graph.types.get(name) for name in node.outputs)
    return node.op.domain, node.op.op_type, attributes, tuple(map(operand, node.inputs)), outputs


def _twins(ids: np.ndarray) -> dict[int, int]:
    """Return, by node, the earlier node that it repeats.

    The longest run of repeated nodes that holds a node decides.
    Nodes that stand between the nodes of a block, such as one shared by all blocks, cut a run in two.
    """
    runs = [run for period in range(1, len(ids)) for run in _runs(ids[:-period] == ids[period:], period)]
    twin_by_node: dict[int, int] = {}
    for length, period, first in sorted(runs, key=lambda r: (-r.length, r.period, r.first)):
        for node in range(first, first + length):
            twin_by_node.setdefault(node + period, node)
    return twin_by_node


def _runs(equal: np.ndarray, period: int) -> Iterator[RepeatedRun]:
    """Yield runs of equal neighbours that are too long to be chance."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], equal.astype(np.int8), [0]))))
    for first, last in zip(edges[::2].tolist(), edges[1::2].tolist()):
        if last - first >= _LEAST_NODES:
            yield RepeatedRun(last - first, period, first)
