"""Largest and mean value of a window."""

from __future__ import annotations

import numpy as np

from quant.fixed_point import conv2d, max_pool, pool_sum, requantize
from simulator.semantics.context import Context
from toolchain.machine import Pool, PoolKind


def pool(op: Pool, context: Context) -> None:
    """Write the largest or the mean value of each window. Padding never wins a maximum; in a mean it counts as zero."""
    strides, kernel = (op.stride_height, op.stride_width), (op.kernel_height, op.kernel_width)
    dilations, zero = (op.dilation_height, op.dilation_width), op.input_zero_point
    if op.kind == PoolKind.MAX:
        x, pads = context.window_input(op, op.channels, context.chip.code_types[op.input_type].low)
        q = max_pool(x, kernel=kernel, strides=strides, pads=pads, dilations=dilations, low=op.clamp_low, high=op.clamp_high)
        context.write(op, q[0], op.output_type)
        return
    x, pads = context.window_input(op, op.channels, zero)
    if dilations == (1, 1) or context.chip.code_types[op.input_type].is_wide:
        sums = pool_sum(x, kernel=kernel, strides=strides, pads=pads, dilations=dilations, x_zero_point=zero)
    else:
        ones = np.ones((op.channels, *kernel, 1), np.int8)
        sums = conv2d(x, ones, strides=strides, dilations=dilations, pads=pads, groups=op.channels, x_zero_point=zero)
    requant = context.output_requant("average_pool", op)
    context.write(op, requantize(sums[0], requant, context.kind(op.output_type)), op.output_type)


VALUES = {Pool: pool}
