"""Convolution: sums of the array, requantized on their way out, with a residual sum where the operation asks for it."""

from __future__ import annotations

from simulator.semantics.context import Context
from toolchain.machine import Convolution


def convolution(op: Convolution, context: Context) -> None:
    weights = context.decoded.weights(
        context.bytes_of(op, "weights", op.weight_address, op.weight_bytes(context.chip)).tobytes(),
        context.chip.weight_types[op.weight_type],
        op.output_channels,
        op.kernel_height,
        op.kernel_width,
        op.input_channels,
        op.group,
    )
    q = context.emit_outputs(op, context.window_sums(op, op.input_channels, weights), op.output_channels)
    if q is not None:
        context.write(op, context.with_addend(op, q) if op.use_add else q, op.output_type)


VALUES = {Convolution: convolution}
