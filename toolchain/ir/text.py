"""Graphs as text, for people and for dumps."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from toolchain.ir.graph import Graph, Node, OnnxOp, TensorType


def print_graph(graph: Graph) -> str:
    """One line a node: outputs with their types, operator with its parameters, inputs."""
    lines = [f"graph {graph.name} ({', '.join(graph.inputs)}) -> ({', '.join(graph.outputs)})"]
    for node in graph.nodes:
        outputs = ", ".join(f"{n}: {print_type(graph.types[n])}" for n in node.outputs if n in graph.types)
        lines.append(f"  {outputs} = {print_operator(node)}({', '.join(node.inputs)})  # {node.name}")
    for name, value in sorted(graph.constants.items()):
        lines.append(f"  constant {name}: {print_type(graph.types[name])} = {_array(value)}")
    return "\n".join(lines) + "\n"


def print_type(kind: TensorType) -> str:
    quant = f" {{scale {kind.quant.scale:.9g}, zero point {kind.quant.zero_point}}}" if kind.quant else ""
    return f"{kind.dtype}[{', '.join(map(str, kind.shape))}]{quant}"


def print_operator(node: Node) -> str:
    if isinstance(node.op, OnnxOp):
        attributes = ", ".join(f"{k}={_value(v)}" for k, v in sorted(node.op.attributes.items()))
        return f"{node.op.domain or 'onnx'}.{node.op.op_type}<{attributes}>"
    return _value(node.op)


def _value(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return _array(value)
    if is_dataclass(value) and not isinstance(value, type):
        inside = ", ".join(f"{f.name}={_value(getattr(value, f.name))}" for f in fields(value))
        return f"{type(value).__name__}<{inside}>"
    if isinstance(value, tuple | list):
        return "(" + ", ".join(_value(v) for v in value) + ")"
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _array(value: np.ndarray) -> str:
    if value.size <= 8:
        return "[" + ", ".join(_value(v) for v in value.reshape(-1).tolist()) + "]"
    return f"<{value.dtype.name}{list(value.shape)} {value.min():.6g}..{value.max():.6g}>"
