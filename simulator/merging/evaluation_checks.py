"""Check that one operation computes what the tiles of an evaluation do, and reads nothing but values."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simulator.merging.box_copies import ValueBox
from simulator.merging.tiles import Evaluation, split_place
from simulator.merging.value_numbers import ARRAY_BITS, array_of
from simulator.merging.windows import find_valid_window, list_operands
from toolchain.machine import WindowOp

Arrays = Mapping[int, Evaluation | int]  # what makes each array; bytes where its numbers have no rows and columns


def is_one_operation(evaluation: Evaluation, arrays: Arrays) -> bool:
    """Return whether one operation computes what the tiles of an evaluation do.

    Then the tiles fill its output, and all that it reads lies in its operands' arrays. `merge_program` keeps the tiles of
    others single.
    `arrays`: by array, the evaluation that makes it or its number of bytes.
    """
    return (
        (not isinstance(evaluation.first.op, WindowOp) or find_valid_window(evaluation) is not None)
        and _is_filled(evaluation)
        and all(_is_inside(b, arrays) for k, b in enumerate(list_operands(evaluation)) if k not in evaluation.maps)
    )


def _is_filled(evaluation: Evaluation) -> bool:
    """Return whether every element of the output is one of a tile. Others would be made of values and
    constants that no tile reads.
    """
    low, shape = evaluation.low, evaluation.shape
    filled = np.zeros(shape, bool)
    for at, size in {(placed.at, placed.tile.shape) for placed in evaluation.tiles}:
        filled[tuple(slice(first - least, first - least + n) for first, least, n in zip(at, low, size))] = True
    return bool(filled.all())


def _is_inside(box: ValueBox, arrays: Arrays) -> bool:
    """Return whether a box with steps that are not negative lies in one array, unread rows and columns included."""
    array = array_of(box.number)
    if array not in arrays or array_of(box.last_number) != array:
        return False
    made_by = arrays[array]
    if not isinstance(made_by, Evaluation):
        return box.last_number - (array << ARRAY_BITS) < made_by
    item_bytes, (height, width, channels), (y, x, c) = made_by.first.item_bytes, made_by.shape, made_by.low
    least, size = (y, x, c * item_bytes), (height, width, channels * item_bytes)
    corners = (split_place(box.number), split_place(box.last_number))
    return all(0 <= place - first < n for corner in corners for place, first, n in zip(corner, least, size))
