"""Merge convolutions, depthwise convolutions and pools over rows, columns and channels of one output.

Tiles of one evaluation may differ in parameters of _SIZES and in those whose names end as in _DIFFERENT. The unit is among these
since it only says where operands lie.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter
from typing import Any, cast

import numpy as np

from simulator.merging.box_copies import ValueBox
from simulator.merging.gathered_maps import Reading
from simulator.merging.tiles import Constants, Evaluation, Memories, Operand, Readings, Tile, is_multiple
from simulator.merging.value_numbers import Numbers, array_of
from toolchain.hw.unit_map import SUMS
from toolchain.machine import (
    Convolution,
    Depthwise,
    MachineOp,
    Pool,
    WeightedWindowOp,
    WindowOp,
    code_bytes,
    parameter_bytes,
    table_bytes,
)
from toolchain.machine.window_rows import RowRuns, window_reach

_DIFFERENT = (
    "address",
    "row_stride",
    "column_stride",
    "batch_stride",
    "base",
    "input_height",
    "input_width",
    "pad_top",
    "pad_left",
    "unit",
)
_SIZES = (
    "output_height",
    "output_width",
    "output_channels",
    "channels",
    "stride_height",
    "stride_width",
    "height",
    "width",
    "rows",
)


@cache
def get_shared_parameters(kind: type[MachineOp]) -> Any:
    """Return a function of an operation of this kind: what all tiles of an evaluation share."""
    return attrgetter(*(n for n in kind.parameters() if n not in _SIZES and not n.endswith(_DIFFERENT)))


@dataclass(frozen=True, slots=True)
class InputPart:
    """The input that an operation of windows reads: all channels, or those that it adds in a chain of sums.

    `operand`: what an output element needs, as if all channels of the chain lay from the first of these on.
    `readings`: the values of these channels, where the operand is gathered.
    `weights`: DRAM address and input channels of each block of weights; empty for a pool.
    """

    operand: Operand
    readings: list[Reading]
    weights: tuple[tuple[int, int], ...]


def read_input_part(op: WindowOp, joined_op: WindowOp, memories: Memories) -> InputPart | None:
    """Return what the operation reads now, or None where it can be no part of a tile.

    `joined_op`: the operation of all input channels that it is a part of, or itself.
    """
    if any(op.surfaces()) or not min(op.input_row_stride, op.input_column_stride):
        return None
    weights = _read_weights(op, memories) if isinstance(op, WeightedWindowOp) else ()
    if weights is None:
        return None
    shared = _share_parameters(joined_op)
    operand = _read_input(op, joined_op, memories, shared in memories.gathered)
    if operand is None:
        memories.note_scattered(shared)
        return None
    readings = _list_readings(op, 0, memories) if operand.gathered else []
    if op is not joined_op:  # other values may lie there when the last part is met
        readings = [replace(reading, numbers=reading.numbers.copy()) for reading in readings]
    return InputPart(operand, readings, weights)


def describe_window(
    index: int, op: WindowOp, memories: Memories, parts: Sequence[InputPart | None] | None = None
) -> tuple[Tile, Readings] | None:
    """Return the operation as a tile, and what it reads of gathered operands; None where it cannot be one.

    `index`: of the operation.
    `parts`: what the operations read whose channels it joins; None: it is one of the program.
    """
    chip = memories.chip
    way_out = _read_way_out(op, memories) if isinstance(op, WeightedWindowOp) else (None, None)
    if way_out is None:
        return None
    part = _join_parts([read_input_part(op, op, memories)] if parts is None else parts, op, memories)
    if part is None:
        return None
    first, shared, (parameters, table) = part.operand, _share_parameters(op), way_out
    operands, readings = (first,), {0: part.readings} if first.gathered else {}
    if isinstance(op, Convolution) and op.use_add:
        addend = _read_addend(op, memories, first.gathered)
        if addend is None:
            memories.note_scattered(shared)
            return None
        operands = (first, addend)
        readings |= {1: _list_readings(op, 1, memories)} if addend.gathered else {}
    outputs = op.output_channels if isinstance(op, Convolution) else _channels_of(op)
    strides = (op.stride_height, op.stride_width)
    row, column = (step // stride for step, stride in zip(first.steps, strides))
    # with the padding taken off, a number may lie before its array
    arrays = [array_of(o.number + (op.pad_top * row + op.pad_left * column if o is first else 0)) for o in operands]
    kind = (*shared, table, *arrays, row, column)
    shape, output_bytes = (op.output_height, op.output_width, outputs), code_bytes(op.code_types()[1], chip)
    output = (op.unit_in(chip).roles["output"], op.output_address, op.output_row_stride, op.output_column_stride)
    constants = None if parameters is None else Constants(part.weights, parameters)
    return Tile(index, op, kind, operands, shape, output_bytes, output, constants, table, strides), readings


def _channels_of(op: WindowOp) -> int:
    """Return the channels of an operation that has as many inputs as outputs: all windows but convolutions."""
    return cast("Depthwise | Pool", op).channels


def _share_parameters(op: WindowOp) -> tuple[Hashable, ...]:
    """Return what all tiles of an evaluation share, but for its table."""
    return type(op), get_shared_parameters(type(op))(op)


def _join_parts(parts: Sequence[InputPart | None], op: WindowOp, memories: Memories) -> InputPart | None:
    """Return what operations of a chain read together; None where it is no map. op: the one that joins their channels."""
    joined, *others = parts
    for part in others:
        if joined is None or part is None:
            return None
        before_bytes = code_bytes(op.code_types()[0], memories.chip) * sum(channels for _, channels in joined.weights)
        next_operand = replace(joined.operand, number=joined.operand.number + before_bytes)
        if not joined.operand.gathered and part.operand != next_operand:
            memories.note_scattered(_share_parameters(op))
            return None
        readings = [
            Reading(a.rows, a.columns, np.concatenate((a.numbers, b.numbers), axis=2))
            for a, b in zip(joined.readings, part.readings, strict=True)
        ]
        joined = InputPart(joined.operand, readings, (*joined.weights, *part.weights))
    return joined


def _read_input(op: WindowOp, joined_op: WindowOp, memories: Memories, gathers: bool) -> Operand | None:
    """Return the input, None where it is no map. gathers: that which lies in several arrays has its places."""
    inputs, all_inputs = (o.input_channels if isinstance(o, Convolution) else _channels_of(o) for o in (op, joined_op))
    item_bytes = code_bytes(op.code_types()[0], memories.chip)
    window = _read_window(op, inputs * item_bytes, all_inputs * item_bytes, memories, gathers)
    if window is None or min(window[1:]) <= 0:  # the same row again, or rows in reverse
        return None
    number, row, column = window
    number -= op.pad_top * row + op.pad_left * column
    dense = isinstance(op, Convolution)
    steps = row * op.stride_height, column * op.stride_width, 0 if dense else item_bytes
    return Operand(number, steps, gathers, "input", all_inputs * item_bytes if dense else 0)


def _list_readings(op: WindowOp, operand: int, memories: Memories) -> list[Reading]:
    """Return the values of a gathered operand that the operation reads now."""
    space = op.unit_in(memories.chip).roles["input"]
    if operand:
        assert isinstance(op, Convolution)
        size_bytes = op.output_channels * code_bytes(op.addend_type, memories.chip)
        counts, strides = (op.output_height, op.output_width, size_bytes), (op.addend_row_stride, op.addend_column_stride, 1)
        numbers = memories.values.read(space, op.addend_address, counts, strides)
        return [Reading(np.arange(counts[0]), np.arange(counts[1]), numbers)]
    inputs = op.input_channels if isinstance(op, Convolution) else _channels_of(op)
    pixel_bytes = inputs * code_bytes(op.code_types()[0], memories.chip)
    readings: list[Reading] = []
    for rows, columns, address, counts, strides in _list_window_boxes(op):
        numbers = memories.values.read(space, address, (*counts, pixel_bytes), (*strides, 1))
        places = [np.add.outer(r.first + np.arange(r.count) * r.step, np.arange(r.length)).ravel() for r in (rows, columns)]
        size = (places[0].size, places[1].size, pixel_bytes)
        readings.append(Reading(op.pad_top + places[0], op.pad_left + places[1], numbers.reshape(size)))
    return readings


def _list_window_boxes(
    op: WindowOp,
) -> Iterator[tuple[RowRuns, RowRuns, int, tuple[int, int, int, int], tuple[int, int, int, int]]]:
    """Yield the rows and columns that windows reach, with address, counts and strides of their first bytes."""
    row_stride, column_stride = op.input_row_stride, op.input_column_stride
    reached = window_reach(*op.window_columns())
    for rows in window_reach(*op.window_rows()):
        for columns in reached:
            address = op.input_address + rows.first * row_stride + columns.first * column_stride
            counts = (rows.count, rows.length, columns.count, columns.length)
            yield (
                rows,
                columns,
                address,
                counts,
                (rows.step * row_stride, row_stride, columns.step * column_stride, column_stride),
            )


def _read_window(
    op: WindowOp, part_bytes: int, pixel_bytes: int, memories: Memories, gathers: bool
) -> tuple[int, int, int] | None:
    """Return the number of the input's first pixel, and the steps to the next row and column; None where they are not even.

    `part_bytes`, `pixel_bytes`: of a pixel, what the operation reads and all.
    `gathers`: of the places of each pixel's first byte.
    """
    space, numbers = op.unit_in(memories.chip).roles["input"], memories.values
    if gathers:
        assert memories.places is not None
        numbers = memories.places
    read_bytes = 1 if gathers else part_bytes
    first: tuple[int, int, int] | None = None
    for rows, columns, address, counts, strides in _list_window_boxes(op):
        box = numbers.read_affine(space, address, (*counts, read_bytes), (*strides, 1))
        if box is None or (read_bytes > 1 and box.steps[4] != 1):
            return None
        jumps = [(box.steps[k], runs.step) for k, runs in ((0, rows), (2, columns)) if runs.length == 1 < runs.count]
        if array_of(box.first) in memories.grids and not all(is_multiple(*jump) for jump in jumps):
            return None
        steps = [_single_step(box.steps[k : k + 2], runs) for k, runs in ((0, rows), (2, columns))]
        size = (rows.count * rows.length, columns.count * columns.length)
        row, column = memories.fill_steps(box.first, (steps[0], steps[1]), size, pixel_bytes)
        even = all(
            runs.count == 1 or box.steps[k] == runs.step * step for k, runs, step in ((0, rows, row), (2, columns, column))
        )
        corner = (box.first - rows.first * row - columns.first * column, row, column)
        if not even or first not in (None, corner):
            return None
        first = corner
    return first


def _single_step(steps: tuple[int, ...], runs: RowRuns) -> int | None:
    """Return the step from one row to the next; None where there is one row."""
    if runs.length > 1:
        return steps[1]
    return steps[0] // runs.step if runs.count > 1 else None


def _read_weights(op: WeightedWindowOp, memories: Memories) -> tuple[tuple[int, int]] | None:
    """Return DRAM address and input channels of the weights, or None where the operation cannot be merged."""
    chip, unit = memories.chip, op.unit_in(memories.chip)
    plain = SUMS not in unit.roles and not getattr(op, "group", 0)
    if not plain or chip.layout.weight_tile is not None or chip.weight_types[int(op.weights_number())].bits != 8:
        return None
    inner = op.input_channels if isinstance(op, Convolution) else 1
    weights = memories.read_constant(unit.roles["weights"], op.weight_address, op.taps() * inner * op.outputs())
    return None if weights is None else ((weights, inner),)


def _read_way_out(op: WeightedWindowOp, memories: Memories) -> tuple[int, int | None] | None:
    """Return DRAM addresses of parameters and table (None: it has none), or None where the operation cannot be merged."""
    chip, space = memories.chip, op.unit_in(memories.chip).roles["parameters"]
    if not op.emit or op.accumulate:
        return None
    parameters = memories.read_constant(space, op.parameter_address, parameter_bytes(op.outputs(), chip))
    if parameters is None or not op.use_table:
        return None if parameters is None else (parameters, None)
    table = memories.read_constant(space, op.table_address, table_bytes(op.code_types()[1], chip))
    return None if table is None else (parameters, table)


def _read_addend(op: Convolution, memories: Memories, gathers: bool) -> Operand | None:
    if op.addend_surface_stride:
        return None
    item_bytes, counts = code_bytes(op.addend_type, memories.chip), (op.output_height, op.output_width)
    strides = (op.addend_row_stride, op.addend_column_stride)
    space = op.unit_in(memories.chip).roles["input"]
    size_bytes = op.output_channels * item_bytes
    pixels = memories.read_pixels(space, op.addend_address, counts, strides, size_bytes, gathers)
    if pixels is None or min(pixels.steps) < 0:
        return None
    row, column = pixels.steps
    return Operand(pixels.first, (row, column, item_bytes), gathers, "addend")


def find_valid_window(evaluation: Evaluation) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Return (first, end) of the input rows that hold data, then of the columns, counted from the output's first window.

    Return None where a tile sees data and padding elsewhere than the evaluation of all would.
    """
    axes: list[tuple[int, int]] = []
    least = evaluation.low
    for axis, name in enumerate(("height", "width")):
        reaches: list[tuple[int, int, int, int]] = []
        for placed in evaluation.tiles:
            op: Any = placed.tile.op
            stride, pad = evaluation.first.strides[axis], getattr(op, f"pad_{('top', 'left')[axis]}")
            begin = (placed.at[axis] - least[axis]) * stride
            dilation, kernel = getattr(op, f"dilation_{name}"), getattr(op, f"kernel_{name}")
            size = (getattr(op, f"output_{name}") - 1) * stride + (kernel - 1) * dilation + 1
            data_size = min(getattr(op, f"input_{name}"), max(0, size - pad))
            reaches.append((begin, begin + size, begin + pad, begin + pad + data_size))
        first, last = min(r[2] for r in reaches), max(r[3] for r in reaches)
        if any(low != max(begin, first) or high != min(end, last) for begin, end, low, high in reaches):
            return None
        axes.append((first, last))
    return axes[0], axes[1]


def list_operands(evaluation: Evaluation) -> list[ValueBox]:
    """Return the box of values that the evaluation reads of each operand, with counts (rows, columns, bytes of a pixel).

    A count of rows or columns is 1 where the step is 0, so that all read the same. Of a gathered operand, values are places.
    The evaluation must have a valid window (`find_valid_window`).
    """
    height, width, channels = evaluation.shape
    boxes: list[ValueBox] = []
    for k, operand in enumerate(evaluation.operands):
        number, size, (row, column, item) = operand.number, (height, width), operand.steps
        if k == 0 and isinstance(evaluation.first.op, WindowOp):
            (top, bottom), (left, right) = _require_window(evaluation)
            row, column = row // evaluation.first.strides[0], column // evaluation.first.strides[1]
            number, size = number + top * row + left * column, (bottom - top, right - left)
        counts = (size[0] if row else 1, size[1] if column else 1, operand.pixel_bytes or channels * item)
        boxes.append(ValueBox(0, number, counts, (0, 0, 0), (row, column, 1)))
    return boxes


def _require_window(evaluation: Evaluation) -> tuple[tuple[int, int], tuple[int, int]]:
    window = find_valid_window(evaluation)
    assert window is not None
    return window


def cut_gathered(evaluation: Evaluation, operand: int, box: ValueBox) -> Numbers:
    """Return the numbers of the values that an evaluation reads of a gathered operand, int64[rows, columns, bytes]; 0: none.

    `box`: the operand's, of `list_operands`.
    """
    y, x, byte = evaluation.find_map_place(operand, evaluation.low)
    if operand == 0 and isinstance(evaluation.first.op, WindowOp):
        rows, columns = _require_window(evaluation)
        y, x = y + rows[0], x + columns[0]
    return evaluation.maps[operand].cut((y, x, byte), box.counts)  # type: ignore[arg-type]
