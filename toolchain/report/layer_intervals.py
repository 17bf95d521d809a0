"""Assign the cycles of a program to its layers.

A layer's cycles end with its last operation and begin where the earlier layers have ended, so all layers sum to the program. In a
repeat, a layer has some cycles in each iteration of the outermost loop. In a cascade, it has some in each of its rounds, which
end
with its computation.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simulator import Simulation
from toolchain.codegen import Region


class LayerInterval(NamedTuple):
    """The cycles of a layer up to `end`, from the end of the window before."""

    end: int
    layer: int


def find_layer_intervals(region: Region, simulation: Simulation) -> tuple[LayerInterval, ...]:
    """Return the intervals in order; the last one ends with the program, and there are none in a region without layers."""
    flow, ends = simulation.flow, dict[tuple[int, int, int], int]()  # by iteration of the outermost repeat, turn and layer
    layers = region.layers_of(flow)
    rounds = np.array([flow.round(index) for index in range(len(flow))], np.int64)
    computes = np.array([op.ENGINE in ("mac_array", "vector") for op in flow], bool) & (layers >= 0)
    layer_returns = _count_layer_returns(layers, rounds, computes)
    counted = computes | ~np.isin(layers, layers[computes]) if layer_returns.any() else np.ones(len(layers), bool)
    for index in np.flatnonzero(counted & (layers >= 0)).tolist():
        key = int(rounds[index]), int(layer_returns[index]), int(layers[index])
        ends[key] = max(ends.get(key, 0), int(simulation.end[index]))
    intervals: list[LayerInterval] = []
    finished = 0
    for (_, _, layer), end in sorted(ends.items()):
        if end > finished:
            intervals.append(LayerInterval(end, layer))
            finished = end
    if region.layers and finished < simulation.cycles:
        intervals.append(LayerInterval(simulation.cycles, len(region.layers) - 1))
    return tuple(intervals)


def _count_layer_returns(layers: np.ndarray, rounds: np.ndarray, computes: np.ndarray) -> np.ndarray:
    """int64[op]: how often until then, in one iteration, a layer has computed behind one that follows it in the network."""
    computing_layers, turn = layers[computes], rounds[computes]
    back = np.zeros(len(layers), np.int64)
    back[np.flatnonzero(computes)[1:]] = (computing_layers[1:] < computing_layers[:-1]) & (turn[1:] == turn[:-1])
    return np.cumsum(back)


def layer_cycles(region: Region, simulation: Simulation) -> np.ndarray:
    """int64[layer]."""
    cycles_by_layer, begin = np.zeros(len(region.layers), np.int64), 0
    for end, layer in find_layer_intervals(region, simulation):
        cycles_by_layer[layer] += end - begin
        begin = end
    return cycles_by_layer
