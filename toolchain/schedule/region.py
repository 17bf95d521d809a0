"""The plan of one region: what stays in SRAM, how each layer is tiled, where everything lies in each memory."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from toolchain.errors import CompileError
from toolchain.ir.graph import Node
from toolchain.machine import Space
from toolchain.memory import ResidentTensor, choose_residents
from toolchain.ops.kit.operator import Layer, TiledOp
from toolchain.ops.kit.tile import aligned
from toolchain.ops.permutation import Reshape
from toolchain.schedule.ahead import Ahead
from toolchain.schedule.alike import alike
from toolchain.schedule.allocation import Allocation, Held, lives_together
from toolchain.schedule.cascade import Cascades
from toolchain.schedule.cost import CostModel
from toolchain.schedule.cuts import Bounds, Cut, Cuts, Turns
from toolchain.schedule.in_place import InPlace
from toolchain.schedule.layers import RegionLayers
from toolchain.schedule.maps import feature_maps
from toolchain.schedule.measure import ALONE, AMID, LEAST_MOVED, Measure
from toolchain.schedule.placement import PlanCosts, place_works
from toolchain.schedule.places import Activations, View, find_views
from toolchain.schedule.plan import Cascade, RegionPlan, Storage, alone_cycles
from toolchain.schedule.planning import Planning
from toolchain.schedule.refusal import too_many, too_small
from toolchain.schedule.retiled import retiled
from toolchain.schedule.sizes import grid
from toolchain.schedule.staging import LayerPlan, PlannedLayer
from toolchain.schedule.turned import orders, views_in_place

_FAR = 1.05  # times the cycles of the best plan's layers, each alone: beyond what they can gain of each other
_NEAR, _NEAR_SIMULATED = 1.003, 1.01  # the same, of plans for different sizes; where plans are simulated, or little was looked at
_CLOSE = 1.02  # times the fewest cycles by few works, beyond which all works make no plan the fastest
_FEW = 12  # layers of a region, up to which all may take turns, and not only those that run while something is spilled
_MISSES = 4  # searches of places for constants ahead that find none, behind which none is begun
_LITTLE = 100  # layers that are planned, and cascades
_USABLE = (1.0, 0.93, 0.86)  # shares of the SRAM for which cascades are chosen: not all that fits by its bytes can be placed
_RESERVES = (0.0, 0.25, 0.5)  # shares of SRAM kept free of resident tensors that are tried
_PER_OCTAVE = 4  # sizes of the SRAM for which plans are made
_TRAFFIC = (0.3, 1.0, 10.0)  # what cycles of moved bytes count where plans of less traffic are asked for


class Planner:
    """Of one region; what it finds out is remembered."""

    def __init__(self, planning: Planning):
        graph, nodes, chip, options = planning.graph, planning.nodes, planning.chip, planning.options
        self.planning, self.graph, self.chip, self.options = planning, graph, chip, options
        ports = {*planning.inputs, *planning.outputs}
        maps = feature_maps(nodes, graph, ports, chip, {n for s in graph.states for n in (s.past, s.made)})
        activations = Activations(tuple(nodes), graph.types, ports, maps, chip.layout.feature_maps)
        layers = [Layer(n, graph.types, graph.constants, chip, maps) for n in nodes]
        in_place = options.in_place
        self.views = views_in_place(activations, layers, chip) if in_place else find_views(activations, in_place=False)
        self.free = [n for n in nodes if self._is_free(n)]
        turned = orders(self.views)
        self.layers = [replace(layer, orders=turned) for layer in layers if not self._is_free(layer.node)]
        self.port_roots = {self.views[p].root for p in ports if p in self.views}
        self.settled = frozenset(self.port_roots)  # roots of which it is not open whether they lie in SRAM
        self.storages = self._storages()
        self.model = CostModel(chip)
        self.in_place = InPlace(self.layers, self.views, self.storages, self.port_roots)
        self.layerwise = RegionLayers(self.layers, self.views, self.model, options)
        self.costs = PlanCosts(self.model)
        self.sizes = {space: chip.spaces[space].memory.size for space in chip.staging}
        self.turns: dict[Measure, Turns] = {}
        self.missed = 0  # searches for constants ahead that found no places
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

    def plans(self) -> list[RegionPlan]:
        """The plans of few cycles, and those of the ways in which bytes count more."""
        found = [place_works(plan, self.model) for plan in self._found()]
        if self.options.residency:
            tried = (self._try(self._least, share, by, self.size) for share in _RESERVES for by in (ALONE, AMID, LEAST_MOVED))
            layerwise = [plan for plan in tried if plan is not None]
            cut = self._little_traffic(layerwise)
            found += [place_works(p, self.model) for p in (*layerwise, *cut)]
        return found

    def _little_traffic(self, layerwise: Sequence[RegionPlan]) -> list[RegionPlan]:
        """With layers in turns, where bytes count."""
        before, rate = self._spilling(layerwise), self.chip.dram.read_bytes_per_cycle
        if before is not None:
            for share in _USABLE:
                ways = (self._cuts(int(self.size * share), before, Measure(byte=t / rate)) for t in _TRAFFIC)
                cut = [self._cut(way, way.best(self.options.near)) for way in ways]
                if any(cut):
                    return [p for p in cut if p is not None]
        return []

    def _spilling(self, plans: Sequence[RegionPlan]) -> RegionPlan | None:
        """The first that spills anything, with all that any of them spills."""
        spilled = {s.name: s for p in plans for s in p.spilled}
        for plan in plans:
            if plan.spilled:
                return replace(plan, spilled=tuple(spilled.values()), resident=plan.resident.difference(spilled))
        return None

    @cached_property
    def _least(self) -> Sequence[int]:
        """`least_bytes` of the smallest tiles. Raises CompileError where a layer has none."""
        tiles = self.layerwise.smallest_tiles()
        refusal = too_small(self.layers, tiles, self.chip, self.graph)
        if refusal is not None:
            raise CompileError(refusal)
        return self.least_bytes([tile.sizes.get(Space.SRAM, 0) for tile in tiles])

    @property
    def size(self) -> int:
        return self.chip.sram.size

    def plan(self) -> RegionPlan:
        """Of fewest cycles, as far as is known without its program."""
        return min(self.fast(), key=lambda plan: plan.cycles)

    def fast(self) -> list[RegionPlan]:
        """The plans of few cycles. Raises CompileError."""
        found = self._found()
        most = _CLOSE * min(plan.cycles for plan in found)
        return [place_works(plan, self.model) for plan in found if plan.cycles <= most]

    def _found(self) -> list[RegionPlan]:
        """Plans for all of the SRAM and for smaller sizes: what is chosen layer by layer for more room need not be better in the
        end. Where little was looked at, all sizes are; else as long as layers by themselves could take as few cycles with them,
        and no less than half where plans are not simulated as well. Raises CompileError."""
        found, seen, least = list[RegionPlan](), list[RegionPlan](), math.inf
        for size in (self.size, *self._smaller()):
            much = self._looked_at(len(seen)) > _LITTLE
            if much and not self.options.simulated and size < self.size // 2:
                break
            near = _NEAR if much and not self.options.simulated else _NEAR_SIMULATED
            plans = self._best(size, near * least)
            if not plans and much:
                break
            for number, plan in enumerate(plans):
                if any(plan is known for known in seen):
                    continue
                self.require_few(plan)
                found.append(replace(self.ahead(plan, _fewest(found)), raced=number > 0))
                finer = self.retiled(plan)
                if finer is not plan:
                    found.append(replace(self.ahead(finer, _fewest(found)), raced=True))
                seen.append(plan)
                least = min(least, plan.alone_cycles)
        return found or [self._in_all()]

    def _looked_at(self, plans: int) -> int:
        """Layers of so many plans, and cascades."""
        cascades = sum(len(by_room) for turns in self.turns.values() for by_room in turns.values())
        return plans * len(self.layers) + cascades

    def _smaller(self) -> list[int]:
        """Sizes, falling, in which each layer fits."""
        if not self.options.residency:
            return []
        sizes = grid(self.size, self.chip.sram.alignment_bytes, _PER_OCTAVE)
        return [size for size in reversed(sizes) if max(self._least, default=0) <= size < self.size]

    def _in_all(self) -> RegionPlan:
        """With nothing resident and tiles as large as they can be."""
        plan = self._try([self.size] * len(self._least), 1.0, ALONE, self.size)
        if plan is None:
            raise self.unplaced()
        self.require_few(plan)
        return self.ahead(self.cascaded(plan, self.size, math.inf) or plan, math.inf)

    def least_bytes(self, tiles: Sequence[int]) -> Sequence[int]:
        """Of SRAM that each layer needs for its slots. tiles: for its smallest ones."""
        return tiles

    def unplaced(self) -> CompileError:
        """Why no plan was found."""
        return CompileError(f"{self.chip.name}: no placement found; a larger memories.sram.size would do")

    def require_few(self, plan: RegionPlan) -> None:
        """Raises CompileError where its program would be too long to be built and checked."""
        refusal = too_many([p.layer for p in plan.layers], [p.plan.works if p.plan else 0 for p in plan.layers], self.chip)
        if refusal is not None:
            raise CompileError(refusal)

    def ahead(self, plan: RegionPlan, known: float) -> RegionPlan:
        """With constants fetched ahead where that takes fewer cycles. known: of another plan."""
        if not self.options.ahead:
            return plan

        def place(planned: Sequence[PlannedLayer], searched: bool) -> RegionPlan | None:
            if searched and self.missed == _MISSES:
                return None
            found = self.place(planned, plan.resident, plan.views, plan.cascades, searched)
            self.missed += searched and found is None
            return found

        taken = self.allocation(plan.layers, plan.resident, plan.views, plan.cascades).taken_bytes
        return Ahead(plan, self.shared, taken, self.model, place).best(known)

    def retiled(self, plan: RegionPlan) -> RegionPlan:
        """With finer tiles where units of another kind wait for them."""
        if not self.options.residency:
            return plan
        live = self._live_bytes(plan.resident)

        def finer(index: int, plan: RegionPlan) -> Sequence[LayerPlan]:
            before = plan.layers[index].plan
            return () if before is None else self.layerwise.finer(index, before, plan.resident, self.size - live[index])

        def place(planned: Sequence[PlannedLayer], plan: RegionPlan) -> RegionPlan | None:
            return self.place(planned, plan.resident, plan.views, plan.cascades, searched=False)

        return retiled(plan, finer, place)

    @cached_property
    def shared(self) -> Collection[int]:
        """Layers whose constants others have as well."""
        return alike(enumerate(self.layers))

    def cascaded(self, plan: RegionPlan, size: int, most: float) -> RegionPlan | None:
        """With layers in turns, in so many bytes of the SRAM, where that takes fewer cycles; nothing to gain where all tensors
        stay there already. None where layers by themselves take more than `most`."""
        if not self.options.residency or not plan.spilled:
            return plan if plan.alone_cycles <= most else None
        for share in _USABLE:
            fewest, amid = (self._cuts(int(size * share), plan, by) for by in (ALONE, AMID))
            cuts = fewest.best(self.options.near, most)
            if cuts is None:
                break
            found = [self._cut(fewest, cuts), self._cut(amid, amid.best(self.options.near))]
            if any(found):
                return min((plan, *(f for f in found if f is not None)), key=lambda p: p.cycles)
        return plan if plan.alone_cycles <= most else None

    def _cuts(self, usable: int, before: RegionPlan, by: Measure) -> Cuts:
        """before: layer by layer."""
        turns = self.turns.setdefault(by, {})
        return Cuts(self.cascades, self.bounds(before), usable, self.sizes, by, turns, self.options.likely)

    def _cut(self, way: Cuts, cuts: Sequence[Cut] | None) -> RegionPlan | None:
        """The plan cut so; None where nothing was found or something has no place."""
        if cuts is None:
            return None
        planned: list[PlannedLayer] = []
        views, resident, cascades = dict(self.views), set[str](), list[Cascade]()
        for cut in cuts:
            resident |= cut.resident
            if cut.cascade is None:
                plan = self.layerwise.plan(cut.first, cut.resident, way.room(cut.resident, cut.first, cut.end), way.by)
                planned.append(PlannedLayer(self.layers[cut.first], plan))
            else:
                planned += cut.cascade.layers
                views |= cut.cascade.views
                resident |= {v.root for v in cut.cascade.views.values()}
                cascades.append(cut.cascade.cascade)
        return self.place(planned, frozenset(resident), views, tuple(cascades))

    @cached_property
    def cascades(self) -> Cascades:
        depth, candidates = self.layerwise.depth, self.layerwise.candidates()
        return Cascades(self.layers, self.views, self.storages, self.port_roots, self.in_place, self.model, depth, candidates)

    def bounds(self, before: RegionPlan) -> Bounds:
        few = len(self.layers) <= _FEW
        spilled = frozenset(range(len(self.layers)) if few else (i for s in before.spilled for i in range(s.start, s.end)))
        touched = {r for r, s in self.storages.items() if not spilled.isdisjoint(range(s.start, s.end))}
        return Bounds(
            self.storages,
            self.port_roots,
            [frozenset(self.views[n].root for n in (*la.activations, *la.node.outputs)) for la in self.layers],
            [la.output.shape[1] if len(la.output.shape) == 4 else 1 for la in self.layers],
            self.layerwise.cycles,
            self.chip.dram.read_bytes_per_cycle,
            self.chip.sram.alignment_bytes,
            spilled,
            before.resident - touched,
        )

    def _best(self, size: int, most: float) -> list[RegionPlan]:
        """In so many bytes of the SRAM; behind it those layer by layer that may be faster by all works. None where nothing can be
        placed or layers by themselves take more than `most` cycles."""
        found = self._layer_by_layer(size)
        best = self.cascaded(found[0], size, most) if found else None
        return [] if best is None else [best, *(plan for plan in found[1:] if plan.cycles <= _CLOSE * best.cycles)]

    def _layer_by_layer(self, size: int) -> list[RegionPlan]:
        """Of the shares of the SRAM that are kept for staging, and then of the ways to choose tilings: first the faster of
        what is fast alone and amid others, then the other one, and for all of the SRAM that of least traffic."""
        best, kept = None, 0.0
        for share in _RESERVES if self.options.residency else (1.0,):
            most = math.inf if best is None else _FAR * best.alone_cycles
            found = self._try(self._least, share, ALONE, size, most)
            if found is not None and (best is None or found.cycles < best.cycles):
                best, kept = found, share
        if best is None:
            return []
        amid = self._try(self._least, kept, AMID, size)
        moved = self._try(self._least, kept, LEAST_MOVED, size) if size == self.size else None
        ways = sorted((plan for plan in (best, amid) if plan is not None), key=lambda plan: plan.cycles)
        return [plan for plan in (*ways, moved) if plan is not None]

    def _try(self, least: Sequence[int], share: float, by: Measure, size: int, most: float = math.inf) -> RegionPlan | None:
        """A plan with `share` of so many bytes of the SRAM kept for staging; less and less is resident until it can be placed.
        most: cycles of all layers alone; None where they are more."""
        usable = 1.0
        for _ in range(8):
            reserved = [min(size, max(need, int(share * size))) for need in least]
            resident = self.residents(reserved, int(size * usable))
            planned = self.tile(resident, usable, by, size)
            if planned is not None:
                if alone_cycles(planned) > most:
                    return None
                key = resident, tuple(id(p.plan) for p in planned)  # `tilings` keeps the plans
                if key not in self.placed:
                    self.placed[key] = self.place(planned, resident)
                found = self.placed[key]
                if found is not None:
                    return found
            if not resident and usable < 0.6:
                return None
            usable *= 0.88
        return None

    def residents(self, reserved: Sequence[int], capacity: int) -> frozenset[str]:
        if not self.options.residency:
            return frozenset()
        align = self.chip.sram.alignment_bytes
        tensors = [
            ResidentTensor(s.name, s.start, s.end, -(-s.size_bytes // align) * align, s.size_bytes * s.touches)
            for s in self.storages.values()
            if s.name not in self.settled
        ]
        return choose_residents(tensors, [min(r, capacity) for r in reserved], capacity).resident

    def tile(self, resident: frozenset[str], usable: float, by: Measure, size: int) -> list[PlannedLayer] | None:
        names = {n for n, v in self.views.items() if v.root in resident}
        live, planned = self._live_bytes(resident), list[PlannedLayer]()
        for layer, used in zip(self.layers, live):
            if not isinstance(layer.node.op, TiledOp):
                planned.append(PlannedLayer(layer, None))
                continue
            plan = self.layerwise.best(layer, names, int((size - used) * usable), by)
            if plan is None:
                return None
            planned.append(PlannedLayer(layer, plan))
        return planned

    def _live_bytes(self, resident: Collection[str]) -> list[int]:
        """Of these roots, while each layer runs."""
        live, align = [0] * len(self.layers), self.chip.sram.alignment_bytes
        for storage in (self.storages[root] for root in resident):
            for step in range(storage.start, storage.end):
                live[step] += aligned(storage.size_bytes, align)
        return live

    def place(
        self,
        planned: Sequence[PlannedLayer],
        resident: frozenset[str],
        views: Mapping[str, View] | None = None,
        cascades: tuple[Cascade, ...] = (),
        searched: bool = True,
    ) -> RegionPlan | None:
        """views: where they are not those of the region, since tensors lie in rings. searched: places are,
        where they are not found by one order after the other."""
        views = self.views if views is None else views
        allocation = self.allocation(planned, resident, views, cascades)
        placements = allocation.in_memories(searched)
        if placements is None:
            return None
        kept = resident | self.port_roots
        spilled = lives_together((s for n, s in self.storages.items() if n not in kept), allocation.together)
        plan = RegionPlan(tuple(planned), views, resident, spilled, placements, 0, cascades)
        return replace(plan, cycles=self.costs.cycles(plan))

    def allocation(
        self, planned: Sequence[PlannedLayer], resident: frozenset[str], views: Mapping[str, View], cascades: Sequence[Cascade]
    ) -> Allocation:
        together = {i: c.layers for c in cascades for i in c.layers}
        held = [Held(s, views[n].stored_bytes(self.graph.types[n].shape)) for n, s in self.storages.items() if n in resident]
        whole = {h.storage.name for h in held if not views[h.storage.name].rows}
        in_place = self.in_place.rights(whole, cascades)
        return Allocation(self.chip, planned, held, together, self.model.choice, self.options.double_buffer, in_place)


def _fewest(plans: Sequence[RegionPlan]) -> float:
    """Cycles of any of these."""
    return min((plan.cycles for plan in plans), default=math.inf)
