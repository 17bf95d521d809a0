"""Plan a region by a user's schedule: exactly so where it names all layers, else by a search around the layers that it
names.

A root is a tensor with storage of its own. An error names _NAMED of them at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from toolchain.errors import CompileError
from toolchain.schedule.allocation import Allocation
from toolchain.schedule.bind_layer import Faults
from toolchain.schedule.bind_plans import FixedLayers
from toolchain.schedule.bind_region import BoundTree, RegionFacts, bind_tree, inline_of, reorder_nodes
from toolchain.schedule.layer_by_layer import LayerByLayer
from toolchain.schedule.layer_grouping import GroupingBounds
from toolchain.schedule.nodes import RegionTree
from toolchain.schedule.options import RegionInput
from toolchain.schedule.plan import Part, PlannedLayer, PlannedRegion, TiledLayer, cascades_of
from toolchain.schedule.region_planner import RegionPlanner
from toolchain.schedule.text import quote_name
from toolchain.schedule.tilings import RegionTilings

_NAMED = 8


def explain_overflow(bound: BoundTree, facts: RegionFacts, allocation: Allocation) -> CompileError | None:
    """Return the error for a schedule that exceeds a memory; None where by its bytes everything fits.

    For each such memory it names the layer while most bytes are live, and by how much they exceed it.
    """
    faults = Faults(bound.tree)
    for space in facts.chip.staging:
        memory, buffers = facts.chip.spaces[space], allocation.buffers(space)
        live = [sum(b.size_bytes for b in buffers if b.start <= step < b.end) for step in range(len(facts.layers))]
        step = max(range(len(live)), key=lambda i: live[i], default=0)
        beyond = live[step] - memory.memory.size if live else 0
        if beyond <= 0:
            continue
        roots = [b for b in buffers if b.start <= step < b.end and b.name in facts.storages]
        names = ", ".join([*(quote_name(b.name) for b in roots[:_NAMED]), *(["..."] if len(roots) > _NAMED else [])])
        tensors = f" ({sum(b.size_bytes for b in roots):,} of them {names})" if roots else ""
        stmt = bound.layers.get(step)
        faults.of(
            facts.layers[step],
            stmt.call.line if stmt is not None else bound.tree.line,
            f"{live[step]:,} bytes{tensors} lie in {memory.name} while it runs, {beyond:,} more than memories.{memory.key}.size="
            f"{memory.memory.size:,}; take smaller steps or fewer slots, or let a tensor lie in dram",
        )
    return CompileError("\n".join(faults.list_sentences())) if faults else None


def explain_fragmentation(bound: BoundTree) -> CompileError:
    """Return the error for a schedule that fits by its bytes, though no addresses were found."""
    faults = Faults(bound.tree)
    faults.add(
        bound.tree.line,
        f"region {bound.tree.region}: by its bytes it fits, and no addresses were found for all that lies in memory at once; "
        "take smaller steps or fewer slots, or let a tensor lie in dram",
    )
    return CompileError("\n".join(faults.list_sentences()))


def plan_user_schedule(planning: RegionInput, tree: RegionTree) -> PlannedRegion:
    """Return the plan of a region by the user's schedule. Raise CompileError with all that is wrong with it.

    Where the schedule names all layers, it is followed exactly, and its order may differ from the nodes'. Else the
    search plans the rest, and the plan of fewest expected cycles is returned. `tree`: the schedule as parsed.
    """
    planning = replace(planning, inline=inline_of(planning.nodes, tree))
    free = {n.name for n in LayerByLayer(planning).free}
    return _UserPlanner(replace(planning, nodes=reorder_nodes(planning.nodes, free, tree)), tree).plan()


class _UserPlanner(RegionPlanner):
    """The search for plans, with the layers, tensors and cascades that a schedule fixes left as they are."""

    def __init__(self, planning: RegionInput, tree: RegionTree):
        super().__init__(planning)
        self.facts = RegionFacts(
            self.layers, self.free, self.views, self.storages, self.port_roots, self.model, self.layerwise.depth
        )
        self.tree = bind_tree(tree, self.facts)
        self.pinned = FixedLayers(self.tree, self.facts, lambda: self.cascades)
        self.settled = self.settled.union(self.pinned.inside, self.pinned.outside)
        pins = {self.layers[i].node.name: partial(self._pin, i) for i in self.tree.directives}
        self.layerwise = RegionTilings(self.layers, self.views, self.model, self.options, pins)

    def _pin(self, index: int, inside: frozenset[str]) -> TiledLayer | None:
        """Return the fixed plan of a layer with these of its tensors in SRAM, or None where it cannot be planned so.

        A layer of a cascade has the plan of the cascade, whatever `inside` is.
        """
        if index not in self.pinned.in_cascades:
            return self.pinned.plan_layer(index, inside)
        cascades = self.pinned.plan_cascades(self.pinned.inside)
        return next(c.layers[index - c.first] for c in cascades if index in c.indices)

    def plan(self) -> PlannedRegion:
        """Return the plan: by the schedule alone where it names all layers, else the best of the search."""
        return (
            self._plan_whole_schedule() if self.tree.names_all_layers else min(self.search_plans(), key=lambda plan: plan.cycles)
        )

    def _plan_whole_schedule(self) -> PlannedRegion:
        """Return the plan of a schedule that names all layers. Raise CompileError where it does not fit, or has too
        many tiles.
        """
        planned = self._list_layers_by_name()
        plan = self.place(planned, self.pinned.inside)
        if plan is None:
            raise self._overfull(planned) or explain_fragmentation(self.tree)
        self.require_few(plan)
        return self.finish(plan)

    def _list_layers_by_name(self) -> list[PlannedLayer]:
        """Return the plan of each layer outside cascades. Data movement and layers of cascades have a placeholder
        without tiles.

        Raise CompileError with the faults of the schedule.
        """
        self.pinned.plan_cascades(self.pinned.inside)
        plans = self.pinned.plan_layers([i for i in self.tree.layers if i not in self.pinned.in_cascades])
        return [plans.get(i) or moved for i, moved in enumerate(self.moved)]

    def _overfull(self, planned: Sequence[PlannedLayer]) -> CompileError | None:
        """Return the error of the memories in which these layers do not fit, or None."""
        return explain_overflow(self.tree, self.facts, self.allocation(*self._with_cascades(planned, self.pinned.inside)))

    def explain_no_placement(self) -> CompileError:
        """Return the error as the base class does; memories that named layers exceed come first."""
        return self._overfull(self._list_layers_by_name()) or super().explain_no_placement()

    def least_bytes(self, tiles: Sequence[int]) -> Sequence[int]:
        """Return the least bytes of each step, which for named layers are those of the schedule."""
        least = self.pinned.least_bytes()
        return [least.get(step, size) for step, size in enumerate(tiles)]

    def residents(self, reserved: Sequence[int], capacity: int) -> frozenset[str]:
        """Return the resident roots: those that the schedule requires, and those that the search adds."""
        reserved_bytes = [need + used for need, used in zip(reserved, self._live_bytes(self.pinned.inside))]
        return super().residents(reserved_bytes, capacity) | self.pinned.inside

    def place(
        self,
        parts: Sequence[Part],
        resident: frozenset[str],
        searched: bool = True,
        near: PlannedRegion | None = None,
        is_spaced: bool = False,
    ) -> PlannedRegion | None:
        """Return the plan with addresses, as the base class does, with the schedule's cascades in place of their
        layers.
        """
        if self.tree.cascades and not cascades_of(parts):
            parts, resident = self._with_cascades(parts, resident)
        return super().place(parts, resident, searched, near, is_spaced)

    def _with_cascades(self, layers: Sequence[Part], resident: frozenset[str]) -> tuple[list[Part], frozenset[str]]:
        """Return the parts and resident roots of a plan with the schedule's cascades. `layers`: all, each by itself."""
        firsts = {cascade.first: cascade for cascade in self.pinned.plan_cascades(resident)}
        alone = set(range(len(layers))).difference(self.pinned.in_cascades)
        parts = [firsts.get(i, layer) for i, layer in enumerate(layers) if i in firsts or i in alone]
        return parts, resident | self.pinned.rows

    def group_cascades(self, plan: PlannedRegion) -> PlannedRegion:
        """Return the plan with cascades that the search finds, unless the schedule names cascades."""
        return plan if self.tree.cascades else super().group_cascades(plan)

    def bounds(self, before: PlannedRegion) -> GroupingBounds:
        """Return the bounds of the cascade search, which must leave named layers and fixed tensors alone."""
        limits, pinned = super().bounds(before), self.pinned
        fixed = pinned.inside | self.tree.spilled
        touching = (i for i, roots in enumerate(limits.roots) if roots & fixed)
        closed = frozenset(self.tree.layers).union(touching)
        ports = frozenset(limits.ports) | pinned.outside
        return replace(limits, ports=ports, open=limits.open - closed, settled=(limits.settled | pinned.inside) - pinned.outside)
