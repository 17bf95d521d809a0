"""Which cycles of a program are a layer's: they end with its last operation and begin where the layers before it have ended, so
that those of all layers sum to the program's. Of a repeat, a layer has some in each iteration of the outermost one; where layers
run in turns, in each of its turns, which end with what it computes."""

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
    """In order; the last one ends with the program. None where the region has no layers."""
    flow, ends = simulation.flow, dict[tuple[int, int, int], int]()  # by iteration of the outermost repeat, turn and layer
    layers = region.layers_of(flow)
    rounds = np.array([flow.round(index) for index in range(len(flow))], np.int64)
    computes = np.array([op.ENGINE in ("mac_array", "vector") for op in flow], bool) & (layers >= 0)
    turns = _turns(layers, rounds, computes)
    counted = computes | ~np.isin(layers, layers[computes]) if turns.any() else np.ones(len(layers), bool)
    for index in np.flatnonzero(counted & (layers >= 0)).tolist():
        key = int(rounds[index]), int(turns[index]), int(layers[index])
        ends[key] = max(ends.get(key, 0), int(simulation.end[index]))
    found: list[LayerInterval] = []
    finished = 0
    for (_, _, layer), end in sorted(ends.items()):
        if end > finished:
            found.append(LayerInterval(end, layer))
            finished = end
    if region.layers and finished < simulation.cycles:
        found.append(LayerInterval(simulation.cycles, len(region.layers) - 1))
    return tuple(found)


def _turns(layers: np.ndarray, rounds: np.ndarray, computes: np.ndarray) -> np.ndarray:
    """int64[op]: how often until then, in one iteration, a layer has computed behind one that follows it in the network."""
    own, turn = layers[computes], rounds[computes]
    back = np.zeros(len(layers), np.int64)
    back[np.flatnonzero(computes)[1:]] = (own[1:] < own[:-1]) & (turn[1:] == turn[:-1])
    return np.cumsum(back)


def layer_cycles(region: Region, simulation: Simulation) -> np.ndarray:
    """int64[layer]."""
    found, begin = np.zeros(len(region.layers), np.int64), 0
    for end, layer in find_layer_intervals(region, simulation):
        found[layer] += end - begin
        begin = end
    return found
