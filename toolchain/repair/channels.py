"""Find which channels of a float network must carry the same factor, and to which power each tensor carries it.

Factors begin at operators that can take them into their constants (a convolution, a product, a norm). They go through
homogeneous operators (toolchain.repair.patterns) and end where constants take them out again. The groups of tensors that come
of it are in toolchain.repair.channel_groups.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from toolchain.ir.graph import OnnxGraph, OnnxNode
from toolchain.repair.patterns import Array, plain_shape, power, propagate_pattern

WEIGHTED = frozenset({"Conv", "Gemm", "MatMul"})


@dataclass(frozen=True)
class Roles:
    """The part that a node plays for factors.

    `makes`: its output can take any factors.
    `takes`: inputs that may bring any factors.
    `passes`: inputs whose factors decide those of its output.
    """

    makes: bool = False
    takes: tuple[str, ...] = ()
    passes: tuple[str, ...] = ()


def anywhere(node: OnnxNode) -> bool:
    """Return True: every node may carry factors."""
    return True


class Channels:
    """The channels of a graph in canonical form, those connected that must carry the same factor.

    `carrying`: nodes for which it is false take no factors.
    `roles`: attribute, the role of each node by name.
    """

    def __init__(self, graph: OnnxGraph, carrying: Callable[[OnnxNode], bool] = anywhere):
        """Go through the graph once, give each tensor a pattern of channel numbers, and merge those that must carry one
        factor."""
        self.roles: dict[str, Roles] = {}
        self._patterns: dict[str, Array] = {}
        self._above: list[int] = []  # of channels that are one
        self._tensors = _Connected()
        for name in (n for n in graph.inputs if n not in graph.constants):
            self._patterns[name] = self._fresh(graph, name)
        for node in graph.nodes:
            roles = _find_weighted_roles(node, graph, self._patterns) if carrying(node) else Roles()
            passed = (
                propagate_pattern(node, graph, self._patterns, self._merge_channels)
                if carrying(node) and not roles.makes
                else None
            )
            for name in (n for n in node.outputs if n):
                self._patterns[name] = self._fresh(graph, name) if passed is None else passed
            if passed is not None:
                roles = Roles(passes=tuple(dict.fromkeys(n for n in node.inputs if n in self._patterns)))
                for name in roles.passes:
                    self._tensors.connect(name, node.outputs[0], power(node, graph))
            self.roles[node.name] = roles

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor's factors, which broadcasts to the tensor's shape.

        Raise KeyError for a constant and for a tensor that the graph lacks.
        """
        return self._patterns[name].shape

    def shapes(self, names: Collection[str]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the factors of those tensors that the graph has."""
        return {name: self.shape(name) for name in names if name in self._patterns}

    def find_root(self, name: str) -> tuple[str, Fraction | None]:
        """Return the tensor that stands for all whose factors depend on this one's, and the power of its factors that this
        tensor carries.

        The power is None where the tensors demand different ones, so that no factors are possible.
        """
        return self._tensors.root(name)

    def numbers(self, names: Collection[str]) -> tuple[dict[str, Array], int]:
        """Return for each tensor int[c], the index of each channel's factor among the distinct factors of all of them, and how
        many these are. `names`: at least one."""
        above = np.array(self._above, np.int64)
        while (above[above] != above).any():
            above = above[above]
        flat = [above[self._patterns[name].ravel()] for name in names]
        used, index = np.unique(np.concatenate(flat), return_inverse=True)
        ends = np.cumsum([part.size for part in flat])[:-1]
        return dict(zip(names, np.split(index.ravel(), ends), strict=True)), used.size

    def _fresh(self, graph: OnnxGraph, name: str) -> Array:
        """Return a pattern of new channel numbers for a tensor of which nothing is known."""
        shape, first = plain_shape(graph.types[name].shape), len(self._above)
        self._above += range(first, first + int(np.prod(shape)))
        return np.arange(first, len(self._above)).reshape(shape)

    def _merge_channels(self, a: Array, b: Array) -> Array:
        """Connect the channels of two broadcast patterns one by one, and return the first."""
        a, b = np.broadcast_arrays(a, b)
        if not np.array_equal(a, b):
            for one, other in {(int(i), int(j)) for i, j in zip(a.ravel(), b.ravel())}:
                self._above[self._top(other)] = self._top(one)
        return a

    def _top(self, number: int) -> int:
        """Return the number that stands for all channels merged with this one."""
        while self._above[number] != number:
            number = self._above[number]
        return number


class _Connected:
    """Tensors whose factors depend on each other, as a forest of powers (union-find)."""

    def __init__(self) -> None:
        self._above: dict[str, tuple[str, Fraction]] = {}
        self._torn = set[str]()

    def root(self, name: str) -> tuple[str, Fraction | None]:
        """Return the tensor that stands for all connected ones, and the power; None where different powers are demanded."""
        top, power = self._find_root(name)
        return top, None if top in self._torn else power

    def connect(self, a: str, b: str, power: Fraction) -> None:
        """Note that `b` has the factors of `a` to this power. Two different powers make the whole set impossible."""
        (top, x), (other, y) = self._find_root(a), self._find_root(b)
        if top != other:
            self._above[other] = (top, x * power / y)
        elif x * power != y:
            self._torn.add(top)
        if other in self._torn:
            self._torn.add(top)

    def _find_root(self, name: str) -> tuple[str, Fraction]:
        power = Fraction(1)
        while name in self._above:
            name, step = self._above[name]
            power *= step
        return name, power


def _find_weighted_roles(node: OnnxNode, graph: OnnxGraph, patterns: dict[str, Array]) -> Roles:
    """Return the roles of a node whose constants take factors; no role for every other node."""
    kind, inputs = node.op.op_type, node.inputs
    if len(inputs) < 2 or inputs[0] in graph.constants or any(n and n not in graph.constants for n in inputs[1:]):
        return Roles()
    rank = len(graph.types[inputs[0]].shape)
    if kind in WEIGHTED and _plain(node, graph):
        at = 1 if kind == "Conv" else rank - 1
        aligned = all(d == 1 for axis, d in enumerate(patterns[inputs[0]].shape) if axis != at)
        return Roles(makes=True, takes=inputs[:1] if aligned else ())
    if kind == "LayerNormalization":
        return Roles(makes=node.op.attributes.get("axis", -1) in (-1, rank - 1) and rank < 4)
    return Roles()


def _plain(node: OnnxNode, graph: OnnxGraph) -> bool:
    """Return whether the channels of the input and the output of a weighted node are those of its weights."""
    kind, attributes = node.op.op_type, node.op.attributes
    rank, weights = len(graph.types[node.inputs[0]].shape), graph.constants[node.inputs[1]]
    if kind == "Conv":
        return rank >= 4
    if kind == "Gemm":
        return not attributes.get("transA", 0)
    return weights.ndim == 2 and 2 <= rank <= 3
