"""The least that units and ports of a machine take for a layer: its closed forms, of tiles as large as instructions may be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from toolchain.hw.chip import Chip
from toolchain.machine.recurrence import read_rate, write_rate
from toolchain.ops.kit.operator import Layer, TiledOp, tiling_key
from toolchain.ops.kit.tile import Tiling, Work
from toolchain.report.bounds.dram import LeastBytes
from toolchain.schedule.cost import CostModel
from toolchain.schedule.tilings import candidates
from toolchain.schedule.visits import BEGIN, visits

Uses = Mapping[str, float]  # cycles of what a machine has one of, by name: all units of one kind together, a port, the front end

FRONT_END = "front end"
_TILINGS = 6  # of a layer, the coarsest first


class LeastUses:
    """Of the layers of one network; those that are alike are looked at once."""

    def __init__(self, chip: Chip):
        self._chip, self._model = chip, CostModel(chip)
        self._known: dict[object, Uses] = {}

    def of(self, layer: Layer) -> Uses:
        """Without what is moved between DRAM and the chip. Nothing for what only moves: it may lie in place."""
        if not isinstance(layer.node.op, TiledOp):
            return {}
        kinds = [(layer.types[n].shape, layer.types[n].dtype, n in layer.feature_maps) for n in layer.activations]
        key = (
            tiling_key(layer),
            *kinds,
            layer.output.shape,
            layer.output.dtype,
            *layer.feature_maps.intersection(layer.node.outputs),
        )
        shapes = tuple(layer.constants[n].shape for n in layer.node.inputs if n in layer.constants)
        if (key, shapes) not in self._known:
            self._known[key, shapes] = self._found(layer)
        return self._known[key, shapes]

    def _found(self, layer: Layer) -> Uses:
        tried = [self._uses(layer, tiling) for _, tiling in candidates(layer)[:_TILINGS]]
        made = [uses for uses in tried if uses is not None]
        names = dict.fromkeys(name for uses in made for name in uses)
        return {name: min(uses.get(name, 0.0) for uses in made) for name in names}

    def _uses(self, layer: Layer, tiling: Tiling) -> Uses | None:
        """None where no unit runs such tiles."""
        nest = layer.tiled.nest(layer, tiling)
        total: Counter[str] = Counter()
        marks: list[Counter[str]] = []
        for visit in visits(nest.axes):
            if not isinstance(visit, int):
                for work in nest.body(visit):
                    uses = self._of_work(layer, work)
                    if uses is None:
                        return None
                    total.update(uses)
            elif visit == BEGIN:
                marks.append(Counter(total))
            else:
                before = marks.pop()
                total = Counter({n: c + visit * (c - before[n]) for n, c in total.items()})
        return total

    def _of_work(self, layer: Layer, work: Work) -> dict[str, float] | None:
        runs = self._model.runs(layer, work)
        if not runs:
            return None
        found: list[Counter[str]] = []
        for unit, run in runs.items():
            uses: Counter[str] = Counter()
            emitter = self._chip.emitter(unit)
            for where, asked in ((unit, run.wanted), (emitter, run.emit)):
                if where is None or asked is None:
                    continue
                alike = len(self._chip.workers(where.kind))
                cycles = asked.compute_cycles + asked.operations * where.spec.issue_cycles
                uses[_kind(self._chip, where.kind)] += cycles / alike  # type: ignore[assignment]
                uses[FRONT_END] += asked.operations * self._chip.isa.word_cycles  # type: ignore[assignment]
                for port, served in asked.services:
                    uses[port_name(self._chip, port)] += served
            found.append(uses)
        return {name: min(uses[name] for uses in found) for name in found[0]}


def dram_uses(chip: Chip, least: LeastBytes, layer: int) -> Uses:
    """Of a layer's share of what must be moved."""
    read = least.constants[layer] + least.inputs[layer] + least.again[layer]
    return moving(chip, read, least.outputs[layer])


def moving(chip: Chip, read_bytes: int, written_bytes: int) -> Uses:
    """Cycles of the ports of DRAM, and of all channels together."""
    dram = chip.dram
    read, written = read_bytes / read_rate(dram), written_bytes / write_rate(dram)
    ports = {port_name(chip, 0): read + written} if dram.shared_ports else {port_name(chip, 0): read, port_name(chip, 1): written}
    rate = sum(unit.dma.bytes_per_cycle for unit in chip.of_kind("dma"))
    return {**ports, _kind(chip, "dma"): (read_bytes + written_bytes) / rate}


def port_name(chip: Chip, port: int) -> str:
    """Ports of memory m are 2 m, which reads, and 2 m + 1; shared ones are 2 m."""
    space = chip.spaces[port // 2]
    if space.memory.shared_ports:
        return f"{space.name} port"
    return f"{space.name} {'write' if port % 2 else 'read'} port"


def _kind(chip: Chip, kind: str) -> str:
    engines = dict.fromkeys(unit.engine for unit in (chip.workers(kind) or chip.of_kind(kind)))
    return "+".join(engines)
