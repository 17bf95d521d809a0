"""Expand operators that ONNX itself defines by others: the function body of one node, by its attributes and inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from toolchain.foundation.type_guards import is_array
from toolchain.frontend.convert import node_from_proto, node_to_proto, type_proto
from toolchain.frontend.errors import refuse_node
from toolchain.frontend.expansion_builder import MASKED
from toolchain.frontend.infer import schema_of
from toolchain.frontend.read_onnx import opset_with
from toolchain.ir.graph import OnnxNode, OnnxOp, TensorType, fresh_name

BODIES = ("Attention", "RotaryEmbedding")


def has_body(node: OnnxNode) -> bool:
    """Return whether the node is expanded into its body: Attention and RotaryEmbedding are.

    An Attention whose scores are an output is not, since masked ones are minus infinity there.
    """
    return node.op.op_type in BODIES and not node.op.domain and not any(node.outputs[3:])


def body(node: OnnxNode, types: Mapping[str, TensorType], opset: int) -> Iterator[OnnxNode]:
    """Yield the nodes in order, which make the node's outputs. Raise NodeFault where ONNX defines none for this opset."""
    function = _function(node, types, opset)
    names = {"": "", **dict.fromkeys(function.input, ""), **dict(zip(function.input, node.inputs))}
    names |= {inner: outer for inner, outer in zip(function.output, node.outputs) if outer}
    used_names = set(types)
    for i, proto in enumerate(function.node):
        for inner in proto.output:
            if inner not in names:
                names[inner] = fresh_name(f"{node.name}/{inner}", used_names)
                used_names.add(names[inner])
        inputs, outputs = (tuple(names[n] for n in group) for group in (proto.input, proto.output))
        inner_node = node_from_proto(proto, f"{node.name}/{proto.op_type}_{i}")
        finite = {key: _finite(value) for key, value in inner_node.op.attributes.items()}
        inner_node = replace(inner_node, op=OnnxOp(inner_node.op.op_type, finite))
        yield replace(inner_node, inputs=inputs, outputs=outputs, sources=node.sources)


def _finite(value: Any) -> Any:
    """Return the value with minus infinity in a mask replaced by the finite MASKED, and other values unchanged.

    A row of minus infinity alone would give NaN until the function body replaces it by 0.
    """
    is_mask = is_array(value) and value.dtype == np.float32 and np.isneginf(value).any()
    return np.where(np.isneginf(value), np.float32(MASKED), value) if is_mask else value


def _function(node: OnnxNode, types: Mapping[str, TensorType], opset: int) -> onnx.FunctionProto:
    """Return the function body that onnx gives for this node. Raise NodeFault where it has none for this opset."""
    schema: Any = schema_of(node, opset)  # its stub leaves functions out
    opset = opset_with([node.op.op_type], opset)
    versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
    if not versions:
        raise refuse_node(node, f"has no definition by other operators for opset {opset}", "export it written out")
    read = [type_proto(types[n]).SerializeToString() if n else b"" for n in node.inputs]
    serialized = schema.get_context_dependent_function_with_opset_version(
        max(versions), node_to_proto(node).SerializeToString(), read
    )
    function = onnx.FunctionProto()
    function.ParseFromString(serialized)
    return function
