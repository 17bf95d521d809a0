"""Draw the output steps of array operations: entries of channels with results on every edge of the rounding, tables,
addends, clamps.

A scale is (multiplier, shift). All that is random comes from the bench's generator. The bench raises NotApplicable where the
machine lacks a scale, a unit or room, and these functions pass it on. CLAMPS are a small range of codes, the least code alone,
and the largest alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain.hw import Chip
from toolchain.machine import MachineOp, pack_parameters
from toolchain.vectors.case_builder import CaseBuilder, NotApplicable

Array = NDArray[Any]


CLAMPS = ("some", "low", "high")  # a small range, the least code alone, the largest code alone


def clamps(bench: CaseBuilder, name: str) -> tuple[int, int]:
    """Return (clamp_low, clamp_high) by a name of CLAMPS, for the first type of codes."""
    codes = bench.type(0)
    middle = (codes.low + codes.high) // 2
    return {"some": (middle - 9, middle + 20), "low": (codes.low, codes.low), "high": (codes.high, codes.high)}[name]


def end_shifts(chip: Chip) -> tuple[int, ...]:
    """Return the least and the largest shift on machines whose scales are powers of two, else ()."""
    return chip.numerics.scale.shifts if chip.numerics.scale.kind == "pow2" else ()


def edges(shift: int, largest: int) -> list[int]:
    """Return sums near the edges of rounding by 2**-shift: integers, halves between them, their neighbours, and the
    largest sums.

    None is larger than `largest` in magnitude, but for -largest - 1.
    """
    unit, half = 1 << shift, (1 << shift) >> 1
    near = [n * unit + at + d for n in (-2, -1, 0, 1, 2, 3) for at in (0, half) for d in (-1, 0, 1)]
    far = [largest, largest - 1, -largest - 1, -largest, 200 * unit, -200 * unit]
    return [v for v in dict.fromkeys([*near, *far]) if -largest - 1 <= v <= largest]


def rounding_entries(bench: CaseBuilder) -> tuple[list[int], list[tuple[int, int]]]:
    """Return (biases, scales), one for each channel: sums on the edges of several shifts, then random ones.

    Where scales are powers of two, the machine's least and largest shift are included. Edges at a shift that the machine
    lacks are left out.
    """
    largest = bench.chip.numerics.largest_sum
    biases: list[int] = []
    scales: list[tuple[int, int]] = []
    for shift in sorted({0, 1, 4, 9, *end_shifts(bench.chip)}):
        try:
            scale = bench.scale(shift)
        except NotApplicable:
            continue
        channel_biases = edges(max(0, shift), largest) if shift >= 0 else [0, 1, -1, 2, -2, largest, -largest]
        biases += channel_biases
        scales += [scale] * len(channel_biases)
    for shift in (5, 8):
        scale = bench.scale(shift, 1.37)
        channel_biases = bench.rng.integers(-60 << shift, 60 << shift, 16).tolist()
        biases, scales = biases + channel_biases, scales + [scale] * len(channel_biases)
    return biases, scales


def parameters(
    bench: CaseBuilder, operation: type[MachineOp], role: str, biases: Sequence[int], scales: Sequence[tuple[int, int]]
) -> int:
    """Place requantization entries, one for each channel, in the unit's memory for `role`, and return their address."""
    bias = np.array(biases, np.int64)
    multiplier, shift = (np.array(column, np.int64) for column in zip(*scales))
    if not bench.chip.numerics.weights_per_channel and bench.chip.layout.parameters.multiplier_bits == 0:
        multiplier = np.ones_like(multiplier)
    data = pack_parameters(bias, multiplier, shift, bench.chip)
    step = operation.need("parameter_address", bench.chip).step
    return bench.block(bench.unit(operation).roles[role], data, max(step, bench.chip.layout.parameters.alignment_bytes))


def random_entries(bench: CaseBuilder, channels: int, shift: int) -> tuple[list[int], list[tuple[int, int]]]:
    """Return (biases, scales) of random channels, whose results fill the codes where sums are about 2**(shift + 7).

    Their scales are equal where the machine has no scales by channel.
    """
    mantissas = bench.rng.uniform(1.0, 1.9, channels) if bench.chip.numerics.weights_per_channel else [1.3] * channels
    return bench.rng.integers(-500, 500, channels).tolist(), [bench.scale(shift, float(m)) for m in mantissas]


def table(bench: CaseBuilder, operation: type[MachineOp], role: str, number: int, name: str = "table_address") -> int:
    """Place a lookup table of random entries and return its address. `number`: of the codes' type."""
    codes = bench.type(number)
    entries = bench.codes((codes.table_entries,), number)
    step = operation.need(name, bench.chip).step
    return bench.block(bench.unit(operation).roles[role], entries.astype(entries.dtype.newbyteorder("<")).tobytes(), step)


def addend(bench: CaseBuilder, operation: Any) -> dict[str, int]:
    """Return the parameters of a sum behind the array, except for the addend's place."""
    left_shift = operation.need("add_left_shift", bench.chip).high
    scales = {"input": bench.scale(2, 1.7), "addend": bench.scale(1, 1.2), "output": bench.scale(left_shift - 1, 1.1)}
    f = {f"add_{name}_{part}": value for name, pair in scales.items() for part, value in zip(("multiplier", "shift"), pair)}
    f |= {f"add_{name}_zero_point": bench.zero(operation, f"add_{name}_zero_point") for name in scales}
    return f | {"add_left_shift": left_shift, "add_clamp_low": bench.type(0).low + 3, "add_clamp_high": bench.type(0).high}
