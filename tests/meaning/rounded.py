"""The user's file with its tensors rounded where the chip rounds them: an oracle that shares no rule with the compiler.

onnxruntime computes each node of the file by itself; between two nodes a tensor is rounded to the codes that the build
reports for it. What is left between this and the chip is the rounding inside an operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]
Codes = Mapping[str, tuple[float, int]]  # tensor -> scale, zero point


def session(proto: onnx.ModelProto, optimise: bool = True) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if not optimise:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


class Rounded:
    """`Rounded(file, codes, bits).run(feeds)`: every tensor of `codes` rounded to nearest and saturated, in float64."""

    def __init__(self, proto: onnx.ModelProto, codes: Codes, bits: int):
        self._proto, self._codes = proto, codes
        self._low, self._high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        self._nodes: dict[int, onnxruntime.InferenceSession] = {}

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        constants = {w.name: numpy_helper.to_array(w) for w in self._proto.graph.initializer}
        values: dict[str, Array] = {**constants, **{name: self._round(name, value) for name, value in feeds.items()}}
        for index, node in enumerate(self._proto.graph.node):
            names = [n for n in node.output if n]
            made = self._computed(index, node, values, constants)
            values.update({name: self._round(name, value) for name, value in zip(names, made)})
            if node.op_type == "Constant":
                constants[node.output[0]] = values[node.output[0]]
        return [values[o.name] for o in self._proto.graph.output]

    def _round(self, name: str, value: Array) -> Array:
        if name not in self._codes:
            return value
        scale, zero_point = self._codes[name]
        code = np.clip(np.rint(np.asarray(value, np.float64) / scale) + zero_point, self._low, self._high)
        return np.asarray((code - zero_point) * scale, value.dtype)

    def _computed(self, index: int, node: onnx.NodeProto, values: dict[str, Array], constants: dict[str, Array]) -> list[Any]:
        read = [n for n in dict.fromkeys(node.input) if n]
        given = {n: values[n] for n in read if n not in constants}
        if index not in self._nodes:
            fixed = [numpy_helper.from_array(constants[n], n) for n in read if n in constants]
            inputs = [
                helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in given.items()
            ]
            outputs = [onnx.ValueInfoProto(name=n) for n in node.output if n]
            graph = helper.make_graph([node], "node", inputs, outputs, fixed)
            alone = helper.make_model(graph, opset_imports=self._proto.opset_import, ir_version=self._proto.ir_version)
            self._nodes[index] = session(alone, optimise=False)
        return list(self._nodes[index].run(None, given))
