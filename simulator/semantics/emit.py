"""Requantize sums of accumulators that are a memory, and write them as outputs."""

from __future__ import annotations

from quant.fixed_point import requantize
from simulator.semantics.context import Context
from toolchain.hw.unit_map import SUMS
from toolchain.machine import Emit, EmitKind


def emit(op: Emit, context: Context) -> None:
    """Write the sums as outputs, after table and residual sum where the operation has them. The sums stay as they are."""
    shape = (op.height, op.width, op.channels)
    sums = context.state.sums(context.space(op, SUMS), op.sums_address, shape).copy()
    if op.kind == EmitKind.CONVOLUTION:
        q = context.channels_requantized(op, "tables", sums, op.channels)
    else:
        q = requantize(sums, context.output_requant("matrix_product", op), context.kind(op.output_type))
    if op.use_table:
        q = context.look_up_table(q, op, "tables", op.table_address, op.output_type)
    context.write(op, context.with_addend(op, q) if op.use_add else q, op.output_type)


VALUES = {Emit: emit}
