"""Depthwise convolution: each input channel has filters of its own."""

from __future__ import annotations

from simulator.semantics.context import Context
from toolchain.machine import Depthwise


def depthwise(op: Depthwise, context: Context) -> None:
    """Compute a depthwise convolution; its outputs are written where it emits, otherwise the accumulators keep the sums."""
    weights = context.depthwise_weights(op)
    q = context.emit_outputs(op, context.window_sums(op, op.channels, weights), op.channels)
    if q is not None:
        context.write(op, q, op.output_type)


VALUES = {Depthwise: depthwise}
