"""Views: tensors that share storage, by Reshape, Slice and Transpose, and parts that are written straight into their Concat."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from toolchain.hw.chip_sections import FeatureMaps
from toolchain.ir.graph import Node, TensorType
from toolchain.machine.tensors import Strides, laid_bytes, make_strides
from toolchain.ops.data_movement import IntegerConcat, Slice
from toolchain.ops.kit.operator import TiledOp
from toolchain.ops.kit.tile import Box
from toolchain.ops.permutation import Reshape, Transpose
from toolchain.ops.tensor_scatter import PutRows


@dataclass(frozen=True)
class View:
    """A tensor inside the storage of `root`: bytes from its start, how it lies from there, and bytes of one element. `rows`:
    of a feature map [1, h, w, c] that the storage holds, where it does not hold all; elements are counted from the first of
    them. `channels`, `columns`: that it holds, where not all."""

    root: str
    offset_bytes: int
    strides: Strides
    item_bytes: int
    rows: int = 0
    channels: int = 0
    columns: int = 0

    @classmethod
    def own_storage(cls, name: str, kind: TensorType, maps: FeatureMaps | None = None) -> View:
        """A storage of its own."""
        return cls(name, 0, make_strides(kind.shape, kind.item_bytes, maps), kind.item_bytes)

    def with_rows(self, rows: int, shape: tuple[int, ...], channels: int = 0, columns: int = 0) -> View:
        """The view of a tensor [1, h, w, c] whose storage holds so many rows. In surfaces, or of a block of channels or
        columns, the tensor has its storage for itself."""
        strides = self.strides
        if channels or columns or (strides.maps is not None and strides.maps.order == "surface"):
            strides = make_strides((1, rows, columns or shape[2], channels or shape[3]), self.item_bytes, strides.maps)
        return replace(self, strides=strides, rows=rows, channels=channels, columns=columns)

    def at(self, element: Sequence[int]) -> int:
        """Bytes from the start of the storage to an element."""
        return self.offset_bytes + self.strides.offset_bytes(element)

    @property
    def order(self) -> tuple[int, ...]:
        """The tensor's dimensions, from that of the longest stride to that of the shortest; empty where the last one is
        contiguous."""
        along = self.strides.along
        if self.strides.maps is not None or not along or along[-1] == self.item_bytes:
            return ()
        return tuple(sorted(range(len(along)), key=lambda d: -along[d]))

    def box_alone(self, box: Box) -> Strides:
        """The strides of a box of the tensor in a buffer of its own; contiguous elements stay contiguous."""
        return make_strides(box.size, self.item_bytes, self.strides.maps, self.order)

    def count_stored_bytes(self, shape: tuple[int, ...]) -> int:
        """The bytes of a tensor of this shape that lies as this one does."""
        if self.rows:
            shape = (1, self.rows, self.columns or shape[2], self.channels or shape[3])
        return laid_bytes(shape, self.item_bytes, self.strides.maps)


def can_inline(node: Node) -> bool:
    """True where a data-movement operator may be inline. The copy of a state, a Concat of one part, may not: the next run
    reads it where it lies."""
    return isinstance(node.op, Slice | Transpose) or (isinstance(node.op, IntegerConcat) and len(node.inputs) > 1)


def is_inline(node: Node, views: Mapping[str, View]) -> bool:
    """True where at least a part of the data of a data-movement operator lies in its place already."""
    root = views[node.outputs[0]].root
    return can_inline(node) and any(views[n].root == root for n in node.inputs if n in views)


class ViewInputs(NamedTuple):
    """The inputs of view analysis.

    `ports`: inputs and outputs, which own their storage. `feature_maps`: those that lie as `maps` says. `moved`: outputs of
    data-movement operators that have a storage of their own in any case.
    """

    nodes: tuple[Node, ...]
    types: Mapping[str, TensorType]
    ports: Collection[str]
    feature_maps: Collection[str] = ()
    maps: FeatureMaps | None = None
    moved: frozenset[str] = frozenset()

    def own_storage(self, name: str) -> View:
        """A storage of its own."""
        return View.own_storage(name, self.types[name], self.maps if name in self.feature_maps else None)

    def uses(self) -> Mapping[str, list[Node]]:
        """The nodes that read each tensor."""
        readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in set(node.inputs):
                readers.setdefault(name, []).append(node)
        return readers


def find_views(region: ViewInputs, *, in_place: bool) -> dict[str, View]:
    """A view for every activation.

    Reshapes alias where both shapes lie alike. With `in_place`, slices are views of their source and concat parts are made in
    place; of feature maps in granules, those that are whole granules. Transposes are views where what reads them does it in any
    order, or where what makes their source writes it so.
    """
    uses = region.uses()
    placed = _in_place_parts(region, uses) if in_place else {}
    views = {name: view for name, view in placed.items() if name in region.types}
    for node in region.nodes:
        for name in node.inputs:
            if name and name not in views:
                views[name] = region.own_storage(name)
        out = node.outputs[0]
        if out not in views:
            views[out] = _view(node, views, region, uses, in_place)
    return views


def _view(node: Node, views: Mapping[str, View], region: ViewInputs, uses: Mapping[str, list[Node]], in_place: bool) -> View:
    out = node.outputs[0]
    plain, reshaped = region.own_storage(out), any(isinstance(n.op, Reshape) for n in uses.get(out, []))
    if isinstance(node.op, Reshape):
        source = views[node.inputs[0]]
        return (
            View(source.root, source.offset_bytes, plain.strides, plain.item_bytes)
            if _keeps_places(node, source, plain, region)
            else plain
        )
    if isinstance(node.op, PutRows) and node.op.in_place:
        return views[node.inputs[0]]
    is_separate = not in_place or out in region.ports or out in region.moved
    if isinstance(node.op, Slice) and not is_separate and not reshaped:
        source = views[node.inputs[0]]
        if _is_run(node.op, source, plain):
            strides = source.strides.take_steps(node.op.steps)
            return View(source.root, source.at(node.op.starts), strides, source.item_bytes)
    if isinstance(node.op, Transpose) and not is_separate:
        view = _permute(views[node.inputs[0]], node.op.perm)
        if view is not None and plain.strides.maps is None and all(_takes(n, out, view) for n in uses.get(out, [])):
            return view
    return plain


def _permute(view: View, perm: Sequence[int]) -> View | None:
    """The view of a tensor whose dimension i is dimension perm[i] of this one; None of channel-blocked maps."""
    return None if view.strides.maps is not None else replace(view, strides=view.strides.permute(perm))


def _takes(node: Node, name: str, view: View) -> bool:
    """True where the operator can read or write the tensor as it lies there."""
    neighbours = node.op.contiguous_dims(node).get(name) if isinstance(node.op, TiledOp) else None
    return neighbours is not None and (neighbours == 0 or view.strides.along[-1] == view.item_bytes)


def _keeps_places(node: Node, source: View, target: View, region: ViewInputs) -> bool:
    """True where a Reshape finds every element in its place, and all bytes that it touches."""
    before, after = region.types[node.inputs[0]].shape, region.types[node.outputs[0]].shape
    fits = target.count_stored_bytes(after) <= source.count_stored_bytes(before)
    return fits and source.strides.same_places(before, target.strides, after)


def _is_run(op: Slice, source: View, target: View) -> bool:
    """True where units can read the slice where it lies: contiguous along the last dimension, from the start of a granule."""
    if op.steps[-1] != 1 or source.strides.maps != target.strides.maps:
        return False
    return source.strides.maps is None or op.starts[-1] % source.strides.maps.granule == 0


def _in_place_parts(region: ViewInputs, uses: Mapping[str, list[Node]]) -> dict[str, View]:
    """Views of concat parts, outermost Concat first, and of what is transposed. A part that is itself a view, a port, or reshaped
    stays apart."""
    placed: dict[str, View] = {}
    producers = {n.outputs[0]: n for n in region.nodes}
    for node in reversed(region.nodes):
        out = node.outputs[0]
        if out in region.moved:
            continue
        if isinstance(node.op, Transpose):
            name = node.inputs[0]
            view = _permute(placed.get(out) or region.own_storage(out), np.argsort(node.op.perm).tolist())
            alone = uses[name] == [node] and name not in region.ports and region.own_storage(name).strides.maps is None
            if alone and view is not None and name in producers and _takes(producers[name], name, view):
                placed[name] = view
        if not isinstance(node.op, IntegerConcat):
            continue
        joined, shape = placed.get(out) or region.own_storage(out), region.types[out].shape
        at = 0
        for name in node.inputs:
            producer, part_shape = producers.get(name), region.types[name].shape
            is_separate = producer is None or isinstance(producer.op, Reshape | Slice) or name in region.ports or name in placed
            reshaped = any(isinstance(n.op, Reshape) for n in uses[name])
            start = tuple(at if d == node.op.axis else 0 for d in range(len(shape)))
            is_aligned = region.own_storage(name).strides.maps == joined.strides.maps and joined.strides.is_whole(
                start[-1], part_shape[-1], shape[-1]
            )
            if not is_separate and not reshaped and is_aligned and node.inputs.count(name) == 1:
                placed[name] = View(joined.root, joined.at(start), joined.strides, joined.item_bytes)
            at += part_shape[node.op.axis]
    return placed
