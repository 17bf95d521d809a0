"""The machine operations: what any machine can be asked to do, each with typed parameters and one meaning.

A machine's instruction table binds each operation's parameters to bits or registers; compiler and simulator know only these.

Common to all: addresses and strides are bytes; a feature map is channels-last with contiguous elements along channels
unless a channel stride says otherwise; activations are `chip.numerics.activation` (int16 little-endian). Rounding, overflow and
table form are `chip.numerics`. Rows and columns outside the given input, reached through `pad_top`/`pad_left` or beyond its far
edge, read as the input's zero point (max pool: as the least value).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import ClassVar

from toolchain.errors import InternalError


class Space(IntEnum):
    """The address spaces of `chip.memories`."""

    DRAM = 0
    SRAM = 1


class PoolKind(IntEnum):
    MAX = 0
    AVERAGE = 1


class ElementwiseKind(IntEnum):
    ADD = 0
    SUB = 1
    MUL = 2
    RESCALE = 3
    PRELU = 4


@dataclass(frozen=True)
class MachineOp:
    """Base. `NAME` is the key in instruction tables; `ENGINE` the kind of engine that runs it (None: the field `engine`)."""

    NAME: ClassVar[str]
    ENGINE: ClassVar[str | None] = None

    @classmethod
    def parameters(cls) -> tuple[str, ...]:
        return tuple(f.name for f in fields(cls))


@dataclass(frozen=True)
class Copy(MachineOp):
    """dst[i0, i1, i2, :inner] = src[i0, i1, i2, :inner] for i0 < count0, i1 < count1, i2 < count2; runs on DMA queue `channel`.

    Machines of fewer DMA dimensions use count0 = 1 (2-D) or count0 = count1 = 1 (1-D).
    """

    NAME = "copy"
    ENGINE = "dma"
    channel: int
    source_space: Space
    source_address: int
    destination_space: Space
    destination_address: int
    inner_bytes: int
    count0: int
    count1: int
    count2: int
    source_stride0: int
    source_stride1: int
    source_stride2: int
    destination_stride0: int
    destination_stride1: int
    destination_stride2: int


@dataclass(frozen=True)
class Fill(MachineOp):
    """dst[i0, i1, i2, :inner_elements] = value (activation type); SRAM or DRAM; runs on DMA queue `channel`."""

    NAME = "fill"
    ENGINE = "dma"
    channel: int
    destination_space: Space
    destination_address: int
    inner_elements: int
    count0: int
    count1: int
    count2: int
    destination_stride0: int
    destination_stride1: int
    destination_stride2: int
    value: int


@dataclass(frozen=True)
class WindowOp(MachineOp):
    """Base of what slides a window over a feature map: output (y, x) sees rows y sh + ky dh - pad_top of the input and
    columns x sw + kx dw - pad_left.
    """

    input_address: int
    input_row_stride: int
    input_column_stride: int
    input_height: int
    input_width: int
    pad_top: int
    pad_left: int
    kernel_height: int
    kernel_width: int
    stride_height: int
    stride_width: int
    dilation_height: int
    dilation_width: int
    output_address: int
    output_row_stride: int
    output_column_stride: int
    output_height: int
    output_width: int
    input_zero_point: int
    output_zero_point: int
    clamp_low: int
    clamp_high: int


@dataclass(frozen=True)
class WeightedWindowOp(WindowOp):
    """Base of the windows that the array multiplies with weights, into its accumulators and out of them.

    `accumulate` = 1 adds to the accumulators left by the previous mac operation (same output shape), 0 starts from zero.
    `emit` = 0 leaves the sums in the accumulators. `emit` = 1 writes, per output channel o with the parameter entry
    (bias int64, multiplier int32, shift int32; 16 bytes, little-endian, at parameter_address + 16 o):
        q = clamp(requantize(acc + bias, multiplier, shift) + output_zero_point, clamp_low, clamp_high)
    then, when `use_table`, q = table[q].
    Weights: int8, or int4 packed two a byte, low nibble first, the whole block contiguous at weight_address. Everything is
    in SRAM.
    """

    ENGINE = "mac"
    weight_address: int
    parameter_address: int
    accumulate: int
    emit: int
    use_table: int
    table_address: int


@dataclass(frozen=True)
class Convolution(WeightedWindowOp):
    """acc[y, x, o] (+)= sum over ky, kx, i of (in[iy, ix, i] - input_zero_point) w[o, ky, kx, i],
    iy = y sh + ky dh - pad_top, ix = x sw + kx dw - pad_left.

    Weights in order o, ky, kx, i (int4: each output channel starts on a byte). On emit, after the table, when `use_add`,
    the output is Elementwise ADD of a = q and b = what lies at addend_address, with the `add_*` parameters (input: a).
    """

    NAME = "convolution"
    input_channels: int
    output_channels: int
    use_add: int
    addend_address: int
    addend_row_stride: int
    addend_column_stride: int
    add_input_zero_point: int
    add_addend_zero_point: int
    add_output_zero_point: int
    add_left_shift: int
    add_input_multiplier: int
    add_input_shift: int
    add_addend_multiplier: int
    add_addend_shift: int
    add_output_multiplier: int
    add_output_shift: int
    add_clamp_low: int
    add_clamp_high: int


@dataclass(frozen=True)
class Depthwise(WeightedWindowOp):
    """As Convolution with one weight plane a channel: w[ky, kx, c] (order ky, kx, c; int4: each ky, kx row on a byte);
    input_channels = output_channels = `channels`. No addend."""

    NAME = "depthwise"
    channels: int


@dataclass(frozen=True)
class MatrixProduct(MachineOp):
    """acc[r, c] (+)= sum over k of (a[r, k] - a_zero_point) (b[k, c] - b_zero_point), both operands activations in SRAM.

    a's k is contiguous (element size apart), rows a_row_stride apart; b's element (k, c) lies at
    k b_row_stride + c b_column_stride.
    emit writes clamp(requantize(acc, multiplier, shift) + output_zero_point, clamp_low, clamp_high), c contiguous.
    """

    NAME = "matrix_product"
    ENGINE = "mac"
    a_address: int
    a_row_stride: int
    b_address: int
    b_row_stride: int
    b_column_stride: int
    output_address: int
    output_row_stride: int
    rows: int
    inner: int
    columns: int
    a_zero_point: int
    b_zero_point: int
    output_zero_point: int
    multiplier: int
    shift: int
    clamp_low: int
    clamp_high: int
    accumulate: int
    emit: int


@dataclass(frozen=True)
class Pool(WindowOp):
    """max: out = clamp(max over the window).
    average: out = clamp(requantize(sum(in - input_zero_point), multiplier, shift) + output_zero_point).
    """

    NAME = "pool"
    ENGINE = "vector"
    kind: PoolKind
    channels: int
    multiplier: int
    shift: int


@dataclass(frozen=True)
class Elementwise(MachineOp):
    """out[y, x, c] from a[y, x, c] and b[y, x, c]; a stride of 0 broadcasts; out is contiguous along c.

    ADD/SUB: clamp(req_out(req_a((a - za) << left_shift) +- req_b((b - zb) << left_shift)) + zo). req_a and req_b do not clamp.
    MUL: clamp(req_out((a - za) (b - zb)) + zo). RESCALE: clamp(req_out(a - za) + zo), b unused.
    PRELU: b holds the slopes; v = a - za; v >= 0 ? req_a(v) : req_b(v (b - zb)), + zo, clamp.
    """

    NAME = "elementwise"
    ENGINE = "vector"
    kind: ElementwiseKind
    height: int
    width: int
    channels: int
    a_address: int
    a_row_stride: int
    a_column_stride: int
    a_channel_stride: int
    b_address: int
    b_row_stride: int
    b_column_stride: int
    b_channel_stride: int
    output_address: int
    output_row_stride: int
    output_column_stride: int
    a_zero_point: int
    b_zero_point: int
    output_zero_point: int
    left_shift: int
    a_multiplier: int
    a_shift: int
    b_multiplier: int
    b_shift: int
    output_multiplier: int
    output_shift: int
    clamp_low: int
    clamp_high: int


@dataclass(frozen=True)
class Table(MachineOp):
    """out[y, x, c] = table[in[y, x, c]]; the table of `chip.numerics.table` lies in SRAM: int8[256], the entry for code -128
    first, or int16[513].
    """

    NAME = "table"
    ENGINE = "vector"
    height: int
    width: int
    channels: int
    input_address: int
    input_row_stride: int
    input_column_stride: int
    output_address: int
    output_row_stride: int
    output_column_stride: int
    table_address: int


@dataclass(frozen=True)
class Signal(MachineOp):
    """Runs on `engine` (index in `engine_names`) after everything before it there: adds one to `semaphore`."""

    NAME = "signal"
    engine: int
    semaphore: int


@dataclass(frozen=True)
class Wait(MachineOp):
    """Runs on `engine`: blocks its queue until `semaphore` is at least one, then takes one."""

    NAME = "wait"
    engine: int
    semaphore: int


@dataclass(frozen=True)
class End(MachineOp):
    """The program is over when every queue has drained."""

    NAME = "end"


OPERATIONS: dict[str, type[MachineOp]] = {
    op.NAME: op for op in (Copy, Fill, Convolution, Depthwise, MatrixProduct, Pool, Elementwise, Table, Signal, Wait, End)
}


def engine_names(dma_channels: int) -> tuple[str, ...]:
    """The in-order queues, in index order: mac, vector, dma0, dma1, ..."""
    return ("mac", "vector", *(f"dma{i}" for i in range(dma_channels)))


def engine_index(op: MachineOp) -> int | None:
    """Index into `engine_names` of the queue that runs `op`; None for End."""
    if isinstance(op, Signal | Wait):
        return op.engine
    if isinstance(op, Copy | Fill):
        return 2 + op.channel
    if isinstance(op, End):
        return None
    index = {"mac": 0, "vector": 1}.get(op.ENGINE or "")
    if index is None:
        raise untold(type(op), "which engine runs it")
    return index


def untold(operation: type[MachineOp], what: str) -> InternalError:
    """For dispatches over operations, where one is missing: it must not cost nothing, touch nothing or do nothing unseen."""
    return InternalError(f"machine operation {operation.NAME}: nothing says {what}")
