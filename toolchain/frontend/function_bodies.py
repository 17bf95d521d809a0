"""Operators that ONNX itself defines by others: the body that it gives for one node, by its attributes and inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from toolchain.frontend.convert import node_from_proto, node_to_proto, type_proto
from toolchain.frontend.errors import refuse_node
from toolchain.frontend.expansion_builder import MASKED
from toolchain.frontend.infer import schema_of
from toolchain.frontend.read_onnx import opset_with
from toolchain.ir.graph import OnnxNode, OnnxOp, TensorType, fresh_name

BODIES = ("Attention", "RotaryEmbedding")


def has_body(node: OnnxNode) -> bool:
    """An Attention that gives its scores too stays whole: masked ones are minus infinity there."""
    return node.op.op_type in BODIES and not node.op.domain and not any(node.outputs[3:])


def body(node: OnnxNode, types: Mapping[str, TensorType], opset: int) -> Iterator[OnnxNode]:
    """The nodes in order, which make the node's outputs. CompileError: ONNX defines none for it."""
    found = _function(node, types, opset)
    names = {"": "", **dict.fromkeys(found.input, ""), **dict(zip(found.input, node.inputs))}
    names |= {inner: outer for inner, outer in zip(found.output, node.outputs) if outer}
    taken = set(types)
    for i, proto in enumerate(found.node):
        for inner in proto.output:
            if inner not in names:
                names[inner] = fresh_name(f"{node.name}/{inner}", taken)
                taken.add(names[inner])
        inputs, outputs = (tuple(names[n] for n in group) for group in (proto.input, proto.output))
        made = node_from_proto(proto, f"{node.name}/{proto.op_type}_{i}")
        finite = {key: _finite(value) for key, value in made.op.attributes.items()}
        made = replace(made, op=OnnxOp(made.op.op_type, finite))
        yield replace(made, inputs=inputs, outputs=outputs, sources=node.sources)


def _finite(value: Any) -> Any:
    """What masks a score, where it is minus infinity: a row of it alone would be no number, until the body says 0 of it."""
    is_mask = isinstance(value, np.ndarray) and value.dtype == np.float32 and np.isneginf(value).any()
    return np.where(np.isneginf(value), np.float32(MASKED), value) if is_mask else value


def _function(node: OnnxNode, types: Mapping[str, TensorType], opset: int) -> onnx.FunctionProto:
    schema: Any = schema_of(node, opset)  # its stub leaves functions out
    opset = opset_with([node.op.op_type], opset)
    versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
    if not versions:
        raise refuse_node(node, f"has no definition by other operators for opset {opset}", "export it written out")
    read = [type_proto(types[n]).SerializeToString() if n else b"" for n in node.inputs]
    given = schema.get_context_dependent_function_with_opset_version(max(versions), node_to_proto(node).SerializeToString(), read)
    function = onnx.FunctionProto()
    function.ParseFromString(given)
    return function
