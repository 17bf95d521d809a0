"""Tensors that lie with other neighbours than those along their last dimension, and which of them are cheaper to move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from toolchain.hw.chip import Chip
from toolchain.ops.kit.operator import Layer
from toolchain.ops.permutation import Transpose
from toolchain.schedule.cost import CostModel
from toolchain.schedule.queues import sum_queue_cost
from toolchain.schedule.unit_choice import emit_at_zero
from toolchain.schedule.views import View, ViewInputs, find_views

Orders = Mapping[str, tuple[int, ...]]  # of tensors' dimensions, that of neighbours last


def find_dimension_orders(views: Mapping[str, View]) -> Orders:
    """Of the tensors whose last dimension is not that of neighbours."""
    return {name: view.order for name, view in views.items() if view.order}


def views_in_place(region: ViewInputs, layers: Sequence[Layer], chip: Chip, inline: Mapping[str, bool]) -> dict[str, View]:
    """As `find_views`, but for Transposes whose elements units would read one by one, which costs them more cycles than a DMA
    channel takes to move them once. layers: of the region's nodes. inline: of movers of which it is said, by name."""
    said = {node.outputs[0]: inline[node.name] for node in region.nodes if node.name in inline}
    region = region._replace(moved=frozenset(out for out, lies in said.items() if not lies))
    views = find_views(region, in_place=True)
    turned = {out: order for out, order in find_dimension_orders(views).items() if out not in said}
    if not turned:
        return views
    apart = find_views(region._replace(moved=region.moved.union(turned)), in_place=True)
    costly: set[str] = set()
    for layer in layers:
        out = layer.node.outputs[0]
        if out in turned and isinstance(layer.node.op, Transpose):
            readers = [reader for reader in layers if out in reader.activations]
            more = sum(_cycles(reader, {out: turned[out]}) - _cycles(reader, {}) for reader in readers)
            if more > CostModel(chip).moves(layer, apart, apart).alone_cycles:
                costly.add(out)
    return find_views(region._replace(moved=region.moved | costly), in_place=True) if costly else views


def _cycles(layer: Layer, found: Orders) -> int:
    """Of its works in the coarsest tiling, one after another, where its tensors lie so."""
    own = replace(layer, orders=found)
    tiling = next(iter(own.tiled.tilings(own)))
    works = own.tiled.nest(own, tiling).works()
    return sum(sum_queue_cost(emit_at_zero(work, own), own.chip).alone_cycles for work in works)
