"""Compute the least cycles of a network whose layers cannot begin before others have ended (docs/bounds.md).

Constants of a layer that must wait are not used before it begins. Those that the chip cannot hold at that moment still have to
come then. The work of the layer and of those behind it has still to be done, too. The input comes from
`report.bounds.unit_bounds`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class WaitingLayers:
    """A region's layers, each with what waits for its first operation.

    `ended`: for each layer, bool[layer]: those that must have ended before its first operation.
    `cycles`: float[layer, unit], the least cycles of each layer's work.
    `constant_bytes`, `output_bytes`: int[layer], constants that a layer is the last to read, and outputs of the network that it
    makes.
    """

    ended: Sequence[np.ndarray]
    cycles: np.ndarray
    constant_bytes: np.ndarray
    output_bytes: np.ndarray


@dataclass(frozen=True)
class LoadChannel:
    """The way of constants into the chip.

    `room_bytes`: bytes of the memories that can hold constants.
    `read_cycles`, `write_cycles`: float[port], cycles of each port for a byte that comes, and one that leaves.
    `begun_cycles`: the most cycles of an operation that are over before its operands are there.
    """

    room_bytes: int
    read_cycles: np.ndarray
    write_cycles: np.ndarray
    begun_cycles: float = 0.0


class ReleaseBound(NamedTuple):
    """The least cycles of a region, and the layer from whose first operation on they are counted."""

    cycles: float
    layer: int


def bound_releases(layers: WaitingLayers, channel: LoadChannel) -> ReleaseBound:
    """Return the least cycles in which all layers can end, and the layer at whose first operation the count begins.

    At a moment before which some layers cannot begin, no constant of theirs has been used. What the chip cannot hold of them
    comes afterwards, and so does their work. The moments are the least ones at which each layer can begin, from the first on.
    """
    count = len(layers.constant_bytes)
    starts = np.zeros(count)
    no_outputs = np.zeros(count)
    for layer in range(count):
        before = np.flatnonzero(layers.ended[layer])
        starts[layer] = _least_end(layers, channel, starts, before, no_outputs).cycles
    return _least_end(layers, channel, starts, np.arange(count), layers.output_bytes)


def _least_end(
    layers: WaitingLayers, channel: LoadChannel, starts: np.ndarray, some: np.ndarray, output_bytes: np.ndarray
) -> ReleaseBound:
    """Return the least cycles in which the layers `some` can end. starts: the least cycles before each layer begins."""
    if not len(some):
        return ReleaseBound(0.0, 0)
    order = some[np.argsort(starts[some], kind="stable")]
    moments = starts[order]
    computing = _sums_from(layers.cycles[order]).max(axis=1, initial=0.0) - np.where(moments > 0, channel.begun_cycles, 0.0)
    coming = np.maximum(0, _sums_from(layers.constant_bytes[order]) - channel.room_bytes)
    leaving = _sums_from(output_bytes[order])
    moving = (coming[:, None] * channel.read_cycles + leaving[:, None] * channel.write_cycles).max(axis=1, initial=0.0)
    ends = moments + np.maximum(computing, moving)
    latest = int(np.argmax(ends))
    return ReleaseBound(float(ends[latest]), int(order[latest]))


def _sums_from(rows: np.ndarray) -> np.ndarray:
    """Return the sums over each row and all behind it."""
    return np.cumsum(rows[::-1], axis=0)[::-1]
