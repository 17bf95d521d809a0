"""Hold the state of the walk that turns a quantized graph into a float one (`dequantize`).

It knows which tensors are codes, with their scales, which real tensors replace them, and how the file holds constants.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from toolchain.frontend.convert import elem_type, type_of
from toolchain.frontend.infer import evaluate, foldable, infer
from toolchain.frontend.rewrite import operand
from toolchain.ir.file_quantization import (
    BITS,
    FileQuant,
    FileWeightGroups,
    FileWeights,
    make_file_weight_groups,
    make_file_weights,
)
from toolchain.ir.graph import Node, OnnxGraph, OnnxNode, OnnxOp, TensorType, fresh_name

CODES = frozenset(("int8", "uint8", "int16", "uint16"))
SUMS = "int32"


@dataclass(frozen=True, eq=False)
class QuantizedConstant:
    """A constant that the file holds as codes: real = codes * scale.

    `codes`: int64, less their zero points. `scale`: one, or one for each index of `axis`.
    `zero_point`: of the first scale alone. `dtype`: the file's type of the codes; "" where codes were negated.
    """

    codes: np.ndarray
    scale: np.ndarray
    axis: int
    zero_point: int
    dtype: str

    def find_axis_weights(self, axis: int) -> FileWeights | None:
        """Return the weights of a node whose channels are along `axis`; None where the scales are along another axis."""
        if self.scale.size > 1 and axis % self.codes.ndim != self.axis:
            return None
        one = self.scale.size == 1 and self.dtype in BITS
        quant = FileQuant(float(self.scale.reshape(-1)[0]), self.zero_point, self.dtype) if one else None
        return make_file_weights(self.codes, self.scale, axis, quant)

    def real(self) -> np.ndarray:
        """Return the real numbers of a bias, float64 of one dimension."""
        return self.codes.reshape(-1) * self.scale.astype(np.float64).reshape(-1)


def make_quantized_constant(
    codes: np.ndarray, scale: np.ndarray, axis: int, spread: np.ndarray, zero_point: int, dtype: str
) -> QuantizedConstant:
    """Return a quantized constant with positive scales.

    A negative scale negates its codes, and a scale of zero becomes 1 with codes of zero. Such a constant has the type "".
    `codes`: codes less their zero points.
    `spread`: the scales broadcast to the shape of the codes.
    """
    if (scale > 0).all():
        return QuantizedConstant(codes, scale, axis, zero_point, dtype)
    return QuantizedConstant(codes * np.sign(spread).astype(np.int64), np.where(scale == 0, 1, np.abs(scale)), axis, 0, "")


@dataclass(frozen=True, eq=False)
class BlockQuantizedConstant:
    """A block-quantized constant: real = scale * code + minimum; each `size` neighbours along `axis` share both.

    `codes`: as the file has them.
    `scales`, `minima`: float64 of the same rank, with one element for each block along `axis`.
    """

    codes: np.ndarray
    scales: np.ndarray
    minima: np.ndarray
    axis: int
    size: int

    def find_axis_weights(self, axis: int) -> FileWeights | None:
        """Return the weights of a node whose channels are along `axis`; None where they do not fit.

        A fit is a matrix, or kernels of one element, in blocks along the reduction.
        """
        if self.codes.ndim < 2 or {axis % self.codes.ndim, self.axis} != {0, 1} or any(n > 1 for n in self.codes.shape[2:]):
            return None
        parts = (v.reshape(v.shape[:2]) for v in (self.codes, self.scales, self.minima))
        codes, scales, minima = (v if self.axis else v.T for v in parts)
        return make_file_weight_groups(FileWeightGroups(codes, scales, minima if minima.any() else None, self.size))

    def apply_node(self, node: OnnxNode, others: tuple[np.ndarray, ...]) -> BlockQuantizedConstant | None:
        """Return the constant that a node makes of this one, its first input, or None where it is no such constant.

        A node may transpose the matrix, or add one number for each block.
        """
        if node.op.op_type == "Transpose" and self.codes.ndim == 2:
            if tuple(node.op.attributes.get("perm", (1, 0))) == (0, 1):
                return self
            return BlockQuantizedConstant(self.codes.T, self.scales.T, self.minima.T, 1 - self.axis, self.size)
        if node.op.op_type != "Add" or len(others) != 1 or others[0].shape != self.codes.shape:
            return None
        first = np.take(others[0], range(0, self.codes.shape[self.axis], self.size), self.axis)
        each = np.repeat(first, self.size, self.axis)
        spread = np.take(each, range(self.codes.shape[self.axis]), self.axis)
        return replace(self, minima=self.minima + first) if np.array_equal(spread, others[0]) else None


def make_block_quantized_constant(
    codes: np.ndarray, scales: np.ndarray, points: np.ndarray, axis: int, size: int
) -> BlockQuantizedConstant:
    """Return the constant real = scale (code - point), as a DequantizeLinear with blocks along `axis` defines it.

    The result's scales are positive: codes of a negative scale are mirrored within their range.
    A block of scale zero has codes equal to its point, at the largest scale beside it.
    """

    def each(values: np.ndarray) -> np.ndarray:
        return np.take(np.repeat(values, size, axis), range(codes.shape[axis]), axis)

    scales, points = scales.astype(np.float64), np.broadcast_to(points, scales.shape)
    is_negative, nothing, ends = scales < 0, scales == 0, codes.min(initial=0) + codes.max(initial=0)
    codes = np.where(each(nothing), each(points), np.where(each(is_negative), ends - codes, codes))
    points = np.where(is_negative, ends - points, points)
    largest = np.abs(scales).max(axis, keepdims=True)
    scales = np.where(nothing, np.where(largest > 0, largest, 1), np.abs(scales))
    return BlockQuantizedConstant(codes, scales, -points * scales, axis, size)


@dataclass(frozen=True)
class CodeTensor:
    """A tensor of codes, with its scale, zero point and type.

    `real`: the float tensor that the codes stand for; "" until something reads it.
    `dtype`: one of `CODES`; int32 for sums of products, whose scale is that of the input with the weights still as codes.
    """

    real: str
    scale: float
    zero_point: int
    dtype: str


@dataclass
class DequantizeState:
    """The state of the walk; nodes that were converted are in `nodes`, in real numbers.

    `graph`, `opset`: what is converted. `static`: whether ranges that runs compute are calibrated instead.
    `types`, `constants`: by tensor, old and new.
    `same`: by tensor that has no node any more, the tensor that holds the same.
    `code_tensors`: by tensor of codes, what they stand for.
    `emitted_tensors`: outputs of nodes emitted so far.
    `quantized_constants`: by constant in real numbers, how the file holds it.
    `stored`: by node, how the file holds its constants.
    `floats`: by constant whose codes are floats, their type.
    `lost`: how many layers have weights held in a way that no `FileWeights` describes.
    """

    graph: OnnxGraph
    opset: int
    static: bool
    types: dict[str, TensorType]
    constants: dict[str, np.ndarray]
    same: dict[str, str] = field(default_factory=dict[str, str])
    code_tensors: dict[str, CodeTensor] = field(default_factory=dict[str, CodeTensor])
    emitted_tensors: set[str] = field(default_factory=set[str])
    quantized_constants: dict[str, QuantizedConstant | BlockQuantizedConstant] = field(
        default_factory=dict[str, QuantizedConstant | BlockQuantizedConstant]
    )
    nodes: list[OnnxNode] = field(default_factory=list[OnnxNode])
    stored: dict[str, FileWeights] = field(default_factory=dict[str, FileWeights])
    floats: dict[str, str] = field(default_factory=dict[str, str])
    lost: int = 0

    def emit(self, node: OnnxNode) -> None:
        """Add a node, with its inputs replaced as `same` says; a node of constants alone is computed instead."""
        node = replace(node, inputs=tuple(self.same.get(n, n) for n in node.inputs))
        if foldable(node, self.constants):
            self.constants.update(evaluate(node, self.constants, self.opset))
            self.types.update((n, type_of(self.constants[n])) for n in node.outputs if n)
            block_constant = self.quantized_constants.get(operand(node, 0))
            if isinstance(block_constant, BlockQuantizedConstant) and (
                result_constant := block_constant.apply_node(node, tuple(self.constants[n] for n in node.inputs[1:]))
            ):
                self.quantized_constants[node.outputs[0]] = result_constant
            return
        self.types.update(infer(node, self.types, self.constants, self.opset))
        self.nodes.append(node)
        self.emitted_tensors.update(node.outputs)

    def fresh(self, base: str) -> str:
        """Return `base`, or a name like it, that no tensor has."""
        return fresh_name(base, self.types)

    def constant(self, base: str, value: np.ndarray) -> str:
        """Add a constant and return its name, made from `base`."""
        name = self.fresh(base)
        self.constants[name] = value
        self.types[name] = type_of(value)
        return name

    def scalar(self, name: str) -> float | None:
        """Return the value of a constant of one element, such as a scale; None for any other tensor."""
        value = self.constants.get(self.same.get(name, name))
        return None if value is None or value.size != 1 else float(value.reshape(-1)[0])


def get_real_tensor(name: str, walk: DequantizeState) -> str:
    """Return the float tensor that a tensor of codes stands for; a DequantizeLinear is added where there is none yet."""
    codes = walk.code_tensors[name]
    if codes.real:
        return walk.same.get(codes.real, codes.real)
    real_name = walk.fresh(f"{name}/real")
    walk.emit(_conversion("DequantizeLinear", name, real_name, codes, walk))
    walk.code_tensors[name] = replace(codes, real=real_name)
    return real_name


def make_codes(name: str, walk: DequantizeState) -> None:
    """Add the node that computes a tensor of codes from its real tensor, where so far only the real tensor exists.

    Nothing is done for tensors that are no codes, inputs, and codes that a node makes.
    """
    codes = walk.code_tensors.get(name)
    if codes is None or name in walk.emitted_tensors or name in walk.graph.inputs:
        return
    if codes.dtype == SUMS:
        _make_sums(name, codes, walk)
        return
    walk.emit(_conversion("QuantizeLinear", codes.real, name, codes, walk))


def _make_sums(name: str, codes: CodeTensor, walk: DequantizeState) -> None:
    """Add nodes that compute sums of products from their real tensor, as integers; they are exact below 2^24."""
    factor = walk.constant(f"{name}/factor", np.asarray(1 / codes.scale, np.float32))
    scaled, rounded_sums = walk.fresh(f"{name}/scaled"), walk.fresh(f"{name}/whole")
    walk.emit(Node(f"{name}/scale", OnnxOp("Mul"), (codes.real, factor), (scaled,), ()))
    walk.emit(Node(f"{name}/round", OnnxOp("Round"), (scaled,), (rounded_sums,), ()))
    walk.emit(Node(f"{name}/cast", OnnxOp("Cast", {"to": elem_type(SUMS)}), (rounded_sums,), (name,), ()))


def _conversion(op_type: str, x: str, y: str, codes: CodeTensor, walk: DequantizeState) -> OnnxNode:
    scale = walk.constant(f"{y}/scale", np.asarray(codes.scale, np.float32))
    point = walk.constant(f"{y}/zero_point", np.asarray(codes.zero_point, codes.dtype))
    attributes: dict[str, Any] = {"axis": 1}
    return Node(f"{y}/{op_type}", OnnxOp(op_type, attributes), (x, scale, point), (y,), ())
