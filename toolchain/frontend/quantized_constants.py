"""A constant as a quantized model's file holds it: codes and scales, along an axis or in blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from toolchain.ir.file_quantization import (
    BITS,
    FileQuant,
    FileWeightGroups,
    FileWeights,
    make_file_weight_groups,
    make_file_weights,
)
from toolchain.ir.graph import OnnxNode


@dataclass(frozen=True, eq=False)
class QuantizedConstant:
    """A constant: codes less their zero points, the scales along `axis`, and the type that the file has it in."""

    codes: np.ndarray
    scale: np.ndarray
    axis: int
    zero_point: int
    dtype: str

    def find_axis_weights(self, axis: int) -> FileWeights | None:
        """Return the weights for a node whose channels are along `axis`, or None where the scales are along another
        axis.
        """
        if self.scale.size > 1 and axis % self.codes.ndim != self.axis:
            return None
        one = self.scale.size == 1 and self.dtype in BITS
        quant = FileQuant(float(self.scale.reshape(-1)[0]), self.zero_point, self.dtype) if one else None
        return make_file_weights(self.codes, self.scale, axis, quant)

    def real(self) -> np.ndarray:
        """float64, of a bias."""
        return self.codes.reshape(-1) * self.scale.astype(np.float64).reshape(-1)


def make_quantized_constant(
    codes: np.ndarray, scale: np.ndarray, axis: int, spread: np.ndarray, zero_point: int, dtype: str
) -> QuantizedConstant:
    """Return a quantized constant with positive scales.

    A negative scale negates its codes, and a scale of zero has codes of zero. Such codes have no activation type.
    `codes`: codes less their zero points.
    `spread`: the scales broadcast beside the codes.
    """
    if (scale > 0).all():
        return QuantizedConstant(codes, scale, axis, zero_point, dtype)
    return QuantizedConstant(codes * np.sign(spread).astype(np.int64), np.where(scale == 0, 1, np.abs(scale)), axis, 0, "")


@dataclass(frozen=True, eq=False)
class BlockQuantizedConstant:
    """A block-quantized constant: real = scale x code + minimum; each `size` neighbours along `axis` share both.

    `codes`: as the file has them.
    `scales`, `minima`: float64 of the same rank, blocks along `axis`.
    """

    codes: np.ndarray
    scales: np.ndarray
    minima: np.ndarray
    axis: int
    size: int

    def find_axis_weights(self, axis: int) -> FileWeights | None:
        """Return the weights as `QuantizedConstant.find_axis_weights` does, or None where they do not fit.

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
