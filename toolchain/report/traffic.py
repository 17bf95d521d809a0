"""Bytes that a program moves and reads as instructions, and the energy of both, of the network and of each layer."""

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
    """What each layer's operations do, those of no layer with the last: int64[layer]; bytes int64[layer, memory, kind], kinds
    as in `BYTES`. macs: products that arrays do, those by zeros too. words: instruction words that the front end reads."""

    bytes: np.ndarray
    macs: np.ndarray
    words: np.ndarray


def count_traffic(region: Region, run: Simulation) -> LayerTraffic:
    """Of a region."""
    flow, count, wanted = run.flow, max(1, len(region.layers)), run.wanted
    owners = region.layers_of(flow) % count  # -1, none: the last
    found = LayerTraffic(np.zeros((count, len(wanted.read_bytes), len(BYTES)), np.int64), *np.zeros((2, count), np.int64))
    for kind, name in enumerate(BYTES):
        np.add.at(found.bytes[:, :, kind], owners, getattr(wanted, name).T)
    np.add.at(found.macs, owners, wanted.macs)
    np.add.at(found.words, owners, np.array(flow.words, np.int64))
    return found


def together(regions: Sequence[LayerTraffic], chip: Chip) -> LayerTraffic:
    """What all layers of all regions do, as one layer; nothing where there is none."""
    nothing = LayerTraffic(np.zeros((1, len(chip.spaces), len(BYTES)), np.int64), *np.zeros((2, 1), np.int64))
    return LayerTraffic(*(np.concatenate(parts).sum(axis=0, keepdims=True) for parts in zip(nothing, *regions)))


def traffic_figures(chip: Chip, word_bytes: int, found: LayerTraffic, layer: int = 0) -> dict[str, Any]:
    """Of one layer; memories of no bytes are left out. energy_pj: None where the machine does not say what a byte takes."""
    by_memory = zip(chip.spaces, found.bytes[layer].tolist())
    return {
        "traffic": {space.name: dict(zip(BYTES, sizes)) for space, sizes in by_memory if any(sizes)},
        "program_bytes": int(found.words[layer]) * word_bytes,
        "energy_pj": _energy(chip, found, layer),
    }


def _energy(chip: Chip, found: LayerTraffic, layer: int) -> dict[str, float] | None:
    """By the machine's `energy`: of products that arrays do, and of bytes as the memories are charged."""
    if chip.energy is None:
        return None
    charged = found.bytes[layer, :, 2:].sum(axis=1)
    dram, all_bytes = int(charged[Space.DRAM]), int(charged.sum())
    spent = {
        "macs": chip.energy.pj_per_mac * int(found.macs[layer]),
        "on_chip": chip.energy.pj_per_sram_byte * (all_bytes - dram),
        "dram": chip.energy.pj_per_dram_byte * dram,
    }
    return {**spent, "total": sum(spent.values())}
