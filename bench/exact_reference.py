"""Computes a quantized ONNX model exactly: its own operators in float64, rounded where it rounds and nowhere else.

What is far from onnxruntime here is so on every machine: one that made no error at all would be as far.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
import onnx
from exporter_styles import BLOCK, PRODUCTS, Editor, rename_inputs
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

Array = NDArray[Any]
Ranges = Mapping[str, tuple[float, float]]


class Operator(OpRun):  # type: ignore[misc]  # onnx has no types
    op_domain: ClassVar[str] = ""


def convolve(x: Array, w: Array, geometry: Mapping[str, Any]) -> Array:
    """Convolve in float64.

    `x`: float64[n, c, h, w].
    `w`: float64[o, c / group, kh, kw]; the result is [n, o, oh, ow].
    `geometry`: attributes of Conv.
    """
    (kh, kw), groups = w.shape[2:], geometry.get("group") or 1
    top, left, bottom, right = geometry.get("pads") or (0, 0, 0, 0)
    (sh, sw), (dh, dw) = geometry.get("strides") or (1, 1), geometry.get("dilations") or (1, 1)
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    height, width = (padded.shape[2] - dh * (kh - 1) - 1) // sh + 1, (padded.shape[3] - dw * (kw - 1) - 1) // sw + 1
    rows = w.reshape(groups, -1, *w.shape[1:])
    sums = np.zeros((len(x), groups, rows.shape[1], height * width))
    for i, j in np.ndindex(kh, kw):
        tap = padded[:, :, i * dh :: sh, j * dw :: sw][:, :, :height, :width]
        sums += rows[..., i, j] @ tap.reshape(len(x), groups, -1, height * width)
    return sums.reshape(len(x), -1, height, width)


class Conv(Operator):
    def _run(self, x: Array, w: Array, b: Array | None = None, **geometry: Any) -> tuple[Array]:
        sums = convolve(x, w, geometry)
        return (sums if b is None else sums + b.reshape(1, -1, 1, 1),)


class ConvInteger(Operator):
    def _run(self, x: Array, w: Array, xz: Array | None = None, wz: Array | None = None, **geometry: Any) -> tuple[Array]:
        return (convolve(_less(x, xz), _less(w, wz, 0), geometry).astype(np.int64),)


class MatMulInteger(Operator):
    def _run(self, a: Array, b: Array, az: Array | None = None, bz: Array | None = None) -> tuple[Array]:
        return ((_less(a, az) @ _less(b, bz)).astype(np.int64),)


def _less(codes: Array, point: Array | None, axis: int = -1) -> Array:
    """Return codes less their zero point as float64; a point for each index lies along `axis`."""
    return codes.astype(np.float64) - (0 if point is None else _along(point.astype(np.float64), axis, codes.ndim))


def _along(value: Array, axis: int, rank: int) -> Array:
    """Return a value that broadcasts along `axis`; a single one broadcasts everywhere."""
    shape = [1] * rank
    if value.size > 1:
        shape[axis] = -1
    return value.reshape(shape)


class QuantizeLinear(Operator):
    def _run(self, x: Array, scale: Array, point: Array, axis: int = 1, **_: Any) -> tuple[Array]:
        return (_codes(x / _along(scale, axis, x.ndim), _along(point, axis, x.ndim)),)


class DequantizeLinear(Operator):
    def _run(self, codes: Array, scale: Array, point: Array | None = None, axis: int = 1, **_: Any) -> tuple[Array]:
        return (_less(codes, point, axis) * _along(scale.astype(np.float64), axis, codes.ndim),)


def _codes(steps: Array, point: Array) -> Array:
    """Return steps rounded to codes of the zero point's type, saturated."""
    ends = np.iinfo(point.dtype)
    return np.clip(np.rint(steps) + point.astype(np.float64), ends.min, ends.max).astype(point.dtype)


def dynamic(ranges: Ranges | None, range_by_name: dict[str, tuple[float, float]]) -> type[OpRun]:
    """Return a class for DynamicQuantizeLinear in float64.

    `ranges`: (low, high) by name of the input, in place of each run's own; None: each run's.
    `range_by_name`: gets the ranges that all runs show.
    """

    class DynamicQuantizeLinear(Operator):
        def _run(self, x: Array) -> tuple[Array, Array, Array]:
            name = self.onnx_node.input[0]
            low, high = min(x.min(), 0.0), max(x.max(), 0.0)
            before = range_by_name.get(name, (0.0, 0.0))
            range_by_name[name] = min(low, before[0]), max(high, before[1])
            low, high = (low, high) if ranges is None else ranges[name]
            scale = np.float64((high - low) / 255 or 1.0)
            point = np.clip(np.rint(-low / scale), 0, 255).astype(np.uint8)
            return _codes(x / scale, point), np.asarray(scale), np.asarray(point)

    return DynamicQuantizeLinear


def exact(model: onnx.ModelProto, samples: Iterable[Mapping[str, Array]], ranges: Ranges | None = None) -> list[list[Array]]:
    """Return the outputs of the model for each sample.

    `ranges`: of what DynamicQuantizeLinear reads, in place of each run's.
    """
    return _runs(model, samples, dynamic(ranges, {}))


def ranges_of_runs(model: onnx.ModelProto, samples: Iterable[Mapping[str, Array]]) -> Ranges:
    """Return the ranges of the inputs of DynamicQuantizeLinear, over all samples."""
    range_by_name: dict[str, tuple[float, float]] = {}
    if all(n.op_type != "DynamicQuantizeLinear" for n in model.graph.node):
        return range_by_name
    _runs(model, samples, dynamic(None, range_by_name))
    return range_by_name


def _runs(model: onnx.ModelProto, samples: Iterable[Mapping[str, Array]], dynamic_class: type[OpRun]) -> list[list[Array]]:
    """Return the outputs of the model in float64 for each sample."""
    operators = [Conv, ConvInteger, MatMulInteger, QuantizeLinear, DequantizeLinear, dynamic_class]
    evaluator = ReferenceEvaluator(_in_double(model), new_ops=operators)
    return [[np.asarray(y) for y in evaluator.run(None, {n: x.astype(np.float64) for n, x in s.items()})] for s in samples]


def _in_double(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy whose float tensors are float64."""
    done = onnx.ModelProto()
    done.CopyFrom(model)
    del done.graph.value_info[:]
    for value in (*done.graph.input, *done.graph.output):
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for constant in done.graph.initializer:
        if constant.data_type == TensorProto.FLOAT:
            constant.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(constant).astype(np.float64), constant.name))
    for node in done.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            node.domain = ""  # com.microsoft's are the same
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE
    return done


def with_rounded_weights(model: onnx.ModelProto, bits: int = 8) -> onnx.ModelProto:
    """Return the model with its float or blocked weights rounded to nearest in the bits of a machine, with a scale for each
    channel.
    """
    edit = Editor(model)
    nodes = [_round_weights(node, bits, edit) for node in edit.graph.node]
    return edit.replace_nodes(nodes)


def has_unrounded_weights(model: onnx.ModelProto) -> bool:
    """Return whether the model has weights in float, or in blocks."""
    edit = Editor(model)
    return any(_round_weights(node, 8, edit) is not node for node in model.graph.node)


def _round_weights(node: onnx.NodeProto, bits: int, edit: Editor) -> onnx.NodeProto:
    """Return the node with rounded weights, or the node itself where it has none in float or in blocks."""
    if node.op_type == "MatMulNBits":
        w = _of_nbits(node, edit)
        name = edit.constant(f"{node.output[0]}_rounded", round_to(bits, w, 0).T)
        return onnx.helper.make_node("MatMul", [node.input[0], name], node.output, node.name)
    if node.op_type not in PRODUCTS:
        return node
    weights, blocks = node.input[1], edit.dequantizer(node.input[1])
    if weights in edit.values:
        w = edit.values[weights]
    elif blocks is not None and any(a.name == "block_size" and a.i for a in blocks.attribute):
        w = _of_blocks(blocks, edit)
    else:
        return node
    rows = node.op_type == "Conv" or any(a.name == "transB" and a.i for a in node.attribute)
    rounded_weights = round_to(bits, w, 0 if rows else w.ndim - 1)
    return rename_inputs(node, {weights: edit.constant(f"{node.output[0]}_rounded", rounded_weights)})


def round_to(bits: int, w: Array, axis: int) -> Array:
    """Return float32 weights rounded to nearest in so many bits, symmetric, with a scale for each index of `axis`."""
    others = tuple(i for i in range(w.ndim) if i != axis)
    scale = np.abs(w).max(others, keepdims=True).astype(np.float64) / (2 ** (bits - 1) - 1)
    scale[scale == 0] = 1
    return (np.rint(w / scale) * scale).astype(np.float32)


def _of_nbits(node: onnx.NodeProto, edit: Editor) -> Array:
    """Return the real weights of a MatMulNBits, float32[n, k]."""
    packed, scales, points = (edit.values[n] for n in node.input[1:])
    (k,) = (a.i for a in node.attribute if a.name == "K")
    (n, blocks, _), halves = packed.shape, points.reshape(len(packed), -1)
    codes = np.stack((packed & 15, packed >> 4), -1).reshape(n, blocks, BLOCK).astype(np.float32)
    zero = np.stack((halves & 15, halves >> 4), -1).reshape(n, -1)[:, :blocks, None]
    return ((codes - zero) * scales.reshape(n, blocks, 1)).reshape(n, -1)[:, :k]


def _of_blocks(node: onnx.NodeProto, edit: Editor) -> Array:
    """Return the real weights of a DequantizeLinear of blocks, float32."""
    numbers: dict[str, int] = {a.name: a.i for a in node.attribute}
    codes, scale, point = (edit.values[n].astype(np.float32) for n in node.input)

    def each(value: Array) -> Array:
        return np.repeat(value, numbers["block_size"], numbers["axis"])

    return (codes - each(point)) * each(scale)
