"""Softmax of rows."""

from __future__ import annotations

from toolchain.machine.operations.row_softmax import RowSoftmax  # type: ignore[import-not-found]

from quant.fixed_point import softmax8
from simulator.values.context import Context


def row_softmax(op: RowSoftmax, context: Context) -> None:
    shape = (op.rows, op.columns)
    x = context.feature_map(op, "input", op.input_address, shape, (op.input_row_stride,), 0)
    y = context.feature_map(op, "output", op.output_address, shape, (op.output_row_stride,), 0)
    y[...] = softmax8(x, op.multiplier * 2.0 ** (-op.shift - 26))


VALUES = {RowSoftmax: row_softmax}
