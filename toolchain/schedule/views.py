"""Find which tensors of a region share storage: views by Reshape, Slice and Transpose, and parts written in place of
their Concat.

It runs before planning. A tensor with storage of its own is a root; every other activation is a view inside a root.
Moves that become views cost nothing.
"""

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
    """A place of a tensor inside the storage of `root`: its first byte, its strides, and the bytes of an element.

    `rows`, `channels`, `columns`: how many of a feature map [1, h, w, c] the storage holds, where it holds not all; 0:
    all. Elements are then counted from the first that it holds.
    """

    root: str
    offset_bytes: int
    strides: Strides
    item_bytes: int
    rows: int = 0
    channels: int = 0
    columns: int = 0

    @classmethod
    def own_storage(cls, name: str, kind: TensorType, maps: FeatureMaps | None = None) -> View:
        """Return the view of a tensor that fills a root of its own. `maps`: its channel blocks; None: channels lie
        densely.
        """
        return cls(name, 0, make_strides(kind.shape, kind.item_bytes, maps), kind.item_bytes)

    def with_rows(self, rows: int, shape: tuple[int, ...], channels: int = 0, columns: int = 0) -> View:
        """Return the view of a tensor of this `shape`, [1, h, w, c], in a rolling buffer of so many rows.

        `channels`, `columns`: the buffer holds a block of so many; 0: all. For blocks and for surfaces the strides are
        those of a buffer of this tensor alone.
        """
        strides = self.strides
        if channels or columns or (strides.maps is not None and strides.maps.order == "surface"):
            strides = make_strides((1, rows, columns or shape[2], channels or shape[3]), self.item_bytes, strides.maps)
        return replace(self, strides=strides, rows=rows, channels=channels, columns=columns)

    def at(self, element: Sequence[int]) -> int:
        """Return the bytes from the start of the root to an element, which is given by its index in each dimension."""
        return self.offset_bytes + self.strides.offset_bytes(element)

    @property
    def order(self) -> tuple[int, ...]:
        """The dimensions from the longest to the shortest stride. It is empty where the last one is contiguous or
        channels are blocked.
        """
        along = self.strides.along
        if self.strides.maps is not None or not along or along[-1] == self.item_bytes:
            return ()
        return tuple(sorted(range(len(along)), key=lambda d: -along[d]))

    def box_alone(self, box: Box) -> Strides:
        """Return the strides of a box of the tensor in a buffer of its own, with the dimensions in the same order."""
        return make_strides(box.size, self.item_bytes, self.strides.maps, self.order)

    def count_stored_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the bytes of storage that a tensor of this shape takes when it lies as this one does; of a rolling
        buffer, its size.
        """
        if self.rows:
            shape = (1, self.rows, self.columns or shape[2], self.channels or shape[3])
        return laid_bytes(shape, self.item_bytes, self.strides.maps)


def can_inline(node: Node) -> bool:
    """Return whether a data-movement operator may move nothing, because units can reach its data where they lie.

    Slice, Transpose and Concat of several parts may. A Concat of one part copies a state, which must move.
    """
    return isinstance(node.op, Slice | Transpose) or (isinstance(node.op, IntegerConcat) and len(node.inputs) > 1)


def is_inline(node: Node, views: Mapping[str, View]) -> bool:
    """Return whether `can_inline` holds and at least one input of the operator lies in the root of its output."""
    root = views[node.outputs[0]].root
    return can_inline(node) and any(views[n].root == root for n in node.inputs if n in views)


class ViewInputs(NamedTuple):
    """The inputs of view analysis.

    `nodes`: in the order in which they run. `ports`: inputs and outputs of the region; only a Reshape or rows written
    in place make one a view. `feature_maps`: tensors whose channels lie in blocks, as `maps` says. `moved`: outputs of
    data-movement operators that are copied in any case; such a copy may still be written inside a Concat.
    """

    nodes: tuple[Node, ...]
    types: Mapping[str, TensorType]
    ports: Collection[str]
    feature_maps: Collection[str] = ()
    maps: FeatureMaps | None = None
    moved: frozenset[str] = frozenset()

    def own_storage(self, name: str) -> View:
        """Return the view of a tensor in storage of its own."""
        return View.own_storage(name, self.types[name], self.maps if name in self.feature_maps else None)

    def uses(self) -> Mapping[str, list[Node]]:
        """Return the nodes that read each tensor."""
        readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in set(node.inputs):
                readers.setdefault(name, []).append(node)
        return readers


def find_views(region: ViewInputs, *, in_place: bool) -> dict[str, View]:
    """Return a view for every tensor that the region's nodes read or write, by tensor name; constants have storage of their own.

    A Reshape is a view where both shapes lie identically in memory. An operator that writes rows in place (PutRows) has
    the storage of its input.

    With `in_place`, slices with step 1 in the last dimension are views of their source. Parts of a Concat are written
    in its storage, of channel-blocked maps only whole blocks. A Transpose is then a view where its readers take any
    order of dimensions, or its source's producer writes so.
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
    """Return the view of a node's output: inside the root of an input, or storage of its own."""
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
    """Return the view of a tensor whose dimension i is dimension perm[i] of this one; None for channel-blocked maps."""
    return None if view.strides.maps is not None else replace(view, strides=view.strides.permute(perm))


def _takes(node: Node, name: str, view: View) -> bool:
    """Return whether the operator can read or write tensor `name` with the strides of `view`."""
    neighbours = node.op.contiguous_dims(node).get(name) if isinstance(node.op, TiledOp) else None
    return neighbours is not None and (neighbours == 0 or view.strides.along[-1] == view.item_bytes)


def _keeps_places(node: Node, source: View, target: View, region: ViewInputs) -> bool:
    """Return whether a Reshape leaves every element at its address, inside the source's bytes."""
    before, after = region.types[node.inputs[0]].shape, region.types[node.outputs[0]].shape
    fits = target.count_stored_bytes(after) <= source.count_stored_bytes(before)
    return fits and source.strides.same_places(before, target.strides, after)


def _is_run(op: Slice, source: View, target: View) -> bool:
    """Return whether units can read the slice in place: it is contiguous in the last dimension and begins with a whole
    block.
    """
    if op.steps[-1] != 1 or source.strides.maps != target.strides.maps:
        return False
    return source.strides.maps is None or op.starts[-1] % source.strides.maps.granule == 0


def _in_place_parts(region: ViewInputs, uses: Mapping[str, list[Node]]) -> dict[str, View]:
    """Return views of the parts of Concats, outermost Concat first, and of sources of Transposes.

    A part that is itself a view, a port, reshaped or read twice by the Concat has none.
    """
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
