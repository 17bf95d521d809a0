"""Split bytes whose values lie in several places into boxes, each of which one strided copy moves.

A number names a value: an array and a place in it (`value_numbers`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.merging.value_numbers import ARRAY_BITS, Numbers, fit_affine

_MOST_DIMENSIONS = 4  # source: what a feature map in granules has besides its contiguous run


@dataclass(frozen=True, slots=True)
class ValueBox:
    """A box of bytes and of the values that they hold.

    For all i_k < counts[k], byte address + sum(i_k strides[k]) holds the value of number + sum(i_k steps[k]).
    """

    address: int
    number: int
    counts: tuple[int, ...]
    strides: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def last_number(self) -> int:
        """The number of the value at the last index of each dimension."""
        return self.number + sum((n - 1) * s for n, s in zip(self.counts, self.steps))


def boxes_of_access(address: int, counts: tuple[int, ...], strides: tuple[int, ...], numbers: Numbers) -> list[ValueBox]:
    """Return boxes that cover the bytes of an access. `numbers`: int64[counts], those of its values; `strides`: bytes."""
    affine = fit_affine(numbers)
    if affine is not None:
        return [ValueBox(address, affine.first, counts, strides, affine.steps)]
    places = np.full((), address, np.int64)
    for n, stride in zip(counts, strides):
        places = places[..., None] + np.arange(n) * stride
    return boxes_of_bytes(places.ravel(), numbers.ravel())


def boxes_of_bytes(addresses: Numbers, numbers: Numbers) -> list[ValueBox]:
    """Return boxes that cover these bytes.

    `addresses`, `numbers`: int64[n] each, rising addresses and the numbers of the values there.
    """
    if not addresses.size:
        return []
    together = (np.diff(addresses) == 1) & (np.diff(numbers) == 1) & (np.diff(numbers >> ARRAY_BITS) == 0)
    starts = np.concatenate(([0], np.flatnonzero(~together) + 1))
    lengths = np.diff(starts, append=addresses.size)
    # arrays lie side by side where channels of several are one map: each has boxes of its own
    order = np.argsort(numbers[starts] >> ARRAY_BITS, kind="stable")
    boxes = _fold_runs(addresses[starts][order], numbers[starts][order], lengths[order])
    for _ in range(_MOST_DIMENSIONS - 1):
        folded = _fold(boxes)
        if len(folded) == len(boxes):
            break
        boxes = folded
    return boxes


def _fold_runs(addresses: Numbers, numbers: Numbers, lengths: Numbers) -> list[ValueBox]:
    """Return boxes of runs of equal length and equal distance from one to the next."""
    by, step = np.diff(addresses), np.diff(numbers)
    same_shape = (lengths[1:] == lengths[:-1]) & (np.diff(numbers >> ARRAY_BITS) == 0)
    steady = (by[1:] == by[:-1]) & (step[1:] == step[:-1]) & same_shape[1:] & same_shape[:-1]
    stretch = np.cumsum(np.append(False, ~steady)) if by.size else by  # of neighbouring pairs at one distance
    last_pairs = np.append(np.flatnonzero(~steady), by.size - 1).tolist()
    foldable, stretches = same_shape.tolist(), stretch.tolist()
    boxes: list[ValueBox] = []
    first, total = 0, len(addresses)
    while first < total:
        folds = first < total - 1 and foldable[first]
        count = last_pairs[stretches[first]] - first + 2 if folds else 1
        stride, distance = (int(by[first]), int(step[first])) if folds else (0, 0)
        counts = (count, int(lengths[first]))
        boxes.append(ValueBox(int(addresses[first]), int(numbers[first]), counts, (stride, 1), (distance, 1)))
        first += count
    return boxes


def _fold(boxes: Sequence[ValueBox]) -> list[ValueBox]:
    """Return boxes in which neighbours of one shape at one distance are one box."""
    folded: list[ValueBox] = []
    at = 0
    while at < len(boxes):
        box, count = boxes[at], 1
        distance = _distance(box, boxes[at + 1]) if at + 1 < len(boxes) else None
        while distance and at + count < len(boxes) and _distance(boxes[at + count - 1], boxes[at + count]) == distance:
            count += 1
        stride, step = distance or (0, 0)
        folded.append(ValueBox(box.address, box.number, (count, *box.counts), (stride, *box.strides), (step, *box.steps)))
        at += count
    return folded


def _distance(box: ValueBox, after: ValueBox) -> tuple[int, int] | None:
    """Return how far the second is from the first, in bytes and in numbers; None where they differ otherwise."""
    same_shape = (box.counts, box.strides, box.steps) == (after.counts, after.strides, after.steps)
    if not same_shape or box.number >> ARRAY_BITS != after.number >> ARRAY_BITS:
        return None
    return after.address - box.address, after.number - box.number
