"""Edit a schedule by small transformations: each takes a tree and returns another. Trees are never changed in place.

Layers and tensors are named as in the network. Each function raises CompileError where the tree has no such layer or no
place for the change, and for counts below 1. A tree does not know the network's axes, memories, units and tensors: whether
network and machine allow the result shows when it is planned (`schedule.user_schedule`).
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
    CascadeTree,
    Fetch,
    LayerTree,
    Loop,
    OperandBuffer,
    Prefetch,
    RegionTree,
    Ring,
    Tensor,
    TensorAlloc,
    layers_of,
)
from toolchain.schedule.text import quote_name, ring_name


def split(tree: RegionTree, layer: str, axis: str, step: int) -> RegionTree:
    """Cut the layer's tiles along `axis` into `step` items: set the step of its loop, or add that loop as the
    innermost.
    """
    _require_count("split", "step", step)

    def edit(stmt: LayerTree) -> LayerTree:
        loops = [replace(loop, step=step, note="") if loop.axis == axis else loop for loop in stmt.loops]
        added = [] if axis in stmt.steps else [Loop(axis, step)]
        return replace(stmt, loops=(*loops, *added))

    return _change_layer(tree, "split", layer, edit)


def join(tree: RegionTree, layer: str, axis: str) -> RegionTree:
    """Remove the layer's loop over `axis`, so that a tile is all of it. It undoes a `split` that added the loop."""

    def edit(stmt: LayerTree) -> LayerTree:
        if axis not in stmt.steps:
            raise CompileError(f"join: layer {quote_name(layer)} has no loop over {axis}{_loops(stmt)}")
        return replace(stmt, loops=tuple(loop for loop in stmt.loops if loop.axis != axis))

    return _change_layer(tree, "join", layer, edit)


def reorder(tree: RegionTree, layer: str, axes: Sequence[str]) -> RegionTree:
    """Order the layer's loops by their axes, from the outermost. `axes` must name exactly its loops."""

    def edit(stmt: LayerTree) -> LayerTree:
        if sorted(axes) != sorted(stmt.steps):
            raise CompileError(f"reorder: {', '.join(axes)} are not the loops of layer {quote_name(layer)}{_loops(stmt)}")
        return replace(stmt, loops=tuple(next(loop for loop in stmt.loops if loop.axis == axis) for axis in axes))

    return _change_layer(tree, "reorder", layer, edit)


def slots(tree: RegionTree, layer: str, ring: OperandBuffer, count: int | Literal["all"], memory: str = "sram") -> RegionTree:
    """Set the number of slots of a tile buffer. A buffer that the schedule did not name is added, in `memory`;
    one that it named stays in its memory.

    `count`: from 1 on, or "all" for one slot for each tile that passes through.
    """
    if count != ALL:
        _require_count("slots", "count", int(count))

    def edit(stmt: LayerTree) -> LayerTree:
        rings = [replace(r, slots=count, note="") if r.buffer == ring else r for r in stmt.rings]
        added = [] if any(r.buffer == ring for r in stmt.rings) else [Ring(ring, memory, count)]
        return replace(stmt, rings=(*rings, *added))

    return _change_layer(tree, f"slots of {ring_name(ring)}", layer, edit)


def parallel(tree: RegionTree, layer: str, units: Sequence[str]) -> RegionTree:
    """Name the units that share the layer's tiles; (): any that can."""
    if len(set(units)) < len(units):
        raise CompileError(f"parallel: {', '.join(units)}: a unit is named twice")
    return _change_layer(
        tree, "parallel", layer, lambda stmt: replace(stmt, call=replace(stmt.call, units=tuple(units), note=""))
    )


def inline(tree: RegionTree, layer: str) -> RegionTree:
    """Mark a data-movement operator as moving nothing: its producer or consumers use the data in place.

    An `alloc` of a storage that it needed must be removed by the caller.
    """
    return _change_layer(tree, "inline", layer, lambda stmt: _moving(stmt, "inline", True))


def move(tree: RegionTree, layer: str) -> RegionTree:
    """Mark a data-movement operator as moved by DMA into a storage of its own. This is the inverse of `inline`."""
    return _change_layer(tree, "move", layer, lambda stmt: _moving(stmt, "move", False))


def _moving(stmt: LayerTree, what: str, inline: bool) -> LayerTree:
    """Return the layer with `inline` set so. Raise CompileError where it is computed, not moved."""
    if stmt.rings or stmt.fetches or stmt.loops or stmt.call.units:
        raise CompileError(f"{what}: layer {quote_name(stmt.name)} has rings, loops or units: it is computed, not moved")
    return replace(stmt, call=replace(stmt.call, inline=inline, note=""))


def fetch(tree: RegionTree, layer: str, *ahead: tuple[int, str]) -> RegionTree:
    """Set the layer's prefetches: (number of constants, name of the layer after whose loads they come), in the order of
    use.

    Each layer is an earlier one, or the layer itself. Other constants pass through its tile buffer; all do where none
    is named. A layer of a cascade is refused.
    """
    for constants, _ in ahead:
        _require_count("fetch", "constants", constants)
    fetches = tuple(Fetch(Prefetch(constants, behind), "") for constants, behind in ahead)
    if isinstance(tree.parts[_place(tree, "fetch", layer)], CascadeTree):
        raise CompileError(
            f"fetch: layer {quote_name(layer)} takes turns, in which it brings its constants itself; unfuse it first"
        )
    return _change_layer(tree, "fetch", layer, lambda stmt: replace(stmt, fetches=fetches))


def fuse(tree: RegionTree, first: str, last: str, step: int) -> RegionTree:
    """Make the layers from `first` to `last` a cascade that takes turns over `step` rows of the last one.

    Tensors between them stay where they lay; `store` with rows gives them rolling buffers. Prefetches of these layers,
    and those issued by them, are dropped.
    """
    _require_count("fuse", "step", step)
    begin, end = (_place(tree, "fuse", name) for name in (first, last))
    if begin >= end:
        raise CompileError(f"fuse: layer {quote_name(last)} does not stand behind {quote_name(first)}")
    for part in tree.parts[begin : end + 1]:
        if isinstance(part, CascadeTree):
            raise CompileError(f"fuse: layer {quote_name(part.layers[0].name)} takes turns already; unfuse it first")
    fused = {stmt.name for part in tree.parts[begin : end + 1] for stmt in layers_of(part)}
    parts = [_fetching(part, lambda layer, prefetch: not fused & {layer, prefetch.after_layer}) for part in tree.parts]
    layers = tuple(stmt for part in parts[begin : end + 1] for stmt in layers_of(part))
    cascade = CascadeTree((Loop(ROWS, step),), layers)
    return replace(tree, parts=(*parts[:begin], cascade, *parts[end + 1 :]), note="")


def unfuse(tree: RegionTree, layer: str) -> RegionTree:
    """Take a cascade apart: the layers that take turns with `layer` run one after the other.

    Rolling buffers of tensors between them stay; `store` must place those tensors.
    """
    place = _place(tree, "unfuse", layer)
    if not isinstance(tree.parts[place], CascadeTree):
        raise CompileError(f"unfuse: layer {quote_name(layer)} takes no turns with others")
    return replace(tree, parts=(*tree.parts[:place], *layers_of(tree.parts[place]), *tree.parts[place + 1 :]), note="")


def store(tree: RegionTree, tensor: str, memory: str, rows: int = 0) -> RegionTree:
    """Place a tensor in "sram" or "dram". `rows`: only so many of its latest rows lie in sram; 0: all of it."""
    if rows:
        _require_count("store", "rows", rows)
    if memory not in TENSOR_MEMORIES:
        raise CompileError(f"store: {memory}: tensors lie in {' or '.join(TENSOR_MEMORIES)}{suggestion(memory, TENSOR_MEMORIES)}")
    if rows and memory != "sram":
        raise CompileError(f"store: rows {rows} of {quote_name(tensor)}: latest rows are kept in sram")
    placed = TensorAlloc(Tensor(tensor, rows), memory)
    tensors = tuple(placed if alloc.buffer.name == tensor else alloc for alloc in tree.tensors)
    return replace(tree, tensors=tensors if placed in tensors else (*tensors, placed), note="")


def only(tree: RegionTree, layers: Sequence[str]) -> RegionTree:
    """Return the schedule of these layers alone, with whole cascades that hold them. All else is left to the search.

    Of the tensors' places, rolling buffers alone are kept, and those of all cascades where one is kept.
    """
    parts = [tree.parts[place] for place in sorted({_place(tree, "only", name) for name in layers})]
    is_cascade = any(isinstance(part, CascadeTree) for part in parts)
    rows = tuple(alloc for alloc in tree.tensors if alloc.buffer.rows and is_cascade)
    named = {stmt.name for part in parts for stmt in layers_of(part)}
    alone = tuple(_fetching(part, lambda _, prefetch: prefetch.after_layer in named) for part in parts)
    return replace(tree, tensors=rows, parts=alone, note="")


def _fetching(part: LayerTree | CascadeTree, predicate: Callable[[str, Prefetch], bool]) -> LayerTree | CascadeTree:
    """Return the part with those fetches for which the predicate is true. It is called with the layer's name and the
    fetch.
    """
    if isinstance(part, CascadeTree):
        return part
    return replace(part, fetches=tuple(f for f in part.fetches if predicate(part.name, f.buffer)))


def _change_layer(tree: RegionTree, what: str, layer: str, change: Callable[[LayerTree], LayerTree]) -> RegionTree:
    """Return the schedule with the layer replaced by what `change` makes of it."""
    place = _place(tree, what, layer)
    part = tree.parts[place]
    if isinstance(part, CascadeTree):
        part = replace(part, layers=tuple(change(stmt) if stmt.name == layer else stmt for stmt in part.layers))
    else:
        part = change(part)
    return replace(tree, parts=(*tree.parts[:place], part, *tree.parts[place + 1 :]), note="")


def _place(tree: RegionTree, what: str, layer: str) -> int:
    """Return the index of the part that is the layer or holds it. Raise CompileError where there is none."""
    for place, part in enumerate(tree.parts):
        if any(stmt.name == layer for stmt in layers_of(part)):
            return place
    names = [stmt.name for stmt in tree.layers]
    raise CompileError(f"{what}: the schedule has no layer {quote_name(layer)}{suggestion(layer, names)}")


def _loops(stmt: LayerTree) -> str:
    return f"; it has {', '.join(stmt.steps)}" if stmt.loops else "; it has none"


def _require_count(what: str, name: str, value: int) -> None:
    """Raise CompileError where the value is less than 1."""
    if value < 1:
        raise CompileError(f"{what}: {name} {value}: must be 1 or more")
