"""Convolution: sums of the array, requantized on their way out, with a residual sum where the operation asks for it."""

from __future__ import annotations

from quant.fixed_point import add
from simulator.values.context import Array, Context
from toolchain.machine import Convolution, weight_bytes


def convolution(op: Convolution, context: Context) -> None:
    inner = op.kernel_height * op.kernel_width * op.input_channels
    weights = context.arithmetic.weights(
        context.bytes_of(op, "weights", op.weight_address, op.output_channels * weight_bytes(inner, context.chip)).tobytes(),
        op.output_channels,
        op.kernel_height,
        op.kernel_width,
        op.input_channels,
    )
    q = context.emitted(op, context.window_sums(op, op.input_channels, weights), op.output_channels)
    if q is not None:
        context.window_output(op, op.output_channels)[...] = _residual(op, q, context) if op.use_add else q


def _residual(op: Convolution, q: Array, context: Context) -> Array:
    key, inner = "add", context.arithmetic.inner_requant
    shape = (op.output_height, op.output_width, op.output_channels)
    strides = (op.addend_row_stride, op.addend_column_stride, context.size)
    return add(
        q,
        context.feature_map(op, "input", op.addend_address, shape, strides),
        inner(key, op.add_input_multiplier, op.add_input_shift),
        inner(key, op.add_addend_multiplier, op.add_addend_shift),
        context.arithmetic.requant(
            key,
            op.add_output_multiplier,
            op.add_output_shift,
            op.add_output_zero_point,
            op.add_clamp_low,
            op.add_clamp_high,
        ),
        a_zero_point=op.add_input_zero_point,
        b_zero_point=op.add_addend_zero_point,
        left_shift=op.add_left_shift,
        dtype=context.activation,
    )


VALUES = {Convolution: convolution}
