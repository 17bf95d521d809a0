"""Models of float16, bfloat16 and float64 as float32: what the chip's integers are made of, and what it is judged by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx

from toolchain.frontend.convert import elem_type, type_of
from toolchain.frontend.infer import infer
from toolchain.ir.graph import Node, OnnxGraph, OnnxNode, OnnxOp, TensorType, distinctly_named

OTHERS = ("float16", "bfloat16", "float64")
TO = ("to", "dtype", "output_dtype")  # attributes that name the type of what a node makes


def cast_to_float32(graph: OnnxGraph, opset: int) -> tuple[OnnxGraph, tuple[str, ...]]:
    """The graph with float32 for all other floats, and a note that says so. The model's inputs and outputs keep their types."""
    other_dtypes = sorted({t.dtype for t in graph.types.values() if t.dtype in OTHERS})
    if not other_dtypes:
        return graph, ()
    narrow = {n for n in (*graph.inputs, *graph.outputs) if graph.types[n].dtype in OTHERS}
    names = {n: _fresh(f"{n}/float32", graph.types) for n in narrow}
    wide = {n: np.asarray(v, np.float32) if v.dtype.name in OTHERS else v for n, v in graph.constants.items()}
    constants = {names.get(n, n): v for n, v in wide.items()}
    types = {n: type_of(v) for n, v in constants.items()} | {n: graph.types[n] for n in graph.inputs}
    nodes: list[OnnxNode] = []

    def emit(node: OnnxNode) -> None:
        types.update(infer(node, types, constants, opset))
        nodes.append(node)

    for name in graph.inputs:
        if name in names:
            emit(_cast(name, names[name], "float32"))
    for node in graph.nodes:
        attributes = {k: _wide(v) if k in TO else v for k, v in node.op.attributes.items()}
        inputs, outputs = (tuple(names.get(n, n) for n in side) for side in (node.inputs, node.outputs))
        emit(replace(node, op=OnnxOp(node.op.op_type, attributes, node.op.domain), inputs=inputs, outputs=outputs))
    for name in graph.outputs:
        if name in names and name not in graph.inputs:
            emit(_cast(names[name], name, graph.types[name].dtype))
    note = f"the model computes in {', '.join(other_dtypes)}, which is taken as float32"
    return replace(graph, nodes=distinctly_named(nodes), types=types, constants=constants), (note,)


def _cast(x: str, y: str, dtype: str) -> OnnxNode:
    return Node(f"{y}/cast", OnnxOp("Cast", {"to": elem_type(dtype), "saturate": 1}), (x,), (y,), ())


def _wide(to: object) -> object:
    other = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE)
    return int(onnx.TensorProto.FLOAT) if to in other else to


def _fresh(base: str, types: Mapping[str, TensorType]) -> str:
    name, suffix = base, 2
    while name in types:
        name, suffix = f"{base}_{suffix}", suffix + 1
    return name
