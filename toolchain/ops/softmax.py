"""Softmax of steps that the chip has."""

from __future__ import annotations

import math

from toolchain.ir.inner import Fixed, Within
from toolchain.ops.kit.steps import Steps

_NEAR_ONE = Fixed(0.0, 1.25)


def softmax(steps: Steps) -> None:
    """exp(x - max) / sum: differences from the largest are at most 0, and below `lost_exponent` nothing is left of exp."""
    (x,), axis = steps.node.inputs, steps.node.op.attributes["axis"]
    *_, length = shape = steps.shape(x)
    if axis % len(shape) != len(shape) - 1:
        steps.refuse(f"its steps are over the last of {len(shape)} dimensions, not over {axis % len(shape)}")
    largest = steps.make("max", "ReduceMax", x, (axis,))
    less = steps.make("x - max", "Sub", x, largest, range=Within(steps.lost_exponent, 0.0))
    # An interpolated table has an entry for one code beyond the last, which is 0; it must not saturate.
    highest = math.exp(-steps.lost_exponent * 2.0**-steps.bits) if steps.interpolates else 1.0
    power = steps.make("exp", "Exp", less, range=Fixed(0.0, highest))
    total = steps.make("sum", "Mul", steps.make("mean of exp", "ReduceMean", power, (axis,)), float(length))
    inverse = steps.make("1 / sum", "Reciprocal", total)
    if steps.interpolates:
        inverse = _refined(steps, total, inverse)
    steps.make("quotient", "Mul", power, inverse, output=0)


def _refined(steps: Steps, total: str, inverse: str) -> str:
    """One step of Newton's: between two entries of its table a reciprocal is off where it is steep, for small sums."""
    product = steps.make("sum / sum", "Mul", total, inverse, range=_NEAR_ONE)
    left = steps.make("2 - sum / sum", "Sub", 2.0, product, range=_NEAR_ONE)
    return steps.make("1 / sum, refined", "Mul", inverse, left)


STEPS = {"Softmax": softmax}
