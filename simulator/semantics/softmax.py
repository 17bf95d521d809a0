"""Softmax of rows."""

from __future__ import annotations

from quant.fixed_point import softmax8, softmax16
from simulator.semantics.context import Context
from toolchain.machine.operations.softmax import Softmax, scale_of


def softmax(op: Softmax, context: Context) -> None:
    """Write the softmax of each row."""
    shape, number = (op.rows, op.columns), op.element_type
    x = context.feature_map(op, "input", op.input_address, shape, (op.input_row_stride,), number)
    y = context.feature_map(op, "output", op.output_address, shape, (op.output_row_stride,), number)
    function = softmax8 if x.dtype.itemsize == 1 else softmax16
    y[...] = function(x, scale_of(op.input_multiplier, op.input_shift))


VALUES = {Softmax: softmax}
