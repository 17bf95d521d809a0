"""Compute the least cycles that units and ports of a machine take for a layer, whatever the schedule (docs/bounds.md).

They are closed forms of tiles as large as instructions may be, with each operand's bytes once. `report.bounds.bound_metrics`
sums the uses of a region's layers; the largest sum is a lower bound of its cycles. `Uses` are cycles by the name of a resource:
all units that can share work, a port of a memory, or the front end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import chain, product
from math import prod
from operator import add
from typing import Any

import numpy as np

from quant.fixed_point.core.codes import CodeType
from toolchain.hw.chip import Chip
from toolchain.hw.engines import EvenArray, MacArray
from toolchain.hw.unit_map import Unit
from toolchain.machine import MachineOp
from toolchain.machine.timing_model import read_rate, write_rate
from toolchain.machine.units.array import operands_of
from toolchain.ops.convolution.integer_convolution import IntegerConvolution
from toolchain.ops.kit.nest import Axis
from toolchain.ops.kit.operator import Layer, TiledOp, tiling_key
from toolchain.ops.kit.tile import Extent, Tiling
from toolchain.ops.kit.window import Taps
from toolchain.ops.matrix_product import IntegerMatrixProduct
from toolchain.report.bounds.dram import MinTraffic, get_chip_capacity
from toolchain.report.bounds.first_use import find_ended_layers
from toolchain.report.bounds.padding import Band, bands, products
from toolchain.report.bounds.release_bound import LoadChannel, WaitingLayers
from toolchain.report.bounds.required_reads import reads_of
from toolchain.schedule.accumulator_memory import AccumulatorAddresses
from toolchain.schedule.tilings import candidates
from toolchain.schedule.unit_choice import emit_at_zero, find_capable_units, lower_to_unit, units_for

Uses = Mapping[str, float]  # cycles of what a machine has one of, by name: all units of one kind together, a port, the front end

FRONT_END = "front end"
_TILINGS = 6  # the coarsest first


class MinUnitUse:
    """A calculator of the least unit use of layers of one network; equal layers are computed once.

    The attribute `capable_units` grows with each layer: by the name of units that share work, the numbers of their queues.
    """

    def __init__(self, chip: Chip):
        self._chip = _evenly_filled(chip)
        self._units_by_layer: dict[str, tuple[Unit, ...]] = {}
        self._uses_by_key: dict[object, Uses] = {}
        self.capable_units: dict[str, frozenset[int]] = {}  # by name the queues of units that share some layers' work

    def of(self, layer: Layer) -> Uses:
        """Return the least uses of a layer, in cycles by name, without DRAM transfers.

        Layers that only move data use nothing, since their output may lie in place.
        """
        if not isinstance(layer.node.op, TiledOp):
            return {}
        kinds = [(layer.types[n].shape, layer.types[n].dtype, n in layer.feature_maps) for n in layer.activations]
        output_kind = layer.output.shape, layer.output.dtype, layer.node.outputs[0] in layer.feature_maps
        shapes = [layer.constants[n].shape for n in layer.node.inputs if n in layer.constants]
        key = tiling_key(layer), *kinds, *output_kind, *shapes
        if key not in self._uses_by_key:
            self._uses_by_key[key] = self._compute_uses(layer)
        return self._uses_by_key[key]

    def _compute_uses(self, layer: Layer) -> Uses:
        """Return for each unit the least over the tilings and the ways to skip padding, and the uses of the ports."""
        tilings = list(layer.tiled.tilings(layer))
        self._units_by_layer[layer.node.name] = self._units(layer, min(tilings, key=lambda tiling: tiling.volume))
        tried = [self._uses(layer, tiling) for tiling in _tilings(layer, tilings)]
        tried += [self._beside_padding(layer, tiling) for tiling in _tilings(layer, tilings)]
        feasible = [uses for uses in tried if uses is not None]
        names = dict.fromkeys(name for uses in feasible for name in uses)
        return {**{name: min(uses.get(name, 0.0) for uses in feasible) for name in names}, **self._ports(layer)}

    def _beside_padding(self, layer: Layer, tiling: Tiling) -> Uses | None:
        """Return the uses of a convolution where parts of the kernel that meet only padding are left out, None where there are
        none.

        The result is the least of each unit over all ways to join neighbouring rows.
        """
        op = layer.node.op
        if not isinstance(op, IntegerConvolution) or not any(op.pads):
            return None
        met = products(layer, op)
        if met is not None:
            return self._peak(layer, op, met)
        layer_bands = bands(layer, op)
        best: list[Uses] = [{}]
        for end in range(1, len(layer_bands) + 1):
            ways: list[Uses] = []
            for first in range(end):
                band_uses = self._uses(layer, tiling, reduce(add, layer_bands[first:end]))
                if band_uses is None:
                    return None
                ways.append(add_uses(best[first], band_uses))
            best.append({n: min(way.get(n, 0.0) for way in ways) for n in dict.fromkeys(chain(*ways))})
        return best[-1]

    def _peak(self, layer: Layer, op: IntegerConvolution, product_count: int) -> Uses | None:
        """Return the uses of so many products at the peak rate of the arrays."""
        units = self._units_by_layer[layer.node.name]
        kinds = CodeType(layer.input_type(0).dtype), op.weight_type
        peak = sum(u.array.multipliers * operands_of(u.array, *kinds).rate for u in units if u.kind == "mac_array")
        return {self._name_units(units): product_count / peak} if peak else None

    def _uses(self, layer: Layer, tiling: Tiling, band: Band | None = None) -> Uses | None:
        """Return the uses of units and the front end, by the tile tasks of each kind; None where no unit runs such tiles.

        `band`: a part of the output, with the rows of the kernel that it meets.
        """
        extent = None if band is None else Extent(band.rows, (0, layer.output.shape[3]))
        nest = layer.tiled.nest(layer, tiling if band is None else replace(tiling, rows=band.end - band.first), extent)
        total: dict[str, float] = {}
        for kinds in product(*(_kinds(axis) for axis in nest.axes)):
            times = prod(count for _, count in kinds)
            for task in nest.body(tuple(step for step, _ in kinds)):
                ops = emit_at_zero(task, layer)
                if band is not None:
                    rows = range(layer.constants[layer.node.inputs[1]].shape[1])[Taps(*task.variant[2:5]).slice]
                    high = sum(band.top <= row < band.bottom for row in rows)
                    ops = [replace(op, kernel_height=high) for op in ops] if high > 0 else []
                uses = self._run(ops, self._units_by_layer[layer.node.name]) if ops else dict[str, float]()
                if uses is None:
                    return None
                total = add_uses(total, {name: times * cycles for name, cycles in uses.items()})
        return total

    def _units(self, layer: Layer, smallest: Tiling) -> tuple[Unit, ...]:
        """Return the units that can run all of the smallest tiles of a layer."""
        task_ops = [emit_at_zero(task, layer) for task in layer.tiled.nest(layer, smallest).distinct()]
        units = [find_capable_units(ops, self._chip) for ops in task_ops]
        return tuple(u for u in units[0] if all(u in others for others in units)) or units_for(task_ops[0], self._chip)

    def _run(self, ops: Sequence[MachineOp], units: Sequence[Unit]) -> Uses | None:
        """Return the uses of a task's operations on the best of these units, for each name by itself; None where no unit runs
        them.

        Units that share work count as one of their joint rate.
        """
        chip, least = self._chip, dict[str, float]()
        for unit in units:
            uses: Uses = {}
            emitter = chip.emitter(unit)
            for op in lower_to_unit(ops, unit, chip, AccumulatorAddresses(chip)):
                runner = emitter if emitter is not None and emitter.kind == op.ENGINE else unit
                sharing = units if runner is unit else chip.workers(runner.kind)
                cycles = float(op.demand(chip).compute_cycles) + runner.spec.issue_cycles
                uses = add_uses(uses, {self._name_units(sharing): cycles / len(sharing), FRONT_END: chip.isa.word_cycles})
            least = {n: min(c, least.get(n, c)) for n, c in uses.items()}
        return least or None

    def _name_units(self, units: Iterable[Unit]) -> str:
        """Return a name for units that share work and note their queues: their engines if these have no other unit, else their
        own names."""
        units = tuple(units)
        kind = self._chip.workers(units[0].kind)
        engines = dict.fromkeys(u.engine for u in units)
        covers_kind = len(units) == sum(u.engine in engines for u in kind)
        name = "+".join(engines if covers_kind else [u.name for u in units])
        self.capable_units[name] = frozenset(u.queue for u in units)
        return name

    def _ports(self, layer: Layer) -> Uses:
        """Return the cycles of the ports of on-chip memories that hold operands of units.

        Every element that is read counts once, and so does every element that is made. An operand that units keep in different
        memories counts nowhere.
        """
        tiling = next(iter(layer.tiled.tilings(layer)))
        task = next(layer.tiled.nest(layer, tiling).iterate_tasks())
        units = self._units_by_layer[layer.node.name]
        reads = reads_of(layer)
        moved: dict[int, float] = {}
        for box in {box.tensor: box for box in task.reads}.values():
            elements = reads[box.tensor].elements if box.tensor in reads else 0
            space = {u.roles[box.role] for u in units}
            if len(space) == 1:
                at = space.pop()
                moved[2 * at] = moved.get(2 * at, 0.0) + elements * layer.types[box.tensor].item_bytes
        space = {u.roles["output"] for u in units}
        if len(space) == 1:
            moved[2 * space.pop() + 1] = layer.output.size_bytes
        port_cycles: dict[str, float] = {}
        for port, size_bytes in moved.items():
            memory = self._chip.spaces[port // 2].memory
            cycles = size_bytes / (write_rate(memory) if port % 2 else read_rate(memory))
            port_cycles = add_uses(port_cycles, {port_name(self._chip, port): cycles})
        return port_cycles


def _evenly_filled(chip: Chip) -> Chip:
    """Return the machine with idealized arrays: no operation takes longer than its parts would."""
    arrays = {name: EvenArray.model_construct(**dict(spec)) for name, spec in chip.engines.items() if isinstance(spec, MacArray)}
    return chip.model_copy(update={"engines": {**chip.engines, **arrays}})


def sum_uses(uses: Sequence[Uses], capable_units: Mapping[str, frozenset[int]]) -> Uses:
    """Return the uses of several layers together: sums by name.

    Work of a set of units also counts for every larger set that contains it, spread over the larger set.

    `uses`: uses of each layer.
    `capable_units`: queues of units by name, as in `MinUnitUse`.
    """
    total: dict[str, float] = {}
    for layer_uses in uses:
        total = add_uses(total, layer_uses)
    shared = {name: total[name] * len(capable_units[name]) for name in total if name in capable_units}
    sets = {
        name: sum(c for n, c in shared.items() if capable_units[n] <= capable_units[name]) / len(capable_units[name])
        for name in shared
    }
    return {**total, **sets}


def add_uses(one: Uses, other: Uses) -> dict[str, float]:
    """Return the sums of two uses by name."""
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in dict.fromkeys((*one, *other))}


def _kinds(axis: Axis) -> list[tuple[Any, int]]:
    """Return one step of each kind of an axis, and how many steps are of that kind."""
    counts = Counter(axis.kinds)
    return [(step, counts[kind]) for kind, step in dict(zip(axis.kinds, axis.steps)).items()]


def _tilings(layer: Layer, tilings: Sequence[Tiling]) -> Iterator[Tiling]:
    """Yield tilings of which one takes the fewest cycles that any tiling can take.

    A product is one operation, whatever accumulators hold, in each dataflow and mode, with others of its batch where one
    operation makes them. Where the machine lacks its strides, it is one row or column at a time. Grouped convolutions and other
    operators add their coarsest tilings.

    `tilings`: all possible tilings.
    """
    op = layer.node.op
    grouped = isinstance(op, IntegerConvolution) and op.groups > 1 and not op.depthwise(layer)
    if isinstance(op, IntegerConvolution | IntegerMatrixProduct):
        *_, rows, columns, channels = (1, *layer.output.shape)
        inner = max(tiling.inner for tiling in tilings)
        if isinstance(op, IntegerMatrixProduct):
            rows, columns, inner = columns, 1, layer.input_type(0).shape[-1]
        elif not op.depthwise(layer):
            channels, inner = channels // op.groups, layer.input_type(0).shape[3] // op.groups
        beyond = op.beyond(layer) if isinstance(op, IntegerConvolution) else (False, False)
        heights, widths = ({size, 1} if far else {size} for far, size in zip(beyond, (rows, columns)))
        variants, batches = dict.fromkeys(tiling.variant for tiling in tilings), {1, max(tiling.batches for tiling in tilings)}
        for (dataflow, mode), high, wide, count in product(variants, heights, widths, sorted(batches)):
            yield Tiling(high, wide, channels, inner, False, batches=count, dataflow=dataflow, mode=mode)
        if not grouped:
            return
    yield from (tiling for _, tiling in candidates(layer)[:_TILINGS])


def dram_uses(chip: Chip, least: MinTraffic, layer: int) -> Uses:
    """Return the cycles that a layer's share of the mandatory DRAM traffic takes, by port and DMA engines.

    `layer`: its index in `least`.
    """
    read = least.constants[layer] + least.inputs[layer] + least.again[layer]
    return count_dram_cycles(chip, read, least.outputs[layer])


def count_dram_cycles(chip: Chip, read_bytes: int, written_bytes: int) -> Uses:
    """Return the cycles that these bytes take at the ports of DRAM, and on all DMA channels together."""
    dram = chip.dram
    read, written = read_bytes / read_rate(dram), written_bytes / write_rate(dram)
    ports = {port_name(chip, 0): read + written} if dram.shared_ports else {port_name(chip, 0): read, port_name(chip, 1): written}
    rate = sum(unit.dma.bytes_per_cycle for unit in chip.of_kind("dma"))
    return {**ports, "+".join(dict.fromkeys(u.engine for u in chip.of_kind("dma"))): (read_bytes + written_bytes) / rate}


def waiting_layers(
    layers: Sequence[Layer], uses: Sequence[Uses], capable_units: Mapping[str, frozenset[int]], least: MinTraffic
) -> WaitingLayers:
    """Return for each layer the cycles that can only be spent once its first operations run, for report.bounds.release_bound.

    `uses`: of each layer, without DRAM transfers. The front end is left out, as it may read instructions long before.
    """
    each = [sum_uses([one], capable_units) for one in uses]
    units = [name for name in dict.fromkeys(chain(*each)) if name != FRONT_END]
    cycles = np.array([[one.get(name, 0.0) for name in units] for one in each]).reshape(len(layers), len(units))
    return WaitingLayers(find_ended_layers(layers), cycles, np.array(least.last_constants), np.array(least.outputs))


def load_channel(chip: Chip) -> LoadChannel:
    """Return how constants come to the chip. That is the room for them, cycles a byte at each DRAM port and on the DMA
    channels, and the most cycles to issue."""
    ports = list(count_dram_cycles(chip, 1, 1))
    read, write = (
        np.array([uses.get(port, 0.0) for port in ports])
        for uses in (count_dram_cycles(chip, 1, 0), count_dram_cycles(chip, 0, 1))
    )
    issued = max(unit.spec.issue_cycles for unit in chip.units)
    return LoadChannel(get_chip_capacity(chip, 1).size_bytes, read, write, issued)


def port_name(chip: Chip, port: int) -> str:
    """Return the name of a port. Memory m reads through port 2 m and writes through 2 m + 1; a shared one has 2 m alone."""
    space = chip.spaces[port // 2]
    if space.memory.shared_ports:
        return f"{space.name} port"
    return f"{space.name} {'write' if port % 2 else 'read'} port"
