"""Show a graph as an ONNX model that viewers such as Netron open. No runtime can execute it.

Operators of the chip stand in the domain `npu`. Their parameters are attributes: numbers and lists of whole numbers as such, all
others as text. Each node has the types of its outputs as text; scales and zero points also stand in ONNX's own annotations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeGuard, cast

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from toolchain.ir.graph import Graph, Node, OnnxOp, Quant, TensorType
from toolchain.ir.text import print_type, print_value

DOMAIN = "npu"
_OPSET = 21  # of ONNX's own domain; viewers need one


def onnx_view(graph: Graph[Any], stage: str) -> onnx.ModelProto:
    """Return the graph as an ONNX model to look at.

    Tensors that no node makes, such as rearranged inputs, are inputs of it. `stage`: named in the model's description.
    """
    outputs = {name for node in graph.nodes for name in node.outputs}
    arriving = [name for name in graph.types if name not in outputs and name not in graph.constants]
    inputs = [name for name in (*graph.inputs, *arriving) if name in graph.types]
    inner = [_value_info(name, kind) for name, kind in graph.types.items() if name in outputs and name not in graph.outputs]
    quants = {name: kind.quant for name, kind in graph.types.items() if kind.quant is not None}
    constants = [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in graph.constants.items()]
    proto = helper.make_graph(
        [_node(node, graph.types) for node in graph.nodes],
        graph.name or stage or "graph",
        [_value_info(name, graph.types[name]) for name in dict.fromkeys(inputs)],
        [_value_info(name, graph.types[name]) for name in graph.outputs if name in graph.types],
        [*constants, *_scale_tensors(quants)],
        doc_string=f"The graph behind stage {stage}, to look at." if stage else "",
        value_info=inner,
    )
    proto.quantization_annotation.extend(_annotation(name) for name in quants)
    domains = sorted({node.op.domain for node in graph.nodes if isinstance(node.op, OnnxOp)} - {"", "ai.onnx"})
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(DOMAIN, 1), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(proto, opset_imports=opsets, producer_name="npu-build", ir_version=10)


def _node(node: Node[Any], types: Mapping[str, TensorType]) -> onnx.NodeProto:
    is_onnx = isinstance(node.op, OnnxOp)
    name = node.op.op_type if is_onnx else type(node.op).__name__
    proto = helper.make_node(name, node.inputs, node.outputs, node.name, domain=node.op.domain if is_onnx else DOMAIN)
    attributes = dict(node.op.attributes) if is_onnx else {f.name: getattr(node.op, f.name) for f in fields(node.op)}
    attributes["output_types"] = "; ".join(print_type(types[n]) for n in node.outputs if n in types)
    if node.sources:
        attributes["model_nodes"] = "; ".join(node.sources)
    for key, value in attributes.items():
        if value is not None:
            proto.attribute.append(helper.make_attribute(key, _attribute(value)))
    return proto


def _attribute(value: object) -> int | float | str | list[int]:
    """Return a value as an ONNX attribute takes it: a number, a text or a list of integers; anything else as text."""
    if isinstance(value, float | str):
        return str(value) if isinstance(value, str) else value
    if _is_int64(value):
        return int(value)
    items = list(cast(Sequence[object], value)) if isinstance(value, tuple | list) else []
    integers = [int(item) for item in items if _is_int64(item)]
    return integers if items and len(integers) == len(items) else print_value(value)


def _is_int64(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and abs(value) < 1 << 63


def _value_info(name: str, kind: TensorType) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind.dtype)), kind.shape)


def _scale_tensors(quants: Mapping[str, Quant]) -> Iterator[onnx.TensorProto]:
    """Yield, for each tensor, initializers of its scale and its zero point."""
    for name, quant in quants.items():
        yield helper.make_tensor(_scale_name(name), TensorProto.FLOAT, [], [quant.scale])
        yield helper.make_tensor(_zero_point_name(name), TensorProto.INT32, [], [quant.zero_point])


def _annotation(name: str) -> onnx.TensorAnnotation:
    """Return ONNX's quantization annotation, which names the initializers of a tensor's scale and zero point."""
    pairs = {"SCALE_TENSOR": _scale_name(name), "ZERO_POINT_TENSOR": _zero_point_name(name)}
    entries = [onnx.StringStringEntryProto(key=key, value=value) for key, value in pairs.items()]
    return onnx.TensorAnnotation(tensor_name=name, quant_parameter_tensor_names=entries)


def _scale_name(name: str) -> str:
    return f"{name} (scale)"


def _zero_point_name(name: str) -> str:
    return f"{name} (zero point)"
