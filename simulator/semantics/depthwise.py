"""Depthwise convolution."""

from __future__ import annotations

from simulator.semantics.context import Context
from toolchain.machine import Depthwise


def depthwise(op: Depthwise, context: Context) -> None:
    weights = context.depthwise_weights(op)
    q = context.emit_outputs(op, context.window_sums(op, op.channels, weights), op.channels)
    if q is not None:
        context.write(op, q, op.output_type)


VALUES = {Depthwise: depthwise}
