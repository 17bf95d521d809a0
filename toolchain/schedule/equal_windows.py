"""Find windows of a region's layers that equal each other in all but names, so that a cascade of one is planned once.

A window is layers first .. end - 1 with the roots that lie in SRAM as a whole. A root is a tensor with storage of its
own. Networks of repeated blocks have many equal windows: `schedule.cascade` plans the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import NamedTuple

from toolchain.ops.kit.operator import Layer
from toolchain.schedule.views import View


class Window(NamedTuple):
    """Layers first .. end - 1 of a region, and the `resident` roots: those that lie in SRAM as a whole."""

    first: int
    end: int
    resident: frozenset[str]


class EqualWindows:
    """The windows of one region that were asked for, by what their cascades depend on."""

    def __init__(
        self,
        layers: Sequence[Layer],
        signatures: Sequence[object],
        views: Mapping[str, View],
        list_inner_roots: Callable[[int, int], Collection[str]],
    ):
        """Take the layers with a signature of each: those of equal signatures have the same tilings at the same costs.

        `list_inner_roots`: returns the roots of layers first .. end - 1 that may have a rolling buffer.
        """
        self._layers, self._views, self._list_inner_roots = layers, views, list_inner_roots
        self._numbers: dict[object, int] = {}
        self._kinds = [self._number(signature) for signature in signatures]
        self._tensors_in: dict[str, int] = {}  # by root
        for view in views.values():
            self._tensors_in[view.root] = self._tensors_in.get(view.root, 0) + 1
        self._operands: dict[int, list[tuple[str, str, int]]] = {}  # by layer: names, roots, and numbers of what else counts
        self._firsts: dict[Hashable, Window] = {}
        self._equal_first: dict[Window, Window] = {}

    def find_first(self, window: Window) -> Window:
        """Return the first window that was asked for and equals this one: itself, where no earlier one does."""
        first = self._equal_first.get(window)
        if first is None:
            first = self._equal_first[window] = self._firsts.setdefault(self._make_key(window), window)
        return first

    def map_roots(self, old: range, new: range) -> Mapping[str, str]:
        """Return the roots that the layers of one window touch, each with that of an equal window."""
        pairs = zip(old, new, strict=True)
        return {a[1]: b[1] for one, other in pairs for a, b in zip(self._operands_of(one), self._operands_of(other), strict=True)}

    def _make_key(self, window: Window) -> Hashable:
        """Return a key that is equal for equal windows: layers, and which of their operands and roots are the same."""
        numbers: dict[tuple[str, bool], int] = {}
        inner = frozenset(self._list_inner_roots(window.first, window.end))
        key: list[Hashable] = []
        for index in range(window.first, window.end):
            key.append(self._kinds[index])
            for name, root, kind in self._operands_of(index):
                names = numbers.setdefault((name, False), len(numbers)), numbers.setdefault((root, True), len(numbers))
                key.append((kind, *names, root in inner, root in window.resident))
        return tuple(key)

    def _operands_of(self, index: int) -> list[tuple[str, str, int]]:
        """Return the activations and outputs of a layer with their roots and a number, equal for those that lie alike."""
        if index not in self._operands:
            layer = self._layers[index]
            self._operands[index] = [
                (name, self._views[name].root, self._number(self._describe(layer, name)))
                for name in (*layer.activations, *layer.node.outputs)
            ]
        return self._operands[index]

    def _describe(self, layer: Layer, name: str) -> Hashable:
        """Return what a tensor and its root have beside their names."""
        view = self._views[name]
        root_type, root_view = layer.types[view.root], self._views[view.root]
        place = view.offset_bytes, view.strides, view.item_bytes, view.rows, view.channels, view.columns
        return layer.laid(name), place, root_type.shape, root_type.dtype, root_view.strides, self._tensors_in[view.root]

    def _number(self, value: object) -> int:
        """Return a number that is equal for equal values."""
        return self._numbers.setdefault(value, len(self._numbers))
