"""Decompose ScatterND and ScatterElements by constant indices into Slices of data and updates, joined by Concats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from toolchain.frontend.rewrite import Decomposition, NodeChain
from toolchain.ir.graph import MAX_MATRIX, OnnxNode

Array = NDArray[Any]
MOST_RUNS = 32  # of data and updates by turns along one dimension
_REDUCED = {"add": "Add", "max": "Max", "min": "Min", "mul": "Mul"}


class _Box(NamedTuple):
    """The places that get updates, where they form a box.

    `places`: by dimension, the indices of the box, rising.
    `order`: the dimensions as the updates have them.
    `update_orders`: by dimension, the order in which the updates have its places.
    """

    places: tuple[Array, ...]
    order: tuple[int, ...]
    update_orders: tuple[Array, ...]


def scatter(chain: NodeChain) -> None:
    """Decompose a scatter whose places are a box into Slices and Concats; a small one of other places into a Gather of both."""
    n, scope = chain.node, chain.scope
    data, places, updates = n.inputs
    indices, shape = scope.constants.get(places), scope.shape(data)
    reduction = n.op.attributes.get("reduction", "none")
    if indices is None or not scope.is_float(data) or not shape or 0 in (*shape, *scope.shape(updates)):
        return
    source = _sources(n, indices, shape, scope.shape(updates))
    box = _box(source, int(np.prod(scope.shape(updates))))
    if box is not None and all(_runs(p, d) <= MOST_RUNS for p, d in zip(box.places, shape)):
        _put(chain, data, _arranged(chain, updates, box), shape, box.places, 0, _REDUCED.get(reduction))
        return
    count = source.size + int(np.prod(scope.shape(updates)))
    if reduction != "none" or source.size * count > MAX_MATRIX:
        return
    flat = [chain.add("Reshape", name, (-1,)) for name in (data, updates)]
    positions = np.where(source < 0, np.arange(source.size).reshape(shape), source + source.size)
    chain.add("Gather", chain.add("Concat", *flat, axis=0), tuple(positions.ravel().tolist()), axis=0)
    chain.add("Reshape", chain.nodes[-1].outputs[0], shape)


def _sources(n: OnnxNode, indices: Array, shape: Sequence[int], updates: Sequence[int]) -> Array:
    """Return int[shape]: the number of the update that each place gets, the last of several; -1: none."""
    source, numbers = np.full(shape, -1), np.arange(int(np.prod(updates)))
    if n.op.op_type == "ScatterElements":
        axis = n.op.attributes["axis"] % len(shape)
        places = list(np.indices(indices.shape))
        places[axis] = indices % shape[axis]
    else:
        depth = indices.shape[-1]
        places = [indices[..., i] % shape[i] for i in range(depth)]
    source[tuple(p.reshape(-1) for p in places)] = numbers.reshape(places[0].size, *shape[len(places) :])
    return source


def _box(source: Array, count: int) -> _Box | None:
    """Return the places as a box, or None.

    They are one where each update goes to a place of its own, and the updates lie along the box's dimensions.
    """
    places = tuple(np.unique(axis) for axis in np.nonzero(source >= 0))
    if any(not p.size for p in places):
        return None
    box_source = source[np.ix_(*places)]
    if box_source.size != count or (box_source < 0).any():
        return None
    orders = tuple(
        np.argsort(np.moveaxis(box_source, a, 0).reshape(box_source.shape[a], -1)[:, 0]) for a in range(box_source.ndim)
    )
    box_source = box_source[np.ix_(*orders)]
    steps = [
        int(np.take(box_source, 1, a).flat[0] - box_source.flat[0]) if box_source.shape[a] > 1 else 0
        for a in range(box_source.ndim)
    ]
    order = tuple(sorted(range(box_source.ndim), key=lambda a: (-steps[a], a)))
    in_order = np.arange(count).reshape([box_source.shape[a] for a in order])
    return _Box(places, order, orders) if np.array_equal(box_source.transpose(order), in_order) else None


def _arranged(chain: NodeChain, updates: str, box: _Box) -> str:
    """Return the updates in the shape of the box, their places rising."""
    sizes = [len(box.places[a]) for a in box.order]
    x = chain.add("Reshape", updates, tuple(sizes))
    if box.order != tuple(range(len(sizes))):
        x = chain.add("Transpose", x, perm=tuple(box.order.index(a) for a in range(len(sizes))))
    for a, order in enumerate(box.update_orders):
        rising = np.argsort(order)
        if not np.array_equal(rising, np.arange(rising.size)):
            x = chain.add("Gather", x, tuple(rising.tolist()), axis=a)
    return x


def _runs(places: Array, size: int) -> int:
    """Return into how many runs, of data and updates in turn, a dimension of this size falls."""
    got = np.isin(np.arange(size), places)
    return 1 + int(np.count_nonzero(got[1:] != got[:-1]))


def _put(
    chain: NodeChain, data: str, updates: str, shape: Sequence[int], places: Sequence[Array], axis: int, reduced: str | None
) -> str:
    """Return the data with the updates at their places. Before `axis`, updates have as many elements as the data.

    `reduced`: the operator that combines data and update; None: the update replaces.
    """
    while axis < len(shape) and len(places[axis]) == shape[axis]:
        axis += 1
    if axis == len(shape):
        return updates if reduced is None else chain.add(reduced, data, updates)
    got = np.isin(np.arange(shape[axis]), places[axis])
    bounds = [0, *(np.flatnonzero(got[1:] != got[:-1]) + 1).tolist(), shape[axis]]
    inner = [len(places[axis]) if a == axis else d for a, d in enumerate(shape)]
    all_places = [np.arange(len(places[axis])) if a == axis else p for a, p in enumerate(places)]
    touched = data
    if reduced is not None or any(len(places[a]) < shape[a] for a in range(axis + 1, len(shape))):
        touched = chain.add("Gather", data, tuple(places[axis].tolist()), axis=axis)
    placed, done, parts = _put(chain, touched, updates, inner, all_places, axis + 1, reduced), 0, list[str]()
    for start, end in pairwise(bounds):
        if got[start]:
            length = end - start
            parts.append(_slice(chain, placed, axis, done, done + length, inner[axis]))
            done += length
        else:
            parts.append(_slice(chain, data, axis, start, end, shape[axis]))
    return chain.add("Concat", *parts, axis=axis)


def _slice(chain: NodeChain, x: str, axis: int, start: int, end: int, size: int) -> str:
    return x if (start, end) == (0, size) else chain.add("Slice", x, (start,), (end,), (axis,), (1,))


DECOMPOSITIONS: Mapping[str, Decomposition] = {"ScatterElements": scatter, "ScatterND": scatter}
