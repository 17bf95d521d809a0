"""Which tensors share storage: views by Reshape and Slice, parts written straight into their Concat."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from toolchain.ir.graph import Node, TensorType
from toolchain.ops.kit.strides import Strides, dense
from toolchain.ops.kit.tile import Box
from toolchain.ops.movement import Join, Slice
from toolchain.ops.permutation import Reshape


@dataclass(frozen=True)
class View:
    """A tensor inside the storage of `root`: bytes from its start, how it lies from there, and bytes of one element."""

    root: str
    offset_bytes: int
    strides: Strides
    item_bytes: int

    @classmethod
    def whole(cls, name: str, kind: TensorType) -> View:
        """A storage of its own."""
        return cls(name, 0, dense(kind.shape, kind.item_bytes), kind.item_bytes)

    def at(self, element: Sequence[int]) -> int:
        """Bytes from the start of the storage to an element."""
        return self.offset_bytes + self.strides.offset_bytes(element)

    def box_alone(self, box: Box) -> Strides:
        """Of a box of the tensor by itself, as it passes through a memory of the chip."""
        return dense(box.size, self.item_bytes)


def find_views(
    nodes: tuple[Node, ...],
    types: Mapping[str, TensorType],
    ports: Collection[str],
    *,
    in_place: bool,
) -> dict[str, View]:
    """A view for every activation. `ports`: the region's inputs and outputs, which own their storage.

    Reshapes always alias. With `in_place`, slices are views of their source and concat parts are made in place.
    """
    views: dict[str, View] = {}
    made = {n.outputs[0]: n for n in nodes}
    uses: dict[str, list[Node]] = {}
    for node in nodes:
        for name in set(node.inputs):
            uses.setdefault(name, []).append(node)
    placed = _in_place_parts(nodes, types, ports, made, uses) if in_place else {}
    for node in nodes:
        for name in (*node.inputs, *node.outputs):
            if name in views or name not in types or name not in placed:
                continue
            views[name] = placed[name]
    for node in nodes:
        for name in node.inputs:
            if name and name not in views:
                views[name] = View.whole(name, types[name])
        out = node.outputs[0]
        if out not in views:
            views[out] = _view(node, views, types, ports, uses, in_place)
    return views


def _view(
    node: Node,
    views: Mapping[str, View],
    types: Mapping[str, TensorType],
    ports: Collection[str],
    uses: Mapping[str, list[Node]],
    in_place: bool,
) -> View:
    out = node.outputs[0]
    own = View.whole(out, types[out])
    if isinstance(node.op, Reshape):
        source = views[node.inputs[0]]
        return View(source.root, source.offset_bytes, own.strides, own.item_bytes)
    unit_step = isinstance(node.op, Slice) and node.op.steps[-1] == 1
    reshaped = any(isinstance(n.op, Reshape) for n in uses.get(out, []))
    if isinstance(node.op, Slice) and in_place and unit_step and not reshaped and out not in ports:
        source = views[node.inputs[0]]
        return View(source.root, source.at(node.op.starts), source.strides.stepped(node.op.steps), source.item_bytes)
    return own


def _in_place_parts(
    nodes: tuple[Node, ...],
    types: Mapping[str, TensorType],
    ports: Collection[str],
    made: Mapping[str, Node],
    uses: Mapping[str, list[Node]],
) -> dict[str, View]:
    """Views of concat parts, outermost Concat first. A part that is itself a view, a port, or reshaped stays apart."""
    placed: dict[str, View] = {}
    for node in reversed(nodes):
        if not isinstance(node.op, Join):
            continue
        out = node.outputs[0]
        whole = placed.get(out) or View.whole(out, types[out])
        at = 0
        for name in node.inputs:
            producer = made.get(name)
            apart = producer is None or isinstance(producer.op, Reshape | Slice) or name in ports or name in placed
            reshaped = any(isinstance(n.op, Reshape) for n in uses[name])
            if not apart and not reshaped and node.inputs.count(name) == 1:
                start = tuple(at if d == node.op.axis else 0 for d in range(len(types[name].shape)))
                placed[name] = View(whole.root, whole.at(start), whole.strides, whole.item_bytes)
            at += types[name].shape[node.op.axis]
    return placed
