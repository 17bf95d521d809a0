"""Rewrites float models and onnxruntime's QDQ models as other exporters would write them; bench/make_quantized.py uses it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
BITS, BLOCK = 4, 16
PERM_IN, PERM_OUT = (0, 2, 3, 1), (0, 3, 1, 2)


class Editor:
    """A copy of a model whose nodes are replaced one by one.

    `values`: initializers by name.
    `producers`: nodes by the tensors that they make.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        self.graph = self.model.graph
        self.producers = {n: node for node in self.graph.node for n in node.output}
        self.values = {i.name: numpy_helper.to_array(i) for i in self.graph.initializer}

    def constant(self, name: str, value: np.ndarray) -> str:
        """Add an initializer and return its name."""
        self.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        self.values[name] = value
        return name

    def add_typed_constant(self, name: str, kind: int, shape: Iterable[int], raw: bytes) -> str:
        """Add a constant of a type that numpy does not have."""
        self.graph.initializer.append(helper.make_tensor(name, kind, list(shape), raw, raw=True))
        return name

    def dequantizer(self, name: str) -> onnx.NodeProto | None:
        """Return the DequantizeLinear that makes `name`, or None."""
        node = self.producers.get(name)
        return node if node is not None and node.op_type == "DequantizeLinear" else None

    def quantizer(self, name: str) -> onnx.NodeProto | None:
        """Return the QuantizeLinear in front of the DequantizeLinear that makes `name`, or None."""
        node = self.dequantizer(name)
        before = self.producers.get(node.input[0]) if node is not None else None
        return before if before is not None and before.op_type == "QuantizeLinear" else None

    def find_dequantized(self, name: str) -> np.ndarray | None:
        """Return the real value of a DequantizeLinear of a constant, float32; None for any other tensor."""
        node = self.dequantizer(name)
        if node is None or node.input[0] not in self.values:
            return None
        codes, scale = self.values[node.input[0]].astype(np.float32), self.values[node.input[1]]
        zero = self.values[node.input[2]].astype(np.float32) if len(node.input) > 2 else np.zeros_like(scale)
        shape = [1] * codes.ndim
        if scale.size > 1:
            axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
            shape[axis] = -1
        return (codes - zero.reshape(shape)) * scale.reshape(shape)

    def replace_nodes(self, nodes: Iterable[onnx.NodeProto], opset: int = 0, domains: Iterable[str] = ()) -> onnx.ModelProto:
        """Return the model with these nodes, sorted so that it runs, without nodes and initializers that nothing reads.

        `opset`: least version of ONNX's own operators.
        `domains`: further domains to import.
        """
        waiting, available = list(nodes), {i.name for i in (*self.graph.input, *self.graph.initializer)} | {""}
        placed: list[onnx.NodeProto] = []
        while waiting:
            ready = next(n for n in waiting if available.issuperset(n.input))
            waiting.remove(ready)
            placed.append(ready)
            available.update(ready.output)
        read_names, read_nodes = {o.name for o in self.graph.output}, list[onnx.NodeProto]()
        for node in reversed(placed):
            if read_names.intersection(node.output):
                read_nodes.append(node)
                read_names.update(node.input)
        del self.graph.node[:]
        self.graph.node.extend(reversed(read_nodes))
        initializers = [i for i in self.graph.initializer if i.name in read_names]
        del self.graph.initializer[:]
        self.graph.initializer.extend(initializers)
        del self.graph.value_info[:]
        for opset_entry in self.model.opset_import:
            if opset_entry.domain in ("", "ai.onnx"):
                opset_entry.version = max(opset_entry.version, opset)
        self.model.opset_import.extend(helper.make_opsetid(d, 1) for d in domains)
        if opset >= 21:
            self.model.ir_version = max(self.model.ir_version, 10)
        return self.model


def rename_inputs(node: onnx.NodeProto, names: dict[str, str]) -> onnx.NodeProto:
    """Return a copy of the node with other inputs."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.input[:] = [names.get(n, n) for n in node.input]
    return copy


def as_pytorch(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model as PyTorch 2 exports it: biases in float, and no QuantizeLinear behind pools, means and sums."""
    edit = Editor(model)
    names: dict[str, str] = {}
    for node in edit.graph.node:
        if node.op_type in PRODUCTS and len(node.input) > 2:
            bias = edit.find_dequantized(node.input[2])
            if bias is not None:
                names[node.input[2]] = edit.constant(f"{node.input[2]}_float", bias)
        quantizer = edit.quantizer(node.output[0])
        producer = edit.producers.get(quantizer.input[0]) if quantizer is not None else None
        if (
            producer is not None
            and quantizer is not None
            and producer.op_type in ("Add", "GlobalAveragePool", "ReduceMean", "Flatten")
        ):
            names[node.output[0]] = quantizer.input[0]
    return edit.replace_nodes([rename_inputs(n, names) for n in edit.graph.node])


def as_tensorrt(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model as TensorRT's tools write it.

    Weights are in float under QuantizeLinear and DequantizeLinear, biases in float. Activations are quantized in front of
    products alone.
    """
    edit = Editor(model)
    more: list[onnx.NodeProto] = []
    nodes: list[onnx.NodeProto] = []
    for node in edit.graph.node:
        product, names = node.op_type in PRODUCTS, dict[str, str]()
        for index, name in enumerate(node.input):
            value, quantizer = edit.find_dequantized(name), edit.quantizer(name)
            dequantizer = edit.dequantizer(name)
            if value is not None and product and index == 1 and dequantizer is not None:
                weight = edit.constant(f"{name}_float", value)
                q = rename_inputs(dequantizer, {dequantizer.input[0]: weight})
                q.op_type, q.name, q.output[0] = "QuantizeLinear", f"{q.name}_Q", f"{name}_codes"
                more += [q, rename_inputs(dequantizer, {dequantizer.input[0]: q.output[0]})]
                more[-1].output[0] = names[name] = f"{name}_again"
            elif value is not None:
                names[name] = f"{name}_float"
                edit.constant(names[name], value)
            elif quantizer is not None and not product:
                names[name] = quantizer.input[0]
        nodes.append(rename_inputs(node, names))
    outputs = {o.name for o in edit.graph.output}
    for node in nodes:  # the last tensor is not quantized either
        quantizer = edit.quantizer(node.output[0])
        if node.op_type == "DequantizeLinear" and node.output[0] in outputs and quantizer is not None:
            node.CopyFrom(helper.make_node("Identity", [quantizer.input[0]], [node.output[0]], node.name))
    return edit.replace_nodes([*nodes, *more])


def as_tensorflow(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model as converters from TensorFlow leave it: channels-last, with Transposes of codes between Q and DQ."""
    edit = Editor(model)
    nodes: list[onnx.NodeProto] = []
    for node in edit.graph.node:
        quantizer = edit.quantizer(node.output[0]) if node.op_type == "DequantizeLinear" else None
        reader = next((n for n in edit.graph.node if node.output[0] in n.input), None)
        if quantizer is None or reader is None or reader.op_type not in ("Conv", "MaxPool", "GlobalAveragePool"):
            nodes.append(node)
            continue
        y = node.output[0]
        inside = rename_inputs(node, {node.input[0]: f"{y}_nhwc_codes"})
        inside.output[0] = f"{y}_nhwc"
        nodes += [
            helper.make_node("Transpose", [node.input[0]], [f"{y}_nhwc_codes"], f"{y}_to_nhwc", perm=PERM_IN),
            inside,
            helper.make_node("Transpose", [f"{y}_nhwc"], [y], f"{y}_to_nchw", perm=PERM_OUT),
        ]
    return edit.replace_nodes(nodes)


def as_integer_chain(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with products in integers: ConvInteger or MatMulInteger, a Cast, a Mul by both scales, an Add of the bias.

    They stand where a product stood between DequantizeLinear and QuantizeLinear.
    """
    edit = Editor(model)
    nodes: list[onnx.NodeProto] = []
    for node in edit.graph.node:
        quantizer = edit.quantizer(node.input[0]) if node.op_type in ("Conv", "Gemm", "MatMul") else None
        weight = edit.dequantizer(node.input[1]) if quantizer is not None else None
        if quantizer is None or weight is None or weight.input[0] not in edit.values:
            nodes.append(node)
            continue
        nodes += _integer_chain(node, quantizer, weight, edit)
    return edit.replace_nodes(nodes)


def _integer_chain(node: onnx.NodeProto, quantizer: onnx.NodeProto, weight: onnx.NodeProto, edit: Editor) -> list[onnx.NodeProto]:
    y, convolution = node.output[0], node.op_type == "Conv"
    codes, w_scale = edit.values[weight.input[0]], edit.values[weight.input[1]]
    if not convolution and any(a.name == "transB" and a.i for a in node.attribute):
        codes = codes.T
    scale = edit.values[quantizer.input[1]] * w_scale
    if convolution and scale.ndim:
        scale = scale.reshape(-1, *[1] * (codes.ndim - 2))
    inputs = [quantizer.output[0], edit.constant(f"{y}_weight", codes), quantizer.input[2]]
    op = helper.make_node("ConvInteger" if convolution else "MatMulInteger", inputs, [f"{y}_sums"], f"{y}_integer")
    if convolution:
        op.attribute.extend(node.attribute)
    chain = [
        op,
        helper.make_node("Cast", [f"{y}_sums"], [f"{y}_cast"], f"{y}_cast", to=TensorProto.FLOAT),
        helper.make_node("Mul", [f"{y}_cast", edit.constant(f"{y}_factor", scale)], [y], f"{y}_mul"),
    ]
    bias = edit.find_dequantized(node.input[2]) if len(node.input) > 2 else None
    if bias is not None:
        chain[-1].output[0] = f"{y}_scaled"
        row = bias.reshape(-1, *[1] * (codes.ndim - 2)) if convolution else bias
        chain.append(helper.make_node("Add", [f"{y}_scaled", edit.constant(f"{y}_bias", row)], [y], f"{y}_add"))
    return chain


def as_matmul_nbits(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with com.microsoft.MatMulNBits for every MatMul and Gemm with constant weights.

    Weights have 4 bits, with a scale and a zero point a block.
    """
    edit = Editor(model)
    nodes: list[onnx.NodeProto] = []
    for node in edit.graph.node:
        w = edit.values.get(node.input[1]) if node.op_type in ("MatMul", "Gemm") else None
        if w is None or w.ndim != 2:
            nodes.append(node)
            continue
        transposed = any(a.name == "transB" and a.i for a in node.attribute)
        nodes += _nbits(node, w if transposed else w.T, edit)
    return edit.replace_nodes(nodes, domains=["com.microsoft"])


def _nbits(node: onnx.NodeProto, w: np.ndarray, edit: Editor) -> list[onnx.NodeProto]:
    """Return the nodes of a product with packed weights.

    `w`: [n, k].
    """
    (n, k), y = w.shape, node.output[0]
    blocks = -(-k // BLOCK)
    padded = np.zeros((n, blocks * BLOCK), np.float32)
    padded[:, :k] = w
    codes, scale, zero = _blocks(padded.reshape(n, blocks, BLOCK))
    packed = (codes[..., ::2] | codes[..., 1::2] << 4).astype(np.uint8)
    points = np.zeros((n, -(-blocks // 2) * 2), np.uint8)
    points[:, :blocks] = zero
    inputs = [
        node.input[0],
        edit.constant(f"{y}_packed", packed),
        edit.constant(f"{y}_scales", scale.reshape(-1)),
        edit.constant(f"{y}_points", (points[:, ::2] | points[:, 1::2] << 4).astype(np.uint8).reshape(-1)),
    ]
    attributes: dict[str, Any] = {"K": k, "N": n, "bits": BITS, "block_size": BLOCK}
    bias = len(node.input) > 2
    product = f"{y}_product" if bias else y
    nodes = [helper.make_node("MatMulNBits", inputs, [product], f"{y}_nbits", domain="com.microsoft", **attributes)]
    return [*nodes, helper.make_node("Add", [product, node.input[2]], [y], f"{y}_add")] if bias else nodes


def _blocks(w: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return 4-bit codes (uint8), scales (float32[...]) and zero points (uint8[...]) of weights w[..., block]."""
    low, high = np.minimum(w.min(-1), 0), np.maximum(w.max(-1), 0)
    scale = np.maximum((high - low) / 15, np.float32(1e-8)).astype(np.float32)
    zero = np.clip(np.rint(-low / scale), 0, 15)
    codes = np.clip(np.rint(w / scale[..., None]) + zero[..., None], 0, 15)
    return codes.astype(np.uint8), scale, zero.astype(np.uint8)


def as_blocked(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with weights of products as four-bit codes under a DequantizeLinear, a scale and a zero point a block."""
    edit = Editor(model)
    nodes, names = list[onnx.NodeProto](), dict[str, str]()
    for node in edit.graph.node:
        w = edit.values.get(node.input[1]) if node.op_type in PRODUCTS else None
        if w is None or node.input[1] in names:
            continue
        axis = 1 if node.op_type == "Conv" or any(a.name == "transB" and a.i for a in node.attribute) else 0
        size = next((s for s in (BLOCK, 8, 4, 2, 1) if w.shape[axis] % s == 0), 1)
        moved = np.moveaxis(w, axis, -1)
        codes, scale, zero = _blocks(moved.reshape(*moved.shape[:-1], -1, size))
        codes = np.moveaxis(codes.reshape(moved.shape), -1, axis)
        name = node.input[1]
        inputs = [
            edit.add_typed_constant(f"{name}_codes", TensorProto.UINT4, w.shape, _pack_codes(codes)),
            edit.constant(f"{name}_scales", np.moveaxis(scale, -1, axis)),
            edit.add_typed_constant(
                f"{name}_points", TensorProto.UINT4, np.moveaxis(zero, -1, axis).shape, _pack_codes(np.moveaxis(zero, -1, axis))
            ),
        ]
        names[name] = f"{name}_float"
        nodes.append(helper.make_node("DequantizeLinear", inputs, [names[name]], f"{name}_dq", axis=axis, block_size=size))
    return edit.replace_nodes([*nodes, *(rename_inputs(n, names) for n in edit.graph.node)], opset=21)


def _pack_codes(codes: np.ndarray) -> bytes:
    flat = codes.reshape(-1)
    flat = np.append(flat, np.zeros(flat.size % 2, np.uint8))
    return (flat[::2] | flat[1::2] << 4).astype(np.uint8).tobytes()
