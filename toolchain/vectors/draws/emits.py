"""The test cases of the operation emit, which requantizes sums that lie in a memory of accumulators.

A draw places operands and appends operations to the `CaseBuilder` it is given. `CASES` has a function for each
operation that yields (name of the case, draw).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain.hw import Chip
from toolchain.hw.unit_map import SUMS
from toolchain.machine import Emit, EmitKind
from toolchain.vectors.case import Draw
from toolchain.vectors.case_builder import CaseBuilder, NotApplicable
from toolchain.vectors.draws.accumulator_draws import addend, edges, parameters, random_entries, rounding_entries, table


def _emit(
    bench: CaseBuilder, kind: EmitKind, sums: NDArray[Any], entries: Any = None, number: int = 0, **extra_fields: Any
) -> None:
    """Add an emit operation to the case. `sums`: int[h, w, c]. `entries`: (biases, scales) of channels, None: random.

    `number`: of the output's type. Raise NotApplicable where the machine has no memory of accumulators.
    """
    unit, codes = bench.unit(Emit), bench.type(number)
    if SUMS not in unit.roles:
        raise NotApplicable("no memory of sums")
    word = bench.chip.array.accumulators.sum_bytes
    f: dict[str, Any] = dict(zip(("height", "width", "channels"), sums.shape))
    f |= {"kind": kind, "sums_address": bench.block(unit.roles[SUMS], sums.astype(f"<i{word}").tobytes(), word)}
    target = bench.output(unit, (sums.shape[0], sums.shape[1], sums.shape[2]), number)
    f |= target.get_parameters("output")
    f |= {"clamp_low": codes.low, "clamp_high": codes.high, "output_type": number}
    f |= {"output_zero_point": bench.zero(Emit, "output_zero_point", number)}
    if kind == EmitKind.CONVOLUTION:
        biases, scales = entries or random_entries(bench, sums.shape[2], 20 - codes.bits)
        f |= {"parameter_address": parameters(bench, Emit, "tables", biases, scales)}
    bench.add(Emit, **(f | extra_fields))


def _random(bench: CaseBuilder) -> NDArray[Any]:
    return bench.rng.integers(-(1 << 18), 1 << 18, (3, 4, 5))


def plain(bench: CaseBuilder, number: int) -> None:
    """Sums of a convolution, each channel with its own parameters."""
    _emit(bench, EmitKind.CONVOLUTION, _random(bench), number=number)


def at_end(bench: CaseBuilder) -> None:
    """Operands on the last bytes of their memories."""
    # CaseBuilder places them there by the name of the case
    _emit(bench, EmitKind.CONVOLUTION, _random(bench))


def in_granules(bench: CaseBuilder) -> None:
    """Results in granules of channels, the last of which has two; what fills it is written as 0."""
    _emit(bench, EmitKind.CONVOLUTION, bench.rng.integers(-(1 << 18), 1 << 18, (2, 3, bench.granule + 2)))


def rounding(bench: CaseBuilder) -> None:
    """Sums of 0 with biases on every edge of the rounding."""
    biases, scales = rounding_entries(bench)
    _emit(bench, EmitKind.CONVOLUTION, np.zeros((1, 1, len(biases)), np.int64), (biases, scales))


def product(bench: CaseBuilder, shift: int) -> None:
    """Sums of a matrix product on every edge of the rounding."""
    multiplier, right = bench.scale(shift)
    sums = np.array(edges(shift, bench.chip.numerics.largest_sum))[None, None, :]
    _emit(bench, EmitKind.MATRIX_PRODUCT, sums, multiplier=multiplier, shift=right)


def behind(bench: CaseBuilder, table_too: bool, added: bool) -> None:
    """Results pass through a table, have a feature map added, or both."""
    extra_fields: dict[str, Any] = {}
    for name, used in (("use_table", table_too), ("use_add", added)):
        if used and not Emit.need(name, bench.chip).high:
            raise NotApplicable(f"no {name}")
    if table_too:
        extra_fields |= {"use_table": 1, "table_address": table(bench, Emit, "tables", 0)}
    if added:
        source = bench.feature_map(bench.unit(Emit), "input", bench.codes((3, 4, 5)))
        extra_fields |= source.get_parameters("addend")
        extra_fields |= {"use_add": 1, **addend(bench, Emit)}
    _emit(bench, EmitKind.CONVOLUTION, _random(bench), **extra_fields)


def _cases(operation: Any, chip: Chip) -> Iterator[tuple[str, Draw]]:
    for number in range(len(chip.code_types)):
        yield f"plain_{number}", partial(plain, number=number)
    yield "at_end", at_end
    yield "in_granules", in_granules
    yield "rounding", rounding
    for shift in (0, 1, 6):
        yield f"product_{shift}", partial(product, shift=shift)
    for name, table_too, added in (("tabled", True, False), ("added", False, True), ("tabled_and_added", True, True)):
        yield name, partial(behind, table_too=table_too, added=added)


CASES = {Emit: _cases}
