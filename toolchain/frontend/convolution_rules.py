"""Decompose convolutions that the chip does not have into those that it has.

These have windows of three dimensions, computed weights or a computed bias. `canonicalize` tries them late, once norms are
matched.
A decomposition adds no steps where it does not apply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod

from toolchain.frontend.rewrite import Decomposition, NodeChain, Rewriter, operand
from toolchain.ir.graph import MAX_PARTS, OnnxNode

MOST_PLACES = 64  # of a window whose weights are computed: each is a copy of the input
_TIME, _ROWS, _COLUMNS = 2, 3, 4  # dimensions of [n, c, t, h, w]
# Of the dimensions over which a kernel has several places: those that become samples, rows and columns.
_ARRANGED: dict[tuple[int, ...], tuple[tuple[int, ...], ...]] = {
    (): ((), (_TIME,), (_ROWS, _COLUMNS)),
    (_TIME,): ((), (_TIME,), (_ROWS, _COLUMNS)),
    (_ROWS,): ((_TIME,), (_ROWS,), (_COLUMNS,)),
    (_COLUMNS,): ((), (_TIME, _ROWS), (_COLUMNS,)),
    (_TIME, _ROWS): ((_COLUMNS,), (_TIME,), (_ROWS,)),
    (_TIME, _COLUMNS): ((_ROWS,), (_TIME,), (_COLUMNS,)),
    (_ROWS, _COLUMNS): ((_TIME,), (_ROWS,), (_COLUMNS,)),
}


class _Input:
    """The input of a Conv, which its methods pad and cut by adding steps.

    `kernel`, `strides`, `dilations`, `begin` and `end` padding, and `windows` (outputs) are by dimension, counted as in [n,
    c, ...].
    """

    def __init__(self, chain: NodeChain) -> None:
        n, scope = chain.node, chain.scope
        a, rank = n.op.attributes, len(n.op.attributes["kernel_shape"])
        axes = range(2, 2 + rank)
        self.chain, self.name, self.sizes = chain, n.inputs[0], list(scope.shape(n.inputs[0]))
        self.kernel, self.strides = dict(zip(axes, a["kernel_shape"])), dict(zip(axes, a["strides"]))
        self.dilations = dict(zip(axes, a["dilations"]))
        self.begin, self.end = dict(zip(axes, a["pads"][:rank])), dict(zip(axes, a["pads"][rank:]))
        self.windows = dict(zip(axes, scope.shape(n.outputs[0])[2:]))

    def pad(self, axes: Sequence[int]) -> None:
        """Add a Pad by the zeros around these dimensions."""
        rank = len(self.sizes)
        begin, end = ([pads[i] if i in axes else 0 for i in range(rank)] for pads in (self.begin, self.end))
        if any((*begin, *end)):
            self.name = self.chain.add("Pad", self.name, (*begin, *end), 0.0)
            self.sizes = [s + b + e for s, b, e in zip(self.sizes, begin, end)]

    def places(self, places: Mapping[int, int]) -> str:
        """Return the elements that all windows have at one place of the kernel, by a strided Slice. `places`: the place by
        dimension.
        """
        starts = {a: p * self.dilations[a] for a, p in places.items()}
        ends = {a: s + (self.windows[a] - 1) * self.strides[a] + 1 for a, s in starts.items()}
        cut = [a for a in places if (starts[a], ends[a], self.strides[a]) != (0, self.sizes[a], 1)]
        if not cut:
            return self.name
        columns = zip(*((starts[a], ends[a], a, self.strides[a]) for a in cut))
        return self.chain.add("Slice", self.name, *(tuple(column) for column in columns))

    def take_places(self, axis: int) -> None:
        """Reduce a dimension over which the kernel has one place to the elements that windows see."""
        self.pad((axis,))
        self.name, self.sizes[axis] = self.places({axis: 0}), self.windows[axis]


def conv_3d(chain: NodeChain) -> None:
    """Decompose a Conv over [n, c, t, h, w] into one over rows and columns, between Reshapes.

    Dimensions over which the kernel has one place become samples, or part of the rows or columns. With several places along
    all three, frames become channels.
    """
    n, scope = chain.node, chain.scope
    w = scope.shape(n.inputs[1])
    if len(w) != 5 or not _is_resolved(n, scope):
        return
    weights = n.inputs[1]
    x = _Input(chain)
    if min(x.kernel.values()) > 1:
        if n.op.attributes["group"] != 1 or x.kernel[_TIME] > MAX_PARTS:
            return
        x.pad((_TIME,))
        x.name = chain.add("Concat", *(x.places({_TIME: k}) for k in range(w[_TIME])), axis=1)
        x.sizes[1:3] = x.sizes[1] * w[_TIME], x.windows[_TIME]
        weights = chain.add("Transpose", weights, perm=(0, 2, 1, 3, 4))
        w = (w[0], w[1] * w[2], 1, *w[3:])
        several = (_ROWS, _COLUMNS)
    else:
        several = tuple(a for a, places in x.kernel.items() if places > 1)
        for axis in x.kernel.keys() - set(several):
            x.take_places(axis)
    samples, *parts = _ARRANGED[several]
    perm = (0, *samples, 1, *parts[0], *parts[1])
    samples_first = x.name if perm == (0, 1, 2, 3, 4) else chain.add("Transpose", x.name, perm=perm)
    flat = tuple(prod(sizes) for sizes in ([x.sizes[a] for a in part] for part in parts))
    before = chain.add("Reshape", samples_first, (prod(x.sizes[a] for a in (0, *samples)), x.sizes[1], *flat))
    kernel = chain.add("Reshape", weights, (*w[:2], *(prod(w[a] for a in part) for part in parts)))
    slid = [next((a for a in part if a in several), 0) for part in parts]
    attributes = {
        "kernel_shape": tuple(x.kernel.get(a, 1) for a in slid),
        "strides": tuple(x.strides[a] if a else 1 for a in slid),
        "dilations": tuple(x.dilations[a] if a else 1 for a in slid),
        "pads": tuple(pads.get(a, 0) for pads in (x.begin, x.end) for a in slid),
        "group": n.op.attributes["group"],
    }
    result = chain.add("Conv", before, kernel, *n.inputs[2:], takes_node_name=True, **attributes)
    y = scope.shape(n.outputs[0])
    result = chain.add("Reshape", result, tuple(y[a] for a in perm))
    if perm != (0, 1, 2, 3, 4):
        chain.add("Transpose", result, perm=tuple(perm.index(a) for a in range(5)))


def computed_weights(chain: NodeChain) -> None:
    """Decompose a Conv of one sample by computed weights into a product with what each window sees, place by place."""
    n, scope = chain.node, chain.scope
    x, w, y = (scope.shape(name) for name in (*n.inputs[:2], n.outputs[0]))
    if n.inputs[1] in scope.constants or len(w) != 4 or x[0] != 1 or prod(w[2:]) > MOST_PLACES or not _is_resolved(n, scope):
        return
    group = int(n.op.attributes["group"])
    window_input = _Input(chain)
    window_input.pad((2, 3))
    count, area = x[1] // group, y[2] * y[3]
    places = [window_input.places({2: i, 3: j}) for i, j in product(range(w[2]), range(w[3]))]
    columns = [chain.add("Reshape", place, (group, count, 1, area)) for place in places]
    joined = columns[0] if len(columns) == 1 else chain.add("Concat", *columns, axis=2)
    around = (group,) if group > 1 else ()
    right = chain.add("Reshape", joined, (*around, count * len(places), area))
    left = chain.add("Reshape", n.inputs[1], (*around, w[0] // group, count * len(places)))
    result = chain.add("Reshape", chain.add("MatMul", left, right, takes_node_name=True), y)
    if bias := operand(n, 2):
        chain.add("Add", result, chain.add("Reshape", bias, (w[0], 1, 1)))


def computed_bias(chain: NodeChain) -> None:
    """Decompose a Conv of constant weights with a computed bias into a Conv and an Add."""
    n, scope = chain.node, chain.scope
    bias, w = operand(n, 2), scope.shape(n.inputs[1])
    if not bias or bias in scope.constants or n.inputs[1] not in scope.constants or not _is_resolved(n, scope):
        return
    result = chain.add("Conv", *n.inputs[:2], takes_node_name=True, **n.op.attributes)
    chain.add("Add", result, chain.add("Reshape", bias, (w[0], *(1 for _ in w[2:]))))


def _is_resolved(n: OnnxNode, scope: Rewriter) -> bool:
    """Return whether a float Conv has all window attributes written out, and elements."""
    attributes = n.op.attributes.keys()
    has_geometry = {"kernel_shape", "pads", "strides", "dilations"} <= attributes and "auto_pad" not in attributes
    return has_geometry and scope.is_float(n.inputs[0]) and 0 not in (*scope.shape(n.inputs[0]), *scope.shape(n.outputs[0]))


# Once what a Conv takes into its weights is there: a norm behind a Reshape is none of its channels.
LATE_DECOMPOSITIONS: Mapping[str, Sequence[Decomposition]] = {"Conv": (conv_3d, computed_weights, computed_bias)}
