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
    """graph: of proto, its inputs bound so; shapes: that were said. Names layers and loops of which an unbound dimension is
    the number of steps, and not a batch: where it is two there are more of them."""
    loops = {n.name: n.op_type for n in proto.graph.node if n.op_type in _WRITTEN_OUT}
    before = _steps(graph, loops)
    if not bound.assumed or not any(steps == 1 or node in loops for node, (_, steps) in before.items()):
        return []
    longer = {name: (_LONGER, *bound.types[name].shape[1:]) for name in bound.assumed}
    try:
        after = _steps(import_graph(proto, bind_inputs(proto.graph, {**shapes, **longer}).types).graph, loops)
    except CompileError:  # of no other length
        return []
    told = [f"{node} ({op})" for node, (op, steps) in before.items() if node in after and after[node][1] > steps]
    if not told:
        return []
    ways = " ".join(f"--shape {name}=N,{','.join(map(str, bound.types[name].shape[1:]))}" for name in bound.assumed)
    named = ", ".join(told[:3]) + (f" and {len(told) - 3} more" if len(told) > 3 else "")
    inputs = ", ".join(f'dimension 0 of input "{name}"' for name in bound.assumed)
    return [
        f"{inputs} is taken as 1, and it is the number of steps of {named}: the file is for sequences of one step; give {ways}"
    ]


def _steps(graph: OnnxGraph, loops: Mapping[str, str]) -> dict[str, tuple[str, int]]:
    """By node of the file: its operator, and how many steps its sequence has, of what is written out the nodes."""
    found: dict[str, tuple[str, int]] = {}
    for node in graph.nodes:
        if node.op.op_type in _LAYERS:
            found[node.name] = node.op.op_type, graph.types[node.inputs[0]].shape[1 if node.op.attributes.get("layout") else 0]
        for source in node.sources:
            if source in loops:
                found[source] = loops[source], found.get(source, ("", 0))[1] + 1
    return found
