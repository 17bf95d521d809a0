"""Check that the host computes what a graph that was read from a text says: it runs the model's nodes, not those of the text."""

from __future__ import annotations

from typing import Any

import numpy as np

from toolchain.ir.graph import Graph, Node, OnnxGraph, OnnxOp
from toolchain.ir.text import print_operator

WAY_OUT = "edit the model, or begin with the text of a build by --repair none with the same data and options"


def find_host_fault(graph: Graph[Any], model: OnnxGraph) -> str | None:
    """Return in which node of the host a graph differs from the model that this build has. None: in no node."""
    producers = model.producers()
    for node in graph.nodes:
        fault = _find_fault(node, graph, model, producers) if isinstance(node.op, OnnxOp) else None
        if fault is not None:
            return f"node {node.name} runs on the host, {fault}; {WAY_OUT}"
    return None


def _find_fault(node: Node[Any], graph: Graph[Any], model: OnnxGraph, producers: dict[str, Node[OnnxOp]]) -> str | None:
    constants = {n for n in node.inputs if n in graph.constants}
    inputs = {n for n in node.inputs if n and n not in constants}
    unknown = [n for n in (*inputs, *node.outputs) if n and n not in model.types]
    if unknown:
        return f"where the model has no tensor {unknown[0]}"
    for name in sorted(constants & model.constants.keys()):
        values = graph.constants[name]
        if not np.array_equal(values, model.constants[name], equal_nan=values.dtype.kind == "f"):
            return f"where constant {name} has other values"
    for output in filter(None, node.outputs):
        read = _find_leaves(output, inputs, model, producers)
        if read != inputs:
            names = ", ".join(sorted(read)) or "constants alone"
            return f"where {output} is made of {names}, not of {', '.join(sorted(inputs)) or 'constants alone'}"
    twin = producers.get(node.outputs[0])
    if twin is not None and twin.name == node.name and twin.op.domain == node.op.domain:
        texts = print_operator(node), print_operator(twin)
        if texts[0] != texts[1]:
            return f"where it is {texts[1]}, not {texts[0]}"
    return None


def _find_leaves(output: str, stops: set[str], model: OnnxGraph, producers: dict[str, Node[OnnxOp]]) -> set[str]:
    """Return the tensors that the model makes an output of, counted from `stops` on where these are met."""
    leaves, met, pending = set[str](), set[str](), [output]
    while pending:
        name = pending.pop()
        if name in met or not name or name in model.constants:
            continue
        met.add(name)
        if name in stops or name not in producers:
            leaves.add(name)
        else:
            pending += producers[name].inputs
    return leaves
