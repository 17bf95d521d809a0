"""Reuse the plans of a region for regions that equal it in all but names and the values of constants.

A transformer whose norms or activations run on the host has such regions: one for each block of layers. `toolchain/compiler.py`
asks here before it searches plans.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from toolchain.ir.graph import Node
from toolchain.ops.kit.operator import Layer, tiling_key
from toolchain.schedule.copies import dram_alignment
from toolchain.schedule.goals import Goal
from toolchain.schedule.layer_constants import collect_constants, find_shared_constants, holds_constants, split_constants
from toolchain.schedule.nodes import Fetch
from toolchain.schedule.options import RegionInput
from toolchain.schedule.plan import PlannedLayer, PlannedRegion, PlannedTensor, TiledLayer

Search = Callable[[RegionInput, Goal], Sequence[PlannedRegion]]


class EqualRegions:
    """The plans of the regions of one network, to be taken by regions that equal them."""

    def __init__(self) -> None:
        self._noted: dict[Hashable, list[_NotedRegion]] = {}

    def plan(self, planning: RegionInput, goal: Goal, search: Search) -> Sequence[PlannedRegion]:
        """Return the plans of a region: those of an equal one with its names and constants, else those that `search` finds."""
        noted = self._noted.setdefault(_make_key(planning, goal), [])
        plans = self.find(planning, noted)
        if plans:
            return plans
        plans = search(planning, goal)
        if not any(plan.cascades for plan in plans):
            noted.append(_NotedRegion(planning, plans))
        return plans

    def find(self, planning: RegionInput, noted: Sequence[_NotedRegion]) -> Sequence[PlannedRegion]:
        """Return the plans of the first of these regions that may serve for this one. Empty: none may.

        None may with states, or with constants that several layers share: there plans depend on values.
        """
        others = [one for one in noted if one.planning.chip == planning.chip]
        if not others or planning.graph.states or _shares_constants(planning):
            return ()
        for other in others:
            if not other.shares_constants:
                renaming = _Renaming(other.planning, planning)
                return [renaming.rename(plan) for plan in other.plans]
        return ()


@dataclass(frozen=True)
class _NotedRegion:
    """A region and its plans, none of which has a cascade."""

    planning: RegionInput
    plans: Sequence[PlannedRegion]

    @cached_property
    def shares_constants(self) -> bool:
        """True where several layers of the region share constants."""
        return _shares_constants(self.planning)


def _list_layers(planning: RegionInput) -> list[Layer]:
    """Return the layers of a region, in the order of its nodes."""
    graph = planning.graph
    return [Layer(node, graph.types, graph.constants, planning.chip) for node in planning.nodes]


def _shares_constants(planning: RegionInput) -> bool:
    """Return whether several layers of a region share constants. All bytes of its constants are read."""
    return bool(find_shared_constants(enumerate(layer for layer in _list_layers(planning) if holds_constants(layer))))


def _make_key(planning: RegionInput, goal: Goal) -> Hashable:
    """Return a key that is equal for regions with equal plans on one machine, but for names and values of constants."""
    graph, constants = planning.graph, planning.graph.constants
    numbers: dict[str, int] = {}
    nodes: list[Hashable] = []
    for layer in _list_layers(planning):
        names = (*layer.node.inputs, *layer.node.outputs)
        operands = [
            (numbers.setdefault(n, len(numbers)), graph.types[n].shape, graph.types[n].dtype, n in constants) for n in names if n
        ]
        key = tiling_key(layer), len(layer.node.inputs), planning.inline.get(layer.node.name)
        nodes.append((*key, tuple(bool(n) for n in names), tuple(operands)))
    ports = (tuple(numbers.get(n, -1) for n in names) for names in (planning.inputs, planning.outputs))
    return tuple(nodes), tuple(ports), goal, planning.options


class _Renaming:
    """The renaming of plans of one region to those of an equal one. Nodes of both stand in the same order."""

    def __init__(self, old: RegionInput, new: RegionInput) -> None:
        self._new = new
        self._nodes: dict[str, Node] = {a.name: b for a, b in zip(old.nodes, new.nodes)}
        pairs = ((a, b) for one, other in zip(old.nodes, new.nodes) for a, b in zip(_list_tensors(one), _list_tensors(other)))
        self._tensors: Mapping[str, str] = dict(pairs)

    def rename(self, plan: PlannedRegion) -> PlannedRegion:
        """Return a plan without cascades for the new region."""
        names = self._tensors
        views = {names[name]: replace(view, root=names[view.root]) for name, view in plan.views.items()}
        placements = {
            space: replace(placed, addresses={names.get(name, name): address for name, address in placed.addresses.items()})
            for space, placed in plan.placements.items()
        }
        return replace(
            plan,
            tensors=tuple(self._rename_tensor(tensor) for tensor in plan.tensors),
            parts=tuple(self._rename_layer(layer) for layer in plan.layers),
            views=views,
            placements=placements,
        )

    def _rename_tensor(self, tensor: PlannedTensor) -> PlannedTensor:
        """Return the tensor and its storage by the new name."""
        name = self._tensors[tensor.buffer.name]
        return replace(tensor, buffer=replace(tensor.buffer, name=name), storage=replace(tensor.storage, name=name))

    def _rename_layer(self, planned: PlannedLayer) -> PlannedLayer:
        """Return the plan of the new region's layer, with its constants."""
        names, graph, old = self._tensors, self._new.graph, planned.layer
        orders = old.orders and {names[name]: order for name, order in old.orders.items()}
        maps = frozenset(names[name] for name in old.feature_maps)
        node = self._nodes[old.node.name]
        layer = Layer(node, graph.types, graph.constants, old.chip, maps, orders)
        call = replace(planned.call, layer=node.name)
        if not isinstance(planned, TiledLayer):
            return replace(planned, layer=layer, call=call)
        return replace(planned, layer=layer, call=call, fetches=self._rename_fetches(planned, layer))

    def _rename_fetches(self, planned: TiledLayer, layer: Layer) -> tuple[Fetch, ...]:
        """Return the prefetches of a layer with the blocks of the new one."""
        constants = collect_constants(layer, planned.tiling, planned.units) if planned.fetches else None
        if constants is None:
            return ()
        buffers = ((fetch.buffer, fetch.since) for fetch in planned.fetches)
        cuts = [(replace(fetch, after_layer=self._nodes[fetch.after_layer].name), since) for fetch, since in buffers]
        return split_constants(constants, cuts, dram_alignment(layer.chip))


def _list_tensors(node: Node) -> tuple[str, ...]:
    return (*node.inputs, *node.outputs)
