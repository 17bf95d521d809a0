"""What a schedule of some layers leaves to the search: those layers as they are said, whatever else is decided."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property

from toolchain.machine import Space
from toolchain.ops.kit.tile import round_up
from toolchain.schedule.cascade_candidates import PlannedCascade
from toolchain.schedule.tile_buffers import LayerPlan, PlannedLayer
from toolchain.schedule.tree.bind_tree import BoundTree, RegionFacts
from toolchain.schedule.tree.build_layers import DirectedLayerBuilder
from toolchain.schedule.tree.nodes import OperandBuffer


class FixedLayers:
    """Of one region. inside, outside: roots that must lie in SRAM whole, and that must not."""

    def __init__(self, given: BoundTree, facts: RegionFacts, made: DirectedLayerBuilder):
        self.given, self._facts, self._made = given, facts, made
        self._plans: dict[tuple[int, frozenset[str]], LayerPlan | None] = {}
        self._cascades: dict[frozenset[str], tuple[PlannedCascade, ...]] = {}

    @property
    def inside(self) -> frozenset[str]:
        return self.given.resident

    @cached_property
    def rows(self) -> frozenset[str]:
        """Roots of which the latest rows are kept."""
        return frozenset(root for turns in self.given.turns for root in turns.rows)

    @cached_property
    def outside(self) -> frozenset[str]:
        return self.given.spilled.union(self.rows, self._through_rings())

    def _through_rings(self) -> Iterator[str]:
        """Roots that layers bring to rings of their own or take from them."""
        for asked in self.given.asked.values():
            layer = asked.layer
            reads = next(layer.tiled.nest(layer, asked.tiling).works()).reads
            for alloc in asked.said.rings:
                ring = alloc.buffer
                if not isinstance(ring, OperandBuffer) or ring.role == "constant":
                    continue
                operands = (
                    [(box.tensor, box.role) for box in reads] if ring.role == "input" else [(layer.node.outputs[0], "output")]
                )
                for tensor, role in operands[ring.number : ring.number + 1]:
                    if all(unit.roles[role] == Space.SRAM for unit in asked.units):  # elsewhere rings bring what is resident too
                        yield self._facts.views[tensor].root

    def alone(self, index: int, inside: frozenset[str]) -> LayerPlan | None:
        """Of a layer by itself, or None of a mover. inside: tensors of it that lie in SRAM. Raises CompileError."""
        key = index, inside
        if key not in self._plans:
            roots = {self._facts.views[n].root for n in inside}
            self._plans[key] = self._made.alone([index], roots)[index].plan
        return self._plans[key]

    def made(self, indices: Sequence[int]) -> dict[int, PlannedLayer]:
        """Layers by themselves, with all that is wrong with them. Raises CompileError."""
        return self._made.alone(indices, self.inside)

    def turns(self, resident: Collection[str]) -> tuple[PlannedCascade, ...]:
        """resident: roots in SRAM whole. Raises CompileError."""
        own = frozenset(resident)
        if own not in self._cascades:
            self._cascades[own] = self._made.turns(own)
        return self._cascades[own]

    @cached_property
    def together(self) -> frozenset[int]:
        """Layers in turns."""
        return frozenset(i for turns in self.given.turns for i in turns.layers)

    def least_bytes(self) -> Mapping[int, int]:
        """SRAM that each layer it names needs beside what stays there, where nothing else does."""
        sram, align = int(Space.SRAM), self._facts.chip.sram.alignment_bytes
        plans = {i: self._least_plan(i) for i in self.given.asked if i not in self.together}
        found = {i: plan.staging_bytes.get(sram, 0) for i, plan in plans.items() if plan is not None}
        for turns, cascade in zip(self.given.turns, self.turns(self.inside)):
            held = {v.root: v for v in cascade.views.values()}
            types = self._facts.layers[turns.layers.start].types
            rows = sum(round_up(view.stored_bytes(types[root].shape), align) for root, view in held.items())
            slots = sum(p.plan.staging_bytes.get(sram, 0) for p in cascade.layers if p.plan is not None)
            found |= dict.fromkeys(turns.layers, rows + slots)
        return found

    def _least_plan(self, index: int) -> LayerPlan | None:
        layer = self._facts.layers[index]
        names = (*layer.activations, *layer.node.outputs)
        return self.alone(index, frozenset(n for n in names if self._facts.views[n].root in self.inside))
