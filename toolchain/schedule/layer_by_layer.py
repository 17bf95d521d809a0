"""Plan a region with each layer by itself: tensors that stay in SRAM, a tiling for each layer, and addresses.

`RegionPlanner` and `AllResidentPlanner` build on it. A root is a tensor with storage of its own; a step is the index of
a layer.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain

from toolchain.errors import CompileError
from toolchain.ir.graph import Node
from toolchain.machine import Space
from toolchain.memory import ResidentTensor, choose_residents
from toolchain.ops.kit.operator import Layer, TiledOp
from toolchain.ops.kit.tile import round_up
from toolchain.ops.permutation import Reshape
from toolchain.schedule.allocation import Allocation, ResidentRoot
from toolchain.schedule.capacity_errors import explain_too_small
from toolchain.schedule.channel_blocks import find_blocked_tensors
from toolchain.schedule.cost import CostModel
from toolchain.schedule.hoisted_constants import ConstantHoister
from toolchain.schedule.in_place import InPlace
from toolchain.schedule.nodes import Call, Tensor
from toolchain.schedule.options import RegionInput
from toolchain.schedule.plan import (
    Part,
    PlannedLayer,
    PlannedRegion,
    PlannedTensor,
    Storage,
    alone_cycles,
    cascades_of,
    flatten_parts,
    steps_together,
)
from toolchain.schedule.plan_cost import ALONE, AMID, LEAST_MOVED, CostWeights, PlanCosts
from toolchain.schedule.tilings import RegionTilings
from toolchain.schedule.transposed_views import find_dimension_orders, views_in_place
from toolchain.schedule.views import View, ViewInputs, find_views, is_inline

_FAR = 1.05  # times the cycles of the best plan's layers, each alone: beyond what they can gain of each other
RESERVES = (0.0, 0.25, 0.5)  # shares of SRAM kept free of resident tensors that are tried


class LayerByLayer:
    """The planner of one region, layer by layer. Creating it finds views, layers and live ranges; nothing is searched
    yet.

    `layers`: the nodes that compute or move data, also moves that turned out to be views. `free`: Reshapes that are
    views; they are no layers. `port_roots`: roots of the region's inputs and outputs, which lie in DRAM. `storages`:
    size and live range of each root. `settled`: roots that the residency choice leaves as they are.
    """

    def __init__(self, planning: RegionInput):
        graph, nodes, chip, options = planning.graph, planning.nodes, planning.chip, planning.options
        self.planning, self.graph, self.chip, self.options, self.steps = planning, graph, chip, options, planning.steps
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
        self.hoister = ConstantHoister(self.layers if options.hoist else ())
        self.costs = PlanCosts(self.model, self.hoister)
        self.sizes = {space: chip.spaces[space].memory.size for space in chip.staging}
        self.moved = [PlannedLayer(Call(la.node.name, inline=is_inline(la.node, self.views)), layer=la) for la in self.layers]
        self.placed: dict[object, PlannedRegion | None] = {}  # by resident roots and layers

    def _is_free(self, node: Node) -> bool:
        """Return whether the node is a Reshape that moves nothing."""
        out = node.outputs[0]
        return isinstance(node.op, Reshape) and self.views[out].root != out

    def _storages(self) -> dict[str, Storage]:
        """Return size and live range of each root."""
        storages: dict[str, Storage] = {}
        for step, layer in enumerate(self.layers):
            for name in dict.fromkeys((*layer.activations, *layer.node.outputs)):
                root = self.views[name].root
                old = storages.get(root)
                if old is None:
                    size_bytes = self.views[root].count_stored_bytes(self.graph.types[root].shape)
                    storages[root] = Storage(root, size_bytes, step, step + 1, 1)
                else:
                    storages[root] = replace(old, end=step + 1, touches=old.touches + 1)
        return storages

    @cached_property
    def overlapping(self) -> list[int]:
        """The layers whose successor runs on units of another kind."""
        return self.layerwise.find_overlapping()

    @cached_property
    def _least(self) -> Sequence[int]:
        """The bytes of SRAM that each layer needs for tile buffers at least. Raise CompileError where a layer cannot
        fit.
        """
        tiles = self.layerwise.smallest_tiles()
        refusal = explain_too_small(self.layers, tiles, self.chip, self.graph)
        if refusal is not None:
            raise CompileError(refusal)
        return self.least_bytes([tile.sizes.get(Space.SRAM, 0) for tile in tiles])

    @property
    def size(self) -> int:
        """The bytes of the SRAM."""
        return self.chip.sram.size

    def least_bytes(self, tiles: Sequence[int]) -> Sequence[int]:
        """Return the SRAM that each layer needs for tile buffers, given those of its smallest tiles. Subclasses may ask
        for more.
        """
        return tiles

    def explain_no_placement(self) -> CompileError:
        """Return the error for a region of which no plan can be placed."""
        return CompileError(f"{self.chip.name}: no placement found; a larger memories.sram.size would do")

    def _layer_by_layer(self) -> list[PlannedRegion]:
        """Return the best plans layer by layer; empty where none can be placed.

        Shares of the SRAM kept for tile buffers are tried first, then ways to compare tilings. The fastest comes first.
        That of least DRAM traffic, if it differs, is the last.
        """
        best, best_share = None, 0.0
        for share in RESERVES if self.options.residency else (1.0,):
            if best is not None and self.steps.over:
                break
            most = math.inf if best is None else _FAR * best.alone_cycles
            candidate = self._try(self._least, share, ALONE, most)
            if candidate is not None and (best is None or candidate.cycles < best.cycles):
                best, best_share = candidate, share
        if best is None:
            return []
        amid = None if self.steps.over else self._try(self._least, best_share, AMID)
        moved = None if self.steps.over else self._try(self._least, best_share, LEAST_MOVED)
        ways = sorted((plan for plan in (best, amid) if plan is not None), key=lambda plan: plan.cycles)
        different: dict[Hashable, PlannedRegion] = {}
        for plan in (*ways, moved):
            if plan is not None:
                different.setdefault((plan.resident, plan.parts), plan)
        return list(different.values())

    def _try(self, least: Sequence[int], share: float, by: CostWeights, most: float = math.inf) -> PlannedRegion | None:
        """Return a plan with `share` of the SRAM kept for tile buffers, or None.

        Less and less is resident until it can be placed, in eight attempts at most. `most`: None is returned where the
        layers alone take more cycles.
        """
        usable = 1.0
        for _ in range(8):
            reserved = [min(self.size, max(need, int(share * self.size))) for need in least]
            resident = self.residents(reserved, int(self.size * usable))
            planned = self.tile(resident, usable, by)
            if planned is not None:
                if alone_cycles(planned) > most:
                    return None
                key = resident, tuple(planned)
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
        """Return the roots that stay in SRAM, of the choice that saves most traffic.

        `reserved`: bytes that each layer needs besides. `capacity`: bytes of SRAM for both.
        """
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
        """Return the plan of each layer with these roots in SRAM; None where one does not fit beside them.

        Each tiled layer counts as one search step.

        `usable`: share of the remaining SRAM that tile buffers may take. `by`: how tilings are compared.
        """
        names = {n for n, v in self.views.items() if v.root in resident}
        live, planned = self._live_bytes(resident), list[PlannedLayer]()
        for number, (layer, moved, used) in enumerate(zip(self.layers, self.moved, live), 1):
            if not isinstance(layer.node.op, TiledOp):
                planned.append(moved)
                continue
            self.steps.take("plan tilings", number, len(self.layers))
            tiled = self.layerwise.best(layer, names, int((self.size - used) * usable), by)
            if tiled is None:
                return None
            planned.append(tiled.as_layer(layer))
        return planned

    def _live_bytes(self, resident: Collection[str]) -> list[int]:
        """Return the bytes of these roots that are live while each layer runs."""
        live, align = [0] * len(self.layers), self.chip.sram.alignment_bytes
        for storage in (self.storages[root] for root in resident):
            for step in range(storage.start, storage.end):
                live[step] += round_up(storage.size_bytes, align)
        return live

    def place(
        self,
        parts: Sequence[Part],
        resident: frozenset[str],
        searched: bool = True,
        near: PlannedRegion | None = None,
        is_spaced: bool = False,
    ) -> PlannedRegion | None:
        """Return the plan of these layers and cascades with addresses and expected cycles; None where something has no
        place.

        `resident`: roots in SRAM, whole or their latest rows. `searched`: a search follows where no simple order of the
        buffers fits. `near`: a plan that differs in few layers, for faster timing. `is_spaced`: see `allocation`. A call
        counts as one search step.
        """
        self.steps.take()
        placements = self.allocation(parts, resident, is_spaced).in_memories(searched)
        if placements is None:
            return None
        views, tensors = self._views_of(parts), list[PlannedTensor]()
        for name, storage in self.storages.items():
            if name in resident:
                tensors.append(PlannedTensor(Tensor(name, views[name].rows), "sram", storage=storage))
            elif name not in self.port_roots:
                tensors.append(PlannedTensor(Tensor(name), "dram", storage=storage))
        plan = PlannedRegion(0, tensors=tuple(tensors), parts=tuple(parts), views=views, placements=placements)
        return replace(plan, cycles=self.costs.cycles(plan, near=near))

    def _views_of(self, parts: Sequence[Part]) -> Mapping[str, View]:
        """Return the region's views, with rolling buffers of these parts' cascades."""
        cascades = cascades_of(parts)
        return self.views | dict(chain.from_iterable(cascade.views.items() for cascade in cascades)) if cascades else self.views

    def allocation(self, parts: Sequence[Part], resident: frozenset[str], is_spaced: bool = False) -> Allocation:
        """Return the buffers of a plan, to be placed.

        `is_spaced`: where there is room, slots of a layer outlive it by one step if the next layer runs on units of
        another kind.
        """
        cascades, views = cascades_of(parts), self._views_of(parts)
        roots = [
            ResidentRoot(s, views[n].count_stored_bytes(self.graph.types[n].shape))
            for n, s in self.storages.items()
            if n in resident
        ]
        unabridged = {h.storage.name for h in roots if not views[h.storage.name].rows}
        in_place, together = self.in_place.rights(unabridged, cascades), steps_together(cascades)
        beside_next = range(len(self.layers)) if self.model.choice else self.overlapping if is_spaced else ()
        return Allocation(self.chip, flatten_parts(parts), roots, together, beside_next, self.options.double_buffer, in_place)
