"""Plans in which no tensor leaves the SRAM, in as little of it as can be: the order of layers of fewest live bytes, the least
that each layer needs beside them, and the fastest tiles that leave it at that."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from toolchain.ir.graph import Node
from toolchain.machine import Space
from toolchain.memory import Operator, order_operators
from toolchain.ops.kit.operator import TiledOp
from toolchain.ops.kit.tile import round_up
from toolchain.schedule.layer_by_layer import LayerByLayer
from toolchain.schedule.options import RegionInput
from toolchain.schedule.plan import RegionPlan
from toolchain.schedule.plan_cost import ALONE, AMID
from toolchain.schedule.tilings import smallest_tile

_STATES = 20_000  # of the search for an order
_MORE = (1.04, 1.05, 1.08, 1.12, 1.2, 1.3, 1.5)  # times the least bytes, until all can be placed; what tiles need to be fast


def plan_all_resident(planning: RegionInput) -> RegionPlan | None:
    """None where the SRAM does not hold all that is live at once."""
    given = AllResidentPlanner(planning)
    orders = [given]
    other = None if planning.graph.states else given.reordered()  # the copy of a state is the last to run
    if other is not None:
        orders.append(AllResidentPlanner(replace(planning, nodes=other)))
    best: RegionPlan | None = None
    for order in sorted(orders, key=lambda planner: planner.fewest_bytes):
        if best is None or order.fewest_bytes < best.peak_bytes:
            found = _smallest(order)
            if found is not None and (best is None or found.peak_bytes < best.peak_bytes):
                best = found
    return best


def _smallest(order: AllResidentPlanner) -> RegionPlan | None:
    """Of an order, in the first of the sizes that are tried in which it can be placed."""
    align = order.chip.sram.alignment_bytes
    if order.fewest_bytes > order.size:
        return None
    for more in _MORE:
        size = round_up(int(order.fewest_bytes * more), align)
        size = min(size, order.size)
        planner = AllResidentPlanner(replace(order.planning, chip=order.chip.with_sram(size)))
        plan = planner.whole()
        if plan is not None or size == order.size:
            return plan
    return None


class AllResidentPlanner(LayerByLayer):
    """Of a region's layers in one order."""

    def __init__(self, planning: RegionInput):
        super().__init__(planning)
        self.kept = frozenset(self.storages) - self.port_roots
        inside = {n for n, v in self.views.items() if v.root in self.kept}
        self.staging = [
            smallest_tile(la, inside).sizes.get(Space.SRAM, 0) if isinstance(la.node.op, TiledOp) else 0 for la in self.layers
        ]

    @property
    def fewest_bytes(self) -> int:
        """The most over all steps of what is live and what the layer needs beside it."""
        live = (own + used for own, used in zip(self.staging, self._live_bytes(self.kept)))
        return max(live, default=0)

    def whole(self) -> RegionPlan | None:
        """The faster of the plans by both ways of comparing tiles; None where something has no place."""
        tiled = (self.tile(self.kept, 1.0, by) for by in (ALONE, AMID))
        plans = (self.place(planned, self.kept) for planned in tiled if planned is not None)
        return min((plan for plan in plans if plan is not None), key=lambda plan: plan.cycles, default=None)

    def reordered(self) -> list[Node] | None:
        """The nodes in the order of fewest live bytes that is found; None where that is the one given."""
        made = {layer.node.outputs[0]: index for index, layer in enumerate(self.layers)}
        operators: list[Operator] = []
        for index, layer in enumerate(self.layers):
            inputs = dict.fromkeys(part for name in layer.activations for part in self._held(name, made, index))
            operators.append(Operator(layer.node.name, tuple(inputs), layer.node.outputs, (), self.staging[index]))
        given = {n for op in operators for n in op.inputs}.difference(made)
        ends = set(made).difference(*(op.inputs for op in operators))
        sizes = {**self._sizes(made), **dict.fromkeys(given, 0)}
        found = order_operators(operators, sizes, sorted(given), sorted(ends), _STATES)
        return None if list(found.order) == [op.name for op in operators] else self._behind_sources(found.order)

    def _held(self, name: str, made: Mapping[str, int], before: int) -> list[str]:
        """What must lie there for a tensor to be read: itself, and where it is all of what lies in a root or a view of it, all
        that layers in front have made of that root."""
        root = self.views[name].root
        if name in made and name != root:
            return [name]
        return [n for n, index in made.items() if index < before and self.views[n].root == root] or [name]

    def _sizes(self, made: Collection[str]) -> dict[str, int]:
        """Of each tensor that a layer makes, apart from the parts of it that others have made; nothing of ports."""
        found = {n: self.graph.types[n].size_bytes if self.views[n].root in self.kept else 0 for n in made}
        for name in made:
            if name == self.views[name].root and name in self.kept:
                parts = sum(found[n] for n in made if n != name and self.views[n].root == name)
                found[name] = max(0, self.storages[name].size_bytes - parts)
        return found

    def _behind_sources(self, names: Sequence[str]) -> list[Node]:
        """All nodes, the layers in this order, and what only looks at tensors as soon as they are there."""
        by_name = {node.name: node for node in self.planning.nodes}
        views = [node for node in self.planning.nodes if node.name not in frozenset(names)]
        waiting = {out for node in self.planning.nodes for out in node.outputs}
        found: list[Node] = []

        def add(node: Node) -> None:
            found.append(node)
            waiting.difference_update(node.outputs)

        for name in (None, *names):
            if name is not None:
                add(by_name[name])
            while ready := next((v for v in views if v not in found and waiting.isdisjoint(v.inputs)), None):
                add(ready)
        return found
