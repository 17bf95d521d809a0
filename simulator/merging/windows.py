"""Merge convolutions, depthwise convolutions and pools over rows, columns and channels of one output."""

from __future__ import annotations

from functools import cache
from operator import attrgetter
from typing import Any

from simulator.merging.box_copies import ValueBox
from simulator.merging.tiles import Evaluation, Memories, Operand, Tile
from simulator.merging.value_numbers import ARRAY_BITS
from toolchain.hw.chip import Chip
from toolchain.hw.unit_map import SUMS
from toolchain.machine import (
    Convolution,
    MachineOp,
    WeightedWindowOp,
    WindowOp,
    code_bytes,
    parameter_bytes,
    table_bytes,
)
from toolchain.machine.window_rows import RowRuns, window_reach

# What tiles of an evaluation may differ in; the unit says where operands lie, which merged ones do not.
_DIFFERENT = ("address", "row_stride", "column_stride", "base", "input_height", "input_width", "pad_top", "pad_left", "unit")
_SIZES = ("output_height", "output_width", "output_channels", "channels", "stride_height", "stride_width")


@cache
def _get_shared_parameters(kind: type[MachineOp]) -> Any:
    return attrgetter(*(n for n in kind.parameters() if n not in _SIZES and not n.endswith(_DIFFERENT)))


def describe_window(index: int, op: WindowOp, memories: Memories) -> Tile | None:
    """Return the operation as a tile, or None where it cannot be one.

    `index`: of the operation.
    """
    chip = memories.chip
    if any(op.surfaces()) or not min(op.input_row_stride, op.input_column_stride):
        return None
    constants = _read_constants(op, memories) if isinstance(op, WeightedWindowOp) else ()
    dense = isinstance(op, Convolution)
    inputs, outputs = (op.input_channels, op.output_channels) if dense else (op.channels, op.channels)  # type: ignore[attr-defined]
    item_bytes, output_bytes = (code_bytes(number, chip) for number in op.code_types())
    window = _read_window(op, inputs * item_bytes, memories)
    if constants is None or window is None:
        return None
    number, row, column = window
    if min(row, column) <= 0:  # the same row again, or rows in reverse
        return None
    array = number >> ARRAY_BITS  # with the padding taken off, a number may lie before its array
    number -= op.pad_top * row + op.pad_left * column
    strides = op.stride_height, op.stride_width
    operands = [Operand(number, (row * strides[0], column * strides[1], 0 if dense else item_bytes))]
    table = addend_array = 0
    if isinstance(op, WeightedWindowOp) and op.use_table:
        size_bytes = table_bytes(op.code_types()[1], chip)
        table = memories.read_constant(op.unit_in(chip).roles["parameters"], op.table_address, size_bytes)
    if isinstance(op, Convolution) and op.use_add:
        addend = _read_addend(op, memories)
        if addend is None:
            return None
        operands.append(addend)
        addend_array = addend.number >> ARRAY_BITS
    if table is None:
        return None
    shared = (type(op), _get_shared_parameters(type(op))(op), table, array, addend_array)
    kind = (*shared, row, column)
    shape = (op.output_height, op.output_width, outputs)
    return Tile(index, op, kind, tuple(operands), shape, output_bytes, constants, strides)


def _read_window(op: WindowOp, pixel_bytes: int, memories: Memories) -> tuple[int, int, int] | None:
    """Return the number of the input's first pixel, and the steps to the next row and column; None where they are not even."""
    space, reached = op.unit_in(memories.chip).roles["input"], window_reach(*op.window_columns())
    row_stride, column_stride = op.input_row_stride, op.input_column_stride
    first: tuple[int, int, int] | None = None
    for rows in window_reach(*op.window_rows()):
        for columns in reached:
            address = op.input_address + rows.first * row_stride + columns.first * column_stride
            counts = (rows.count, rows.length, columns.count, columns.length, pixel_bytes)
            strides = (rows.step * row_stride, row_stride, columns.step * column_stride, column_stride, 1)
            box = memories.values.read_affine(space, address, counts, strides)
            if box is None or (pixel_bytes > 1 and box.steps[4] != 1):
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


def _read_constants(op: WeightedWindowOp, memories: Memories) -> tuple[int, ...] | None:
    """Return the DRAM addresses of weights and parameters, or None where the operation cannot be merged."""
    chip, unit = memories.chip, op.unit_in(memories.chip)
    plain = op.emit and not op.accumulate and SUMS not in unit.roles and not getattr(op, "group", 0)
    if not plain or chip.layout.weight_tile is not None or chip.weight_types[int(op.weights_number())].bits != 8:
        return None
    inner = op.input_channels if isinstance(op, Convolution) else 1
    size_bytes = op.taps() * inner * op.outputs()
    weights = memories.read_constant(unit.roles["weights"], op.weight_address, size_bytes)
    parameters = memories.read_constant(unit.roles["parameters"], op.parameter_address, parameter_bytes(op.outputs(), chip))
    return None if weights is None or parameters is None else (weights, parameters)


def _read_addend(op: Convolution, memories: Memories) -> Operand | None:
    if op.addend_surface_stride:
        return None
    item_bytes, counts = code_bytes(op.addend_type, memories.chip), (op.output_height, op.output_width)
    strides = (op.addend_row_stride, op.addend_column_stride)
    space = op.unit_in(memories.chip).roles["input"]
    pixels = memories.read_pixels(space, op.addend_address, counts, strides, op.output_channels * item_bytes)
    return None if pixels is None or min(pixels.steps) < 0 else Operand(pixels.first, (*pixels.steps, item_bytes))  # type: ignore[arg-type]


def find_valid_window(evaluation: Evaluation) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Return the first and one past the last input row and column that hold data, counted from the first window of the output.

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


def list_operands(evaluation: Evaluation, chip: Chip) -> list[ValueBox]:
    """Return what the evaluation reads of each operand: rows, columns and bytes of a pixel. It has a valid window."""
    op: Any = evaluation.first.op
    window = find_valid_window(evaluation)
    assert window is not None
    (top, bottom), (left, right) = window
    first, *others = evaluation.operands
    row, column = (step // stride for step, stride in zip(first.steps, evaluation.first.strides))
    channels = op.input_channels if isinstance(op, Convolution) else evaluation.shape[2]
    pixel_bytes = channels * code_bytes(op.code_types()[0], chip)
    number = first.number + top * row + left * column
    boxes = [ValueBox(0, number, (bottom - top, right - left, pixel_bytes), (0, 0, 0), (row, column, 1))]
    for other in others:
        h, w, c = evaluation.shape
        boxes.append(ValueBox(0, other.number, (h, w, c * other.steps[2]), (0, 0, 0), (*other.steps[:2], 1)))
    return boxes
