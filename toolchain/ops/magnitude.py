"""Compute sqrt(a^2 + b^2) without squares, which codes of one scale cannot hold beside their root.

Where a and b are a thousandth of the largest, their squares are a millionth.

The point (a, b) is rotated to the axis by 45 degrees, back by the remaining angle or not, by half, and so on.
A rotation by an angle of tangent t is x + t y and |y - t x|.
The result is longer by 1 / cos, which one product at the end takes back.
"""

from __future__ import annotations

import math

from toolchain.ir.graph import OnnxNode
from toolchain.ops.kit.decomposition import Decomposition, DecompositionBuilder

ROTATIONS = 7  # what is left is an angle of 45 / 2^6 degrees, whose cosine is 1 - 7.5e-5


def magnitude(steps: DecompositionBuilder) -> None:
    """Decompose a Sqrt that reads a sum of two squares of one shape; any other Sqrt gets no steps."""
    legs = _legs(steps)
    if legs is None:
        return
    steps.finest = True
    x, y = (_absolute(steps, what, leg) for what, leg in zip("ab", legs))
    length = 1.0
    for turn in range(ROTATIONS):
        angle = math.pi / 4 / 2**turn
        length *= math.cos(angle)
        tangent = math.tan(angle) if turn else 1.0
        name = f"turn {turn + 1}"
        aside = steps.add("Sub", y, _scale_tensor(steps, f"{name}: t x", x, tangent), what=f"{name}: to the axis")
        x = steps.add("Add", x, _scale_tensor(steps, f"{name}: t y", y, tangent), what=f"{name}: along")
        y = _absolute(steps, f"{name}: aside", aside) if turn < ROTATIONS - 1 else aside
    middle = 2 / (1 + math.cos(math.pi / 4 / 2 ** (ROTATIONS - 1)))  # of what the last angle leaves
    steps.add("Mul", x, length * middle, what="magnitude", output=0)
    steps.error = middle - 1


def _legs(steps: DecompositionBuilder) -> tuple[str, str] | None:
    """Return a and b where the Sqrt reads a^2 + b^2, else None. Steps then count as doing the work of the sum and the squares."""
    producers = steps.graph.producers()

    def made_by(name: str, op_type: str) -> OnnxNode | None:
        node = producers.get(name)
        return node if node is not None and node.op.op_type == op_type and not node.op.domain else None

    total = made_by(steps.node.inputs[0], "Add")
    factors = [made_by(name, "Mul") for name in total.inputs] if total is not None else []
    squares = [s for s in factors if s is not None and s.inputs[0] == s.inputs[1]]
    legs = [s.inputs[0] for s in squares]
    if total is None or len(legs) != 2 or steps.shape(legs[0]) != steps.shape(legs[1]):
        return None
    steps.takes_in(total, *squares)
    return legs[0], legs[1]


def _scale_tensor(steps: DecompositionBuilder, what: str, x: str, factor: float) -> str:
    return x if factor == 1.0 else steps.add("Mul", x, factor, what=what)


def _absolute(steps: DecompositionBuilder, what: str, x: str) -> str:
    """Add relu(x) + (relu(x) - x) and return it: the exact magnitude, where an interpolated table bends beside 0."""
    above = steps.add("Relu", x, what=f"{what}, above 0")
    return steps.add("Add", above, steps.add("Sub", above, x, what=f"{what}, below 0"), what=f"|{what}|")


DECOMPOSITIONS = {"Sqrt": Decomposition(magnitude)}
