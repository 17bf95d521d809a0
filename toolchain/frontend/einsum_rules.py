"""Decompose Einsum into MatMul, or Mul where nothing is summed, between Transposes and Reshapes.

Labels that one operand alone has are summed first, and repeated ones become diagonals.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from string import ascii_letters

from toolchain.frontend.rewrite import Decomposition, NodeChain


class _Labelled:
    """A tensor with a label for each dimension; its methods add steps to the chain and change it in place. `sizes`: of the
    labels.
    """

    def __init__(self, chain: NodeChain, name: str, labels: str, sizes: Sequence[int]) -> None:
        self.chain, self.name, self.labels = chain, name, labels
        self.sizes: tuple[int, ...] = tuple(sizes)

    def size(self, label: str) -> int:
        return self.sizes[self.labels.index(label)]

    def relabel(self, labels: str, sizes: Sequence[int]) -> None:
        """Set the labels and sizes of a tensor that has been replaced."""
        self.labels, self.sizes = labels, tuple(sizes)

    def reshape(self, labels: str, sizes: Sequence[int]) -> None:
        if tuple(sizes) != self.sizes:
            self.name = self.chain.add("Reshape", self.name, tuple(sizes))
        self.labels, self.sizes = labels, tuple(sizes)

    def transpose(self, labels: str) -> None:
        """Transpose to the order `labels`, which are all of the tensor's."""
        perm = tuple(self.labels.index(label) for label in labels)
        if perm != tuple(range(len(perm))):
            self.name = self.chain.add("Transpose", self.name, perm=perm)
        self.labels, self.sizes = labels, tuple(self.sizes[p] for p in perm)

    def drop(self, labels: str) -> None:
        """Drop dimensions of size 1."""
        remaining_axes = [i for i, label in enumerate(self.labels) if label not in labels]
        self.reshape("".join(self.labels[i] for i in remaining_axes), [self.sizes[i] for i in remaining_axes])

    def take_diagonals(self) -> None:
        """Replace two dimensions of one label by their diagonal, until no label stands twice."""
        while twice := next((label for label in self.labels if self.labels.count(label) > 1), ""):
            first = self.labels.index(twice)
            second = self.labels.index(twice, first + 1)
            rest = [i for i in range(len(self.labels)) if i not in (first, second)]
            perm, size = [*rest, first, second], self.size(twice)
            if perm != sorted(perm):
                self.name = self.chain.add("Transpose", self.name, perm=tuple(perm))
            outer = [self.sizes[i] for i in rest]
            flat = self.chain.add("Reshape", self.name, (*outer, size * size))
            self.name = self.chain.add("Slice", flat, (0,), (size * size,), (len(outer),), (size + 1,))
            self.relabel("".join(self.labels[i] for i in rest) + twice, (*outer, size))

    def sum_over(self, labels: str) -> None:
        """Sum over these labels, which are then gone."""
        axes = tuple(i for i, label in enumerate(self.labels) if label in labels)
        if axes:
            self.name = self.chain.add("ReduceSum", self.name, axes, keepdims=0)
            remaining_axes = [i for i in range(len(self.labels)) if i not in axes]
            self.labels, self.sizes = (
                "".join(self.labels[i] for i in remaining_axes),
                tuple(self.sizes[i] for i in remaining_axes),
            )


def einsum(chain: NodeChain) -> None:
    """Decompose an Einsum: operands are multiplied from the first to the last.

    It stays as it is where its equation cannot be read. It stays too where ONNX's output shape ignores that a size of 1
    broadcasts.
    """
    n, scope = chain.node, chain.scope
    shapes = [scope.shape(x) for x in n.inputs]
    labels = _labels(str(n.op.attributes["equation"]), shapes)
    if labels is None or not all(scope.is_float(x) for x in n.inputs) or any(0 in shape for shape in shapes):
        return
    *terms, out = labels
    product = _Labelled(chain, n.inputs[0], terms[0], shapes[0])
    product.take_diagonals()
    for i in range(1, len(terms)):
        other = _Labelled(chain, n.inputs[i], terms[i], shapes[i])
        other.take_diagonals()
        product = _product(product, other, "".join((*terms[i + 1 :], out)), out)
    product.sum_over("".join(label for label in product.labels if label not in out))
    product.transpose(out)
    if prod(product.sizes) != prod(scope.shape(n.outputs[0])):
        chain.nodes.clear()  # ONNX takes a dimension's size from the first operand, also where that is 1 and another's is larger
        return
    if not chain.nodes or product.sizes != scope.shape(n.outputs[0]):
        chain.add("Reshape", product.name, scope.shape(n.outputs[0]))


def _labels(equation: str, shapes: Sequence[tuple[int, ...]]) -> list[str] | None:
    """Return a letter for each dimension of each operand and, last, of the result; None where the equation does not fit the
    shapes.

    Dimensions behind dots get letters of their own.
    """
    before, arrow, after = equation.replace(" ", "").partition("->")
    terms = before.split(",")
    if len(terms) != len(shapes):
        return None
    free = [letter for letter in ascii_letters if letter not in equation]
    counts = [len(shape) - len(term.replace("...", "")) for term, shape in zip(terms, shapes) if "..." in term]
    dots = "".join(free[: max(counts, default=0)])
    filled = [
        term.replace("...", dots[len(dots) - (len(shape) - len(term.replace("...", ""))) :] if "..." in term else "")
        for term, shape in zip(terms, shapes)
    ]
    if not arrow:
        every = "".join(filled)
        after = "..." + "".join(sorted(c for c in set(every) - set(dots) if every.count(c) == 1))
    result = after.replace("...", dots)
    fits = all(len(term) == len(shape) for term, shape in zip(filled, shapes)) and len(set(result)) == len(result)
    return [*filled, result] if fits and set(result) <= set("".join(filled)) else None


def _product(a: _Labelled, b: _Labelled, needed_labels: str, out: str) -> _Labelled:
    """Return the product of two tensors, summed over labels that both have and nothing later needs.

    `needed_labels`: of operands still to come and of the result.
    `out`: the result's labels, whose order the product's dimensions take.
    """
    for one, other in ((a, b), (b, a)):
        one.drop("".join(c for c in one.labels if c in other.labels and one.size(c) == 1 < other.size(c)))
        one.sum_over("".join(c for c in one.labels if c not in other.labels and c not in needed_labels))
    shared = [c for c in a.labels if c in b.labels]
    summed = "".join(c for c in shared if c not in needed_labels)
    if not summed and (set(a.labels) <= set(b.labels) or set(b.labels) <= set(a.labels)):
        return _elementwise(a, b, out)
    rank = {label: i for i, label in enumerate(out)}
    firsts = [min((rank.get(c, len(out)) for c in x.labels if c not in shared), default=len(out)) for x in (a, b)]
    if firsts[0] > firsts[1]:
        a, b = b, a
    batch = _ordered((c for c in shared if c in needed_labels), a, out)
    left, right = (_ordered((c for c in x.labels if c not in shared), x, out) for x in (a, b))
    sizes = {**dict(zip(b.labels, b.sizes)), **dict(zip(a.labels, a.sizes))}
    of = {group: prod(sizes[c] for c in group) for group in (batch, left, right, summed)}
    a.transpose(batch + left + summed)
    b.transpose(batch + summed + right)
    around = (of[batch],) if batch else ()
    a.reshape("", (*around, of[left], of[summed]))
    b.reshape("", (*around, of[summed], of[right]))
    name = a.chain.add("MatMul", a.name, b.name, takes_node_name=len(a.chain.node.inputs) == 2)
    product, labels = _Labelled(a.chain, name, "", (*around, of[left], of[right])), batch + left + right
    product.reshape(labels, [sizes[c] for c in labels])
    return product


def _ordered(labels: Iterable[str], x: _Labelled, out: str) -> str:
    """Return labels in the order of the result; those that it does not have come last, in the operand's order."""
    return "".join(sorted(labels, key=lambda c: (out.find(c) if c in out else len(out), x.labels.index(c))))


def _elementwise(a: _Labelled, b: _Labelled, out: str) -> _Labelled:
    """Return the elementwise product of two tensors of which one has all labels of the other."""
    wide, narrow = (a, b) if len(a.labels) >= len(b.labels) else (b, a)
    wide.transpose(_ordered(wide.labels, wide, out))
    narrow.transpose("".join(c for c in wide.labels if c in narrow.labels))
    sizes = [narrow.size(c) if c in narrow.labels else 1 for c in wide.labels]
    narrow.reshape(wide.labels, sizes)
    name = wide.chain.add("Mul", wide.name, narrow.name, takes_node_name=len(wide.chain.node.inputs) == 2)
    return _Labelled(wide.chain, name, wide.labels, wide.sizes)


DECOMPOSITIONS: Mapping[str, Decomposition] = {"Einsum": einsum}
