"""Which cycles of a program are a layer's: they end with its last operation and begin where the layers before it have ended, so
that those of all layers sum to the program's. Of a repeat, a layer has some in each iteration of the outermost one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simulator import Simulation
from toolchain.codegen import Region


class Window(NamedTuple):
    """The cycles of a layer up to `end`, from the end of the window before."""

    end: int
    layer: int


def windows(region: Region, simulation: Simulation) -> tuple[Window, ...]:
    """In order; the last one ends with the program. None where the region has no layers."""
    flow, ends = simulation.flow, dict[tuple[int, int], int]()  # by iteration of the outermost repeat, and layer
    for index, (layer, end) in enumerate(zip(region.layers_of(flow).tolist(), simulation.end.tolist())):
        if layer >= 0:
            turn = flow.round(index)
            ends[turn, layer] = max(ends.get((turn, layer), 0), end)
    found: list[Window] = []
    finished = 0
    for (_, layer), end in sorted(ends.items()):
        if end > finished:
            found.append(Window(end, layer))
            finished = end
    if region.layers and finished < simulation.cycles:
        found.append(Window(simulation.cycles, len(region.layers) - 1))
    return tuple(found)


def layer_cycles(region: Region, simulation: Simulation) -> np.ndarray:
    """int64[layer]."""
    found, begin = np.zeros(len(region.layers), np.int64), 0
    for end, layer in windows(region, simulation):
        found[layer] += end - begin
        begin = end
    return found
