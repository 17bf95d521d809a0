"""Normalizations of steps that the chip has."""

from __future__ import annotations

from toolchain.ops.kit.steps import Steps


def layer_normalization(steps: Steps) -> None:
    """(x - mean) / sqrt(mean((x - mean)^2) + epsilon) * scale + bias. The squares are of differences: mean(x^2) - mean(x)^2 is a
    small difference of large numbers, of which coarse codes leave little."""
    (x, scale, *bias), a = steps.node.inputs, steps.node.op.attributes
    rank = len(steps.shape(x))
    axes = tuple(range(a["axis"] % rank, rank))
    mean = steps.make("mean", "ReduceMean", x, axes, output=1)
    less = steps.make("x - mean", "Sub", x, mean)
    variance = steps.make("variance", "ReduceMean", steps.make("(x - mean)^2", "Mul", less, less), axes)
    root = steps.make("root", "Sqrt", steps.make("variance + epsilon", "Add", variance, a["epsilon"]))
    normal = steps.make("normal", "Mul", less, steps.make("1 / root", "Reciprocal", root, output=2))
    scaled = steps.make("scaled", "Mul", normal, scale, output=None if bias else 0)
    for b in bias:
        steps.make("moved", "Add", scaled, b, output=0)


STEPS = {"LayerNormalization": layer_normalization}
