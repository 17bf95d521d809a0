"""Makes a fake-quantized copy of a float ONNX model: it rounds tensors to the machine's codes and back to float.

Running it in onnxruntime shows what the scales alone cost, before anything is compiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from quant.fixed_point.core.numerics import Numerics
from quant.parameters import weight_quant
from toolchain.ir.graph import Quant

_WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})  # operators whose input 1 is rounded where it is constant
_FUSED = frozenset({"Relu", "Clip", "LeakyRelu", "HardSwish"})


def fake_quantized(model: onnx.ModelProto, quants: Mapping[str, Quant], numerics: Numerics) -> onnx.ModelProto:
    """Return a copy in which the tensors of `quants` are rounded to their codes and saturated, and constant weights too.

    `model`: opset 11 or newer, with weights as float initializers; it is not changed.
    `quants`: scale and zero point by tensor, for codes of the machine's first activation type. Names outside the model are
    ignored, and so are initializers and tensors of subgraphs.

    Weights have a scale for each output channel where the machine has such scales, else one; groups of neighbours are not made.
    Rounding is to nearest, halves to even; the sums in between stay float32. Outputs keep their names.
    Raise CompileError for weights that are not finite.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    initializers = {i.name: i for i in graph.initializer}
    for node in graph.node:
        if node.op_type in _WEIGHTED and len(node.input) > 1 and node.input[1] in initializers:
            _round_weights(node, initializers[node.input[1]], numerics)
    nodes: list[onnx.NodeProto] = []
    renamed: dict[str, str] = {}
    outputs = {o.name for o in graph.output}
    inputs = [i.name for i in graph.input if i.name in quants]
    for name in inputs:
        nodes += _rounding_nodes(name, f"{name}/rounded", quants[name], numerics, graph)
        renamed[name] = f"{name}/rounded"
    for original in graph.node:
        node = onnx.NodeProto()
        node.CopyFrom(original)
        node.input[:] = [renamed.get(n, n) for n in node.input]
        nodes.append(node)
        for i, name in enumerate(original.output):
            if name not in quants:
                continue
            if name in outputs:  # the output keeps its name, so what is rounded takes another
                node.output[i] = f"{name}/exact"
                nodes += _rounding_nodes(f"{name}/exact", name, quants[name], numerics, graph)
            else:
                nodes += _rounding_nodes(name, f"{name}/rounded", quants[name], numerics, graph)
                renamed[name] = f"{name}/rounded"
    del graph.node[:]
    graph.node.extend(nodes)
    return copy


def list_stored_tensors(model: onnx.ModelProto) -> list[str]:
    """Return the tensors that reach memory as codes: inputs, then outputs of nodes, in graph order.

    Constants are left out, and so is a tensor that only one activation function reads, since it is fused to the producer.
    Outputs of the graph are never left out.
    """
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    outputs = {o.name for o in model.graph.output}
    constants = {i.name for i in model.graph.initializer}
    node_outputs = [o for n in model.graph.node if n.op_type != "Constant" for o in n.output]
    names = [i.name for i in model.graph.input if i.name not in constants] + node_outputs

    def fused(name: str) -> bool:
        reading = readers.get(name, [])
        return name not in outputs and len(reading) == 1 and reading[0].op_type in _FUSED and reading[0].input[0] == name

    return [n for n in names if not fused(n)]


def _round_weights(node: onnx.NodeProto, weight: onnx.TensorProto, numerics: Numerics) -> None:
    """Replace an initializer by its values rounded with a scale for each output channel, or with one scale for all of them."""
    w = numpy_helper.to_array(weight)
    attributes = {a.name: a.i for a in node.attribute}
    if node.op_type == "ConvTranspose":  # [ic, oc / groups, ...]: the output channels of a group are on axis 1
        grouped = w.reshape(attributes.get("group", 1), -1, *w.shape[1:]).swapaxes(1, 2)
        rows = grouped.reshape(-1, *grouped.shape[2:])
        rounded = _round(rows, 0, weight.name, numerics).reshape(grouped.shape).swapaxes(1, 2).reshape(w.shape)
    else:
        axes = {"Conv": 0, "Gemm": 0 if attributes.get("transB") else 1, "MatMul": -1}
        rounded = _round(w, axes[node.op_type], weight.name, numerics)
    weight.CopyFrom(numpy_helper.from_array(rounded, weight.name))


def _round(w: NDArray[Any], axis: int, name: str, numerics: Numerics) -> NDArray[Any]:
    """Return weights rounded to their codes and back, with the channels of the scales on `axis`."""
    return weight_quant(w, axis, numerics, name=name).dequantize().astype(w.dtype)


def _rounding_nodes(source: str, target: str, quant: Quant, numerics: Numerics, graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Return nodes that compute `target` as `source` rounded to codes of `quant`; their constants are added to `graph`."""
    first, last = numerics.activation.limits
    values = {"scale": quant.scale, "low": first - quant.zero_point, "high": last - quant.zero_point}
    names = {key: f"{target}/{key}" for key in values}
    for key, value in values.items():
        array: NDArray[np.float32] = np.array(value, np.float32)
        graph.initializer.append(helper.make_tensor(names[key], TensorProto.FLOAT, [], [float(array)]))
    return [
        helper.make_node("Div", [source, names["scale"]], [f"{target}/steps"]),
        helper.make_node("Round", [f"{target}/steps"], [f"{target}/round"]),
        helper.make_node("Clip", [f"{target}/round", names["low"], names["high"]], [f"{target}/clip"]),
        helper.make_node("Mul", [f"{target}/clip", names["scale"]], [target]),
    ]
