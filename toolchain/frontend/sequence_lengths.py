"""Sequences that have one step because a dimension that nobody bound was taken as 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from toolchain.errors import CompileError
from toolchain.frontend.bind_shapes import BoundInputs, bind_inputs
from toolchain.frontend.import_graph import import_graph
from toolchain.ir.graph import OnnxGraph

_LAYERS = ("GRU", "LSTM", "RNN")
_WRITTEN_OUT = ("Loop", "Scan")
_LONGER = 2


def length_warnings(
    proto: onnx.ModelProto, graph: OnnxGraph, bound: BoundInputs, shapes: Mapping[str, Sequence[int]]
) -> list[str]:
    """Return warnings that name layers and loops whose step count is an unbound dimension, not a batch.

    Such a layer has more steps when the dimension is two.
    `graph`: of proto, with its inputs bound so.
    `shapes`: shapes that the user gave.
    """
    loops = {n.name: n.op_type for n in proto.graph.node if n.op_type in _WRITTEN_OUT}
    before = _steps(graph, loops)
    if not bound.assumed or not any(steps == 1 or node in loops for node, (_, steps) in before.items()):
        return []
    longer = {name: (_LONGER, *bound.types[name].shape[1:]) for name in bound.assumed}
    try:
        after = _steps(import_graph(proto, bind_inputs(proto.graph, {**shapes, **longer}).types).graph, loops)
    except CompileError:  # of no other length
        return []
    lengthened_nodes = [f"{node} ({op})" for node, (op, steps) in before.items() if node in after and after[node][1] > steps]
    if not lengthened_nodes:
        return []
    ways = " ".join(f"--shape {name}=N,{','.join(map(str, bound.types[name].shape[1:]))}" for name in bound.assumed)
    named = ", ".join(lengthened_nodes[:3]) + (f" and {len(lengthened_nodes) - 3} more" if len(lengthened_nodes) > 3 else "")
    inputs = ", ".join(f'dimension 0 of input "{name}"' for name in bound.assumed)
    return [
        f"{inputs} is taken as 1, and it is the number of steps of {named}: the file is for sequences of one step; give {ways}"
    ]


def _steps(graph: OnnxGraph, loops: Mapping[str, str]) -> dict[str, tuple[str, int]]:
    """Return, by node of the file, its operator and its number of steps.

    An unrolled node counts the nodes it became.
    """
    steps_by_node: dict[str, tuple[str, int]] = {}
    for node in graph.nodes:
        if node.op.op_type in _LAYERS:
            steps_by_node[node.name] = (
                node.op.op_type,
                graph.types[node.inputs[0]].shape[1 if node.op.attributes.get("layout") else 0],
            )
        for source in node.sources:
            if source in loops:
                steps_by_node[source] = loops[source], steps_by_node.get(source, ("", 0))[1] + 1
    return steps_by_node
