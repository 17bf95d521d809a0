"""Promote constant parameters of operators to attributes, so that the inputs of a node are what it works on.

It runs when a model's graph is handed to the chip's passes. Shapes, axes, pads and bounds are such parameters; weights are
none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from toolchain.ir.graph import OnnxGraph, OnnxNode, OnnxOp

# operator -> attribute name of input 1, 2, ...
PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "Clip": ("min", "max"),
    "Reshape": ("shape",),
    "Expand": ("shape",),
    "Slice": ("starts", "ends", "axes", "steps"),
    "Pad": ("pads", "value"),
    "Resize": ("roi", "scales", "sizes"),
    "Tile": ("repeats",),
    "TopK": ("k",),
    "Trilu": ("k",),
    "CumSum": ("axis",),
    **{
        f"Reduce{kind}": ("axes",)
        for kind in ("Mean", "Sum", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
    },
}
SCALARS = frozenset(("min", "max", "value", "k", "axis"))


def promote(graph: OnnxGraph) -> OnnxGraph:
    """Return the graph with every node's constant parameters as attributes."""
    return graph.with_nodes(promote_node(node, graph.constants) for node in graph.nodes)


def promote_node(node: OnnxNode, constants: Mapping[str, np.ndarray]) -> OnnxNode:
    """Return the node with its parameter inputs as attributes, None where absent, and with only its first input.

    A node with a computed parameter stays as it is.
    """
    keys = PARAMETERS.get(node.op.op_type) if not node.op.domain else None
    if keys is None or any(n and n not in constants for n in node.inputs[1 : len(keys) + 1]):
        return node
    names = [*node.inputs[1 : len(keys) + 1], *[""] * len(keys)][: len(keys)]
    values = {key: value_of(key, constants[n]) if n else None for key, n in zip(keys, names)}
    dropped = {"allowzero", "noop_with_empty_axes"}
    attributes = {**{k: v for k, v in node.op.attributes.items() if k not in dropped}, **values}
    return replace(node, op=OnnxOp(node.op.op_type, attributes), inputs=node.inputs[:1])


def value_of(key: str, value: np.ndarray) -> Any:
    """Return a parameter's value as an attribute: a number, or a tuple."""
    if key in SCALARS:
        return value.reshape(-1)[0].item()
    return tuple(value.reshape(-1).tolist())
