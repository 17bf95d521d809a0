"""What one machine operation asks of the machine: engine cycles, bytes of each memory, latency, products.

The simulator's timeline and the compiler's cost model share these closed forms. Sources: the fold counts and the cycles a
fold are SCALE-Sim 3.0's (`K + R + C - 2` os, `P + 2R + C - 2` ws, `M + 2R + C - 2` is; equal to its simulation of 360
layers), taken here per operation and generalised by `depth`, `rate`, `folds_overlap` and the two depthwise modes.
`docs/simulator.md` lists every formula.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from toolchain.hw.chip import Chip, MacArray
from toolchain.isa.accesses import PARAMETER_BYTES, columns_of, rows_of, table_bytes, weight_bytes
from toolchain.isa.operations import (
    Convolution,
    Copy,
    Depthwise,
    Elementwise,
    ElementwiseKind,
    End,
    Fill,
    MachineOp,
    MatrixProduct,
    Pool,
    Signal,
    Space,
    Table,
    Wait,
    WeightedWindowOp,
    WindowOp,
    untold,
)
from toolchain.isa.windows import rows_reached


class Demand(NamedTuple):
    """One operation alone on an idle machine. Bytes are totals, cycles are whole.

    compute_cycles: what its engine needs with memories of no limit (DMA: bytes over the channel's rate).
    dram_read_bytes, dram_write_bytes: bytes the program moves.
    dram_read_burst_bytes, dram_write_burst_bytes: the same in whole bursts, what the bandwidth is charged.
    sram_read_bytes, sram_write_bytes: what the ports are charged (copies: in whole bursts of the sram).
    latency_cycles: from start to the first byte, read and write latency of the memories touched.
    macs: products, those with padding included.
    """

    compute_cycles: int = 0
    dram_read_bytes: int = 0
    dram_write_bytes: int = 0
    sram_read_bytes: int = 0
    sram_write_bytes: int = 0
    latency_cycles: int = 0
    macs: int = 0
    dram_read_burst_bytes: int = 0
    dram_write_burst_bytes: int = 0


NOTHING = Demand()


def demand(op: MachineOp, chip: Chip) -> Demand:
    """The demand of any machine operation; signals, waits and ends ask for nothing."""
    if isinstance(op, Convolution):
        return _convolution(op, chip)
    if isinstance(op, Copy):
        return _copy(op, chip)
    if isinstance(op, Depthwise):
        return _depthwise(op, chip)
    if isinstance(op, MatrixProduct):
        return _matrix_product(op, chip)
    if isinstance(op, Elementwise | Pool | Table):
        return _vector(op, chip)
    if isinstance(op, Fill):
        return _fill(op, chip)
    if isinstance(op, Signal | Wait | End):
        return NOTHING
    raise untold(type(op), "what it costs (isa.timing)")


# The array


def product_cycles(mac: MacArray, pixels: int, inner: int, outputs: int, rate: float, repeats: int = 1) -> int:
    """Cycles of `repeats` matrix products [pixels, inner] x [inner, outputs] one after another on the array.

    With R rows, C columns, K' = ceil(inner / depth):
    os: ceil(P/R) ceil(M/C) folds of K' / rate steps, fill and drain R + C - 2.
    ws: ceil(K'/R) ceil(M/C) folds of P / rate steps, fill (R to load weights) and drain 2R + C - 2.
    is: ceil(K'/R) ceil(P/C) folds of M / rate steps, fill and drain 2R + C - 2.
    folds_overlap: fill and drain are paid once; a ws or is fold then takes at least the R cycles its successor loads in.
    """
    rows, columns = mac.rows, mac.columns
    steps = -(-inner // mac.depth)
    if mac.dataflow == "os":
        folds = -(-pixels // rows) * -(-outputs // columns)
        stream, edge, load = steps, rows + columns - 2, 0
    elif mac.dataflow == "ws":
        folds = -(-steps // rows) * -(-outputs // columns)
        stream, edge, load = pixels, 2 * rows + columns - 2, rows
    else:
        folds = -(-steps // rows) * -(-pixels // columns)
        stream, edge, load = outputs, 2 * rows + columns - 2, rows
    return _folds(mac, folds * repeats, _at_rate(stream, rate), edge, load)


def depthwise_cycles(mac: MacArray, pixels: int, taps: int, channels: int, rate: float) -> int:
    """Cycles of a depthwise convolution of `pixels` outputs a channel; T' = ceil(taps / depth).

    column (and none): one channel after another, each the product [pixels, taps] x [taps, 1] (as SCALE-Sim).
    diagonal: `columns` channels at once. os: rows hold pixels, ceil(P/R) ceil(channels/C) folds of T' / rate steps.
    ws, is: the diagonal holds one tap (`depth` taps) of each channel and streams the pixels,
    T' ceil(channels/C) folds of P / rate steps, partial sums in the accumulators.
    """
    if mac.depthwise != "diagonal":
        return product_cycles(mac, pixels, taps, 1, rate, repeats=channels)
    groups, steps = -(-channels // mac.columns), -(-taps // mac.depth)
    if mac.dataflow == "os":
        folds, edge = -(-pixels // mac.rows) * groups, mac.rows + mac.columns - 2
        return _folds(mac, folds, _at_rate(steps, rate), edge, 0)
    return _folds(mac, steps * groups, _at_rate(pixels, rate), 2 * mac.rows + mac.columns - 2, mac.rows)


def _folds(mac: MacArray, folds: int, stream_cycles: int, edge_cycles: int, load_cycles: int) -> int:
    if folds == 0:
        return 0
    if not mac.folds_overlap:
        return folds * (stream_cycles + edge_cycles)
    return (folds - 1) * max(stream_cycles, load_cycles) + stream_cycles + edge_cycles


def _at_rate(steps: int, rate: float) -> int:
    if rate == 1.0:
        return steps
    return -int(-steps // rate)


def operand_rate(chip: Chip, weight: str) -> float:
    """The array's share of its peak with the machine's activations and this weight type; 1.0 where the table is silent."""
    activation = chip.numerics.activation
    for entry in chip.engines.mac.types:
        if entry.activation == activation and entry.weight == weight:
            return entry.rate
    return 1.0


def matrix_rate(chip: Chip) -> float:
    """Both operands are activations: b goes through the weight port, int16 as two int8 planes at half the rate."""
    rate = operand_rate(chip, "int8")
    return rate / 2 if chip.numerics.activation == "int16" else rate


def _operand_reads(mac: MacArray, pixels: int, outputs: int) -> tuple[int, int]:
    """How often one operation reads its inputs and its weights from SRAM.

    SCALE-Sim's counts, with two differences: a window buffer feeds the array, so an input byte is read once a column
    fold and not once a tap; and os keeps a weight for as many row folds as the accumulators hold.
    """
    if mac.dataflow == "os":
        kept = mac.rows * max(1, mac.accumulators.entries // (mac.rows * mac.columns))
        return -(-outputs // mac.columns), -(-pixels // kept)
    if mac.dataflow == "ws":
        return -(-outputs // mac.columns), 1
    return 1, -(-pixels // mac.columns)


def _window_bytes(op: WindowOp, channels: int, size: int) -> int:
    """Of the input, what the windows reach; not what strides and dilations pass over."""
    return rows_reached(*rows_of(op)) * rows_reached(*columns_of(op)) * channels * size


def _convolution(op: Convolution, chip: Chip) -> Demand:
    mac, size = chip.engines.mac, chip.activation_bytes
    pixels, outputs = op.output_height * op.output_width, op.output_channels
    inner = op.kernel_height * op.kernel_width * op.input_channels
    input_reads, weight_reads = _operand_reads(mac, pixels, outputs)
    read = input_reads * _window_bytes(op, op.input_channels, size)
    read += weight_reads * outputs * weight_bytes(inner, chip)
    if op.emit and op.use_add:
        read += pixels * outputs * size
    cycles = product_cycles(mac, pixels, inner, outputs, operand_rate(chip, chip.numerics.weight))
    return _array(op, chip, cycles, read, pixels, outputs, pixels * inner * outputs)


def _depthwise(op: Depthwise, chip: Chip) -> Demand:
    mac, size = chip.engines.mac, chip.activation_bytes
    pixels, taps = op.output_height * op.output_width, op.kernel_height * op.kernel_width
    read = _window_bytes(op, op.channels, size) + taps * weight_bytes(op.channels, chip)
    cycles = depthwise_cycles(mac, pixels, taps, op.channels, operand_rate(chip, chip.numerics.weight))
    return _array(op, chip, cycles, read, pixels, op.channels, pixels * taps * op.channels)


def _array(op: WeightedWindowOp, chip: Chip, cycles: int, read: int, pixels: int, outputs: int, macs: int) -> Demand:
    sram = chip.memories.sram
    if not op.emit:
        return Demand(cycles, sram_read_bytes=read, latency_cycles=sram.latency_cycles, macs=macs)
    read += outputs * PARAMETER_BYTES
    if op.use_table:
        read += table_bytes(chip)
    return Demand(
        cycles,
        sram_read_bytes=read,
        sram_write_bytes=pixels * outputs * chip.activation_bytes,
        latency_cycles=sram.latency_cycles + sram.write_latency_cycles,
        macs=macs,
    )


def _matrix_product(op: MatrixProduct, chip: Chip) -> Demand:
    mac, size, sram = chip.engines.mac, chip.activation_bytes, chip.memories.sram
    a_reads, b_reads = _operand_reads(mac, op.rows, op.columns)
    read = (a_reads * op.rows + b_reads * op.columns) * op.inner * size
    return Demand(
        product_cycles(mac, op.rows, op.inner, op.columns, matrix_rate(chip)),
        sram_read_bytes=read,
        sram_write_bytes=op.rows * op.columns * size if op.emit else 0,
        latency_cycles=sram.latency_cycles + (sram.write_latency_cycles if op.emit else 0),
        macs=op.rows * op.inner * op.columns,
    )


# The vector engine


def _vector(op: Elementwise | Pool | Table, chip: Chip) -> Demand:
    """startup + ceil(elements / lanes) cycles; a pool: that many for each tap of its window."""
    vector, sram, size = chip.engines.vector, chip.memories.sram, chip.activation_bytes
    if isinstance(op, Pool):
        elements = op.output_height * op.output_width * op.channels
        passes = op.kernel_height * op.kernel_width
        read = _window_bytes(op, op.channels, size)
    else:
        elements, passes = op.height * op.width * op.channels, 1
        read = _elementwise_read(op, size) if isinstance(op, Elementwise) else elements * size + table_bytes(chip)
    return Demand(
        vector.startup_cycles + passes * -(-elements // vector.lanes),
        sram_read_bytes=read,
        sram_write_bytes=elements * size,
        latency_cycles=sram.latency_cycles + sram.write_latency_cycles,
    )


def _elementwise_read(op: Elementwise, size: int) -> int:
    """A broadcast operand is read once."""

    def operand(row: int, column: int, channel: int) -> int:
        return (op.height if row else 1) * (op.width if column else 1) * (op.channels if channel else 1) * size

    read = operand(op.a_row_stride, op.a_column_stride, op.a_channel_stride)
    if op.kind != ElementwiseKind.RESCALE:
        read += operand(op.b_row_stride, op.b_column_stride, op.b_channel_stride)
    return read


# DMA


def _copy(op: Copy, chip: Chip) -> Demand:
    """ceil(bytes / channel rate) cycles; each contiguous run is charged as the whole bursts it touches."""
    counts = (op.count0, op.count1, op.count2)
    total = op.inner_bytes * op.count0 * op.count1 * op.count2
    source = (op.source_stride0, op.source_stride1, op.source_stride2)
    destination = (op.destination_stride0, op.destination_stride1, op.destination_stride2)
    read_memory = chip.memories.dram if op.source_space == Space.DRAM else chip.memories.sram
    write_memory = chip.memories.dram if op.destination_space == Space.DRAM else chip.memories.sram
    read = burst_bytes(op.source_address, op.inner_bytes, counts, source, read_memory.burst_bytes)
    written = burst_bytes(op.destination_address, op.inner_bytes, counts, destination, write_memory.burst_bytes)
    from_dram, to_dram = op.source_space == Space.DRAM, op.destination_space == Space.DRAM
    return Demand(
        _at_rate(total, chip.engines.dma.bytes_per_cycle),
        total if from_dram else 0,
        total if to_dram else 0,
        0 if from_dram else read,
        0 if to_dram else written,
        read_memory.latency_cycles + write_memory.write_latency_cycles,
        0,
        read if from_dram else 0,
        written if to_dram else 0,
    )


def _fill(op: Fill, chip: Chip) -> Demand:
    inner = op.inner_elements * chip.activation_bytes
    counts = (op.count0, op.count1, op.count2)
    strides = (op.destination_stride0, op.destination_stride1, op.destination_stride2)
    to_dram = op.destination_space == Space.DRAM
    memory = chip.memories.dram if to_dram else chip.memories.sram
    total = inner * op.count0 * op.count1 * op.count2
    charged = burst_bytes(op.destination_address, inner, counts, strides, memory.burst_bytes)
    return Demand(
        _at_rate(total, chip.engines.dma.bytes_per_cycle),
        dram_write_bytes=total if to_dram else 0,
        sram_write_bytes=0 if to_dram else charged,
        latency_cycles=memory.write_latency_cycles,
        dram_write_burst_bytes=charged if to_dram else 0,
    )


def burst_bytes(address: int, inner: int, counts: tuple[int, ...], strides: tuple[int, ...], burst: int) -> int:
    """Bytes of the whole bursts that the contiguous runs of a strided block touch, each run for itself.

    Dimensions that continue the run are merged into it first: a dense block is one run.
    """
    run, outer = inner, []
    for n, stride in zip(reversed(counts), reversed(strides)):
        if n == 1:
            continue
        if stride == run and not outer:
            run *= n
        else:
            outer.append((n, stride % burst))
    if run == 0:
        return 0
    if burst == 1:
        for n, _ in outer:
            run *= n
        return run
    return burst * _bursts(address % burst, run, tuple(outer), burst)


@lru_cache(maxsize=65536)
def _bursts(offset: int, run: int, outer: tuple[tuple[int, int], ...], burst: int) -> int:
    """Blocks of `burst` bytes touched by runs that start at offset + i strides; only offsets modulo `burst` matter."""
    starts = {offset: 1}
    for n, stride in outer:
        starts = _shifted(starts, n, stride, burst)
    return sum(times * ((start + run - 1) // burst + 1) for start, times in starts.items())


def _shifted(starts: dict[int, int], n: int, stride: int, burst: int) -> dict[int, int]:
    """The multiset {(start + i stride) % burst}: the offsets repeat after at most `burst` steps."""
    steps: dict[int, int] = {}
    at, i = 0, 0
    while i < n:
        steps[at] = 1
        at, i = (at + stride) % burst, i + 1
        if at == 0:
            break
    whole, part = divmod(n, i) if i else (0, 0)
    moved: dict[int, int] = {}
    for position, step in enumerate(steps):
        times = whole + (position < part)
        for start, weight in starts.items():
            key = (start + step) % burst
            moved[key] = moved.get(key, 0) + weight * times
    return moved
