"""Find the functions that a quantized file rounds for some of their readers and leaves as they are for others.

A build's codes cannot judge these readers: codes that end where the file's do are as bad as what is judged by them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from tests.semantics.chip_tensors import Codes, HeldCodes

Array = np.ndarray[Any, Any]
MOVES = {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "DepthToSpace", "SpaceToDepth", "Identity"}
CURVES = {"Exp", "Tanh", "Erf", "Sigmoid", "Softplus", "Softsign", "Cos", "Sin", "Atan", "Cosh", "Sinh", "Abs", "LeakyRelu"}
CURVES |= {"HardSwish", "Elu", "Selu", "Celu", "Gelu", "Mish", "Swish", "Sqrt", "Log", "Reciprocal", "Asinh", "Acosh", "Tan"}
LINES = {"Relu", "Clip", "Neg", "HardSigmoid"}  # which are a part of what makes their input, unless that is codes already


class SharedFunctions:
    """Finds the tensors of a file that are such functions, and what moves make of them on the way to a quantizer."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self._inputs = {i.name for i in proto.graph.input}
        self._outputs = {o.name for o in proto.graph.output}
        self._producers = {n: node for node in proto.graph.node for n in node.output}
        self._consumers: dict[str, list[onnx.NodeProto]] = {}
        for node in proto.graph.node:
            for name in set(node.input):
                self._consumers.setdefault(name, []).append(node)
        rounded = [n for n in proto.graph.node if n.op_type == "QuantizeLinear" and self._only_makes_reals(n)]
        self.tensors = frozenset(name for node in rounded for name in self._list_shared(node.input[0]))

    def _only_makes_reals(self, quantizer: onnx.NodeProto) -> bool:
        codes = quantizer.output[0]
        return codes not in self._outputs and all(n.op_type == "DequantizeLinear" for n in self._consumers.get(codes, ()))

    def _list_shared(self, x: str) -> list[str]:
        names = [x]
        while x in self._producers and self._producers[x].op_type in MOVES:
            x = self._producers[x].input[0]
            names.append(x)
        return names if self._is_function(x) and self._is_read_unrounded(x) else []

    def _is_read_unrounded(self, x: str) -> bool:
        def reads_unrounded(node: onnx.NodeProto) -> bool:
            return self._is_read_unrounded(node.output[0]) if node.op_type in MOVES else node.op_type != "QuantizeLinear"

        return x in self._outputs or any(map(reads_unrounded, self._consumers.get(x, ())))

    def _is_function(self, x: str) -> bool:
        node = self._producers.get(x)
        if node is None:
            return False
        if node.op_type == "Mul":  # x * Sigmoid(x)
            return any(self._is_gate(gate, other) for gate, other in (node.input, node.input[::-1]))
        return node.op_type in CURVES or (node.op_type in LINES and self._is_held(node.input[0]))

    def _is_gate(self, gate: str, x: str) -> bool:
        node, readers = self._producers.get(gate), self._consumers[gate]
        return node is not None and node.op_type == "Sigmoid" and list(node.input) == [x] and len(readers) == 1

    def _is_held(self, x: str) -> bool:
        node = self._producers.get(x)
        return x in self._inputs or (node is not None and node.op_type == "DequantizeLinear")


def widen_codes(names: Collection[str], codes: Codes, runs: Sequence[Mapping[str, Array]], step: float) -> dict[str, HeldCodes]:
    """Return codes over the values that these tensors have, for those whose own codes end before: zero point 0.

    `codes`: of the build, of all `names`.
    `runs`: by sample, all tensors of the file.
    `step`: by what scales may have to be larger, as where they are powers of two.
    """
    widened: dict[str, HeldCodes] = {}
    for name in sorted(names):
        scale, zero_point, bits = codes[name]
        low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        values = [np.asarray(run[name], np.float64) for run in runs]
        least, most = min(float(v.min()) for v in values), max(float(v.max()) for v in values)
        if least < scale * (low - 1 - zero_point) or most > scale * (high + 1 - zero_point):
            widened[name] = HeldCodes(max(-least, most) * step / high, 0, bits)
    return widened
