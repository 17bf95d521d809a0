"""Cut a tensor of 32-bit codes into two bit slices, called planes here, whose codes an array takes: x = upper + lower."""

from __future__ import annotations

from typing import NamedTuple

from quant.fixed_point.core.codes import CodeType
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Node, Quant
from toolchain.ops.elementwise.integer_elementwise import IntegerBinary
from toolchain.ops.elementwise.select_elementwise import sum_requants
from toolchain.ops.kit.quant_context import QuantContext
from toolchain.ops.rescale import make_rescale_node

# Steps of the upper plane that the lower one holds at most: one that is rounded off, half of one at the end of the codes.
LOWER_RANGE_STEPS = 1.5
_SUM_BITS = 2  # below which wide operands of a sum are cut off
_READING = frozenset(("add", "rescale", "sub"))


class BitSlice(NamedTuple):
    """A tensor, or a plane of it, as an array reads it: its name, qparams and type."""

    name: str
    quant: Quant
    codes: CodeType


def supports_bit_slices(chip: Chip) -> bool:
    """Return whether the machine can make planes of 32-bit codes, and sum their products."""
    return _READING.issubset(chip.functions) and bool(chip.array_types) and not chip.numerics.wraps


def plane_quants(x: Quant, wide: CodeType, narrow: CodeType) -> tuple[Quant, Quant]:
    """Return the scales and zero points of the upper and the lower plane of a tensor.

    A step of the lower one is the least at which its codes hold `LOWER_RANGE_STEPS` steps of the upper one.
    It is no finer than the step of a sum of x. A step of the upper one is a power of two of x's.
    The upper one spans all of x's codes as far as that makes the lower one's steps no coarser.
    It spans at least all but x's spare bits.
    `wide`: type of x. `narrow`: type of the planes.
    """
    zero = (narrow.low + narrow.high + 1) // 2
    bits = max(wide.bits - wide.spare_bits - narrow.bits, min(narrow.bits, wide.bits - narrow.bits))
    return Quant(x.scale * 2.0**bits, zero), Quant(x.scale * 2.0 ** max(bits + 2 - narrow.bits, _SUM_BITS), zero)


def slice_input(name: str, scope: QuantContext) -> tuple[list[Node], tuple[BitSlice, ...]]:
    """Return the nodes that make the planes of a tensor, and the planes in which an array reads it, the upper one first.

    A tensor of other than 32-bit codes is its own single plane. The nodes are made once; later readers get none.
    """
    x, wide = scope.quant(name), scope.codes(name)
    if not wide.is_wide:
        return [], (BitSlice(name, x, wide),)
    narrow = max(scope.chip.array_types, key=lambda t: t.bits)
    names = [scope.own_name(f"{name}: {which} bits") for which in ("upper", "lower")]
    upper, lower = (
        BitSlice(slice_name, quant, narrow) for slice_name, quant in zip(names, plane_quants(x, wide, narrow), strict=True)
    )
    if scope.has(upper.name):
        return [], (upper, lower)
    nodes = [make_rescale_node(upper.name, name, upper.name, upper.quant, narrow, scope)]
    scope.inner(lower.name, lower.quant, narrow)
    remainder = Node(lower.name, nodes[0].op, (name, upper.name), (lower.name,), ())
    r = sum_requants(remainder, (x, upper.quant, lower.quant), "sub", *narrow.limits, scope)
    op = IntegerBinary("sub", x.zero_point, upper.quant.zero_point, r.left_shift, r.q_requant, r.r_requant, r.out_requant)
    return [*nodes, Node(lower.name, op, remainder.inputs, remainder.outputs, ())], (upper, lower)
