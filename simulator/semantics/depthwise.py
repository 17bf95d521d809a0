"""Depthwise convolution."""

from __future__ import annotations

from simulator.semantics.context import Context
from toolchain.machine import Depthwise, weight_bytes


def depthwise(op: Depthwise, context: Context) -> None:
    taps = op.kernel_height * op.kernel_width
    raw = context.bytes_of(op, "weights", op.weight_address, taps * weight_bytes(op.channels, op.weight_type, context.chip))
    weights = context.decoded.depthwise_weights(
        raw, context.chip.weight_types[op.weight_type], op.kernel_height, op.kernel_width, op.channels
    )
    q = context.emit_outputs(op, context.window_sums(op, op.channels, weights), op.channels)
    if q is not None:
        context.write(op, q, op.output_type)


VALUES = {Depthwise: depthwise}
