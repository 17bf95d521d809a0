"""Match means, variances and roots of variances as models write them: the parts of a norm that is written out in primitives.

`match_norms` puts them together. Functions return None, or yield nothing, where a tensor is no such thing.
The names of matched nodes' sources come with each match, so that the norm stands for all of them.

A number of at most SMALL that is added to a root, or bounds it, is there only for values that are zero throughout. A root without
an epsilon gets TINY, so that these stay zero. A `Spread` is (x, shape, axes, centred, sources), as in `VarianceRoot`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isclose, prod, sqrt

import numpy as np

from toolchain.frontend.arithmetic_rules import scalar
from toolchain.frontend.rewrite import Rewriter, operand
from toolchain.ir.graph import OnnxNode

SMALL = 1e-5
TINY = float(np.finfo(np.float32).tiny)
Sources = tuple[str, ...]
Spread = tuple[str, tuple[int, ...], tuple[int, ...], bool, Sources]


@dataclass(frozen=True)
class VarianceRoot:
    """A match of factor * sqrt(spread + epsilon), or of one over it where `inverse`.

    The spread of `x`, seen as a tensor of `shape`, is over `axes`: its variance where `centred`, else its mean square.
    `sources`: the model's nodes that compute it.
    """

    x: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    centred: bool
    epsilon: float
    inverse: bool
    sources: Sources
    factor: float = 1.0


def strip_unit_reshapes(name: str, scope: Rewriter) -> tuple[str, Sources]:
    """Return the tensor behind Reshapes that only add or drop dimensions of one, with the sources of those Reshapes."""
    sources: Sources = ()
    while (n := scope.producer(name, "Reshape")) is not None:
        output_dims, input_dims = ([d for d in scope.shape(t) if d != 1] for t in (name, n.inputs[0]))
        if output_dims != input_dims:
            break
        name, sources = n.inputs[0], (*n.sources, *sources)
    return name, sources


def strip_reshapes(name: str, scope: Rewriter) -> tuple[str, Sources]:
    """Return the tensor behind Reshapes of any kind, with the sources of those Reshapes."""
    sources: Sources = ()
    while (n := scope.producer(name, "Reshape")) is not None:
        name, sources = n.inputs[0], (*n.sources, *sources)
    return name, sources


def is_same_tensor(a: str, b: str, scope: Rewriter) -> bool:
    """Return whether two tensors are the same one, ignoring Reshapes there and back between them."""
    return scope.shape(a) == scope.shape(b) and strip_reshapes(a, scope)[0] == strip_reshapes(b, scope)[0]


def producer(name: str, op_type: str, scope: Rewriter) -> tuple[OnnxNode, Sources] | None:
    """Return the node of this operator that makes `name`, Reshapes that add or drop ones aside, with the sources of all."""
    bare, passed = strip_unit_reshapes(name, scope)
    n = scope.producer(bare, op_type)
    return None if n is None else (n, (*n.sources, *passed))


def differences(n: OnnxNode, scope: Rewriter) -> Iterator[tuple[str, str, Sources]]:
    """Yield (a, b, sources) for each way to read `n` as a - b."""
    if n.op.op_type == "Sub":
        yield n.inputs[0], n.inputs[1], n.sources
        return
    for a, b in (n.inputs, n.inputs[::-1]):
        negative = scope.producer(b, "Neg") or scope.producer(b, "Mul")
        if negative is not None and (negative.op.op_type == "Neg" or scalar(negative.inputs[1], scope) == -1):
            yield a, negative.inputs[0], (*n.sources, *negative.sources)


def mean_of(name: str, scope: Rewriter) -> tuple[str, tuple[int, ...], Sources] | None:
    """Return (x, axes, sources) where `name` is the mean of x over axes; a sum times 1 / count is one too."""
    mean_match, passed = producer(name, "ReduceMean", scope), ()
    if mean_match is None:
        factor = producer(name, "Mul", scope)  # count * (1 / count), as sums come out of the normal form
        one = scalar(factor[0].inputs[1], scope) if factor is not None else None
        if factor is None or one is None or not isclose(one, 1, rel_tol=1e-5):
            return None
        mean_match, passed = producer(factor[0].inputs[0], "ReduceMean", scope), factor[1]
    if mean_match is None:
        return None
    axes = scope.constants.get(operand(mean_match[0], 1))
    return None if axes is None else (mean_match[0].inputs[0], tuple(axes.tolist()), (*mean_match[1], *passed))


def is_mean(name: str, root: VarianceRoot, scope: Rewriter) -> Sources | None:
    """Return the sources of `name` where it is the mean of the root's x over its axes and broadcasts to x; else None."""
    mean_match = mean_of(name, scope)
    if (
        mean_match is None
        or not is_same_tensor(mean_match[0], root.x, scope)
        or mean_match[1] != root.axes
        or not broadcasts_along_axes(name, root, scope)
    ):
        return None
    return mean_match[2]


def broadcasts_along_axes(name: str, root: VarianceRoot, scope: Rewriter) -> bool:
    """Return whether `name` broadcasts against x along the axes, and only there."""
    reduced_shape = tuple(1 if axis in root.axes else d for axis, d in enumerate(root.shape))
    shape = scope.shape(name)
    return (1,) * (len(reduced_shape) - len(shape)) + shape == reduced_shape


def roots_of(name: str, scope: Rewriter) -> Iterator[VarianceRoot]:
    """Yield each way to read `name` as the root of a spread plus epsilon, or as one over that; variances before mean squares.

    The root may be Sqrt or Pow by -0.5, its inverse Reciprocal or a division. The spread may be a multiple of a mean, as a
    sum is.
    The epsilon may be absent. One of at most `SMALL` may be added to the root, or be a lower bound in or of it.
    """
    shifted, rooted, inverse, sources, root_bound = name, False, False, list[str](), 0.0
    for _ in range(3):
        if not rooted and (root_match := producer(shifted, "Sqrt", scope)):
            rooted = True
        elif not inverse and (root_match := producer(shifted, "Reciprocal", scope)):
            inverse = True
        elif (
            not (rooted or inverse)
            and (root_match := producer(shifted, "Pow", scope))
            and scalar(root_match[0].inputs[1], scope) == -0.5
        ):
            rooted = inverse = True
        elif not inverse and (root_match := producer(shifted, "Div", scope)) and scalar(root_match[0].inputs[0], scope) == 1:
            inverse = True
        elif not (rooted or root_bound) and (bounded := _kept_from_zero(shifted, scope)) and bounded[1] <= SMALL:
            shifted, root_bound = bounded[:2]
            sources[:0] = bounded[2]
            continue
        else:
            break
        shifted = root_match[0].inputs[1 if root_match[0].op.op_type == "Div" else 0]
        sources[:0] = root_match[1]
    if not rooted:
        return
    inside, epsilon, adding = _kept_from_zero(shifted, scope) or (shifted, 0.0, ())
    multiple = producer(inside, "Mul", scope)
    by = scalar(multiple[0].inputs[1], scope) if multiple is not None else None
    ways: list[tuple[str, float, Sources]] = [(inside, 1.0, ())]
    if multiple is not None and by is not None and by > 0:
        ways.append((multiple[0].inputs[0], by, multiple[1]))
    for spread, times, scaling in ways:
        least = max((epsilon + root_bound**2) / times, TINY)
        for x, shape, axes, centred, inner in spreads_of(spread, scope):
            root = VarianceRoot(x, shape, axes, centred, least, inverse, (*inner, *scaling, *adding, *sources), sqrt(times))
            if broadcasts_along_axes(name, root, scope):
                yield root


def _kept_from_zero(name: str, scope: Rewriter) -> tuple[str, float, Sources] | None:
    """Return (x, epsilon, sources) where `name` is x + epsilon, or max(x, epsilon) with a small epsilon."""
    bounded = producer(name, "Add", scope) or producer(name, "Clip", scope)
    epsilon = scalar(operand(bounded[0], 1), scope) if bounded is not None else None
    if bounded is None or epsilon is None or epsilon <= 0:
        return None
    if bounded[0].op.op_type == "Clip" and (epsilon > SMALL or operand(bounded[0], 2)):
        return None
    return bounded[0].inputs[0], epsilon, bounded[1]


def spreads_of(name: str, scope: Rewriter) -> Iterator[Spread]:
    """Yield (x, shape, axes, centred, sources) for each way to read `name` as a variance or a mean square.

    Forms are mean((x - mean)^2), mean(x^2) - mean^2 and mean(x^2), also behind a Relu.
    """
    positive = producer(name, "Relu", scope)
    if positive is not None:
        for inner_spread in spreads_of(positive[0].inputs[0], scope):
            yield (*inner_spread[:4], (*inner_spread[4], *positive[1]))
    for way in (_of_squared_differences, _of_moments, _of_squares):
        spread = way(name, scope)
        if spread is not None:
            yield spread


def _of_squared_differences(name: str, scope: Rewriter) -> Spread | None:
    """Return `name` as mean((x - mean)^2), or None."""
    outer = mean_of(name, scope)
    squared = square_of(outer[0], scope) if outer is not None else None
    less = producer(squared[0], "Sub", scope) or producer(squared[0], "Add", scope) if squared is not None else None
    if outer is None or squared is None or less is None:
        return None
    for x, mean, sources in differences(less[0], scope):
        inner = is_mean(mean, VarianceRoot(x, scope.shape(x), outer[1], True, 0.0, False, ()), scope)
        if inner is not None and scope.shape(outer[0]) == scope.shape(x):
            return x, scope.shape(x), outer[1], True, (*inner, *sources, *less[1], *squared[1], *outer[2])
    return None


def _of_moments(name: str, scope: Rewriter) -> Spread | None:
    """Return `name` as mean(x^2) - mean^2, or None."""
    difference_match = producer(name, "Sub", scope) or producer(name, "Add", scope)
    for second, first, sources in differences(difference_match[0], scope) if difference_match is not None else ():
        of_squares, of_mean = mean_of(second, scope), square_of(first, scope)
        product, passed = strip_reshapes(of_squares[0], scope) if of_squares is not None else ("", ())
        squared = square_of(product, scope)
        mean = mean_of(of_mean[0], scope) if of_mean is not None else None
        if of_squares is None or of_mean is None or squared is None or mean is None or difference_match is None:
            continue
        # between tensors of one size nothing is broadcast
        has_equal_sizes = prod(scope.shape(second)) == prod(scope.shape(first)) == prod(scope.shape(name))
        one = strip_reshapes(mean[0], scope)[0] == strip_reshapes(squared[0], scope)[0] and scope.shape(mean[0]) == scope.shape(
            of_squares[0]
        )
        if has_equal_sizes and one and mean[1] == of_squares[1]:
            steps = (*mean[2], *of_mean[1], *squared[1], *passed, *of_squares[2], *sources, *difference_match[1])
            return mean[0], scope.shape(mean[0]), mean[1], True, steps
    return None


def _of_squares(name: str, scope: Rewriter) -> Spread | None:
    """Return `name` as mean(x^2), or None."""
    outer = mean_of(name, scope)
    product, passed = strip_reshapes(outer[0], scope) if outer is not None else ("", ())
    squared = square_of(product, scope)
    if outer is None or squared is None:
        return None
    return squared[0], scope.shape(outer[0]), outer[1], False, (*squared[1], *passed, *outer[2])


def square_of(name: str, scope: Rewriter) -> tuple[str, Sources] | None:
    """Return (x, sources) where `name` is x * x."""
    n = producer(name, "Mul", scope)
    return (n[0].inputs[0], n[1]) if n is not None and n[0].inputs[0] == n[0].inputs[1] else None
