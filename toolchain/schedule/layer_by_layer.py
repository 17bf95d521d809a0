"""Plans in which each layer runs by itself: residency, a tiling for each layer, and a placement in each memory."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from toolchain.errors import CompileError
from toolchain.ir.graph import Node
from toolchain.machine import Space
from toolchain.memory import ResidentTensor, choose_residents
from toolchain.ops.kit.operator import Layer, TiledOp
from toolchain.ops.kit.tile import round_up
from toolchain.ops.permutation import Reshape
from toolchain.schedule.allocation import Allocation, ResidentRoot, lives_together
from toolchain.schedule.capacity_errors import explain_too_small
from toolchain.schedule.channel_blocks import find_blocked_tensors
from toolchain.schedule.cost import CostModel
from toolchain.schedule.in_place import InPlace
from toolchain.schedule.options import RegionInput
from toolchain.schedule.plan import Cascade, RegionPlan, Storage, alone_cycles
from toolchain.schedule.plan_cost import ALONE, AMID, LEAST_MOVED, CostWeights, PlanCosts
from toolchain.schedule.tile_buffers import PlannedLayer
from toolchain.schedule.tilings import RegionTilings
from toolchain.schedule.transposed_views import find_dimension_orders, views_in_place
from toolchain.schedule.views import View, ViewInputs, find_views

_FAR = 1.05  # times the cycles of the best plan's layers, each alone: beyond what they can gain of each other
RESERVES = (0.0, 0.25, 0.5)  # shares of SRAM kept free of resident tensors that are tried


class LayerByLayer:
    """The planner of one region layer by layer."""

    def __init__(self, planning: RegionInput):
        graph, nodes, chip, options = planning.graph, planning.nodes, planning.chip, planning.options
        self.planning, self.graph, self.chip, self.options = planning, graph, chip, options
        ports = {*planning.inputs, *planning.outputs}
        maps = find_blocked_tensors(nodes, graph, ports, chip, {n for s in graph.states for n in (s.past, s.present_tensor)})
        activations = ViewInputs(tuple(nodes), graph.types, ports, maps, chip.layout.feature_maps)
        layers = [Layer(n, graph.types, graph.constants, chip, maps) for n in nodes]
        in_place = options.in_place
        self.views = (
            views_in_place(activations, layers, chip, planning.inline) if in_place else find_views(activations, in_place=False)
        )
        self.free = [n for n in nodes if self._is_free(n)]
        orders = find_dimension_orders(self.views)
        self.layers = [replace(layer, orders=orders) for layer in layers if not self._is_free(layer.node)]
        self.port_roots = {self.views[p].root for p in ports if p in self.views}
        self.settled = frozenset(self.port_roots)  # roots of which it is not open whether they lie in SRAM
        self.storages = self._storages()
        self.model = CostModel(chip)
        self.in_place = InPlace(self.layers, self.views, self.storages, self.port_roots)
        self.layerwise = RegionTilings(self.layers, self.views, self.model, options)
        self.costs = PlanCosts(self.model)
        self.sizes = {space: chip.spaces[space].memory.size for space in chip.staging}
        self.placed: dict[object, RegionPlan | None] = {}  # by resident roots and the plans of the layers

    def _is_free(self, node: Node) -> bool:
        """True where the operator only reads codes under another shape, and so is no layer."""
        out = node.outputs[0]
        return isinstance(node.op, Reshape) and self.views[out].root != out

    def _storages(self) -> dict[str, Storage]:
        storages: dict[str, Storage] = {}
        for step, layer in enumerate(self.layers):
            for name in dict.fromkeys((*layer.activations, *layer.node.outputs)):
                root = self.views[name].root
                old = storages.get(root)
                if old is None:
                    size_bytes = self.views[root].stored_bytes(self.graph.types[root].shape)
                    storages[root] = Storage(root, size_bytes, step, step + 1, 1)
                else:
                    storages[root] = replace(old, end=step + 1, touches=old.touches + 1)
        return storages

    @cached_property
    def _least(self) -> Sequence[int]:
        """`least_bytes` of the smallest tiles. Raises CompileError where a layer has none."""
        tiles = self.layerwise.smallest_tiles()
        refusal = explain_too_small(self.layers, tiles, self.chip, self.graph)
        if refusal is not None:
            raise CompileError(refusal)
        return self.least_bytes([tile.sizes.get(Space.SRAM, 0) for tile in tiles])

    @property
    def size(self) -> int:
        return self.chip.sram.size

    def least_bytes(self, tiles: Sequence[int]) -> Sequence[int]:
        """The SRAM that each layer needs for its rings. `tiles`: bytes with its smallest ones."""
        return tiles

    def unplaced(self) -> CompileError:
        """Why no plan was found."""
        return CompileError(f"{self.chip.name}: no placement found; a larger memories.sram.size would do")

    def _layer_by_layer(self) -> list[RegionPlan]:
        """The best plans layer by layer.

        Shares of the SRAM for staging are tried first, then ways to compare tilings. The faster of the tilings that are best
        alone and amid others comes first, then the other, then that of least DRAM traffic.
        """
        best, best_share = None, 0.0
        for share in RESERVES if self.options.residency else (1.0,):
            most = math.inf if best is None else _FAR * best.alone_cycles
            candidate = self._try(self._least, share, ALONE, most)
            if candidate is not None and (best is None or candidate.cycles < best.cycles):
                best, best_share = candidate, share
        if best is None:
            return []
        amid = self._try(self._least, best_share, AMID)
        moved = self._try(self._least, best_share, LEAST_MOVED)
        ways = sorted((plan for plan in (best, amid) if plan is not None), key=lambda plan: plan.cycles)
        different: dict[Hashable, RegionPlan] = {}
        for plan in (*ways, moved):
            if plan is not None:
                tiles = tuple((p.plan.tiling, p.plan.rings, p.plan.units) if p.plan is not None else None for p in plan.layers)
                different.setdefault((plan.resident, tiles), plan)
        return list(different.values())

    def _try(self, least: Sequence[int], share: float, by: CostWeights, most: float = math.inf) -> RegionPlan | None:
        """A plan with `share` of the SRAM kept for staging; less and less is resident until it can be placed. `most`: cycles
        of all layers alone; None where they are more."""
        usable = 1.0
        for _ in range(8):
            reserved = [min(self.size, max(need, int(share * self.size))) for need in least]
            resident = self.residents(reserved, int(self.size * usable))
            planned = self.tile(resident, usable, by)
            if planned is not None:
                if alone_cycles(planned) > most:
                    return None
                key = resident, tuple(id(p.plan) for p in planned)  # `tilings` keeps the plans
                if key not in self.placed:
                    self.placed[key] = self.place(planned, resident)
                placed = self.placed[key]
                if placed is not None:
                    return placed
            if not resident and usable < 0.6:
                return None
            usable *= 0.88
        return None

    def residents(self, reserved: Sequence[int], capacity: int) -> frozenset[str]:
        if not self.options.residency:
            return frozenset()
        align = self.chip.sram.alignment_bytes
        tensors = [
            ResidentTensor(s.name, s.start, s.end, round_up(s.size_bytes, align), s.size_bytes * s.touches)
            for s in self.storages.values()
            if s.name not in self.settled
        ]
        return choose_residents(tensors, [min(r, capacity) for r in reserved], capacity).resident

    def tile(self, resident: frozenset[str], usable: float, by: CostWeights) -> list[PlannedLayer] | None:
        names = {n for n, v in self.views.items() if v.root in resident}
        live, planned = self._live_bytes(resident), list[PlannedLayer]()
        for layer, used in zip(self.layers, live):
            if not isinstance(layer.node.op, TiledOp):
                planned.append(PlannedLayer(layer, None))
                continue
            plan = self.layerwise.best(layer, names, int((self.size - used) * usable), by)
            if plan is None:
                return None
            planned.append(PlannedLayer(layer, plan))
        return planned

    def _live_bytes(self, resident: Collection[str]) -> list[int]:
        """The live bytes of these roots while each layer runs."""
        live, align = [0] * len(self.layers), self.chip.sram.alignment_bytes
        for storage in (self.storages[root] for root in resident):
            for step in range(storage.start, storage.end):
                live[step] += round_up(storage.size_bytes, align)
        return live

    def place(
        self,
        planned: Sequence[PlannedLayer],
        resident: frozenset[str],
        views: Mapping[str, View] | None = None,
        cascades: tuple[Cascade, ...] = (),
        searched: bool = True,
    ) -> RegionPlan | None:
        """The plan with addresses and cycles; None where something has no place.

        `views`: others than the region's where rolling buffers hold tensors. `searched`: a search follows where no single order
        of the buffers fits.
        """
        views = self.views if views is None else views
        allocation = self.allocation(planned, resident, views, cascades)
        placements = allocation.in_memories(searched)
        if placements is None:
            return None
        in_memory = resident | self.port_roots
        spilled = lives_together((s for n, s in self.storages.items() if n not in in_memory), allocation.together)
        plan = RegionPlan(tuple(planned), views, resident, spilled, placements, 0, cascades)
        return replace(plan, cycles=self.costs.cycles(plan))

    def allocation(
        self, planned: Sequence[PlannedLayer], resident: frozenset[str], views: Mapping[str, View], cascades: Sequence[Cascade]
    ) -> Allocation:
        together = {i: c.layers for c in cascades for i in c.layers}
        roots = [
            ResidentRoot(s, views[n].stored_bytes(self.graph.types[n].shape)) for n, s in self.storages.items() if n in resident
        ]
        unabridged = {h.storage.name for h in roots if not views[h.storage.name].rows}
        in_place = self.in_place.rights(unabridged, cascades)
        return Allocation(self.chip, planned, roots, together, self.model.choice, self.options.double_buffer, in_place)
