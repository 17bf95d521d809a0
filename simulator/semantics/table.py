"""Functions of one tensor, by a table."""

from __future__ import annotations

import numpy as np

from simulator.semantics.context import Context
from toolchain.machine import Table


def table(op: Table, context: Context) -> None:
    """Write the table's entry for each code of the input, at the same place of the output."""
    shape, outer, number = (op.height, op.width, op.channels), (op.input_row_stride, op.input_column_stride), op.element_type
    x = context.feature_map(op, "input", op.input_address, shape, outer, number, op.input_surface_stride)
    looked_up = context.look_up_table(np.ascontiguousarray(x), op, "tables", op.table_address, number)
    context.write(op, looked_up, number)


VALUES = {Table: table}
