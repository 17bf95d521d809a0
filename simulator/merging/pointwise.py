"""Merge operations element by element, and products of matrices with the same right operand, over rows and columns."""

from __future__ import annotations

import numpy as np

from simulator.merging.gathered_maps import Reading
from simulator.merging.tiles import Memories, Operand, Readings, Tile
from simulator.merging.value_numbers import array_of
from simulator.merging.windows import get_shared_parameters
from toolchain.hw.unit_map import SUMS
from toolchain.machine import Elementwise, ElementwiseKind, MatrixProduct, Table, code_bytes, table_bytes

PointwiseOp = Elementwise | Table


def describe_pointwise(index: int, op: PointwiseOp, memories: Memories) -> tuple[Tile, Readings] | None:
    """Return the operation as a tile, and what it reads of gathered operands; None where it cannot be one.

    `index`: of the operation.
    """
    chip, roles, table = memories.chip, op.unit_in(memories.chip).roles, None
    if isinstance(op, Table):
        table = memories.read_constant(roles["tables"], op.table_address, table_bytes(op.element_type, chip))
        if table is None:
            return None
    if op.output_surface_stride or not all(_is_dense(op, name, code_bytes(n, chip)) for name, n in _list_operands(op)):
        return None
    shared = (type(op), get_shared_parameters(type(op))(op), table)
    gathers = shared in memories.gathered
    candidates = [_read_operand(op, name, type_number, memories, gathers) for name, type_number in _list_operands(op)]
    operands = [o for o in candidates if o is not None]
    if len(operands) < len(candidates):
        memories.note_scattered(shared)
        return None
    operands.sort(key=lambda o: min(o.steps) <= 0)  # one that is not broadcast says where the tile lies
    if min(operands[0].steps) <= 0:
        return None
    readings = {k: [_read_values(op, operand, memories)] for k, operand in enumerate(operands) if operand.gathered}
    kind = (*shared, *((o.name, array_of(o.number)) for o in operands))
    output_type = op.element_type if isinstance(op, Table) else op.output_type
    output = (roles["output"], op.output_address, op.output_row_stride, op.output_column_stride)
    shape = (op.height, op.width, op.channels)
    return Tile(index, op, kind, tuple(operands), shape, code_bytes(output_type, chip), output, None, table), readings


def _list_operands(op: PointwiseOp) -> list[tuple[str, int]]:
    """Return how the fields of each operand begin, and the number of its type."""
    if isinstance(op, Table):
        return [("input", op.element_type)]
    return [("a", op.a_type)] if op.kind == ElementwiseKind.RESCALE else [("a", op.a_type), ("b", op.b_type)]


def _strides_of(op: PointwiseOp, name: str, item_bytes: int) -> tuple[int, int, int]:
    """Return the strides of an operand; 0 where it is broadcast."""
    row, column = getattr(op, f"{name}_row_stride"), getattr(op, f"{name}_column_stride")
    return row, column, getattr(op, f"{name}_channel_stride", item_bytes)


def _is_dense(op: PointwiseOp, name: str, item_bytes: int) -> bool:
    """Return whether the channels of an operand's pixel lie side by side, or are one."""
    return not getattr(op, f"{name}_surface_stride") and _strides_of(op, name, item_bytes)[2] in (0, item_bytes)


def _read_operand(op: PointwiseOp, name: str, type_number: int, memories: Memories, gathers: bool) -> Operand | None:
    """Return an operand, or None where it is no map."""
    item_bytes = code_bytes(type_number, memories.chip)
    row_stride, column_stride, channel_stride = _strides_of(op, name, item_bytes)
    counts = (op.height if row_stride else 1, op.width if column_stride else 1)
    size_bytes = op.channels * item_bytes if channel_stride else item_bytes
    space, address = op.unit_in(memories.chip).roles["input"], getattr(op, f"{name}_address")
    pixels = memories.read_pixels(space, address, counts, (row_stride, column_stride), size_bytes, gathers)
    if pixels is None or min(pixels.steps) < 0:
        return None
    steps = (
        pixels.steps[0] if row_stride or op.height == 1 else 0,
        pixels.steps[1] if column_stride or op.width == 1 else 0,
        channel_stride,
    )
    return Operand(pixels.first, steps, gathers, name, 0 if channel_stride else item_bytes)


def _read_values(op: PointwiseOp, operand: Operand, memories: Memories) -> Reading:
    """Return the values of a gathered operand that the operation reads now."""
    item_bytes = operand.steps[2] or operand.pixel_bytes
    row_stride, column_stride, _ = _strides_of(op, operand.name, item_bytes)
    size_bytes = operand.pixel_bytes or op.channels * item_bytes
    counts = (op.height if operand.steps[0] else 1, op.width if operand.steps[1] else 1, size_bytes)
    space, address = op.unit_in(memories.chip).roles["input"], getattr(op, f"{operand.name}_address")
    numbers = memories.values.read(space, address, counts, (row_stride, column_stride, 1))
    return Reading(np.arange(counts[0]), np.arange(counts[1]), numbers)


def describe_product(index: int, op: MatrixProduct, memories: Memories) -> tuple[Tile, Readings] | None:
    """Return a product of two matrices as a tile of one row, whose columns are the rows of the product.

    None where it cannot be one. The right operand is the same for all tiles, whatever arrays it lies in.
    `index`: of the operation.
    """
    chip, unit = memories.chip, op.unit_in(memories.chip)
    if op.batches != 1 or not op.emit or op.accumulate or SUMS in unit.roles:
        return None
    left_bytes, right_bytes = code_bytes(op.a_type, chip), code_bytes(op.b_type, chip)
    shared = (type(op), get_shared_parameters(type(op))(op), op.b_row_stride == 0, op.b_column_stride == 0)
    gathers = shared in memories.gathered
    inner_bytes = op.inner * left_bytes
    strides = (op.a_batch_stride, op.a_row_stride)
    pixels = memories.read_pixels(unit.roles["input"], op.a_address, (1, op.rows), strides, inner_bytes, gathers)
    if pixels is None or min(pixels.steps) <= 0:
        memories.note_scattered(shared)
        return None
    row, column = pixels.steps
    left = Operand(pixels.first, (row, column, 0), gathers, "a", inner_bytes)
    right = Operand(0, (0, 0, 0), True, "b", op.inner * op.columns * right_bytes)
    readings: dict[int, list[Reading]] = {}
    if gathers:
        numbers = memories.values.read(unit.roles["input"], op.a_address, (1, op.rows, inner_bytes), (*strides, 1))
        readings[0] = [Reading(np.arange(1), np.arange(op.rows), numbers)]
    counts, steps = (op.inner, op.columns, right_bytes), (op.b_row_stride, op.b_column_stride, 1)
    numbers = memories.values.read(unit.roles["weights"], op.b_address, counts, steps)
    readings[1] = [Reading(np.arange(1), np.arange(1), numbers.reshape(1, 1, -1))]
    kind = (*shared, array_of(left.number), int(numbers.flat[0]))
    output = (unit.roles["output"], op.output_address, op.output_batch_stride, op.output_row_stride)
    shape = (1, op.rows, op.columns)
    return Tile(index, op, kind, (left, right), shape, code_bytes(op.output_type, chip), output), readings
