"""Convolution: sums of the array, requantized on their way out, with a residual sum where the operation asks for it."""

from __future__ import annotations

from simulator.semantics.context import Context
from toolchain.machine import Convolution


def convolution(op: Convolution, context: Context) -> None:
    """Compute a convolution; its outputs are written where it emits, otherwise the accumulators keep the sums."""
    weights = context.dense_weights(op)
    q = context.emit_outputs(op, context.window_sums(op, op.input_channels, weights), op.output_channels)
    if q is not None:
        context.write(op, context.with_addend(op, q) if op.use_add else q, op.output_type)


VALUES = {Convolution: convolution}
