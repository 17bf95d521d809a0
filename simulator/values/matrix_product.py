"""Products of two matrices of activations."""

from __future__ import annotations

from quant.fixed_point import matmul, requantize
from simulator.values.context import Context
from toolchain.machine import MatrixProduct


def matrix_product(op: MatrixProduct, context: Context) -> None:
    a_strides = (op.a_batch_stride, op.a_row_stride, context.size)
    b_strides = (op.b_batch_stride, op.b_row_stride, op.b_column_stride)
    sums = matmul(
        context.feature_map(op, "input", op.a_address, (op.batches, op.rows, op.inner), a_strides),
        context.feature_map(op, "weights", op.b_address, (op.batches, op.inner, op.columns), b_strides),
        a_zero_point=op.a_zero_point,
        b_zero_point=op.b_zero_point,
        accumulator_bits=context.numerics.accumulator_bits,
    )
    sums = context.accumulated(op, sums)
    if op.emit:
        q = requantize(sums, context.output_requant("matrix_product", op), context.activation)
        strides = (op.output_batch_stride, op.output_row_stride, context.size)
        context.feature_map(op, "output", op.output_address, (op.batches, op.rows, op.columns), strides)[...] = q


VALUES = {MatrixProduct: matrix_product}
