"""Logarithm of the softmax of rows."""

from __future__ import annotations

from toolchain.machine.operations.row_log_softmax import RowLogSoftmax  # type: ignore[import-not-found]

from quant.fixed_point import log_softmax8
from simulator.semantics.context import Context


def row_log_softmax(op: RowLogSoftmax, context: Context) -> None:
    shape = (op.rows, op.columns)
    x = context.feature_map(op, "input", op.input_address, shape, (op.input_row_stride,), 0)
    y = context.feature_map(op, "output", op.output_address, shape, (op.output_row_stride,), 0)
    y[...] = log_softmax8(x, op.multiplier * 2.0 ** (-op.shift - 26))


VALUES = {RowLogSoftmax: row_log_softmax}
