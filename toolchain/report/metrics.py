"""Collect the figures of a run for the JSON report: cycles of each layer, totals, and beside each the bound it can be held
against.

`collect_metrics` takes the compiled container and the timed runs of its regions. Accuracy is added by report.accuracy. The keys
and units are those of `BuildFigures` in report.figure_types.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simulator import Simulation
from toolchain.codegen import Container, Region
from toolchain.hw.chip import Chip
from toolchain.hw.unit_map import KINDS
from toolchain.machine import Signal, Wait
from toolchain.report.bounds.bound_metrics import network_bounds, region_bounds
from toolchain.report.bounds.unit_bounds import MinUnitUse
from toolchain.report.host_metrics import host_figures
from toolchain.report.layer_breakdown import RegionAttribution, layer_cycles, most_macs, network_attribution, region_attribution
from toolchain.report.layer_types import types_by_layer
from toolchain.report.merge_steps import tensors_of_steps
from toolchain.report.traffic import count_traffic, sum_traffic, traffic_figures


def collect_metrics(container: Container, simulations: Sequence[Simulation | None]) -> dict[str, Any]:
    """Return the metrics of a build as a dict with keys of `BuildFigures`: those of the run and its bounds; judging adds the
    others.

    `simulations`: a run with times for each segment, in order; None for a host subgraph.
    """
    chip = container.machine.chip
    regions = [(s, r) for s, r in zip(container.segments, simulations) if isinstance(s, Region) and r is not None]
    most = most_macs(container)
    causes = [region_attribution(chip, region, run, most) for region, run in regions]
    parts = [i for i, (s, r) in enumerate(zip(container.segments, simulations)) if isinstance(s, Region) and r is not None]
    uses = MinUnitUse(chip)
    least = [region_bounds(container, region, uses) for region, _ in regions]
    layers: list[dict[str, Any]] = [
        {**layer, "bounds": bounds.get(layer["name"])}
        for index, (region, run), attribution, bounds in zip(parts, regions, causes, [b.by_layer() for b in least])
        for layer in _layers(index, region, run, container, most, attribution)
    ]
    cycles = sum(r.cycles for _, r in regions)
    macs: int = sum(layer["macs"] for layer in layers)
    bounds = network_bounds(least)
    dram = bounds["dram"]
    busy = _busy([r for _, r in regions])
    used = [unit for unit in chip.of_kind("mac_array") if busy.get(unit.name)]
    peak, word_bytes = chip.peak_macs(used), container.machine.isa.word_bytes
    return {
        "name": container.name,
        "machine": chip.name,
        "cycles": cycles,
        "clock_hz": chip.clock.frequency,
        "seconds": cycles / chip.clock.frequency,
        "macs": macs,
        "macs_per_cycle": peak,
        "mac_utilization": macs / (peak * cycles) if cycles and peak else 0.0,
        "roofline_cycles": roofline(chip, macs, dram["constants"] + dram["inputs"], dram["outputs"]),
        "dram_read_bytes": sum(r.dram_read_bytes for _, r in regions),
        "dram_write_bytes": sum(r.dram_write_bytes for _, r in regions),
        "dram_bound_bytes": bounds["dram_bytes"],
        "bounds": bounds,
        "sram_peak_bytes": max((region.sram_peak_bytes for region, _ in regions), default=0),
        "sram_bound_bytes": max((region.sram_bound_bytes for region, _ in regions), default=0),
        "sram_size_bytes": chip.sram.size,
        "buffers": _buffers(chip, [region for region, _ in regions]),
        "busy_cycles": busy,
        "attribution": network_attribution(chip, causes),
        **traffic_figures(chip, word_bytes, sum_traffic([count_traffic(region, run) for region, run in regions], chip)),
        "used_arrays": [unit.name for unit in used],
        "idle_arrays": [unit.name for unit in chip.workers("mac_array") if unit not in used],
        "arrays_overlap": _arrays_overlap(chip, [r for _, r in regions]),
        "unused_engines": [{"engine": engine, "reason": reason} for engine, reason in chip.unused.items()],
        "layers": layers,
        "host": host_figures(container, macs),
        "fallbacks": _fallbacks(container),
    }


def _buffers(chip: Chip, regions: Sequence[Region]) -> list[dict[str, Any]]:
    """Return the use of the on-chip memories other than SRAM that programs use, the largest of all regions, in the order of
    memories."""
    rows = list[dict[str, Any]]()
    for space in chip.spaces:
        memory_buffers = [b for region in regions for b in region.buffers if b.memory == space.name]
        if memory_buffers:
            peak, bound = max(b.peak_bytes for b in memory_buffers), max(b.bound_bytes for b in memory_buffers)
            rows.append({"memory": space.name, "peak_bytes": peak, "bound_bytes": bound, "size_bytes": space.memory.size})
    return rows


def get_untimed_figures(container: Container) -> dict[str, Any]:
    """Return the figures of a run on a backend without times: name, machine and fallbacks."""
    return {"name": container.name, "machine": container.machine.chip.name, "fallbacks": _fallbacks(container)}


def _fallbacks(container: Container) -> list[dict[str, str]]:
    """Return the nodes on the host, each with its operator and the reason."""
    return [{"node": node, "op": op, "reason": reason} for node, op, reason in container.fallbacks]


def _busy(simulations: Sequence[Simulation]) -> dict[str, int]:
    """Return the cycles in which units worked, by the names that the simulator gives them, summed over the regions."""
    total: dict[str, int] = {}
    for simulation in simulations:
        for engine, cycles in simulation.busy_cycles.items():
            total[engine] = total.get(engine, 0) + int(cycles)
    return total


def _arrays_overlap(chip: Chip, simulations: Sequence[Simulation]) -> float:
    """Return the share (0 to 1) of the time with a busy array in which two or more are busy; 0 with one array."""
    arrays = [unit.queue for unit in chip.of_kind("mac_array")]
    if len(arrays) < 2:
        return 0.0
    busy = shared = 0
    for simulation in simulations:
        runs = np.isin(simulation.engine, arrays) & np.array([not isinstance(op, Signal | Wait) for op in simulation.flow])
        times = np.concatenate([simulation.start[runs], simulation.end[runs]])
        steps = np.repeat([1, -1], [runs.sum(), runs.sum()])
        order = np.argsort(times, kind="stable")
        running, lasting = np.cumsum(steps[order])[:-1], np.diff(times[order])
        busy += int(lasting[running > 0].sum())
        shared += int(lasting[running > 1].sum())
    return shared / busy if busy else 0.0


def roofline(chip: Chip, macs: int, read_bytes: int, write_bytes: int) -> int:
    """Return the cycles that no program with so many products and DRAM bytes can beat: products and bytes at peak rates.

    They are the most of the products on all arrays, and the bytes at each DRAM port and on all DMA channels.
    """
    dram = chip.dram
    moved_a_cycle = sum(unit.dma.bytes_per_cycle for unit in chip.of_kind("dma"))
    moved = read_bytes + write_bytes
    if dram.shared_ports:
        ports = [moved / max(dram.read_bytes_per_cycle, dram.write_bytes_per_cycle)]
    else:
        ports = [read_bytes / dram.read_bytes_per_cycle, write_bytes / dram.write_bytes_per_cycle]
    compute = macs / chip.macs_per_cycle if chip.macs_per_cycle else 0.0
    return math.ceil(max(compute, moved / moved_a_cycle, *ports))


def _layers(
    segment: int,
    region: Region,
    simulation: Simulation,
    container: Container,
    most: Mapping[str, int],
    causes: RegionAttribution | None,
) -> list[dict[str, Any]]:
    """Return the rows of the layers of a region, without bounds.

    `segment`: index of the region among the segments.
    `most`: products that each convolution requires, by the name of its layer; an instruction may make more, with zeros.
    `causes`: attribution of the region; None where times were measured elsewhere.
    """
    flow, count = simulation.flow, len(region.layers)
    busy = np.zeros((count, len(simulation.engines)), np.int64)
    macs = np.zeros(count, np.int64)
    places: dict[int, list[int]] = {}  # first and last operation of each layer
    for index, (op, layer) in enumerate(zip(flow, region.layers_of(flow).tolist())):
        if layer < 0:
            continue
        source = flow.calls[index][0][0] if flow.calls[index] else flow.sources[index]
        first, last = places.setdefault(layer, [source, source])
        places[layer] = [min(first, source), max(last, source)]
        if not isinstance(op, Signal | Wait):
            busy[layer, simulation.engine[index]] += simulation.end[index] - simulation.start[index]
            macs[layer] += simulation.op_macs[index]
    macs = np.array([min(int(n), most.get(info.name, int(n))) for n, info in zip(macs, region.layers)], np.int64)
    types, steps = types_by_layer(container.graph), tensors_of_steps(container.graph)
    cycles, traffic = layer_cycles(region, simulation), count_traffic(region, simulation)
    rows = list[dict[str, Any]]()
    for layer, info in enumerate(region.layers):
        rows.append(
            {
                "name": info.name,
                "op": info.op,
                "sources": list(info.sources),
                "steps_of": steps.get(info.name),
                "engine": _engine(container.machine.chip, busy[layer]),
                "cycles": int(cycles[layer]),
                "macs": int(macs[layer]),
                "busy_macs": _busy_macs(container.machine.chip, busy[layer]),
                "bound_by": _bound_by(container.machine.chip, busy[layer]),
                "segment": segment,
                "operations": places.get(layer),
                **types[info.name].as_json(),
                "attribution": None if causes is None else causes.layers[layer],
                **traffic_figures(container.machine.chip, container.machine.isa.word_bytes, traffic, layer),
            }
        )
    return rows


def _busy_macs(chip: Chip, busy: np.ndarray) -> int:
    """Return the products that the arrays could make in the cycles in which they worked for a layer, whenever these were."""
    return round(sum(int(busy[unit.queue]) * chip.peak_macs([unit]) for unit in chip.of_kind("mac_array")))


def _engine(chip: Chip, busy: np.ndarray) -> str:
    """Return the engines that worked for a layer as text, with the number of units: arrays if any did, else vector, else DMA.

    `busy`: int64[unit], cycles of each unit.
    """
    for kind in KINDS:
        names = Counter(u.engine for u in chip.of_kind(kind) if busy[u.queue])
        if names:
            return "+".join(name if kind == "dma" or n == 1 else f"{name} x{n}" for name, n in names.items())
    return chip.of_kind("dma")[0].engine


def _bound_by(chip: Chip, busy: np.ndarray) -> str:
    """Return the engine whose unit worked longest for the layer; `none` where none worked. busy: int64[unit], cycles."""
    return chip.units[int(busy.argmax())].engine if busy.any() else "none"
