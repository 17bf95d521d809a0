"""Make the vector engine's elementwise operation on a box of up to three dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from toolchain import machine
from toolchain.machine import ElementwiseKind
from toolchain.ops.kit.box_tiles import pad_to_three_dims, row_column
from toolchain.ops.kit.tile import BoxLocation


def elementwise(
    kind: ElementwiseKind,
    size: tuple[int, ...],
    out: BoxLocation,
    *,
    a: tuple[int, ...],
    b: tuple[int, ...],
    output: tuple[int, ...],
    types: Sequence[int],
    surfaces: tuple[int, int] = (0, 0),
    left_shift: int = 0,
) -> machine.Elementwise:
    """Return an elementwise machine operation on the last three dimensions of a box: rows, columns, channels.

    `size`: of the box, whose dimensions before these are 1; `out`: where its output lies.
    `a`, `b`: address, row, column and channel stride in bytes (0: broadcast), zero point, multiplier, shift. Zeros stand for
    a `b` that the kind does not read.
    `output`: zero point, multiplier, shift, low and high clamp.
    `types`: type numbers of a, b and the output.
    `surfaces`: bytes between granules of channels of a and b; 0 where channels are not blocked.
    `left_shift`: bits by which the operands of a sum are shifted before they are multiplied.
    """
    height, width, channels = pad_to_three_dims(size)[-3:]
    row, column = row_column(out)
    return machine.Elementwise(
        kind=kind,
        height=height,
        width=width,
        channels=channels,
        a_address=a[0],
        a_row_stride=a[1],
        a_column_stride=a[2],
        a_channel_stride=a[3],
        b_address=b[0],
        b_row_stride=b[1],
        b_column_stride=b[2],
        b_channel_stride=b[3],
        output_address=out.address,
        output_row_stride=row,
        output_column_stride=column,
        a_zero_point=a[4],
        b_zero_point=b[4],
        output_zero_point=output[0],
        left_shift=left_shift,
        a_multiplier=a[5],
        a_shift=a[6],
        b_multiplier=b[5],
        b_shift=b[6],
        output_multiplier=output[1],
        output_shift=output[2],
        clamp_low=output[3],
        clamp_high=output[4],
        a_type=types[0],
        b_type=types[1],
        output_type=types[2],
        a_surface_stride=surfaces[0],
        b_surface_stride=surfaces[1],
        output_surface_stride=out.strides.surface_bytes,
    )
