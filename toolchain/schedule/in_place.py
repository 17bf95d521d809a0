"""Find elementwise results that may be written over an operand that is read there for the last time.

Planning uses it where not all resident tensors have a place of their own. A root is a tensor with storage of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from toolchain.ops.kit.operator import Layer, TiledOp
from toolchain.schedule.plan import PlannedCascade, Storage
from toolchain.schedule.stripes import UNCUT, LayerCall, Stripes
from toolchain.schedule.views import View


class InPlace:
    """The pairs (result, operand that it may overwrite) of one region's layers."""

    def __init__(
        self, layers: Sequence[Layer], views: Mapping[str, View], storages: Mapping[str, Storage], ports: Collection[str]
    ):
        """Find the pairs. `ports`: roots of the region's inputs and outputs, which are never overwritten."""
        self._layers, self._views, self._storages = layers, views, storages
        self._shared = {view.root for name, view in views.items() if view.root != name}.union(ports)
        outputs = ((i, layer.node.outputs[0], self._overwritten(i, layer)) for i, layer in enumerate(layers))
        self._pairs = {out: (i, old) for i, out, old in outputs if old is not None}  # by root: the layer that makes it, and where

    def _overwritten(self, index: int, layer: Layer) -> str | None:
        """Return the root in whose place a layer may make its output, or None."""
        out, op = layer.node.outputs[0], layer.node.op
        if not isinstance(op, TiledOp) or not self._is_alone(out):
            return None
        return next((n for n in op.overwritable(layer) if self._lies_as(layer, n, out) and self._last(n) == index), None)

    def _is_alone(self, name: str) -> bool:
        """Return whether the tensor is the only one in its storage, and no port."""
        return self._views[name].root == name and name not in self._shared

    def _lies_as(self, layer: Layer, name: str, out: str) -> bool:
        """Return whether operand `name` has shape and strides of the output, in storage of its own."""
        a, b = self._views[name], self._views[out]
        same = layer.types[name].shape == layer.output.shape and (a.strides, a.item_bytes) == (b.strides, b.item_bytes)
        return same and self._is_alone(name)

    def _last(self, root: str) -> int:
        """Return the index of the last layer that touches a root."""
        return self._storages[root].end - 1

    def rights(self, roots: Collection[str], cascades: Iterable[PlannedCascade]) -> dict[str, str]:
        """Return the root that each of `roots` may overwrite, where it may, with both among `roots`.

        Within a cascade it may only where no row is read after its place was written.
        """
        stripes = {i: c.stripes for c in cascades for i in c.indices}
        pairs = self._among(roots)
        return {out: old for out, at, old in pairs if at not in stripes or self.leaves_nothing(stripes[at], at, old)}

    def within(self, first: int, end: int, roots: Collection[str]) -> list[tuple[int, str]]:
        """Return (layer, root that its output may overwrite) for layers first .. end - 1, with both roots among
        `roots`.
        """
        return [(at, old) for _, at, old in self._among(roots) if first <= at < end]

    def _among(self, roots: Collection[str]) -> Iterator[tuple[str, int, str]]:
        """Return (output, layer, overwritten root) of the pairs whose roots are both among these."""
        return ((out, at, old) for out, (at, old) in self._pairs.items() if out in roots and old in roots)

    def leaves_nothing(self, stripes: Stripes, index: int, root: str) -> bool:
        """Return whether the layers of a cascade read each row of a root before layer `index` writes the same row
        there.

        False also for cascades in blocks of channels or columns.
        """
        if stripes.sweep != UNCUT:
            return False
        rows_written = 0
        for step in (s for steps in stripes.steps for s in steps if isinstance(s, LayerCall)):
            start, count = step.extent.rows
            if step.layer == index:
                rows_written = start + count
            elif self._first_read(step, root) < rows_written:
                return False
        return True

    def _first_read(self, call: LayerCall, root: str) -> int | float:
        """Return the first row of a root that a call reads; infinity where it reads none."""
        layer = self._layers[call.layer]
        windows = layer.tiled.windows(layer, 1)
        if root not in layer.activations or windows is None:
            return float("inf")
        return min((w.get_input_span(*call.extent.rows)[0] for w in windows[root]), default=0)
