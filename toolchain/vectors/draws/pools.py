"""The test cases of pools, MAX and AVERAGE.

A draw places operands and appends operations to the `CaseBuilder` it is given. `CASES` has a function for each
operation that yields (name of the case, draw).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from toolchain.hw import Chip
from toolchain.machine import Pool, PoolKind
from toolchain.vectors.case import Draw
from toolchain.vectors.case_builder import CaseBuilder
from toolchain.vectors.draws.accumulator_draws import CLAMPS, clamps, edges, end_shifts

Pair = tuple[int, int]


def _pool(
    bench: CaseBuilder,
    kind: PoolKind,
    size: Pair = (5, 6),
    kernel: Pair = (3, 3),
    stride: Pair = (1, 1),
    dilation: Pair = (1, 1),
    pad: Pair = (1, 1),
    output: Pair = (5, 6),
    channels: int = 3,
    values: Any = None,
    scale: Pair | None = None,
    types: Pair = (0, 0),
    **extra_fields: Any,
) -> None:
    """Add a pool to the case.

    Pairs of sizes are (height, width), `pad` is (top, left). `types`: numbers of input and output type in `chip.code_types`.
    `values`: codes [h, w, c]; None: random ones. `scale`: (multiplier, shift) of an average; None: about 1 / elements.
    `extra_fields`: parameters of the operation that replace those made here.
    """
    unit = bench.unit(Pool, extra_fields.get("unit", 0))
    values = bench.codes((*size, channels), types[0]) if values is None else values
    source, target = bench.feature_map(unit, "input", values), bench.output(unit, (*output, channels), types[1])
    f: dict[str, Any] = {"kind": kind, "channels": channels, "input_height": size[0], "input_width": size[1]}
    f |= source.get_parameters("input")
    f |= target.get_parameters("output")
    for name, (height, width) in (("kernel", kernel), ("stride", stride), ("dilation", dilation), ("output", output)):
        f |= {f"{name}_height": height, f"{name}_width": width}
    f |= {"pad_top": pad[0], "pad_left": pad[1], "input_type": types[0], "output_type": types[1]}
    f |= {"clamp_low": bench.type(types[1]).low, "clamp_high": bench.type(types[1]).high}
    if kind == PoolKind.AVERAGE:
        multiplier, shift = scale or bench.scale(int(np.log2(kernel[0] * kernel[1])), 1.0)
        f |= {"multiplier": multiplier, "shift": shift}
        f |= {"input_zero_point": bench.zero(Pool, "input_zero_point", types[0])}
        f |= {"output_zero_point": bench.zero(Pool, "output_zero_point", types[1])}
    bench.add(Pool, **(f | extra_fields))


def plain(bench: CaseBuilder, kind: PoolKind) -> None:
    """A 3x3 window with a padding of 1 around the input."""
    _pool(bench, kind)


def at_end(bench: CaseBuilder, kind: PoolKind) -> None:
    """Operands on the last bytes of their memories."""
    # CaseBuilder places them there by the name of the case
    _pool(bench, kind)


def in_granules(bench: CaseBuilder, kind: PoolKind) -> None:
    """Feature maps in granules of channels, the last of which has one; what fills it changes nothing, and is written as 0."""
    _pool(bench, kind, channels=bench.granule + 1)


def single(bench: CaseBuilder, kind: PoolKind) -> None:
    """The least of every size."""
    _pool(bench, kind, (1, 1), (1, 1), pad=(0, 0), output=(1, 1), channels=1)


def largest_strides(bench: CaseBuilder, kind: PoolKind) -> None:
    """The largest memory strides. Every size is 1, so no byte moves."""
    single(bench, kind)
    bench.stretch_last_operation()


def _highest(bench: CaseBuilder, name: str, most: int) -> int:
    """Return the largest value of a parameter, at most `most`."""
    return min(Pool.need(name, bench.chip).high, most)


def tall(bench: CaseBuilder, kind: PoolKind) -> None:
    """The largest height of kernel, stride and padding (256 where the machine has no limit): windows lie mostly on padding."""
    kernel, stride = _highest(bench, "kernel_height", 256), _highest(bench, "stride_height", 16)
    pad, output = _highest(bench, "pad_top", kernel - 1), 1 + 260 // stride
    dilation = (1, _highest(bench, "dilation_width", 256))
    _pool(bench, kind, (40, 1), (kernel, 1), (stride, 1), dilation, (pad, 0), (output, 1), channels=2)


def wide(bench: CaseBuilder, kind: PoolKind) -> None:
    """The largest width of kernel, stride and padding (256 where the machine has no limit): windows lie mostly on
    padding; and many channels.
    """
    kernel, stride = _highest(bench, "kernel_width", 256), _highest(bench, "stride_width", 16)
    pad, output = _highest(bench, "pad_left", kernel - 1), 1 + 260 // stride
    dilation = (_highest(bench, "dilation_height", 256), 1)
    _pool(bench, kind, (1, 40), (1, kernel), (1, stride), dilation, (0, pad), (1, output), channels=2)
    _pool(bench, kind, (2, 2), (2, 2), pad=(0, 0), output=(1, 1), channels=700)


def strided(bench: CaseBuilder, kind: PoolKind) -> None:
    """Strides, and dilations, of different height and width."""
    _pool(bench, kind, (7, 9), (2, 3), (2, 3), (3, 2), (1, 2), (3, 2))


def padded(bench: CaseBuilder, kind: PoolKind) -> None:
    """Windows that lie on padding alone: of a max pool the least code, of an average pool a sum of 0."""
    _pool(bench, kind, (1, 2), (3, 3), pad=(2, 2), output=(4, 6))


def passed_over(bench: CaseBuilder, kind: PoolKind) -> None:
    """The input's height and width are the largest that their fields hold. Windows reach only the first few."""
    extra_fields: dict[str, Any] = {name: Pool.need(name, bench.chip).high for name in ("input_height", "input_width")}
    _pool(bench, kind, (3, 4), (2, 2), pad=(0, 0), output=(2, 3), **extra_fields)


def whole(bench: CaseBuilder, kind: PoolKind) -> None:
    """One window over all of a larger input."""
    limit = bench.chip.limits.pool.max_kernel or (16, 16)
    size = (min(12, limit[0]), min(11, limit[1]))
    _pool(bench, kind, size, size, pad=(0, 0), output=(1, 1), channels=5)


def with_clamp(bench: CaseBuilder, kind: PoolKind, name: str) -> None:
    """A clamp of a small range, and of one code."""
    low, high = clamps(bench, name)
    _pool(bench, kind, clamp_low=low, clamp_high=high)


def with_types(bench: CaseBuilder, kind: PoolKind, types: Pair) -> None:
    """Input and output of other types, by their numbers."""
    _pool(bench, kind, types=types)


def on_unit(bench: CaseBuilder, kind: PoolKind, unit: int) -> None:
    """Draw the case on another vector engine."""
    _pool(bench, kind, unit=unit)


def rounding(bench: CaseBuilder, kind: PoolKind, shift: int) -> None:
    """Sums of two codes on every edge of the rounding."""
    codes, span = bench.type(0), 256
    edge_values = np.array([v for v in edges(max(shift, 0), 3 * span) if abs(v) < span // 2])
    zero = 0 if bench.chip.numerics.symmetric_activations else (codes.low + codes.high + 1) // 2
    halves = np.stack([edge_values // 2, edge_values - edge_values // 2])[:, None, :] + zero
    extra_fields: dict[str, Any] = {"input_zero_point": zero, "output_zero_point": zero}
    _pool(bench, kind, (2, 1), (2, 1), pad=(0, 0), output=(1, 1), channels=edge_values.size, values=halves.astype(codes.dtype),
          scale=bench.scale(shift), **extra_fields)  # fmt: skip


def _cases(operation: Any, chip: Chip) -> Iterator[tuple[str, Draw]]:
    for kind in PoolKind:
        name = f"{kind.name.lower()}_"
        for draw in (plain, in_granules, at_end, single, largest_strides, tall, wide, strided, padded, passed_over, whole):
            yield name + draw.__name__, partial(draw, kind=kind)
        for clamp in CLAMPS:
            yield f"{name}clamped_{clamp}", partial(with_clamp, kind=kind, name=clamp)
        for shift in dict.fromkeys((0, 1, 3, *end_shifts(chip))) if kind == PoolKind.AVERAGE else ():
            yield f"{name}rounding_{shift}".replace("-", "minus"), partial(rounding, kind=kind, shift=shift)
        types = range(len(chip.code_types))
        for pair in ((i, o) for i in types for o in types if (i, o) != (0, 0)):
            yield f"{name}typed_{pair[0]}_{pair[1]}", partial(with_types, kind=kind, types=pair)
        for number in range(1, operation.need("unit", chip).high + 1):
            yield f"{name}unit_{number}", partial(on_unit, kind=kind, unit=number)


CASES = {Pool: _cases}
