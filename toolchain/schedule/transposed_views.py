"""Decide which Transposes are views, so that units read a tensor in another order of dimensions, and which are moved by
DMA.

`schedule.layer_by_layer` asks before it plans. All Transposes begin as views (`schedule.views`). Those are moved
instead whose readers would take more cycles than the move.

Type `Orders`: by tensor, its dimensions by stride; the last one has neighbours side by side in memory.
"""

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

Orders = Mapping[str, tuple[int, ...]]


def find_dimension_orders(views: Mapping[str, View]) -> Orders:
    """Return, for tensors whose last dimension is not contiguous, their dimensions from the longest to the shortest
    stride.
    """
    return {name: view.order for name, view in views.items() if view.order}


def views_in_place(region: ViewInputs, layers: Sequence[Layer], chip: Chip, inline: Mapping[str, bool]) -> dict[str, View]:
    """Return the views of a region with `in_place`, without Transposes that cost more as views than as one DMA move.

    A view costs more where units then read element by element. `layers`: of the region's nodes. `inline`: by name of an
    operator, whether it is a view; those choices stay.
    """
    is_inline = {node.outputs[0]: inline[node.name] for node in region.nodes if node.name in inline}
    region = region._replace(moved=frozenset(out for out, lies in is_inline.items() if not lies))
    views = find_views(region, in_place=True)
    permuted = {out: order for out, order in find_dimension_orders(views).items() if out not in is_inline}
    if not permuted:
        return views
    separate = find_views(region._replace(moved=region.moved.union(permuted)), in_place=True)
    costly: set[str] = set()
    for layer in layers:
        out = layer.node.outputs[0]
        if out in permuted and isinstance(layer.node.op, Transpose):
            readers = [reader for reader in layers if out in reader.activations]
            more = sum(_cycles(reader, {out: permuted[out]}) - _cycles(reader, {}) for reader in readers)
            if more > CostModel(chip).moves(layer, separate, separate).alone_cycles:
                costly.add(out)
    return find_views(region._replace(moved=region.moved | costly), in_place=True) if costly else views


def _cycles(layer: Layer, orders: Orders) -> int:
    """Return the cycles of a layer's tiles in its coarsest tiling, one after another, with its tensors in these orders."""
    permuted = replace(layer, orders=orders)
    tiling = next(iter(permuted.tiled.tilings(permuted)))
    tiles = permuted.tiled.nest(permuted, tiling).iterate_tasks()
    return sum(sum_queue_cost(emit_at_zero(tile, permuted), permuted.chip).alone_cycles for tile in tiles)
