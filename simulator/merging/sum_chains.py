"""Find convolutions over parts of the input channels whose sums an array adds up, so that all of them are one tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from toolchain.hw.chip import Chip
from toolchain.hw.unit_map import SUMS
from toolchain.machine import Convolution, InstructionStream

# What the windows of all parts must share, so that they read the same pixels as if they held zero at the same places.
_get_window = attrgetter(
    "input_height",
    "input_width",
    "pad_top",
    "pad_left",
    "kernel_height",
    "kernel_width",
    "stride_height",
    "stride_width",
    "dilation_height",
    "dilation_width",
    "output_height",
    "output_width",
    "output_channels",
    "input_zero_point",
    "input_type",
    "weight_type",
)


@dataclass(frozen=True, slots=True, eq=False)
class SumChain:
    """Convolutions of one array, each of which adds its sums to those of the one before.

    `indexes`: of the operations, in the order in which they run; only the last one emits.
    `joined_op`: the last one with the input channels of all, which makes the same if these lie side by side.
    Sums wrap, so that it does not matter in how many parts they are added.
    """

    indexes: tuple[int, ...]
    joined_op: Convolution


def find_sum_chains(chip: Chip, flow: InstructionStream, legal: Sequence[int]) -> dict[int, SumChain]:
    """Return the chain of each operation that is part of one, by its index. `legal`: indexes in an order that can run."""
    chains: dict[int, SumChain] = {}
    open_chains: dict[int, list[int]] = {}  # by array
    for index in legal:
        op = flow[index]
        sums = op.sums()
        if sums is None:
            continue
        before = open_chains.pop(op.unit, [])  # type: ignore[attr-defined]
        if not isinstance(op, Convolution) or SUMS in op.unit_in(chip).roles:
            continue
        if sums.accumulate and not (before and _get_window(op) == _get_window(flow[before[0]])):
            continue
        indexes = before if sums.accumulate else []
        indexes.append(index)
        if not sums.emit:
            open_chains[op.unit] = indexes
        elif len(indexes) > 1:
            channels = sum(part.input_channels for k in indexes if isinstance(part := flow[k], Convolution))
            chain = SumChain(tuple(indexes), replace(op, accumulate=0, input_channels=channels))
            chains |= dict.fromkeys(indexes, chain)
    return chains
