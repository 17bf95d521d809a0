"""Normalizations of steps that the chip has."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from toolchain.ops.division import inverse
from toolchain.ops.kit.decomposition import DecompositionBuilder

Mean = Callable[[str, str], str]  # what it is, and of which tensor


def layer_normalization(steps: DecompositionBuilder) -> None:
    """(x - mean) / sqrt(mean((x - mean)^2) + epsilon) * scale + bias."""
    (x, scale, *bias), axes = steps.node.inputs, _last(steps)
    less, factor = _centre(steps, lambda what, of: steps.make(what, "ReduceMean", of, axes, output=1 if of == x else None))
    _affine(steps, less, factor, scale, *bias)


def rms_normalization(steps: DecompositionBuilder) -> None:
    """x / sqrt(mean(x^2) + epsilon) * scale."""
    x, scale = steps.node.inputs
    mean = steps.make("mean of x^2", "ReduceMean", steps.make("x^2", "Mul", x, x), _last(steps))
    _affine(steps, x, _one_over_root(steps, "mean of x^2", mean), scale)


def instance_normalization(steps: DecompositionBuilder) -> None:
    """Over rows and columns, each channel by itself."""
    x, scale, bias = steps.node.inputs
    axes = tuple(range(2, len(steps.shape(x))))
    less, factor = _centre(steps, lambda what, of: steps.make(what, "ReduceMean", of, axes))
    _of_channels(steps, less, factor, scale, bias)


def group_normalization(steps: DecompositionBuilder) -> None:
    """Normalize over rows, columns and the channels of a group: a mean over space, then one over each group.

    The latter is a product with a matrix of 1 / channels, which gives it to all channels of the group.
    """
    x, scale, bias = steps.node.inputs
    n, c, *space = steps.shape(x)
    groups = steps.node.op.attributes["num_groups"]
    of_group = np.kron(np.eye(groups), np.full((c // groups, c // groups), groups / c)).astype(np.float32)

    def mean(what: str, of: str) -> str:
        by_channel = steps.make(f"{what} of channels", "ReduceMean", of, tuple(range(2, 2 + len(space))))
        rows = steps.make(f"{what} of channels, as rows", "Reshape", by_channel, (n, c))
        group_means = steps.make(f"{what} as rows", "Gemm", rows, of_group, transB=1)
        return steps.make(what, "Reshape", group_means, (n, c, *(1 for _ in space)))

    less, factor = _centre(steps, mean)
    _of_channels(steps, less, factor, scale, bias)


def _last(steps: DecompositionBuilder) -> tuple[int, ...]:
    """Return the axes from the attribute's axis on."""
    rank = len(steps.shape(steps.node.inputs[0]))
    return tuple(range(steps.node.op.attributes["axis"] % rank, rank))


def _centre(steps: DecompositionBuilder, mean: Mean) -> tuple[str, str]:
    """x - mean and 1 / sqrt(variance + epsilon). The squares are of differences: mean(x^2) - mean(x)^2 is a small difference of
    large numbers, of which coarse codes leave little."""
    x = steps.node.inputs[0]
    less = steps.make("x - mean", "Sub", x, mean("mean", x))
    return less, _one_over_root(steps, "variance", mean("variance", steps.make("(x - mean)^2", "Mul", less, less)))


def _one_over_root(steps: DecompositionBuilder, what: str, square: str) -> str:
    root = steps.make("root", "Sqrt", steps.make(f"{what} + epsilon", "Add", square, steps.node.op.attributes["epsilon"]))
    return inverse(steps, root, "root", output=2)


def _affine(steps: DecompositionBuilder, x: str, factor: str, scale: str, *bias: str) -> None:
    """x factor scale + bias."""
    normal = steps.make("normal", "Mul", x, factor)
    scaled = steps.make("scaled", "Mul", normal, scale, output=None if bias else 0)
    for b in bias:
        steps.make("moved", "Add", scaled, b, output=0)


def _of_channels(steps: DecompositionBuilder, x: str, factor: str, scale: str, bias: str) -> None:
    """x (factor scale) + bias, where these are a number a channel: so a whole map is gone through once less."""
    shape = steps.shape(steps.node.inputs[0])
    wide = (shape[1], *(1 for _ in shape[2:]))
    if not steps.all(scale, 1):
        factor = steps.make("scale / root", "Mul", factor, steps.reshape(scale, wide))
    moves = not steps.all(bias, 0)
    y = steps.make("scaled", "Mul", x, factor, output=None if moves else 0)
    if moves:
        steps.make("moved", "Add", y, steps.reshape(bias, wide), output=0)


STEPS = {
    "GroupNormalization": group_normalization,
    "InstanceNormalization": instance_normalization,
    "LayerNormalization": layer_normalization,
    "RMSNormalization": rms_normalization,
}
