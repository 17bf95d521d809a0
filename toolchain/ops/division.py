"""A quotient of two tensors of steps that the chip has: a product with the divisor's reciprocal."""

from __future__ import annotations

from toolchain.ir.range_constraints import FixedRange
from toolchain.ops.kit.decomposition import Decomposition, DecompositionBuilder

_NEAR_ONE = FixedRange(0.0, 1.25)


def inverse(steps: DecompositionBuilder, divisor: str, what: str, output: int | None = None) -> str:
    """1 / divisor. what: the divisor in words; output: which of the node's outputs it is.

    Between two entries of its table a reciprocal is off where it is steep, for small divisors: it takes one step of Newton's.
    """
    first = steps.add("Reciprocal", divisor, what=f"1 / {what}", output=None if steps.interpolates else output)
    if not steps.interpolates:
        return first
    product = steps.add("Mul", divisor, first, what=f"{what} / {what}", range=_NEAR_ONE)
    correction = steps.add("Sub", 2.0, product, what=f"2 - {what} / {what}", range=_NEAR_ONE)
    return steps.add("Mul", first, correction, what=f"1 / {what}, refined", output=output)


def quotient(steps: DecompositionBuilder) -> None:
    """Compute x / z as x (1 / z), which has the range of 1 / z.

    This is best where divisors are within a factor of ten or so.
    """
    x, divisor = steps.node.inputs
    steps.add("Mul", x, inverse(steps, divisor, "divisor"), what="quotient", output=0)


DECOMPOSITIONS = {"Div": Decomposition(quotient)}
