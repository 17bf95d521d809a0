"""Check the ONNX models of host subgraphs in a compiled file before they run: they must be such as the toolchain writes.

A file from elsewhere could otherwise make onnxruntime read files, loop, or allocate without bounds.
"""

from __future__ import annotations

from math import prod

import onnx
from onnx import external_data_helper, shape_inference

from toolchain.errors import CompileError, first_line
from toolchain.foundation.inference import has_custom_ops
from toolchain.frontend.read_onnx import DOMAINS, FOREIGN, check_operators, check_opset, graphs_of, opset_of, tensors_of
from toolchain.input_limits import TENSOR_ELEMENTS


def find_host_model_fault(model: bytes) -> str | None:
    """Return why the ONNX model of a host subgraph is not run, as a phrase, or None.

    Faults are bytes that are no model, functions, subgraphs, external weights, unknown operators, and tensors that are too
    large.
    """
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(model)
    except Exception:  # protobuf's DecodeError; its class differs between protobuf's backends
        return "is no ONNX model"
    if proto.functions or proto.graph.sparse_initializer or proto.training_info:
        return "holds functions, sparse weights or training, which no island has"
    branching = next((n for n in proto.graph.node if graphs_of(n)), None)
    if branching is not None:
        return f"node {branching.name} ({branching.op_type}) holds graphs of its own, which no node of an island has"
    outside = next((t for t in tensors_of(proto.graph) if external_data_helper.uses_external_data(t)), None)
    if outside is not None:
        return f"weight {outside.name} lies in another file; islands hold their weights"
    try:
        check_opset(proto, "its model")
        check_operators(proto.graph, opset_of(proto))
    except CompileError as fault:
        return str(fault).partition("\n")[0]
    return _size_fault(proto)


def find_way_out(model: bytes) -> str:
    """Return what to do about a model that `find_host_model_fault` refuses. An operator of a foreign domain may need its
    library.
    """
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(model)
    except Exception:  # protobuf's DecodeError; its class differs between protobuf's backends
        return "build the file again"
    foreign = {node.domain for node in proto.graph.node} - {*DOMAINS, *FOREIGN, "ai.onnx"}
    needs_library = bool(foreign) and not proto.functions and not has_custom_ops()
    return "give the library of its operators (--custom-ops LIBRARY)" if needs_library else "build the file again"


def _size_fault(proto: onnx.ModelProto) -> str | None:
    """Return the fault of a tensor that is too large, by the shapes that follow from the inputs', whatever the file
    declares.
    """
    del proto.graph.value_info[:]
    try:
        graph = shape_inference.infer_shapes(proto, data_prop=True).graph
    except Exception as fault:
        return first_line(fault)
    for value in (*graph.input, *graph.value_info, *graph.output):
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        if prod(shape) > TENSOR_ELEMENTS:
            return f"tensor {value.name} has shape {shape}; {TENSOR_ELEMENTS:,} elements are the most"
    return None
