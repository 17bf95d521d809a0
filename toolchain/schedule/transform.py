"""Small changes of a schedule, each a tree in and a tree out, refused with the reason where the tree has no place for it.

They know the tree alone; whether a network and a machine can have what comes of them is found out when it is planned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from quant.suggestion import suggestion
from toolchain.errors import CompileError
from toolchain.schedule.nodes import (
    ALL,
    ROWS,
    TENSOR_MEMORIES,
    Alloc,
    Fetch,
    LayerTree,
    Loop,
    OperandBuffer,
    Prefetch,
    RegionTree,
    Ring,
    Seq,
    Tensor,
    Tree,
    layer_of,
    layers_of,
    region_body,
    split_cascade,
    tensors_of,
)
from toolchain.schedule.text import quote_name, ring_name


def split(tree: RegionTree, layer: str, axis: str, step: int) -> RegionTree:
    """The layer's tiles go along this axis by `step`: its loop over it has that, or there is one, innermost."""
    _require_count("split", "step", step)

    def changed(own: LayerTree) -> LayerTree:
        loops = [replace(loop, step=step, note="") if loop.axis == axis else loop for loop in own.loops]
        added = [] if axis in own.steps else [Loop(axis, step, Seq(()))]
        return replace(own, loops=(*loops, *added))

    return _changed(tree, "split", layer, changed)


def join(tree: RegionTree, layer: str, axis: str) -> RegionTree:
    """The other way round: a tile is all of this axis."""

    def changed(own: LayerTree) -> LayerTree:
        if axis not in own.steps:
            raise CompileError(f"join: layer {quote_name(layer)} has no loop over {axis}{_loops(own)}")
        return replace(own, loops=tuple(loop for loop in own.loops if loop.axis != axis))

    return _changed(tree, "join", layer, changed)


def reorder(tree: RegionTree, layer: str, axes: Sequence[str]) -> RegionTree:
    """axes: of all of the layer's loops, from the outermost."""

    def changed(own: LayerTree) -> LayerTree:
        if sorted(axes) != sorted(own.steps):
            raise CompileError(f"reorder: {', '.join(axes)} are not the loops of layer {quote_name(layer)}{_loops(own)}")
        return replace(own, loops=tuple(next(loop for loop in own.loops if loop.axis == axis) for axis in axes))

    return _changed(tree, "reorder", layer, changed)


def slots(tree: RegionTree, layer: str, ring: OperandBuffer, count: int | Literal["all"], memory: str = "sram") -> RegionTree:
    """The ring has so many, in the memory where it lies; a ring of which nothing was said lies in `memory`."""
    if count != ALL:
        _require_count("slots", "count", int(count))

    def changed(own: LayerTree) -> LayerTree:
        found = [replace(r, slots=count, note="") if r.buffer == ring else r for r in own.rings]
        added = [] if any(r.buffer == ring for r in own.rings) else [Ring(ring, memory, Seq(()), count)]
        return replace(own, rings=(*found, *added))

    return _changed(tree, f"slots of {ring_name(ring)}", layer, changed)


def parallel(tree: RegionTree, layer: str, units: Sequence[str]) -> RegionTree:
    """The layer's tiles are shared out to these units; to any that can, where none are given."""
    if len(set(units)) < len(units):
        raise CompileError(f"parallel: {', '.join(units)}: a unit is named twice")
    return _changed(tree, "parallel", layer, lambda own: replace(own, call=replace(own.call, units=tuple(units), note="")))


def inline(tree: RegionTree, layer: str) -> RegionTree:
    """Nothing is moved by this mover: what makes or reads it does so where it lies. What had a storage of its own for that reason
    has none, nor an `alloc`."""
    return _changed(tree, "inline", layer, lambda own: _moving(own, "inline", True))


def move(tree: RegionTree, layer: str) -> RegionTree:
    """The other way round: DMA moves it to a storage of its own, in which its neighbours are read one by one."""
    return _changed(tree, "move", layer, lambda own: _moving(own, "move", False))


def _moving(own: LayerTree, what: str, inline: bool) -> LayerTree:
    if own.rings or own.fetches or own.loops or own.call.units:
        raise CompileError(f"{what}: layer {quote_name(own.call.layer)} has rings, loops or units: it is computed, not moved")
    return replace(own, call=replace(own.call, inline=inline, note=""))


def fetch(tree: RegionTree, layer: str, *ahead: tuple[int, str]) -> RegionTree:
    """So many of the layer's constants come behind the loads of an earlier layer, or of itself, the next so many behind those of
    the next that is named, in order: earlier or later than they did. Others pass through its ring, all where none is named."""
    for constants, _ in ahead:
        _require_count("fetch", "constants", constants)
    fetches = tuple(Fetch(Prefetch(constants, behind), "", Seq(())) for constants, behind in ahead)
    parts = tensors_of(tree.body)[1]
    if split_cascade(parts[_place(parts, "fetch", layer)]) is not None:
        raise CompileError(
            f"fetch: layer {quote_name(layer)} takes turns, in which it brings its constants itself; unfuse it first"
        )
    return _changed(tree, "fetch", layer, lambda own: replace(own, fetches=fetches))


def fuse(tree: RegionTree, first: str, last: str, step: int) -> RegionTree:
    """The layers from `first` to `last` take turns, `step` rows of the last one in each. What lies between them stays where it
    lay; `store` with rows keeps the latest of it. They bring their constants themselves, and nothing is fetched behind their
    loads."""
    _require_count("fuse", "step", step)
    tensors, parts = tensors_of(tree.body)
    begin, end = (_place(parts, "fuse", name) for name in (first, last))
    if begin >= end:
        raise CompileError(f"fuse: layer {quote_name(last)} does not stand behind {quote_name(first)}")
    for part in parts[begin : end + 1]:
        turns = split_cascade(part)
        if turns is not None:
            raise CompileError(f"fuse: layer {quote_name(turns[1][0].call.layer)} takes turns already; unfuse it first")
    fused = {own.call.layer for own in layers_of(parts[begin : end + 1])}
    brought = [_fetching(part, lambda layer, ahead: not fused & {layer, ahead.behind}) for part in parts]
    body = Loop(ROWS, step, Seq(tuple(brought[begin : end + 1])))
    return replace(tree, body=region_body(tensors, (*brought[:begin], body, *brought[end + 1 :])), note="")


def unfuse(tree: RegionTree, layer: str) -> RegionTree:
    """The other way round: those that take turns with the layer run one after the other. What was kept of tensors between them is
    for `store` to place."""
    tensors, parts = tensors_of(tree.body)
    place = _place(parts, "unfuse", layer)
    turns = split_cascade(parts[place])
    if turns is None:
        raise CompileError(f"unfuse: layer {quote_name(layer)} takes no turns with others")
    alone = tuple(own.tree() for own in turns[1])
    return replace(tree, body=region_body(tensors, (*parts[:place], *alone, *parts[place + 1 :])), note="")


def store(tree: RegionTree, tensor: str, memory: str, rows: int = 0) -> RegionTree:
    """The tensor lies there: raised to sram, lowered to dram, or its latest rows in sram."""
    if memory not in TENSOR_MEMORIES:
        raise CompileError(f"store: {memory}: tensors lie in {' or '.join(TENSOR_MEMORIES)}{suggestion(memory, TENSOR_MEMORIES)}")
    if rows and memory != "sram":
        raise CompileError(f"store: rows {rows} of {quote_name(tensor)}: latest rows are kept in sram")
    tensors, parts = tensors_of(tree.body)
    placed = Alloc(Tensor(tensor, rows), memory, Seq(()))
    names = [alloc.buffer.name for alloc in tensors if isinstance(alloc.buffer, Tensor)]
    found = tuple(placed if name == tensor else alloc for name, alloc in zip(names, tensors))
    return replace(tree, body=region_body(found if tensor in names else (*tensors, placed), parts), note="")


def only(tree: RegionTree, layers: Sequence[str]) -> RegionTree:
    """These alone are said, with those that take turns with them; where everything else lies and how it runs is open."""
    _, parts = tensors_of(tree.body)
    kept = {_place(parts, "only", name) for name in layers}
    rows = tuple(a for a in tensors_of(tree.body)[0] if isinstance(a.buffer, Tensor) and a.buffer.rows)
    turned = any(split_cascade(parts[place]) is not None for place in kept)
    named = {own.call.layer for own in layers_of(tuple(parts[p] for p in kept))}
    alone = tuple(_fetching(parts[p], lambda _, ahead: ahead.behind in named) for p in sorted(kept))
    return replace(tree, body=region_body(rows if turned else (), alone), note="")


def _fetching(part: Tree, wanted: Callable[[str, Prefetch], bool]) -> Tree:
    """With those fetches alone that are wanted; the layer's other constants pass through its ring. Layers in turns have none."""
    own = layer_of(part)
    if own is None:
        return part
    return replace(own, fetches=tuple(f for f in own.fetches if wanted(own.call.layer, f.buffer))).tree()


def _changed(tree: RegionTree, what: str, layer: str, change: Callable[[LayerTree], LayerTree]) -> RegionTree:
    """With another layer in its place."""
    tensors, parts = tensors_of(tree.body)
    place = _place(parts, what, layer)
    turns, alone = split_cascade(parts[place]), layer_of(parts[place])
    made: Tree
    if turns is not None:
        loop, inside = turns
        made = replace(loop, body=Seq(tuple((change(own) if own.call.layer == layer else own).tree() for own in inside)))
    else:
        assert alone is not None
        made = change(alone).tree()
    return replace(tree, body=region_body(tensors, (*parts[:place], made, *parts[place + 1 :])), note="")


def _place(parts: tuple[Tree, ...], what: str, layer: str) -> int:
    """Which part is the layer, or holds it."""
    for place, part in enumerate(parts):
        if any(own.call.layer == layer for own in layers_of((part,))):
            return place
    known = [own.call.layer for own in layers_of(parts)]
    raise CompileError(f"{what}: the schedule has no layer {quote_name(layer)}{suggestion(layer, known)}")


def _loops(own: LayerTree) -> str:
    return f"; it has {', '.join(own.steps)}" if own.loops else "; it has none"


def _require_count(what: str, name: str, value: int) -> None:
    if value < 1:
        raise CompileError(f"{what}: {name} {value}: must be 1 or more")
