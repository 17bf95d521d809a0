"""Pack what instructions of integer operators carry: requantizations, weights, lookup tables.

`shift_zero_points` gives zero points as accuracy repair moved them, for operators without a bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.requant import Requant
from quant.fixed_point.pointwise.tables import lookup8, lookup16
from quant.repair.choices import NO_OFFSET
from toolchain.errors import CompileError, format_count
from toolchain.hw.chip import Chip
from toolchain.ir.graph import Node
from toolchain.machine import in_tiles, memory_type, pack_parameters
from toolchain.ops.kit.quant_context import QuantContext
from toolchain.ops.kit.tile import ConstantBlock

Array = NDArray[Any]


def pair(r: Requant) -> tuple[int, int]:
    """Return (multiplier, shift) of a requantization with one scale for all channels; with several, that of the first."""
    return int(r.multiplier[0]), int(r.shift[0])


def parameter_block(bias: Array, r: Requant, chip: Chip) -> bytes:
    """Return the bytes of c entries, one a channel, of bias, multiplier and shift, as the machine's layout has them.

    `bias`: int64[c]. `r`: has 1 or c scales.
    """
    return pack_parameters(bias, r.multiplier, r.shift, chip)


def channel_slice(r: Requant, start: int, size: int) -> Requant:
    """Return the requantization of channels [start, start + size); one scale for all channels stays that."""
    if r.multiplier.size == 1 and r.shift.size == 1:
        return r
    multiplier, shift = np.broadcast_arrays(r.multiplier, r.shift)
    cut = slice(start, start + size)
    return replace(r, multiplier=multiplier[cut], shift=shift[cut])


def pack_dense(rows: Array, weight: CodeType, chip: Chip) -> bytes:
    """Return the bytes of a convolution's weights, int8[outputs, inner], in the layout's weight tiles where the machine has
    them, packed as `pack_weights` does. `weight`: the type of the codes.
    """
    tile = chip.layout.weight_tile
    return pack_weights(rows if tile is None else in_tiles(rows, tile), weight)


def pack_weights(rows: Array, weight: CodeType) -> bytes:
    """Return the bytes of weight codes, int8[rows, n].

    Codes of int4 lie two in a byte, the low nibble first, and each row begins a new byte.
    """
    if weight is not CodeType.INT4:
        return np.ascontiguousarray(rows, dtype=np.int8).tobytes()
    if rows.shape[1] % 2:
        rows = np.pad(rows, ((0, 0), (0, 1)))
    nibbles = rows.astype(np.uint8) & 15
    return (nibbles[:, 0::2] | (nibbles[:, 1::2] << 4)).tobytes()


@dataclass(frozen=True, eq=False)
class LookupTable:
    """A table from the codes of an input to those of an output, in order from the least input code.

    `entries`: int8[256] or uint8[256], one for each code; or int16[513], between which 16-bit codes are interpolated.
    `form`: how they are interpolated, "none" for tables of 256.
    """

    entries: Array
    form: Literal["none", "tosa", "tflite"]

    def apply(self, x: Array) -> Array:
        """Return the output's codes for codes `x` of any shape."""
        if self.form == "none":
            return lookup8(x, self.entries)
        return lookup16(x, self.entries, self.form)

    def block(self, owner: str, role: str) -> ConstantBlock:
        """Return the table as a block of constants.

        `owner`: name of the node, which makes the block's key. `role`: which of a unit's operands the table is.
        """
        data = np.ascontiguousarray(self.entries).astype(memory_type(self.entries.dtype)).tobytes()
        return ConstantBlock((owner, "table"), len(data), lambda: data, role)


def shift_zero_points(zero_points: Sequence[int], node: Node, scope: QuantContext) -> list[int]:
    """Return the zero points of a node's operands and its output, each moved by the offset that repair chose for the node.

    Without an offset they are returned as they are. `zero_points`: those of the tensors, the output's last. Constant operands
    have codes of the output's type.
    Raise CompileError where a moved one is no code of its type, or the offset has another number of operands.
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
