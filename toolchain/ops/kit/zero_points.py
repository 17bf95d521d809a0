"""Zero points that an operator without a bias is given, as repair moved them."""

from __future__ import annotations

from collections.abc import Sequence

from quant.repair.choices import NO_OFFSET
from toolchain.errors import CompileError, format_count
from toolchain.ir.graph import Node
from toolchain.ops.kit.quant_context import QuantContext


def shift_zero_points(zero_points: Sequence[int], node: Node, scope: QuantContext) -> list[int]:
    """Return the zero points of a node's operands and its output, with the node's offset.

    Raise CompileError where the machine has no such codes.
    `zero_points`: as their tensors have them.
    """
    named = (node.outputs[0] if n in scope.graph.constants else n for n in (*node.inputs, *node.outputs))
    chosen, types = scope.offset(node), [scope.codes(n) for n in named]
    moves = (*chosen.operands, chosen.output) if chosen != NO_OFFSET else (0,) * len(zero_points)
    if len(moves) != len(zero_points) or not all(t.low <= z + m <= t.high for t, z, m in zip(types, zero_points, moves)):
        within = ", ".join(dict.fromkeys(f"{t.low}..{t.high}" for t in types))
        raise CompileError(
            f"{node.name}: offsets {list(chosen.operands)} and {chosen.output} of zero points "
            f"{', '.join(map(str, zero_points[:-1]))} "
            f"and {zero_points[-1]}: {format_count(len(zero_points) - 1, 'operand')} and an output, each moved within "
            f"{within}; mend or "
            "remove the "
            f"entry, or repair again"
        )
    return [z + m for z, m in zip(zero_points, moves)]
