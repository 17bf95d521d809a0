"""Zero points that an operator without a bias is given, as repair moved them."""

from __future__ import annotations

from collections.abc import Sequence

from quant.repair.choices import NO_OFFSET
from toolchain.errors import CompileError, format_count
from toolchain.ir.graph import Node
from toolchain.ops.kit.quant_context import QuantContext


def shift_zero_points(own: Sequence[int], node: Node, scope: QuantContext) -> list[int]:
    """own: of a node's operands and its output, as their tensors have them -> with the node's offset. Raises CompileError: no
    codes that the machine has."""
    named = (node.outputs[0] if n in scope.graph.constants else n for n in (*node.inputs, *node.outputs))
    chosen, types = scope.offset(node), [scope.codes(n) for n in named]
    moves = (*chosen.operands, chosen.output) if chosen != NO_OFFSET else (0,) * len(own)
    if len(moves) != len(own) or not all(t.low <= z + m <= t.high for t, z, m in zip(types, own, moves)):
        within = ", ".join(dict.fromkeys(f"{t.low}..{t.high}" for t in types))
        raise CompileError(
            f"{node.name}: offsets {list(chosen.operands)} and {chosen.output} of zero points {', '.join(map(str, own[:-1]))} "
            f"and {own[-1]}: {format_count(len(own) - 1, 'operand')} and an output, each moved within {within}; mend or "
            "remove the "
            f"entry, or repair again"
        )
    return [z + m for z, m in zip(own, moves)]
