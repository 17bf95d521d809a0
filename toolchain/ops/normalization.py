"""Decompose normalizations into steps that the chip has; `DECOMPOSITIONS` has the function of each ONNX operator."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from toolchain.ops.division import inverse
from toolchain.ops.kit.decomposition import Decomposition, DecompositionBuilder

Mean = Callable[[str, str], str]  # what it is, and of which tensor


def layer_normalization(steps: DecompositionBuilder) -> None:
    """Decompose LayerNormalization: (x - mean) / sqrt(mean((x - mean)^2) + epsilon) * scale + bias.

    The mean and 1 / root become outputs 1 and 2 where these have readers.
    """
    (x, scale, *bias), axes = steps.node.inputs, _last(steps)
    less, factor = _centre(steps, lambda what, of: steps.add("ReduceMean", of, axes, what=what, output=1 if of == x else None))
    _affine(steps, less, factor, scale, *bias)


def rms_normalization(steps: DecompositionBuilder) -> None:
    """Decompose RMSNormalization: x / sqrt(mean(x^2) + epsilon) * scale."""
    x, scale = steps.node.inputs
    mean = steps.add("ReduceMean", steps.add("Mul", x, x, what="x^2"), _last(steps), what="mean of x^2")
    _affine(steps, x, _one_over_root(steps, "mean of x^2", mean), scale)


def instance_normalization(steps: DecompositionBuilder) -> None:
    """Decompose InstanceNormalization: normalize over rows and columns, each channel by itself.

    Then comes * scale + bias of the channel.
    """
    x, scale, bias = steps.node.inputs
    axes = tuple(range(2, len(steps.shape(x))))
    less, factor = _centre(steps, lambda what, of: steps.add("ReduceMean", of, axes, what=what))
    _of_channels(steps, less, factor, scale, bias)


def group_normalization(steps: DecompositionBuilder) -> None:
    """Decompose GroupNormalization: normalize over rows, columns and the channels of a group.

    Then comes * scale + bias of the channel, as since opset 21.
    The mean is one over space, then one over each group, as a product with a matrix of 1 / channels. That gives it to all
    channels of the group.
    """
    x, scale, bias = steps.node.inputs
    n, c, *space = steps.shape(x)
    groups = steps.node.op.attributes["num_groups"]
    of_group = np.kron(np.eye(groups), np.full((c // groups, c // groups), groups / c)).astype(np.float32)

    def mean(what: str, of: str) -> str:
        axes = tuple(range(2, 2 + len(space)))
        by_channel = steps.add("ReduceMean", of, axes, what=f"{what} of channels") if axes else of
        rows = steps.add("Reshape", by_channel, (n, c), what=f"{what} of channels, as rows")
        group_means = steps.add("Gemm", rows, of_group, what=f"{what} as rows", transB=1)
        return steps.add("Reshape", group_means, (n, c, *(1 for _ in space)), what=what)

    less, factor = _centre(steps, mean)
    _of_channels(steps, less, factor, scale, bias)


def _last(steps: DecompositionBuilder) -> tuple[int, ...]:
    """Return the axes from the node's attribute `axis` on."""
    rank = len(steps.shape(steps.node.inputs[0]))
    return tuple(range(steps.node.op.attributes["axis"] % rank, rank))


def _centre(steps: DecompositionBuilder, mean: Mean) -> tuple[str, str]:
    """Add and return x - mean and 1 / sqrt(variance + epsilon).

    The squares are of differences: mean(x^2) - mean(x)^2 is a small difference of large numbers, of which coarse codes leave
    little.
    `mean`: adds the mean of a tensor, given what it is in words and the tensor.
    """
    x = steps.node.inputs[0]
    less = steps.add("Sub", x, mean("mean", x), what="x - mean")
    return less, _one_over_root(steps, "variance", mean("variance", steps.add("Mul", less, less, what="(x - mean)^2")))


def _one_over_root(steps: DecompositionBuilder, what: str, square: str) -> str:
    """Add and return 1 / sqrt(square + epsilon), which is the node's output 2 where that has a reader."""
    root = steps.add("Sqrt", steps.add("Add", square, steps.node.op.attributes["epsilon"], what=f"{what} + epsilon"), what="root")
    return inverse(steps, root, "root", output=2)


def _affine(steps: DecompositionBuilder, x: str, factor: str, scale: str, *bias: str) -> None:
    """Add x * factor * scale + bias as the node's output."""
    normal = steps.add("Mul", x, factor, what="normal")
    scaled = steps.add("Mul", normal, scale, what="scaled", output=None if bias else 0)
    for b in bias:
        steps.add("Add", scaled, b, what="moved", output=0)


def _of_channels(steps: DecompositionBuilder, x: str, factor: str, scale: str, bias: str) -> None:
    """Add x * (factor * scale) + bias as the node's output, where scale and bias are a number a channel.

    Multiplying the factor first saves one pass over the map.
    """
    shape = steps.shape(steps.node.inputs[0])
    wide = (shape[1], *(1 for _ in shape[2:]))
    if not steps.all(scale, 1):
        factor = steps.add("Mul", factor, steps.reshape(scale, wide), what="scale / root")
    moves = not steps.all(bias, 0)
    y = steps.add("Mul", x, factor, what="scaled", output=None if moves else 0)
    if moves:
        steps.add("Add", y, steps.reshape(bias, wide), what="moved", output=0)


DECOMPOSITIONS = {
    "GroupNormalization": Decomposition(group_normalization),
    "InstanceNormalization": Decomposition(instance_normalization),
    "LayerNormalization": Decomposition(layer_normalization),
    "RMSNormalization": Decomposition(rms_normalization),
}
