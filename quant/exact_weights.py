"""Turns int8 weights of a quantized ONNX model into uint8 (+128, zero points too), where onnxruntime would saturate sums.

Its kernel for uint8 and int8 adds pairs of products in 16 bits, saturated, on x86 processors without VNNI. The results are off by
a fifth of a layer at most. The kernel for uint8 and uint8 is exact everywhere. Its own rewriting (session.x64quantprecision) does
the same to int8 codes too, for which it then has no kernel (1.32). Sessions that compute reference values (`quant.float_session`)
apply this on such processors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from quant.fixed_point.sums.products import MatMulInteger, is_exact
from toolchain.errors import CompileError

Array = NDArray[Any]
NO_WEIGHTS: Mapping[str, Array] = MappingProxyType({})
_MOST_BYTES = (1 << 31) - (1 << 20)  # of a serialized model, its graph among them

_HALF = 128
# Inputs: activation's codes, their zero point, weights, their zero point.
_PRODUCTS = {
    "QLinearConv": (0, 2, 3, 5),
    "QLinearMatMul": (0, 2, 3, 5),
    "QGemm": (0, 2, 3, 5),
    "MatMulInteger": (0, 2, 1, 3),
    "ConvInteger": (0, 2, 1, 3),
    "MatMulIntegerToFloat": (0, 4, 1, 5),
}
_DYNAMIC = "DynamicQuantizeMatMul"  # whose activation is real
_REAL = ("Conv", "Gemm", "MatMul")  # between DequantizeLinear and QuantizeLinear, which onnxruntime fuses to the ones above
_MOVES = frozenset(("Concat", "Flatten", "Identity", "MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"))
_MARKS = tuple(name.encode() for name in ("QLinear", "QGemm", "Integer", _DYNAMIC, "DequantizeLinear"))


@cache
def saturates() -> bool:
    """Return whether this processor's kernel for uint8 and int8 saturates; it is tried once and remembered."""
    return not is_exact(MatMulInteger(True))


def may_saturate(model: bytes) -> bool:
    """Return whether a serialized model may hold products of uint8 codes with int8 weights; False is certain."""
    return any(mark in model for mark in _MARKS)


def with_exact_weights(model: onnx.ModelProto, folder: str = "", weights: Mapping[str, Array] = NO_WEIGHTS) -> onnx.ModelProto:
    """Return a copy in which int8 weights that are multiplied with uint8 codes are uint8; it computes the same numbers.

    `folder`: directory of the model's external data; empty: it has none that may be read.
    `weights`: values by name of initializers that are not in the model.

    Weights that are no initializers, or whose zero point is computed, stay as they are. The new weights lie in the copy itself.

    Raise CompileError where they are more bytes than a model can hold.
    """
    exact_model = onnx.ModelProto()
    exact_model.CopyFrom(model)
    graph = _Graph.of(exact_model.graph, folder, weights)
    for node, place, point in graph.products():
        graph.raise_weights(node, place, point)
    read = {i for n in exact_model.graph.node for i in n.input}
    dropped = graph.raised - read  # onnxruntime refuses values of initializers that it has dropped
    remaining = [t for t in exact_model.graph.initializer if t.name not in dropped or t.data_location != TensorProto.EXTERNAL]
    del exact_model.graph.initializer[:]
    exact_model.graph.initializer.extend([*remaining, *graph.new_initializers.values()])
    return exact_model


@dataclass
class _Graph:
    """A graph with indices that find products of uint8 codes with int8 weights, and rewrite these in place.

    `constants`: initializers whose values can be read, by name.
    `kinds`: ONNX element type of tensors of codes, where it is known.
    `reads`: number of node inputs that a tensor feeds.
    `folder`, `weights`: places of values that are not in the model.
    `new_initializers`: initializers to add.
    `raised`: initializers that these replace.
    """

    proto: onnx.GraphProto
    constants: Mapping[str, TensorProto]
    producers: Mapping[str, onnx.NodeProto]
    kinds: dict[str, int]
    reads: Mapping[str, int]
    folder: str
    weights: Mapping[str, Array]
    new_initializers: dict[str, TensorProto] = field(default_factory=dict[str, TensorProto])
    raised: set[str] = field(default_factory=set[str])

    @classmethod
    def of(cls, graph: onnx.GraphProto, folder: str, weights: Mapping[str, Array]) -> _Graph:
        """Return the indices of a graph, in which outputs of quantizers that are uint8 are known."""
        inside = (t for t in graph.initializer if t.data_location != TensorProto.EXTERNAL or folder or t.name in weights)
        readable = {t.name: t for t in inside}
        kinds = {i.name: i.type.tensor_type.elem_type for i in graph.input} | {t.name: t.data_type for t in graph.initializer}
        reads = Counter(i for n in graph.node for i in n.input)
        model_graph = cls(graph, readable, {o: n for n in graph.node for o in n.output}, kinds, reads, folder, weights)
        for node in graph.node:
            kinds.update((name, TensorProto.UINT8) for name in _list_unsigned_outputs(node, model_graph))
        return model_graph

    def products(self) -> Iterator[tuple[onnx.NodeProto, int, int]]:
        """Yield each product of uint8 codes with int8 weights: the node that reads the weights, and two input indices.

        The indices are those of the weights and of their zero point in that node.
        """
        for node in self.proto.node:
            if node.op_type == _DYNAMIC:
                weight_read = node, 1, 3
            elif node.op_type in _PRODUCTS:
                x, x_point, weights, point = _PRODUCTS[node.op_type]
                if self.kind(_input(node, x_point) or _input(node, x)) != TensorProto.UINT8:
                    continue
                weight_read = node, weights, point
            elif node.op_type in _REAL and self.find_code_kind(node.input[0]) == TensorProto.UINT8:
                reader = self.producers.get(_input(node, 1))
                if reader is None or reader.op_type != "DequantizeLinear":
                    continue
                weight_read = reader, 0, 2
            else:
                continue
            tensor = self.constants.get(self.first(*weight_read[:2])[0])
            if tensor is not None and tensor.data_type == TensorProto.INT8:
                yield weight_read

    def first(self, node: onnx.NodeProto, index: int) -> tuple[str, onnx.NodeProto, int]:
        """Return the tensor that an input is moved from by Reshapes and Transposes for this node alone, with its reader.

        The result is (tensor, reader, index of the reader's input).
        """
        name = node.input[index]
        before = self.producers.get(name)
        while before is not None and before.op_type in ("Reshape", "Transpose") and self.reads[name] == 1:
            name, node, index = before.input[0], before, 0
            before = self.producers.get(name)
        return name, node, index

    def kind(self, name: str) -> int:
        """Return the ONNX element type of a tensor, followed back through moves; UNDEFINED where it is not known."""
        while name not in self.kinds and name in self.producers and self.producers[name].op_type in _MOVES:
            name = self.producers[name].input[0]
        return self.kinds.get(name, TensorProto.UNDEFINED)

    def find_code_kind(self, name: str) -> int:
        """Return the element type of the codes that a real tensor was dequantized from; UNDEFINED where it was not."""
        node = self.producers.get(name)
        while node is not None and node.op_type in _MOVES:
            node = self.producers.get(node.input[0])
        if node is None or node.op_type != "DequantizeLinear":
            return TensorProto.UNDEFINED
        return self.kind(_input(node, 2) or node.input[0])

    def raise_weights(self, node: onnx.NodeProto, weights: int, point: int) -> None:
        """Give the node uint8 weights and zero point; it stays as it is where its zero point is computed.

        `weights`, `point`: indices of its inputs.
        """
        (name, reader, place), zero = self.first(node, weights), _input(node, point)
        if zero and zero not in self.constants:
            return
        self.raised.add(name)
        value = self._value(name)
        points = self._value(zero) if zero else np.zeros((), np.int8)
        if not zero and node.op_type == "DequantizeLinear" and (scale := self.constants.get(node.input[1])) is not None:
            points = np.zeros(tuple(scale.dims), np.int8)
        reader.input[place] = self._add_unsigned(name, value)
        while len(node.input) <= point:
            node.input.append("")
        node.input[point] = self._add_unsigned(zero or f"{name}/zero_point", points)

    def _value(self, name: str) -> Array:
        """Return the value of a constant, from the caller's weights, the model or its external data."""
        return self.weights[name] if name in self.weights else numpy_helper.to_array(self.constants[name], self.folder)

    def _add_unsigned(self, name: str, value: Array) -> str:
        """Return the name of a new initializer with the values + 128 as uint8, shared by all readers of `name`.

        Raise CompileError where the new initializers outgrow a model.
        """
        raised = f"{name}/uint8"
        while raised in self.kinds or raised in self.producers:
            raised += "_"
        if raised not in self.new_initializers:
            if sum(int(np.prod(t.dims)) for t in self.new_initializers.values()) + value.size > _MOST_BYTES:
                raise CompileError(
                    f"weight {name}: int8 weights beside uint8 codes are {_MOST_BYTES:,} bytes and more, which this processor, "
                    "without VNNI, multiplies exactly only inside of a model, which holds no more; use one with VNNI"
                )
            self.new_initializers[raised] = numpy_helper.from_array((value.astype(np.int16) + _HALF).astype(np.uint8), raised)
        return raised


def _list_unsigned_outputs(node: onnx.NodeProto, graph: _Graph) -> Iterator[str]:
    """Yield the outputs of a quantizer that are uint8 codes."""
    if node.op_type == "DynamicQuantizeLinear":
        yield from (node.output[0], node.output[2])
    elif node.op_type == "QuantizeLinear":
        declared = next((a.i for a in node.attribute if a.name == "output_dtype"), 0)
        kind = graph.kinds.get(_input(node, 2), 0) or declared or TensorProto.UINT8
        yield from [node.output[0]] * (kind == TensorProto.UINT8)


def _input(node: onnx.NodeProto, index: int) -> str:
    """Return the name of an input; an empty text where the node has no such input."""
    return node.input[index] if index < len(node.input) else ""
