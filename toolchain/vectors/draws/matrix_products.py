"""The test cases of products of two matrices of activations.

A draw places operands and appends operations to the `CaseBuilder` it is given. `CASES` has a function for each
operation that yields (name of the case, draw).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain.hw import Chip
from toolchain.hw.unit_map import SUMS
from toolchain.machine import MatrixProduct, code_bytes
from toolchain.vectors.case import Draw
from toolchain.vectors.case_builder import CaseBuilder, NotApplicable
from toolchain.vectors.draws.accumulator_draws import CLAMPS, clamps, edges, end_shifts

Array = NDArray[Any]
Triple = tuple[int, int, int]


def _product(
    bench: CaseBuilder,
    rows: int = 4,
    inner: int = 7,
    columns: int = 5,
    is_transposed: bool = False,
    a: Array | None = None,
    b: Array | None = None,
    types: Triple = (0, 0, 0),
    shift: int | None = None,
    **extra_fields: Any,
) -> None:
    """Add a matrix product to the case. Operands that are None are random.

    `is_transposed`: b is stored column by column. `types`: numbers of the types of a, b, output. `shift`: the result's
    scale is 2**-shift; None: one by which results fill the codes.
    """
    unit = bench.unit(MatrixProduct, extra_fields.get("unit", 0))
    a = bench.codes((rows, inner), types[0]) if a is None else a
    b = bench.codes((inner, columns), types[1]) if b is None else b
    left = bench.feature_map(unit, "input", a[:, None, :])
    right = bench.feature_map(unit, "weights", (b.T if is_transposed else b)[:, None, :])
    size = int(code_bytes(types[1], bench.chip))
    steps = (size, right.row) if is_transposed else (right.row, size)
    f: dict[str, Any] = {"a_address": left.address, "a_row_stride": left.row, "b_address": right.address}
    f |= {"b_row_stride": steps[0], "b_column_stride": steps[1], "rows": rows, "inner": inner, "columns": columns}
    for name, number in zip(("a", "b"), types):
        f |= {f"{name}_type": number, f"{name}_zero_point": bench.zero(MatrixProduct, f"{name}_zero_point", number)}
    emit = extra_fields.get("emit", 1)
    if SUMS in unit.roles:
        word = bench.chip.array.accumulators.sum_bytes
        f |= {"sums_address": bench.room(unit.roles[SUMS], rows * columns * word)}
    elif emit:
        out = bench.type(types[2])
        spread = sum(bench.type(t).bits for t in types[:2]) - 9 + int(np.log2(inner) / 2 + 0.5) + 8 - out.bits
        target = bench.output(unit, (rows, 1, columns), types[2])
        multiplier, right_shift = bench.scale(max(spread, 0), 1.3) if shift is None else bench.scale(shift)
        f |= {"output_address": target.address, "output_row_stride": target.row, "multiplier": multiplier, "shift": right_shift}
        f |= {"output_zero_point": bench.zero(MatrixProduct, "output_zero_point", types[2]), "output_type": types[2], "emit": 1}
        f |= {"clamp_low": out.low, "clamp_high": out.high}
    bench.add(MatrixProduct, **(f | extra_fields))


def plain(bench: CaseBuilder) -> None:
    """Both operands by rows."""
    _product(bench)


def turned(bench: CaseBuilder) -> None:
    """The second operand by columns."""
    _product(bench, is_transposed=True)


def at_end(bench: CaseBuilder) -> None:
    """Operands on the last bytes of their memories."""
    # CaseBuilder places them there by the name of the case
    _product(bench, is_transposed=True)


def single(bench: CaseBuilder) -> None:
    """One element of each."""
    _product(bench, 1, 1, 1)


def partial_folds(bench: CaseBuilder) -> None:
    """One more row, product and column than the array has rows, depth and columns."""
    array = bench.unit(MatrixProduct).array
    _product(bench, array.rows + 1, array.rows * array.depth + 1, array.columns + 1)


def largest_strides(bench: CaseBuilder) -> None:
    """The largest memory strides. Every size is 1, so no byte moves."""
    single(bench)
    bench.stretch_last_operation()


def long(bench: CaseBuilder) -> None:
    """Many products a sum; many rows; many columns."""
    most = min(600, bench.chip.array.accumulators.entries // 2)
    for rows, inner, columns in ((2, 1500, 2), (most, 2, 1), (1, 2, most)):
        _product(bench, rows, inner, columns)


def with_clamp(bench: CaseBuilder, name: str) -> None:
    """A clamp of a small range, and of one code."""
    _require_own_output(bench)
    low, high = clamps(bench, name)
    _product(bench, clamp_low=low, clamp_high=high)


def accumulated(bench: CaseBuilder) -> None:
    """Three operations: the first starts the sums, the second adds to them, the third adds and emits."""
    _require_own_output(bench)
    _product(bench, emit=0)
    _product(bench, inner=3, accumulate=1, emit=0)
    _product(bench, inner=9, accumulate=1)


def rounding(bench: CaseBuilder, shift: int) -> None:
    """Products by 1: sums are codes, on every edge of the rounding."""
    _require_own_output(bench)
    codes = bench.type(0)
    zero = 0 if bench.chip.numerics.symmetric_activations else (codes.low + codes.high + 1) // 2
    edge_values = np.array([v for v in edges(max(shift, 0), codes.high) if codes.low <= v + zero <= codes.high])
    a, b = (edge_values[:, None] + zero).astype(codes.dtype), np.array([[zero + 1, zero - 1]], codes.dtype)
    zeros: dict[str, Any] = {"a_zero_point": zero, "b_zero_point": zero, "output_zero_point": zero}
    _product(bench, edge_values.size, 1, 2, a=a, b=b, shift=shift, **zeros)


def with_types(bench: CaseBuilder, types: Triple) -> None:
    """Operands and output of other types, by their numbers."""
    _product(bench, types=types)


def with_choice(bench: CaseBuilder, extra_fields: dict[str, Any]) -> None:
    """Another dataflow, or another array: the codes are the same, the time differs."""
    _product(bench, **extra_fields)


def batched(bench: CaseBuilder, shared: bool) -> None:
    """Several products in one operation; of each its own operands, or one second operand for all."""
    _require_own_output(bench)
    batches = min(3, MatrixProduct.need("batches", bench.chip).high)
    if batches == 1:
        raise NotApplicable("limits.matrix_product.max_batches is 1")
    unit, size = bench.unit(MatrixProduct), bench.type(0).size_bytes
    a = bench.feature_map(unit, "input", bench.codes((batches, 4, 7)))
    b = bench.feature_map(unit, "weights", bench.codes((1 if shared else batches, 7, 5)))
    out = bench.output(unit, (batches, 4, 5))
    multiplier, shift = bench.scale(9)
    f = {"a_address": a.address, "a_row_stride": a.column, "a_batch_stride": a.row, "rows": 4, "inner": 7, "columns": 5}
    f |= {"b_address": b.address, "b_row_stride": b.column, "b_column_stride": size, "b_batch_stride": 0 if shared else b.row}
    f |= {"output_address": out.address, "output_row_stride": out.column, "output_batch_stride": out.row, "batches": batches}
    bench.add(MatrixProduct, **f, multiplier=multiplier, shift=shift, emit=1)


def _require_own_output(bench: CaseBuilder) -> None:
    """Raise NotApplicable where the sums leave by another operation."""
    if SUMS in bench.unit(MatrixProduct).roles:
        raise NotApplicable("sums leave by the operation emit")


def _cases(operation: Any, chip: Chip) -> Iterator[tuple[str, Draw]]:
    for draw in (plain, turned, at_end, single, largest_strides, long, partial_folds, accumulated):
        yield draw.__name__, draw
    for name in CLAMPS:
        yield f"clamped_{name}", partial(with_clamp, name=name)
    for shift in dict.fromkeys((0, 1, 4, *end_shifts(chip))):
        yield f"rounding_{shift}".replace("-", "minus"), partial(rounding, shift=shift)
    types = range(len(chip.code_types))
    for kinds in ((a, b, o) for a in types for b in types for o in types if (a, b, o) != (0, 0, 0)):
        yield "typed_{}_{}_{}".format(*kinds), partial(with_types, types=kinds)
    for name in ("unit", "dataflow"):
        for number in range(1, operation.need(name, chip).high + 1):
            yield f"{name}_{number}", partial(with_choice, extra_fields={name: number})
    yield "batched", partial(batched, shared=False)
    yield "batched_shared", partial(batched, shared=True)


CASES = {MatrixProduct: _cases}
