"""Sums, differences, products, rescalings and PRelu, element by element."""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from quant.fixed_point import add, mul, prelu, rescale
from simulator.semantics.context import Array, Context
from toolchain.errors import InternalError
from toolchain.machine import Elementwise, ElementwiseKind

Shape = tuple[int, int, int]


class _Zeros(TypedDict):
    """The arguments that a sum and a product share: zero points of both operands, type of the result's codes."""

    a_zero_point: int
    b_zero_point: int
    dtype: np.dtype


# Of numerics.per_op.
_KEYS = {kind: kind.name.lower() for kind in ElementwiseKind}


def elementwise(op: Elementwise, context: Context) -> None:
    """Compute one of the kinds and write it. An operand with stride 0 in a dimension is broadcast along it."""
    kind, dtype, requant = op.kind, context.kind(op.output_type), context.decoded.requant
    key, shape = _KEYS[kind], (op.height, op.width, op.channels)
    a_strides = (op.a_row_stride, op.a_column_stride, op.a_channel_stride)
    a = _operand(op, op.a_address, shape, a_strides, op.a_surface_stride, op.a_type, context)
    zeros: _Zeros = {"a_zero_point": op.a_zero_point, "b_zero_point": op.b_zero_point, "dtype": dtype}
    limits = (op.output_zero_point, op.clamp_low, op.clamp_high)
    if kind == ElementwiseKind.RESCALE:
        out = requant(key, op.output_multiplier, op.output_shift, *limits)
        context.write(op, _broadcast_to_shape(rescale(a, out, x_zero_point=op.a_zero_point, dtype=dtype), shape), op.output_type)
        return
    b_strides = (op.b_row_stride, op.b_column_stride, op.b_channel_stride)
    b = _operand(op, op.b_address, shape, b_strides, op.b_surface_stride, op.b_type, context)
    if kind == ElementwiseKind.MUL:
        q = mul(a, b, requant(key, op.output_multiplier, op.output_shift, *limits), **zeros)
    elif kind == ElementwiseKind.PRELU:
        positive = requant(key, op.a_multiplier, op.a_shift, *limits)
        negative = requant(key, op.b_multiplier, op.b_shift, *limits)
        q = prelu(a, b, positive, negative, x_zero_point=op.a_zero_point, alpha_zero_point=op.b_zero_point, dtype=dtype)
    elif kind in (ElementwiseKind.ADD, ElementwiseKind.SUB):
        inner = context.decoded.inner_requant
        q = add(
            a,
            b,
            inner(key, op.a_multiplier, op.a_shift),
            inner(key, op.b_multiplier, op.b_shift),
            requant(key, op.output_multiplier, op.output_shift, *limits),
            left_shift=op.left_shift,
            subtract=kind == ElementwiseKind.SUB,
            **zeros,
        )
    else:
        raise InternalError(f"simulator.semantics.elementwise computes no {kind.name}")
    context.write(op, _broadcast_to_shape(q, shape), op.output_type)


def _broadcast_to_shape(values: Array, shape: Shape) -> Array:
    """Broadcast values to the full shape."""
    return np.broadcast_to(values, shape)


def _operand(op: Elementwise, address: int, shape: Shape, strides: Shape, surface: int, number: int, context: Context) -> Array:
    """Return an operand with size 1 where it is broadcast, so that numpy computes what does not change once.

    `number`: its type. `surface`: bytes between its granules of channels, 0: channels have no gaps.
    """
    stored_shape = tuple(n if stride else 1 for n, stride in zip(shape, strides))
    if surface and strides[2]:
        return context.feature_map(op, "input", address, stored_shape, strides[:2], number, surface)
    return context.state.feature_map(context.space(op, "input"), address, stored_shape, strides, context.kind(number))


VALUES = {Elementwise: elementwise}
