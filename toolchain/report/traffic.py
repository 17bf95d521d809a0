"""Count the bytes that a program moves and reads as instructions, and the energy of both, of the network and of each layer.

The module report.metrics puts the figures into the JSON report. Counts come from the simulated run's demands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from simulator import Simulation
from toolchain.codegen import Region
from toolchain.hw.chip import Chip
from toolchain.machine import Space
from toolchain.machine.traffic import BYTES


class LayerTraffic(NamedTuple):
    """Counts of what each layer's operations do; operations of no layer are counted with the last.

    `bytes`: int64[layer, memory, kind], kinds as in `BYTES`.
    `macs`: int64[layer], products that arrays do, including those by zeros.
    `words`: int64[layer], instruction words that the front end reads.
    """

    bytes: np.ndarray
    macs: np.ndarray
    words: np.ndarray


def count_traffic(region: Region, run: Simulation) -> LayerTraffic:
    """Return the traffic of the layers of a region in a run of it; a region without layers counts as one layer."""
    flow, count, demand = run.flow, max(1, len(region.layers)), run.op_demands
    owners = region.layers_of(flow) % count  # -1, none: the last
    traffic = LayerTraffic(np.zeros((count, len(demand.read_bytes), len(BYTES)), np.int64), *np.zeros((2, count), np.int64))
    for kind, name in enumerate(BYTES):
        np.add.at(traffic.bytes[:, :, kind], owners, getattr(demand, name).T)
    np.add.at(traffic.macs, owners, demand.macs)
    np.add.at(traffic.words, owners, np.array(flow.words, np.int64))
    return traffic


def sum_traffic(regions: Sequence[LayerTraffic], chip: Chip) -> LayerTraffic:
    """Return the traffic of all layers of all regions as one layer; it is zero without layers."""
    nothing = LayerTraffic(np.zeros((1, len(chip.spaces), len(BYTES)), np.int64), *np.zeros((2, 1), np.int64))
    return LayerTraffic(*(np.concatenate(parts).sum(axis=0, keepdims=True) for parts in zip(nothing, *regions)))


def traffic_figures(chip: Chip, word_bytes: int, traffic: LayerTraffic, layer: int = 0) -> dict[str, Any]:
    """Return the traffic figures of one layer as in the JSON report; memories without bytes are left out.

    The key energy_pj is None where the machine does not state the energy of a byte.

    `word_bytes`: bytes of an instruction word.
    `layer`: its index in `traffic`.
    """
    by_memory = zip(chip.spaces, traffic.bytes[layer].tolist())
    return {
        "traffic": {space.name: dict(zip(BYTES, sizes)) for space, sizes in by_memory if any(sizes)},
        "program_bytes": int(traffic.words[layer]) * word_bytes,
        "energy_pj": _energy(chip, traffic, layer),
    }


def _energy(chip: Chip, traffic: LayerTraffic, layer: int) -> dict[str, float] | None:
    """Return the energy in pJ by source; None where the machine states none. Bytes are charged in whole bursts."""
    if chip.energy is None:
        return None
    charged = traffic.bytes[layer, :, 2:].sum(axis=1)
    dram, all_bytes = int(charged[Space.DRAM]), int(charged.sum())
    energy_by_source = {
        "macs": chip.energy.pj_per_mac * int(traffic.macs[layer]),
        "on_chip": chip.energy.pj_per_sram_byte * (all_bytes - dram),
        "dram": chip.energy.pj_per_dram_byte * dram,
    }
    return {**energy_by_source, "total": sum(energy_by_source.values())}
