"""Functions of one tensor, by a table."""

from __future__ import annotations

import numpy as np

from simulator.values.context import Context
from toolchain.machine import Table


def table(op: Table, context: Context) -> None:
    shape, strides = (op.height, op.width, op.channels), (op.input_row_stride, op.input_column_stride, context.size)
    x = context.feature_map(op, "input", op.input_address, shape, strides)
    looked_up = context.looked_up(np.ascontiguousarray(x), context.table(op, "tables", op.table_address))
    context.output(op, *shape)[...] = looked_up


VALUES = {Table: table}
