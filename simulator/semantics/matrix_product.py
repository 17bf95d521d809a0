"""Products of two matrices of activations."""

from __future__ import annotations

from quant.fixed_point import matmul, requantize
from simulator.semantics.context import Context
from toolchain.machine import MatrixProduct


def matrix_product(op: MatrixProduct, context: Context) -> None:
    """Compute the products, batch by batch; outputs are written where it emits, otherwise the accumulators keep the sums."""
    a_outer, b_shape = (op.a_batch_stride, op.a_row_stride), (op.batches, op.inner, op.columns)
    b_space, b_strides = context.space(op, "weights"), (op.b_batch_stride, op.b_row_stride, op.b_column_stride)
    sums = matmul(
        context.feature_map(op, "input", op.a_address, (op.batches, op.rows, op.inner), a_outer, op.a_type),
        context.state.feature_map(b_space, op.b_address, b_shape, b_strides, context.kind(op.b_type)),
        a_zero_point=op.a_zero_point,
        b_zero_point=op.b_zero_point,
        accumulator_bits=context.numerics.accumulator_bits,
    )
    sums = context.accumulate(op, sums)
    if op.emit:
        q = requantize(sums, context.output_requant("matrix_product", op), context.kind(op.output_type))
        outer, shape = (op.output_batch_stride, op.output_row_stride), (op.batches, op.rows, op.columns)
        context.feature_map(op, "output", op.output_address, shape, outer, op.output_type)[...] = q


VALUES = {MatrixProduct: matrix_product}
