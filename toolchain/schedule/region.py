"""The plan of one region: what stays in SRAM, how each layer is tiled, where everything lies in each memory."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from toolchain.errors import CompileError
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Graph, Node
from toolchain.machine import Space
from toolchain.memory import Buffer, DoesNotFit, Placement, ResidentTensor, choose_residents, place
from toolchain.ops.kit.operator import Layer, TiledOp, tiling_key
from toolchain.ops.permutation import Reshape
from toolchain.schedule.cost import CostModel
from toolchain.schedule.maps import feature_maps
from toolchain.schedule.options import Options
from toolchain.schedule.placement import PlanCosts, place_works
from toolchain.schedule.places import Activations, find_views
from toolchain.schedule.plan import RegionPlan, Storage, alone_cycles, slot_name
from toolchain.schedule.refusal import too_many, too_small
from toolchain.schedule.staging import PlannedLayer
from toolchain.schedule.tilings import Candidate, LayerTilings, Measure, SmallestTile, alone, amid, candidates, smallest_tile

_PLACING_NODES = 2_000  # effort of one placement: another attempt, with less resident, costs less than a longer search
_FAR = 1.05  # times the cycles of the best plan's layers, each alone: beyond what they can gain of each other
_RESERVES = (0.0, 0.25, 0.5)  # shares of SRAM kept free of resident tensors that are tried


def plan_region(
    graph: Graph, nodes: Sequence[Node], inputs: Collection[str], outputs: Collection[str], chip: Chip, options: Options
) -> RegionPlan:
    """graph: integer. nodes: of one region, in order. Raises CompileError when a layer cannot fit the SRAM."""
    return _Planner(graph, nodes, inputs, outputs, chip, options).plan()


class _Planner:
    def __init__(
        self,
        graph: Graph,
        nodes: Sequence[Node],
        inputs: Collection[str],
        outputs: Collection[str],
        chip: Chip,
        options: Options,
    ):
        self.graph, self.chip, self.options = graph, chip, options
        ports = set(inputs) | set(outputs)
        maps = feature_maps(nodes, graph, ports, chip)
        activations = Activations(tuple(nodes), graph.types, ports, maps, chip.layout.feature_maps)
        self.views = find_views(activations, in_place=options.in_place)
        self.layers = [Layer(n, graph.types, graph.constants, chip, maps) for n in nodes if not self._is_free(n)]
        self.port_roots = {self.views[p].root for p in ports if p in self.views}
        self.storages = self._storages()
        self.model = CostModel(chip)
        self.costs = PlanCosts(self.model)
        self.capacity = chip.sram.size
        self.sizes = {space: chip.spaces[space].memory.size for space in chip.staging}
        self.candidates: dict[object, Sequence[Candidate]] = {}  # by signature where nothing is resident
        self.tilings: dict[object, LayerTilings] = {}  # by signature
        self.placed: dict[object, RegionPlan | None] = {}  # by resident roots and the plans of the layers

    def _is_free(self, node: Node) -> bool:
        """Whether it only looks at codes under another shape."""
        out = node.outputs[0]
        return isinstance(node.op, Reshape) and self.views[out].root != out

    def _storages(self) -> dict[str, Storage]:
        found: dict[str, Storage] = {}
        for step, layer in enumerate(self.layers):
            for name in dict.fromkeys((*layer.activations, *layer.node.outputs)):
                root = self.views[name].root
                old = found.get(root)
                if old is None:
                    size_bytes = self.views[root].stored_bytes(self.graph.types[root].shape)
                    found[root] = Storage(root, size_bytes, step, step + 1, 1)
                else:
                    found[root] = replace(old, end=step + 1, touches=old.touches + 1)
        return found

    def plan(self) -> RegionPlan:
        tiles = self._smallest_tiles()
        refusal = too_small(self.layers, tiles, self.chip, self.graph)
        if refusal is not None:
            raise CompileError(refusal)
        least = [tile.sizes.get(Space.SRAM, 0) for tile in tiles]
        best = self._best(least) or self._try([self.capacity] * len(least), 1.0)
        if best is None:
            raise CompileError(f"{self.chip.name}: no placement found; a larger memories.sram.size would do")
        refusal = too_many([p.layer for p in best.layers], [p.plan.works if p.plan else 0 for p in best.layers], self.chip)
        if refusal is not None:
            raise CompileError(refusal)
        return place_works(best, self.model)

    def _best(self, least: Sequence[int]) -> RegionPlan | None:
        """Of the shares of the SRAM that are kept for staging, and then of the ways to choose tilings."""
        best, kept = None, 0.0
        for share in _RESERVES if self.options.residency else (1.0,):
            found = self._try(least, share, alone, math.inf if best is None else _FAR * best.alone_cycles)
            if found is not None and (best is None or found.cycles < best.cycles):
                best, kept = found, share
        other = self._try(least, kept, amid) if best is not None else None
        return other if other is not None and best is not None and other.cycles < best.cycles else best

    def _smallest_tiles(self) -> list[SmallestTile]:
        """With what each layer can run at all where nothing is resident; layers that are alike share it."""
        found: dict[object, SmallestTile] = {}
        tiles: list[SmallestTile] = []
        for layer in self.layers:
            signature = self._signature(layer, ())
            if signature not in found:
                found[signature] = smallest_tile(layer, ()) if isinstance(layer.node.op, TiledOp) else SmallestTile()
            tiles.append(found[signature])
        return tiles

    def _try(self, least: Sequence[int], share: float, by: Measure = alone, most: float = math.inf) -> RegionPlan | None:
        """A plan with `share` of the SRAM kept for staging; less and less is resident until it can be placed. most: cycles of all
        layers alone; None where they are more."""
        usable = 1.0
        for _ in range(8):
            reserved = [min(self.capacity, max(need, int(share * self.capacity))) for need in least]
            resident = self._residents(reserved, int(self.capacity * usable))
            planned = self._tile(resident, usable, by)
            if planned is not None:
                if alone_cycles(planned) > most:
                    return None
                key = resident, tuple(id(p.plan) for p in planned)  # `tilings` keeps the plans
                if key not in self.placed:
                    self.placed[key] = self._place(planned, resident)
                found = self.placed[key]
                if found is not None:
                    return found
            if not resident and usable < 0.6:
                return None
            usable *= 0.88
        return None

    def _residents(self, reserved: Sequence[int], capacity: int) -> frozenset[str]:
        if not self.options.residency:
            return frozenset()
        align = self.chip.sram.alignment_bytes
        tensors = [
            ResidentTensor(s.name, s.start, s.end, -(-s.size_bytes // align) * align, s.size_bytes * s.touches)
            for s in self.storages.values()
            if s.name not in self.port_roots
        ]
        return choose_residents(tensors, [min(r, capacity) for r in reserved], capacity).resident

    def _tile(self, resident: frozenset[str], usable: float, by: Measure) -> list[PlannedLayer] | None:
        names = {n for n, v in self.views.items() if v.root in resident}
        align = self.chip.sram.alignment_bytes
        live = [0] * len(self.layers)
        for root in resident:
            s = self.storages[root]
            for step in range(s.start, s.end):
                live[step] += -(-s.size_bytes // align) * align
        planned = []
        for layer, used in zip(self.layers, live):
            if not isinstance(layer.node.op, TiledOp):
                planned.append(PlannedLayer(layer, None))
                continue
            room = {**self.sizes, int(Space.SRAM): int((self.capacity - used) * usable)}
            plan = self._tilings(layer, names).best(room, self.options.tilings, by)
            if plan is None:
                return None
            planned.append(PlannedLayer(layer, plan))
        return planned

    def _tilings(self, layer: Layer, resident: Collection[str]) -> LayerTilings:
        """Those of the first layer like this one."""
        signature = self._signature(layer, resident)
        if signature not in self.tilings:
            depth = 2 if self.options.double_buffer else 1
            own = frozenset(n for n in (*layer.activations, *layer.node.outputs) if n in resident)
            alike = self._signature(layer, ())
            if alike not in self.candidates:
                self.candidates[alike] = candidates(layer)
            self.tilings[signature] = LayerTilings(layer, own, self.views, self.model, depth, self.candidates[alike])
        return self.tilings[signature]

    def _signature(self, layer: Layer, resident: Collection[str]) -> object:
        """All that the cost of a layer's tilings depends on."""
        operands = tuple(
            (
                layer.types[n].shape,
                layer.types[n].dtype,
                n in layer.constants,
                n in resident,
                self.views[n].strides,
            )
            for n in (*layer.node.inputs, *layer.node.outputs)
            if n
        )
        return tiling_key(layer), operands

    def _place(self, planned: Sequence[PlannedLayer], resident: frozenset[str]) -> RegionPlan | None:
        placements: dict[int, Placement] = {}
        used = {slot.space for p in planned if p.plan is not None for slot in p.plan.slots}
        for space in sorted({int(Space.SRAM), *used}):
            placement = self._allocate(space, planned, resident)
            if placement is None:
                return None
            placements[space] = placement
        spilled = tuple(s for n, s in self.storages.items() if n not in resident and n not in self.port_roots)
        plan = RegionPlan(tuple(planned), self.views, resident, spilled, placements, 0)
        return replace(plan, cycles=self.costs.cycles(plan))

    def _allocate(self, space: int, planned: Sequence[PlannedLayer], resident: frozenset[str]) -> Placement | None:
        """Addresses in one memory: of resident roots, which lie in the SRAM, and of the slots that layers have there."""
        align, kept = self.chip.spaces[space].memory.alignment_bytes, resident if space == Space.SRAM else frozenset()
        homes = [Buffer(s.name, s.start, s.end, s.size_bytes, align) for n, s in self.storages.items() if n in kept]
        # Where works have a choice of units, the next layer may run beside this one: it should not wait for the bytes.
        apart = [(1, 1)] if self.model.choice else []
        for early, late in (*apart, (1, 0), (0, 0)) if self.options.double_buffer else (*apart, (0, 0)):
            slots = [
                Buffer(slot_name(step, slot.role, i), _since(step, slot.role, early), step + 1 + late, slot.size_bytes, align)
                for step, p in enumerate(planned)
                if p.plan is not None
                for slot in p.plan.slots
                if slot.space == space
                for i in range(slot.copies)
            ]
            try:
                return place([*homes, *slots], self.sizes[space], _PLACING_NODES)
            except DoesNotFit:
                continue
        return None


def _since(step: int, role: str, early: int) -> int:
    """Constant blocks may be fetched while the layer before still runs."""
    return max(0, step - early) if role.startswith("b") else step
