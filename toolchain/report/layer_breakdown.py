"""Attribute the cycles of each unit to causes, for the network and for each layer, and divide a region's cycles among its
layers.

It applies `simulator.cycle_breakdown` to the intervals of the layers. A layer's cycles end with its last operation and begin
where the earlier layers have ended, so all layers sum to the program. In a repeat, a layer has some cycles in each iteration of
the outermost loop. In a cascade, it has some in each of its rounds, which end with its computation.

CAUSES are the causes in words; cycles that a memory took go by its name alone. A `StallBreakdown` has the cycles by cause, for
each unit by its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from simulator import COMPUTING, Attribution, Simulation, StallCause, attribute_cycles, by_reason
from toolchain.codegen import Container, Region
from toolchain.foundation.type_guards import is_mapping
from toolchain.hw.chip import Chip
from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.ops.kit.operator import Layer

CAUSES = {
    StallCause.USEFUL: "useful",
    StallCause.FILL_DRAIN: "fill and drain",
    StallCause.PARTIAL_FOLDS: "partial folds",
    StallCause.EDGES: "edges",
    StallCause.REQUESTS: "requests",
    StallCause.OUTPUT_PATH: "output path",
    StallCause.MEMORY: "",
    StallCause.SIGNAL: "signal of",
    StallCause.QUEUE: "queue",
    StallCause.DISPATCH: "dispatch",
    StallCause.NOTHING: "nothing to do",
}
StallBreakdown = dict[str, dict[str, Any]]


class LayerInterval(NamedTuple):
    """The cycles of a layer up to `end`, from the end of the interval before.

    `layer`: index of the layer in its region.
    """

    end: int
    layer: int


def find_layer_intervals(region: Region, simulation: Simulation) -> tuple[LayerInterval, ...]:
    """Return the intervals of a run in order. The last one ends with the program; a region without layers has none.

    A layer whose operations all end within earlier intervals has none.
    """
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
    """Return int64[op]: how often, up to the operation, a layer has computed after one that follows it in the network.

    Steps back from one iteration to the next do not count.
    """
    computing_layers, turn = layers[computes], rounds[computes]
    back = np.zeros(len(layers), np.int64)
    back[np.flatnonzero(computes)[1:]] = (computing_layers[1:] < computing_layers[:-1]) & (turn[1:] == turn[:-1])
    return np.cumsum(back)


def layer_cycles(region: Region, simulation: Simulation) -> np.ndarray:
    """Return int64[layer], the cycles of each layer of a region. They sum to the region's cycles where it has layers."""
    cycles_by_layer, begin = np.zeros(len(region.layers), np.int64), 0
    for end, layer in find_layer_intervals(region, simulation):
        cycles_by_layer[layer] += end - begin
        begin = end
    return cycles_by_layer


@dataclass(frozen=True)
class RegionAttribution:
    """The cycles of one region by cause.

    `totals`: by unit, int64[reason] over the whole program.
    `layers`: for each layer, the cycles of its intervals by unit and cause.
    """

    totals: Mapping[str, np.ndarray]
    layers: tuple[StallBreakdown, ...]


def region_attribution(chip: Chip, region: Region, run: Simulation, most: Mapping[str, int]) -> RegionAttribution | None:
    """Return the attribution of a region, None where times were measured elsewhere and no causes are known.

    `most`: products that each convolution requires (`most_macs`).
    """
    attribution = attribute_region(chip, region, run, most)
    if attribution is None:
        return None
    parts = find_layer_intervals(region, run)
    counted = attribution.totals([part.end for part in parts])
    owners = np.array([part.layer for part in parts], np.intp)
    cycles_by_unit: dict[str, np.ndarray] = {}  # int64[layer, reason]
    for unit, cycles in counted.items():
        cycles_by_unit[unit] = np.zeros((len(region.layers), cycles.shape[1]), np.int64)
        np.add.at(cycles_by_unit[unit], owners, cycles)
    layers: list[StallBreakdown] = [
        {unit: by_reason(chip, cycles[layer]) for unit, cycles in cycles_by_unit.items()} for layer in range(len(region.layers))
    ]
    return RegionAttribution({unit: cycles[0] for unit, cycles in attribution.totals().items()}, tuple(layers))


def attribute_region(chip: Chip, region: Region, run: Simulation, most: Mapping[str, int]) -> Attribution | None:
    """Return the simulator's attribution of a region; None where times were measured elsewhere.

    Products beyond `most`, which multiply by zeros, are not counted as useful work of an array.
    """
    flow = run.flow
    owners = region.layers_of(flow)
    is_owned = owners >= 0
    macs = np.zeros(len(region.layers), np.int64)
    np.add.at(macs, owners[is_owned], run.op_macs[is_owned])
    layer_shares = np.ones(len(region.layers))
    for layer, (info, done) in enumerate(zip(region.layers, macs.tolist(), strict=True)):
        if info.name in most and done > most[info.name]:
            layer_shares[layer] = most[info.name] / done
    shares = np.ones(len(flow))
    shares[is_owned] = layer_shares[owners[is_owned]]
    return attribute_cycles(chip, run, shares)


def network_attribution(chip: Chip, regions: Sequence[RegionAttribution | None]) -> StallBreakdown | None:
    """Return the cycles by unit and cause, summed over all regions. Return None without regions or if one was not
    attributed."""
    attributed_regions = [region for region in regions if region is not None]
    if len(attributed_regions) < len(regions) or not attributed_regions:
        return None
    return {
        unit: by_reason(chip, np.sum([region.totals[unit] for region in attributed_regions], axis=0))
        for unit in attributed_regions[0].totals
    }


def most_macs(container: Container) -> dict[str, int]:
    """Return the products that each convolution of the container requires, by its name.

    An instruction that takes several groups together multiplies by zeros as well, which do not count here.
    """
    graph, chip = container.graph, container.machine.chip
    convolutions = [(n, n.op) for n in graph.nodes if isinstance(n.op, IntegerConvolution)]
    return {n.name: op.macs(Layer(n, graph.types, graph.constants, chip)) for n, op in convolutions}


def find_top_stall(layer: Mapping[str, Any]) -> str:
    """Return the cause that stalled the layer's main unit longest, such as `mac: fill and drain 48 %`; `-` where nothing is
    known.

    The share is of the layer's cycles. The main unit is that which computed longest.
    """
    units: Mapping[str, Mapping[str, Any]] = layer["attribution"] or {}
    if not units or not layer["cycles"]:
        return "-"
    unit = max(units, key=lambda name: sum(units[name].get(cause, 0) for cause in COMPUTING))
    lost: dict[str, int] = {}
    for cause, cause_cycles in units[unit].items():
        if is_mapping(cause_cycles):
            lost |= {f"{CAUSES[StallCause(cause)]} {name}".strip(): cycles for name, cycles in cause_cycles.items()}
        elif cause not in (StallCause.USEFUL, StallCause.NOTHING):
            lost[CAUSES[StallCause(cause)]] = cause_cycles
    most = max(lost, key=lost.__getitem__, default=None)
    return "-" if most is None else f"{unit}: {most} {100 * lost[most] / layer['cycles']:.0f} %"
