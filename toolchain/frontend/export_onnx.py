"""Export a Graph of ONNX operators, or a part of it, as a ModelProto that onnxruntime runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx import helper, numpy_helper

from toolchain.errors import CompileError
from toolchain.frontend.convert import elem_type, node_to_proto, value_info
from toolchain.frontend.infer import model_of
from toolchain.frontend.plugin_nodes import write_out_plugin_nodes
from toolchain.frontend.read_onnx import NORMAL_OPSET
from toolchain.ir.float_submodel import FloatSubmodel
from toolchain.ir.graph import FLOAT_PRODUCTS, Graph, OnnxGraph, OnnxNode, TensorType, fresh_name

APART_ELEMENTS = 1024  # larger constants are handed to onnxruntime beside the model


def to_part(graph: OnnxGraph, opset: int) -> FloatSubmodel:
    """Return the graph as a model for onnxruntime; large float32 weights stay outside of it and are not copied."""
    external_weights = {n: v for n, v in graph.constants.items() if v.dtype == np.float32 and v.size > APART_ELEMENTS}
    proto = to_proto(graph, opset, external_weights)
    return FloatSubmodel(proto.SerializeToString(), graph.inputs, graph.outputs, weights=external_weights)


def to_proto(graph: OnnxGraph, opset: int, external_names: Collection[str] = ()) -> onnx.ModelProto:
    """Return the graph as a model in which every tensor is typed. Operators of plug-ins are written out as their steps.

    `external_names`: constants that become initializers without values.
    """
    graph = write_out_plugin_nodes(graph, opset)
    named = [n for node in graph.nodes for n in (*node.inputs, *node.outputs) if n]
    constants = [n for n in dict.fromkeys([*named, *graph.outputs]) if n in graph.constants]
    inner = [n for node in graph.nodes for n in node.outputs if n and n not in graph.outputs]
    graph_proto = helper.make_graph(
        [node_to_proto(node) for node in graph.nodes],
        graph.name,
        [value_info(n, graph.types) for n in graph.inputs],
        [value_info(n, graph.types) for n in graph.outputs],
        [
            placeholder(n, graph.types[n]) if n in external_names else numpy_helper.from_array(graph.constants[n], n)
            for n in constants
        ],
        value_info=[value_info(n, graph.types) for n in inner],
    )
    return model_of(graph_proto, opset)


def list_product_weights(graph: OnnxGraph) -> list[str]:
    """Return the constants above APART_ELEMENTS that nothing but products reads, as their second operand."""
    weights = {n.inputs[1] for n in graph.nodes if n.op.op_type in FLOAT_PRODUCTS and len(n.inputs) > 1}
    others = {name for n in graph.nodes for at, name in enumerate(n.inputs) if at != 1 or n.op.op_type not in FLOAT_PRODUCTS}
    read_by_products = weights.difference(others, graph.outputs)
    return [n for n, value in graph.constants.items() if value.size > APART_ELEMENTS and n in read_by_products]


def least_opset(graph: OnnxGraph, newest: int) -> int:
    """Return the first opset from NORMAL_OPSET on that has all operators of the graph.

    Operators mean the same in every later opset, and runtimes lag behind the newest QuantizeLinear.
    `newest`: the opset in which the graph is written.
    """
    used = {(n.op.op_type, frozenset(n.op.attributes)) for n in graph.nodes if not n.op.domain}
    return next((v for v in range(NORMAL_OPSET, newest) if all(_has(v, *op) for op in used)), newest)


def _has(opset: int, op_type: str, attributes: frozenset[str]) -> bool:
    try:
        return attributes <= onnx.defs.get_schema(op_type, opset).attributes.keys()
    except onnx.defs.SchemaError:
        return False


def placeholder(name: str, t: TensorType) -> onnx.TensorProto:
    """Return an initializer of this name and type whose values lie elsewhere."""
    tensor_proto = onnx.TensorProto(
        name=name, data_type=elem_type(t.dtype), dims=t.shape, data_location=onnx.TensorProto.EXTERNAL
    )
    for key, value in (("location", "elsewhere"), ("offset", 0), ("length", t.size_bytes)):
        tensor_proto.external_data.add(key=key, value=str(value))
    return tensor_proto


def subgraph(graph: OnnxGraph, inputs: Sequence[str], outputs: Sequence[str]) -> OnnxGraph:
    """Return the part of the graph that computes `outputs` from `inputs`.

    Raise CompileError for an unknown tensor, and where an output needs an input of the graph that is not among `inputs`.
    """
    pending_tensors, needed_nodes = set(outputs) - set(inputs), list[OnnxNode]()
    unknown = [n for n in (*inputs, *outputs) if n not in graph.types]
    if unknown:
        raise CompileError(f'the model has no tensor "{unknown[0]}"')
    for node in reversed(graph.nodes):
        if not pending_tensors.intersection(node.outputs):
            continue
        needed_nodes.append(node)
        pending_tensors.update(n for n in node.inputs if n and n not in inputs)
    missing = [n for n in graph.inputs if n in pending_tensors and n not in inputs]
    if missing:
        raise CompileError(f'cannot cut the model at {", ".join(inputs)}: "{missing[0]}" is needed too')
    return cut(graph, list(reversed(needed_nodes)), inputs, outputs)


def cut(graph: OnnxGraph, nodes: list[OnnxNode], inputs: Sequence[str], outputs: Sequence[str]) -> OnnxGraph:
    """Return the subgraph of these nodes, with these inputs and outputs.

    A node may make one of `inputs` and something else. Its own output for that input gets another name, since the
    input is fed.
    """
    new_name_by_tensor = {
        name: fresh_name(f"{name}/made", graph.types) for node in nodes for name in node.outputs if name in inputs
    }
    cut_nodes = [replace(node, outputs=tuple(new_name_by_tensor.get(n, n) for n in node.outputs)) for node in nodes]
    types = {**graph.types, **{other: graph.types[name] for name, other in new_name_by_tensor.items()}}
    return Graph(graph.name, (), tuple(inputs), tuple(outputs), types, graph.constants).with_nodes(cut_nodes)
