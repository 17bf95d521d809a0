"""Which bytes each machine operation reads and writes: the one definition that synchronisation and hazard checks share."""

from __future__ import annotations

from dataclasses import dataclass, field

from toolchain.hw.chip import Chip
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
    WindowOp,
    untold,
)
from toolchain.isa.windows import Runs, reached

PARAMETER_BYTES = 16
Block = tuple[int, int, tuple[tuple[int, int], ...]]  # first byte, contiguous run, (count, stride) outermost first


@dataclass(frozen=True)
class Access:
    """Bytes address + sum(i_k strides[k]) + j for i_k < counts[k], j < inner_bytes."""

    space: Space
    address: int
    counts: tuple[int, ...]
    strides: tuple[int, ...]
    inner_bytes: int
    write: bool
    end: int = field(init=False, compare=False)  # one past the last byte touched (strides are not negative)

    def __post_init__(self) -> None:
        end = self.address + self.inner_bytes
        for n, stride in zip(self.counts, self.strides):
            end += (n - 1) * stride
        object.__setattr__(self, "end", end)

    @property
    def block(self) -> Block:
        """The same bytes with dimensions of one element dropped and those that continue the run merged into it."""
        run = self.inner_bytes
        outer: list[tuple[int, int]] = []
        for n, stride in zip(reversed(self.counts), reversed(self.strides)):
            if n == 1:
                continue
            if not outer and stride == run:
                run *= n
            elif outer and stride == outer[-1][0] * outer[-1][1]:
                outer[-1] = (outer[-1][0] * n, outer[-1][1])
            else:
                outer.append((n, stride))
        return self.address, run, tuple(reversed(outer))

    @property
    def bytes(self) -> int:
        total = self.inner_bytes
        for n in self.counts:
            total *= n
        return total


def _sram(address: int, counts: tuple[int, ...], strides: tuple[int, ...], inner: int, write: bool = False) -> Access:
    return Access(Space.SRAM, address, counts, strides, inner, write)


def rows_of(op: WindowOp) -> tuple[int, int, int, int, int, int]:
    """The arguments of `isa.windows` for the rows of its input."""
    return op.output_height, op.kernel_height, op.stride_height, op.dilation_height, op.pad_top, op.input_height


def columns_of(op: WindowOp) -> tuple[int, int, int, int, int, int]:
    return op.output_width, op.kernel_width, op.stride_width, op.dilation_width, op.pad_left, op.input_width


def _window_reads(op: WindowOp, inner_bytes: int) -> list[Access]:
    """What the windows reach of the input, and nothing that they pass over."""
    found = []
    for rows in reached(*rows_of(op)):
        for columns in reached(*columns_of(op)):
            address = op.input_address + rows.first * op.input_row_stride + columns.first * op.input_column_stride
            found.append(_sram(address, *_grid(rows, op.input_row_stride, columns, op.input_column_stride), inner_bytes))
    return found


def _grid(rows: Runs, row_stride: int, columns: Runs, column_stride: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Counts and strides, a dimension for each axis; two where its runs are apart and longer than one."""
    dimensions = []
    for runs, stride in ((rows, row_stride), (columns, column_stride)):
        if runs.count > 1:
            dimensions.append((runs.count, runs.step * stride))
        if runs.length > 1 or runs.count == 1:
            dimensions.append((runs.length, stride))
    counts, strides = zip(*dimensions)
    return counts, strides


def weight_bytes(count: int, chip: Chip) -> int:
    """Bytes of `count` weights stored together."""
    return -(-count // 2) if chip.numerics.weight == "int4" else count


def table_bytes(chip: Chip) -> int:
    return 513 * 2 if chip.numerics.table.entries == 513 else 256


def accesses(op: MachineOp, chip: Chip) -> tuple[Access, ...]:
    """Every byte range `op` touches, reads first. Signals, waits and ends touch none, nor do windows that see only padding."""
    return tuple(a for a in _ranges(op, chip) if a.bytes)


def _ranges(op: MachineOp, chip: Chip) -> tuple[Access, ...]:
    size = chip.activation_bytes
    match op:
        case Copy():
            counts = (op.count0, op.count1, op.count2)
            src = (op.source_stride0, op.source_stride1, op.source_stride2)
            dst = (op.destination_stride0, op.destination_stride1, op.destination_stride2)
            return (
                Access(Space(op.source_space), op.source_address, counts, src, op.inner_bytes, False),
                Access(Space(op.destination_space), op.destination_address, counts, dst, op.inner_bytes, True),
            )
        case Fill():
            counts = (op.count0, op.count1, op.count2)
            dst = (op.destination_stride0, op.destination_stride1, op.destination_stride2)
            return (Access(Space(op.destination_space), op.destination_address, counts, dst, op.inner_elements * size, True),)
        case Convolution() | Depthwise():
            return _mac_accesses(op, chip)
        case MatrixProduct():
            reads = [
                _sram(op.a_address, (op.rows,), (op.a_row_stride,), op.inner * size),
                _sram(op.b_address, (op.inner, op.columns), (op.b_row_stride, op.b_column_stride), size),
            ]
            if op.emit:
                reads.append(_sram(op.output_address, (op.rows,), (op.output_row_stride,), op.columns * size, True))
            return tuple(reads)
        case Pool():
            dims, inner = (op.output_height, op.output_width), op.channels * size
            output = (op.output_row_stride, op.output_column_stride)
            return (*_window_reads(op, inner), _sram(op.output_address, dims, output, inner, True))
        case Elementwise():
            return _elementwise_accesses(op, size)
        case Table():
            dims, inner = (op.height, op.width), op.channels * size
            return (
                _sram(op.input_address, dims, (op.input_row_stride, op.input_column_stride), inner),
                _sram(op.table_address, (), (), table_bytes(chip)),
                _sram(op.output_address, dims, (op.output_row_stride, op.output_column_stride), inner, True),
            )
        case Signal() | Wait() | End():
            return ()
    raise untold(type(op), "which bytes it touches (isa.accesses)")


def _mac_accesses(op: Convolution | Depthwise, chip: Chip) -> tuple[Access, ...]:
    size = chip.activation_bytes
    taps = op.kernel_height * op.kernel_width
    if isinstance(op, Convolution):
        inputs, outputs = op.input_channels, op.output_channels
        weights = outputs * weight_bytes(taps * inputs, chip)
    else:
        inputs = outputs = op.channels
        weights = taps * weight_bytes(outputs, chip)
    found = [*_window_reads(op, inputs * size), _sram(op.weight_address, (), (), weights)]
    if not op.emit:
        return tuple(found)
    dims = (op.output_height, op.output_width)
    found.append(_sram(op.parameter_address, (), (), outputs * PARAMETER_BYTES))
    if op.use_table:
        found.append(_sram(op.table_address, (), (), table_bytes(chip)))
    if isinstance(op, Convolution) and op.use_add:
        found.append(_sram(op.addend_address, dims, (op.addend_row_stride, op.addend_column_stride), outputs * size))
    found.append(_sram(op.output_address, dims, (op.output_row_stride, op.output_column_stride), outputs * size, True))
    return tuple(found)


def _elementwise_accesses(op: Elementwise, size: int) -> tuple[Access, ...]:
    def operand(address: int, row: int, column: int, channel: int) -> Access:
        # Broadcast dimensions touch the same bytes: count them once.
        counts = (op.height if row else 1, op.width if column else 1)
        return _sram(address, counts, (row, column), (op.channels if channel else 1) * size)

    found = [operand(op.a_address, op.a_row_stride, op.a_column_stride, op.a_channel_stride)]
    if op.kind != ElementwiseKind.RESCALE:
        found.append(operand(op.b_address, op.b_row_stride, op.b_column_stride, op.b_channel_stride))
    output = (op.output_row_stride, op.output_column_stride)
    found.append(_sram(op.output_address, (op.height, op.width), output, op.channels * size, True))
    return tuple(found)
