"""Decompose a quotient of two tensors into a product with the divisor's reciprocal."""

from __future__ import annotations

from toolchain.ir.range_constraints import FixedRange
from toolchain.ops.kit.decomposition import Decomposition, DecompositionBuilder

_NEAR_ONE = FixedRange(0.0, 1.25)


def inverse(steps: DecompositionBuilder, divisor: str, what: str, output: int | None = None) -> str:
    """Add 1 / divisor and return its tensor.

    `what`: the divisor in words. `output`: which of the node's outputs this is; None for a tensor between steps.
    An interpolated table is inaccurate for small divisors, where the reciprocal is steep. So one step of Newton's method
    follows it.
    """
    first = steps.add("Reciprocal", divisor, what=f"1 / {what}", output=None if steps.interpolates else output)
    if not steps.interpolates:
        return first
    product = steps.add("Mul", divisor, first, what=f"{what} / {what}", range=_NEAR_ONE)
    correction = steps.add("Sub", 2.0, product, what=f"2 - {what} / {what}", range=_NEAR_ONE)
    return steps.add("Mul", first, correction, what=f"1 / {what}, refined", output=output)


def quotient(steps: DecompositionBuilder) -> None:
    """Decompose x / z into x (1 / z).

    This is accurate where divisors are within a factor of ten or so, since 1 / z has one range.
    """
    x, divisor = steps.node.inputs
    steps.add("Mul", x, inverse(steps, divisor, "divisor"), what="quotient", output=0)


DECOMPOSITIONS = {"Div": Decomposition(quotient)}
