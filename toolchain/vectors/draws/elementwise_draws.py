"""The test cases of elementwise functions, lookup tables and softmax.

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
from toolchain.machine import Elementwise, ElementwiseKind, Softmax, Table, TableFunction
from toolchain.vectors.case import Draw
from toolchain.vectors.case_builder import CaseBuilder
from toolchain.vectors.draws.accumulator_draws import CLAMPS, clamps, edges, end_shifts, table

Array = NDArray[Any]
Triple = tuple[int, int, int]
SUMS = (ElementwiseKind.ADD, ElementwiseKind.SUB)


def _scales(bench: CaseBuilder, kind: ElementwiseKind, types: Triple) -> dict[str, int]:
    """Return left shift, multipliers and shifts by which results of this kind fill the codes."""
    a, b, out = (bench.type(t).bits for t in types)
    f: dict[str, tuple[int, int]] = {}
    left_shift = 0
    if kind in SUMS:
        max_left_shift = Elementwise.need("left_shift", bench.chip).high
        left_shift = min(max_left_shift, bench.chip.numerics.headroom(max((bench.type(t) for t in types), key=lambda c: c.bits)))
        f |= {"a": bench.scale(2, 1.7), "b": bench.scale(1, 1.2), "output": bench.scale(left_shift - 1 + max(a, b) - out, 1.1)}
    elif kind == ElementwiseKind.MUL:
        f |= {"output": bench.scale(a + b - out - 2, 1.3)}
    elif kind == ElementwiseKind.RESCALE:
        f |= {"output": bench.scale(a - out, 1.2)}
    else:
        f |= {"a": bench.scale(a - out, 1.1), "b": bench.scale(a + b - out - 2, 1.3)}
    return {"left_shift": left_shift} | {f"{n}_{p}": v for n, pair in f.items() for p, v in zip(("multiplier", "shift"), pair)}


def _elementwise(
    bench: CaseBuilder,
    kind: ElementwiseKind,
    a: Array | None = None,
    b: Array | None = None,
    shape: Triple = (3, 4, 5),
    broadcast: tuple[bool, bool, bool] = (False, False, False),
    types: Triple = (0, 0, 0),
    **extra_fields: Any,
) -> None:
    """Add an elementwise operation to the case. Operands that are None are random.

    `shape`: (h, w, c) of a and of the output. `broadcast`: dimensions along which b has one element. `types`: numbers
    of the types of a, b, output. `extra_fields` override parameters.
    """
    unit = bench.unit(Elementwise, extra_fields.get("unit", 0))
    a = bench.codes(shape, types[0]) if a is None else a
    b = bench.codes([1 if one else n for one, n in zip(broadcast, shape)], types[1]) if b is None else b
    f: dict[str, Any] = {"kind": kind, "height": shape[0], "width": shape[1], "channels": shape[2]}
    for name, values, ones in (("a", a, (False,) * 3), ("b", b, broadcast)):
        site = bench.feature_map(unit, "input", values)
        strides = (site.row, site.column, values.dtype.itemsize)
        f |= site.get_parameters(name)
        f |= {f"{name}_{d}_stride": 0 if one else s for d, one, s in zip(("row", "column", "channel"), ones, strides)}
    target = bench.output(unit, shape, types[2])
    f |= target.get_parameters("output") | _scales(bench, kind, types)
    for name, number in zip(("a", "b", "output"), types):
        f |= {f"{name}_type": number, f"{name}_zero_point": bench.zero(Elementwise, f"{name}_zero_point", number)}
    f |= {"clamp_low": bench.type(types[2]).low, "clamp_high": bench.type(types[2]).high}
    bench.add(Elementwise, **(f | extra_fields))


def plain(bench: CaseBuilder, kind: ElementwiseKind) -> None:
    """Two feature maps of one shape."""
    _elementwise(bench, kind)


def at_end(bench: CaseBuilder, kind: ElementwiseKind) -> None:
    """Operands on the last bytes of their memories."""
    # CaseBuilder places them there by the name of the case
    _elementwise(bench, kind)


def in_granules(bench: CaseBuilder, kind: ElementwiseKind) -> None:
    """Feature maps in granules of channels, the last of which has two; what fills it changes nothing, and is written as 0."""
    _elementwise(bench, kind, shape=(2, 3, bench.granule + 2))


def single(bench: CaseBuilder, kind: ElementwiseKind) -> None:
    """One element of each."""
    _elementwise(bench, kind, shape=(1, 1, 1))


def broadcast(bench: CaseBuilder, kind: ElementwiseKind, along: tuple[bool, bool, bool]) -> None:
    """The second operand has one element along some dimensions: strides of 0."""
    _elementwise(bench, kind, broadcast=along)


def largest_strides(bench: CaseBuilder, kind: ElementwiseKind) -> None:
    """The largest memory strides. Every size is 1, so no byte moves."""
    single(bench, kind)
    bench.stretch_last_operation()


def long(bench: CaseBuilder, kind: ElementwiseKind) -> None:
    """Many channels; many columns; many rows."""
    for shape in ((1, 1, 3000), (1, 600, 1), (600, 1, 1)):
        _elementwise(bench, kind, shape=shape)


def with_clamp(bench: CaseBuilder, kind: ElementwiseKind, name: str) -> None:
    """A clamp of a small range, and of one code."""
    low, high = clamps(bench, name)
    _elementwise(bench, kind, clamp_low=low, clamp_high=high)


def in_place(bench: CaseBuilder, kind: ElementwiseKind) -> None:
    """The result lies where the first operand was."""
    _elementwise(bench, kind)
    last = bench.ops.pop()
    source_fields = {
        "output_address": "a_address",
        "output_row_stride": "a_row_stride",
        "output_column_stride": "a_column_stride",
    }
    f = {name: getattr(last, source_fields.get(name, name)) for name in last.parameters()}
    bench.add(Elementwise, **f)


def pairs(bench: CaseBuilder, kind: ElementwiseKind) -> None:
    """The codes around 0 and at the ends, each with each, at scales at which many results lie half way between two codes."""
    codes = bench.type(0)
    zero = 0 if bench.chip.numerics.symmetric_activations else (codes.low + codes.high + 1) // 2
    some = np.array([codes.low, codes.low + 1, *range(zero - 5, zero + 6), codes.high - 1, codes.high], codes.dtype)
    shape = (1, some.size, some.size)
    a, b = np.broadcast_to(some[None, :, None], shape), np.broadcast_to(some[None, None, :], shape)
    zeros: dict[str, Any] = {f"{name}_zero_point": zero for name in ("a", "b", "output")}
    left_shift = min(2, Elementwise.need("left_shift", bench.chip).high)
    scales = {"a": bench.scale(1), "b": bench.scale(2), "output": bench.scale(left_shift + 1 if kind in SUMS else 1)}
    f: dict[str, Any] = {f"{n}_{p}": v for n, pair in scales.items() for p, v in zip(("multiplier", "shift"), pair)}
    _elementwise(bench, kind, np.ascontiguousarray(a), np.ascontiguousarray(b), shape, **zeros, **f, left_shift=left_shift)


def rounding(bench: CaseBuilder, kind: ElementwiseKind, shift: int) -> None:
    """Codes on every edge of the rounding of one shift, both operands' and the output's scale the same."""
    codes = bench.type(0)
    zero = 0 if bench.chip.numerics.symmetric_activations else (codes.low + codes.high + 1) // 2
    some = [v + zero for v in edges(max(shift, 0), codes.high) if codes.low <= v + zero <= codes.high]
    a = np.array(some, codes.dtype)[None, None, :]
    b = np.full_like(a, zero + 1)
    scale = bench.scale(shift)
    f: dict[str, Any] = {f"{n}_{p}": v for n in ("a", "b", "output") for p, v in zip(("multiplier", "shift"), scale)}
    zeros: dict[str, Any] = {f"{name}_zero_point": zero for name in ("a", "b", "output")}
    _elementwise(bench, kind, a, b, (1, 1, len(some)), **zeros, **f, left_shift=0)


def with_types(bench: CaseBuilder, kind: ElementwiseKind, types: Triple) -> None:
    """Operands and output of other types, by their numbers."""
    _elementwise(bench, kind, types=types)


def on_unit(bench: CaseBuilder, kind: ElementwiseKind, unit: int) -> None:
    """Draw the case on another vector engine."""
    _elementwise(bench, kind, unit=unit)


def _cases(operation: Any, chip: Chip) -> Iterator[tuple[str, Draw]]:
    for kind in ElementwiseKind:
        name = f"{kind.name.lower()}_"
        for draw in (plain, in_granules, at_end, single, largest_strides, long, in_place, pairs):
            yield name + draw.__name__, partial(draw, kind=kind)
        for clamp in CLAMPS:
            yield f"{name}clamped_{clamp}", partial(with_clamp, kind=kind, name=clamp)
        for along in ((True, False, False), (False, True, False), (True, True, False), (False, False, True), (True, True, True)):
            axes = "".join(axis for axis, one in zip("hwc", along) if one)
            yield f"{name}broadcast_{axes}", partial(broadcast, kind=kind, along=along)
        for shift in dict.fromkeys((0, 1, 3, *end_shifts(chip))):
            yield f"{name}rounding_{shift}".replace("-", "minus"), partial(rounding, kind=kind, shift=shift)
        types = range(len(chip.code_types))
        for kinds in ((a, b, o) for a in types for b in types for o in types if (a, b, o) != (0, 0, 0)):
            yield name + "typed_{}_{}_{}".format(*kinds), partial(with_types, kind=kind, types=kinds)
        for number in range(1, operation.need("unit", chip).high + 1):
            yield f"{name}unit_{number}", partial(on_unit, kind=kind, unit=number)


def looked_up(bench: CaseBuilder, number: int, function: TableFunction) -> None:
    """Every code once, or of 16 bits the ends and middles of segments, in a random table."""
    codes, unit = bench.type(number), bench.unit(Table)
    step = 1 if codes.bits == 8 else 64
    values = np.arange(codes.low, codes.high + 1, step)
    values = np.unique(np.clip(np.concatenate([values, values - 1, values + 1]), codes.low, codes.high)) if step > 1 else values
    values = values[: values.size // 8 * 8].reshape(2, 4, -1).astype(codes.dtype)
    source, target = bench.feature_map(unit, "input", values), bench.output(unit, (2, 4, values.shape[2]), number)
    f: dict[str, Any] = source.get_parameters("input")
    f |= target.get_parameters("output")
    f |= {"height": 2, "width": 4, "channels": values.shape[2], "element_type": number, "function": function}
    bench.add(Table, **f, table_address=table(bench, Table, "tables", number))


def _tables(operation: Any, chip: Chip) -> Iterator[tuple[str, Draw]]:
    for number, codes in enumerate(chip.code_types):
        if codes.table_entries:
            yield f"every_code_{number}", partial(looked_up, number=number, function=TableFunction.TABLE)
    yield "in_granules", partial(looked_up, number=0, function=TableFunction.TABLE)
    yield "at_end", partial(looked_up, number=0, function=TableFunction.TABLE)
    for function in TableFunction:
        if 0 < function <= operation.need("function", chip).high:
            yield function.name.lower(), partial(looked_up, number=0, function=function)


def soft(bench: CaseBuilder, number: int, columns: int, equal: bool) -> None:
    """Rows of a softmax; of equal codes every output is one part of the row's length."""
    codes, unit = bench.type(number), bench.unit(Softmax)
    values = bench.codes((3, 1, columns), number)
    values = np.full_like(values, codes.high) if equal else values
    source, target = bench.feature_map(unit, "input", values), bench.output(unit, (3, 1, columns), number)
    f = {"rows": 3, "columns": columns, "input_address": source.address, "input_row_stride": source.row}
    shift = 7 if codes.bits == 8 else 13  # input scales of some 1/16 and 1/1024
    f |= {"output_address": target.address, "output_row_stride": target.row, "element_type": number}
    bench.add(Softmax, **f, input_multiplier=3 << 29, input_shift=shift)


def _softmax(operation: Any, chip: Chip) -> Iterator[tuple[str, Draw]]:
    for number in map(chip.type_number, chip.operand_types):
        for columns in (1, 2, 10, 300):
            yield f"rows_of_{columns}_{number}", partial(soft, number=number, columns=columns, equal=False)
        yield f"equal_{number}", partial(soft, number=number, columns=7, equal=True)


CASES = {Elementwise: _cases, Table: _tables, Softmax: _softmax}
