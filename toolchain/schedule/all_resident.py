"""Plan a region with no tensor in DRAM between layers, in as little SRAM as possible (`--optimize memory`).

Layers run in the order of fewest live bytes that a search finds. Beside the live tensors each layer takes as little as
it can. Tiles are the fastest that leave the peak at that. `reorder_layers` gives the order alone to other goals. A root
is a tensor with storage of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from toolchain.ir.graph import Node
from toolchain.machine import Space
from toolchain.memory import Operator, order_operators
from toolchain.ops.kit.tile import round_up
from toolchain.schedule.layer_by_layer import LayerByLayer
from toolchain.schedule.options import RegionInput
from toolchain.schedule.plan import PlannedRegion
from toolchain.schedule.plan_cost import ALONE, AMID, assign_units
from toolchain.schedule.tilings import SmallestTile

_STATES = 20_000  # of the search for an order
_MORE = (1.04, 1.05, 1.08, 1.12, 1.2, 1.3, 1.5)  # times the least bytes, until all can be placed; what tiles need to be fast


def plan_all_resident(planning: RegionInput) -> PlannedRegion | None:
    """Return the plan of least SRAM without spills; None where the SRAM does not hold all that is live at once."""
    best: PlannedRegion | None = None
    for order in sorted(_plan_orders(planning), key=lambda planner: planner.fewest_bytes):
        if best is None or (order.fewest_bytes < best.peak_bytes and not order.steps.over):
            plan = _smallest(order)
            if plan is not None and (best is None or plan.peak_bytes < best.peak_bytes):
                best = plan
    return best


def reorder_layers(planning: RegionInput) -> RegionInput | None:
    """Return the region with its layers in an order of fewer live bytes; None where none is found, or the region has
    states.
    """
    in_order, *others = _plan_orders(planning)
    return next((other.planning for other in others if other.fewest_bytes < in_order.fewest_bytes), None)


def _plan_orders(planning: RegionInput) -> list[AllResidentPlanner]:
    """Return a planner of the given order, and one of the order that the search finds, if that is another."""
    smallest: dict[object, SmallestTile] = {}
    in_order = AllResidentPlanner(planning, smallest)
    nodes = None if planning.graph.states else in_order.search_order()  # the copy of a state is the last to run
    return [in_order] if nodes is None else [in_order, AllResidentPlanner(replace(planning, nodes=nodes), smallest)]


def _smallest(order: AllResidentPlanner) -> PlannedRegion | None:
    """Return the plan in the smallest tried SRAM in which one order can be placed; None where none can."""
    align = order.chip.sram.alignment_bytes
    if order.fewest_bytes > order.size:
        return None
    for more in _MORE:
        size = round_up(int(order.fewest_bytes * more), align)
        size = min(size, order.size)
        planner = AllResidentPlanner(replace(order.planning, chip=order.chip.with_sram(size)))
        plan = planner.plan_tiles()
        if plan is not None or size == order.size:
            return plan
    return None


class AllResidentPlanner(LayerByLayer):
    """The planner of a region's layers in one order, with every tensor but the ports in SRAM."""

    def __init__(self, planning: RegionInput, smallest: dict[object, SmallestTile] | None = None):
        """Take a region. `smallest`: known tiles, as of `RegionTilings.smallest_tiles`."""
        super().__init__(planning)
        self.resident_roots = frozenset(self.storages) - self.port_roots
        inside = {n for n, v in self.views.items() if v.root in self.resident_roots}
        self.staging = [tile.sizes.get(Space.SRAM, 0) for tile in self.layerwise.smallest_tiles(inside, smallest)]

    @property
    def fewest_bytes(self) -> int:
        """The peak over all steps of the live tensors and the least that the layer needs beside them."""
        live = (needed_bytes + used for needed_bytes, used in zip(self.staging, self._live_bytes(self.resident_roots)))
        return max(live, default=0)

    def plan_tiles(self) -> PlannedRegion | None:
        """Return the faster of the plans by the two ways of comparing tilings; None where no plan can be placed.

        Each tile of it has its unit.
        """
        tiled = (self.tile(self.resident_roots, 1.0, by) for by in (ALONE, AMID))
        plans = (self.place(planned, self.resident_roots) for planned in tiled if planned is not None)
        plan = min((plan for plan in plans if plan is not None), key=lambda plan: plan.cycles, default=None)
        return plan and assign_units(plan, self.model, self.hoister.hoist(plan))

    def search_order(self) -> list[Node] | None:
        """Return the nodes in an order of fewer live bytes; None where the search keeps the given one."""
        producers = {layer.node.outputs[0]: index for index, layer in enumerate(self.layers)}
        operators: list[Operator] = []
        for index, layer in enumerate(self.layers):
            inputs = dict.fromkeys(part for name in layer.activations for part in self._tensors_read(name, producers, index))
            operators.append(Operator(layer.node.name, tuple(inputs), layer.node.outputs, (), self.staging[index]))
        region_inputs = {n for op in operators for n in op.inputs}.difference(producers)
        ends = set(producers).difference(*(op.inputs for op in operators))
        sizes = {**self._sizes(producers), **dict.fromkeys(region_inputs, 0)}
        best_order = order_operators(operators, sizes, sorted(region_inputs), sorted(ends), _STATES)
        return None if list(best_order.order) == [op.name for op in operators] else self._behind_sources(best_order.order)

    def _tensors_read(self, name: str, producers: Mapping[str, int], before: int) -> list[str]:
        """Return the tensors that must be live for `name` to be read by layer `before`.

        It is the tensor itself, or, for a root of others, all tensors in that root that earlier layers write.
        """
        root = self.views[name].root
        if name in producers and name != root:
            return [name]
        return [n for n, index in producers.items() if index < before and self.views[n].root == root] or [name]

    def _sizes(self, outputs: Collection[str]) -> dict[str, int]:
        """Return the bytes of each output, without the parts of it that other layers write; 0 for ports."""
        sizes = {n: self.graph.types[n].size_bytes if self.views[n].root in self.resident_roots else 0 for n in outputs}
        for name in outputs:
            if name == self.views[name].root and name in self.resident_roots:
                parts = sum(sizes[n] for n in outputs if n != name and self.views[n].root == name)
                sizes[name] = max(0, self.storages[name].size_bytes - parts)
        return sizes

    def _behind_sources(self, names: Sequence[str]) -> list[Node]:
        """Return all nodes: layers in the order of `names`, and each view-only node as soon as its inputs exist."""
        by_name = {node.name: node for node in self.planning.nodes}
        views = [node for node in self.planning.nodes if node.name not in frozenset(names)]
        waiting = {out for node in self.planning.nodes for out in node.outputs}
        ordered: list[Node] = []

        def add(node: Node) -> None:
            ordered.append(node)
            waiting.difference_update(node.outputs)

        for name in (None, *names):
            if name is not None:
                add(by_name[name])
            while ready := next((v for v in views if v not in ordered and waiting.isdisjoint(v.inputs)), None):
                add(ready)
        return ordered
