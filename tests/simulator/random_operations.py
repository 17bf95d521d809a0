"""Random operations of every kind on tiny shapes, their operands side by side in sram."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from machine_programs import make

from toolchain.hw.chip import Chip
from toolchain.machine import (
    Convolution,
    Copy,
    Depthwise,
    Elementwise,
    ElementwiseKind,
    Emit,
    EmitKind,
    Fill,
    MachineOp,
    MatrixProduct,
    Pool,
    PoolKind,
    Softmax,
    Space,
    Table,
    dense_bytes,
    granule_of,
    table_bytes,
    weight_bytes,
)

# What becomes of sums.
WAY_OUT = [
    "emit",
    "output_address",
    "output_row_stride",
    "output_column_stride",
    "output_surface_stride",
    "output_zero_point",
    "clamp_low",
    "clamp_high",
    "multiplier",
    "shift",
    "parameter_address",
    "use_table",
    "table_address",
    "use_add",
    "addend_address",
    "addend_row_stride",
    "addend_column_stride",
    "addend_surface_stride",
    "add_input_zero_point",
    "add_addend_zero_point",
    "add_output_zero_point",
    "add_left_shift",
    "add_input_multiplier",
    "add_input_shift",
    "add_addend_multiplier",
    "add_addend_shift",
    "add_output_multiplier",
    "add_output_shift",
    "add_clamp_low",
    "add_clamp_high",
]


class Draw:
    """Places buffers one after another with random gaps, and draws parameters."""

    def __init__(self, chip: Chip, seed: int):
        self.rng = np.random.default_rng(seed)
        self.chip, self.size = chip, chip.code_types[0].size_bytes
        self.middle = (sum(chip.numerics.activation.limits) + 1) // 2
        self.next = int(self.rng.integers(0, 40)) * 2
        self.parameter_blocks: list[tuple[int, int]] = []

    def between(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def place(self, size_bytes: int) -> int:
        address = self.next
        self.next += size_bytes + 2 * self.between(0, 9)
        return address

    def tile(self, height: int, width: int, channels: int) -> tuple[int, int, int]:
        """address, row and column stride of a feature map, with gaps between columns and rows at times."""
        column = (channels + self.between(0, 3) * self.between(0, 1)) * self.size
        row = width * column + self.between(0, 2) * 2
        return self.place(height * row), row, column

    def map(self, name: str, height: int, width: int, channels: int) -> dict[str, int]:
        """Address and strides of an operand, by its name; on machines with granules of channels in these half the time, by
        surfaces or lines."""
        granule = granule_of(self.chip)
        if not granule or self.between(0, 1):
            address, row, column = self.tile(height, width, channels)
            surface = 0
        else:
            surfaces, column = -(-channels // granule), (granule + self.between(0, 3) * self.between(0, 1)) * self.size
            inner = width * column + self.between(0, 2) * 2
            by_surfaces = self.between(0, 1)
            outer = inner * (height if by_surfaces else surfaces) + self.between(0, 2) * 2
            row, surface = (inner, outer) if by_surfaces else (outer, inner)
            address = self.place(outer * (surfaces if by_surfaces else height))
        strides = {"row_stride": row, "column_stride": column, "surface_stride": surface}
        return {f"{name}_address": address, **{f"{name}_{key}": value for key, value in strides.items()}}

    def code(self) -> int:
        return self.middle + self.between(-128, 127)

    def zero(self) -> int:
        """Draw a zero point; it is 0 on machines that have none."""
        return 0 if self.chip.numerics.symmetric_activations else self.code()

    def scale(self) -> tuple[int, int]:
        if self.chip.numerics.scale.kind == "pow2":
            return 1, self.between(0, 12)
        bits = min(31, self.chip.layout.parameters.multiplier_bits)
        return self.between(1 << bits - 1, (1 << bits) - 1), self.between(bits - 1, bits + 9)

    def clamp(self) -> tuple[int, int]:
        low, high = self.chip.numerics.activation.limits
        if self.between(0, 1):
            return low, high
        return self.between(low, self.middle), self.between(self.middle + 1, high)

    def parameters(self, channels: int) -> int:
        address = self.place(self.chip.layout.parameters.size_bytes * channels)
        self.parameter_blocks.append((address, channels))
        return address

    def fill_parameters(self, image: np.ndarray) -> None:
        """Bias, multiplier and shift of each channel into the image."""
        for address, channels in self.parameter_blocks:
            entry = self.chip.layout.parameters
            for i in range(channels):
                multiplier, shift = self.scale()
                word, at = self.bias() & (1 << entry.bias_bits) - 1, entry.bias_bits
                if entry.multiplier_bits:
                    word |= multiplier << at
                word |= (shift & (1 << entry.shift_bits) - 1) << at + entry.multiplier_bits
                data = word.to_bytes(entry.size_bytes, "little")
                image[address + i * len(data) :][: len(data)] = np.frombuffer(data, np.uint8)

    def bias(self) -> int:
        """One in four makes the accumulator wrap, or comes near it."""
        if self.between(0, 3):
            return self.between(-5000, 5000)
        limit = 1 << (self.chip.array.accumulators.bits - 1)
        return self.between(limit - 4000, limit) * (1 - 2 * self.between(0, 1))

    def window(self) -> tuple[dict[str, Any], int, int]:
        """Window fields and the input's size: pads and far edges in and outside the input."""
        f: dict[str, Any] = {}
        sizes = []
        for axis, pad in (("height", "pad_top"), ("width", "pad_left")):
            f[f"kernel_{axis}"], f[f"stride_{axis}"] = self.between(1, 3), self.between(1, 3)
            f[f"dilation_{axis}"], f[pad] = self.between(1, 2), self.between(0, 2)
            f[f"output_{axis}"], f[f"input_{axis}"] = self.between(1, 4), self.between(1, 7)
            sizes.append(f[f"input_{axis}"])
        return f, sizes[0], sizes[1]


def window_operation(d: Draw, kind: type[MachineOp], accumulate: int = 0, emit: int = 1, like: Any = None) -> Any:
    """Convolution or depthwise; `like`: an operation whose output shape it shares."""
    f, height, width = d.window()
    outputs = d.between(1, 6)
    if like is not None:
        f["output_height"], f["output_width"] = like.output_height, like.output_width
        outputs = like.output_channels if kind is Convolution else like.channels
    f["weight_type"] = d.between(0, len(d.chip.weight_types) - 1) if len(d.chip.weight_types) > 1 else 0
    inputs = d.between(1, 5) if kind is Convolution else outputs
    taps = f["kernel_height"] * f["kernel_width"]
    f |= d.map("input", height, width, inputs)
    if kind is Convolution:
        f |= {"input_channels": inputs, "output_channels": outputs}
        f["weight_address"] = d.place(dense_bytes(outputs, taps * inputs, f["weight_type"], d.chip))
        f["use_add"] = d.between(0, 1)
        f |= d.map("addend", f["output_height"], f["output_width"], outputs)
        f |= {"add_input_zero_point": d.zero(), "add_addend_zero_point": d.zero(), "add_output_zero_point": d.zero()}
        f["add_left_shift"] = d.between(0, 12)
        for name in ("input", "addend", "output"):
            f[f"add_{name}_multiplier"], f[f"add_{name}_shift"] = d.scale()
        f["add_clamp_low"], f["add_clamp_high"] = d.clamp()
    else:
        f["channels"] = outputs
        f["weight_address"] = d.place(taps * weight_bytes(outputs, f["weight_type"], d.chip))
    f["parameter_address"] = d.parameters(outputs)
    f |= {"use_table": d.between(0, 1), "table_address": d.place(table_bytes(0, d.chip))}
    shape = (f["output_height"], f["output_width"], outputs)
    f |= d.map("output", *shape)
    f |= {"input_zero_point": d.zero(), "output_zero_point": d.zero(), "accumulate": accumulate, "emit": emit}
    f["clamp_low"], f["clamp_high"] = d.clamp()
    return make(kind, **f)


def through_accumulators(d: Draw, ops: list[MachineOp]) -> list[MachineOp]:
    """One chain of sums; where the accumulators are a memory, left there and taken out by an emit."""
    word = d.chip.array.accumulators.sum_bytes
    if d.chip.array.accumulators.memory is None:
        return ops
    last: Any = ops[-1]
    *lead, channels = last.sums().shape
    address = word * d.between(0, 40)
    nothing: dict[str, Any] = {name: 0 for name in WAY_OUT if hasattr(last, name)}
    f: dict[str, Any] = {name: getattr(last, name) for name in nothing if name != "emit"}
    f |= {"kind": EmitKind(isinstance(last, MatrixProduct)), "channels": channels, "sums_address": address}
    f |= {"height": lead[0], "width": lead[1] if len(lead) > 1 else 1}
    sum_ops = [replace(op, **nothing, sums_address=address) for op in ops]
    return sum_ops if d.between(0, 9) == 0 else [*sum_ops, make(Emit, **f)]


def convolution(d: Draw) -> list[MachineOp]:
    return through_accumulators(d, [window_operation(d, Convolution)])


def depthwise(d: Draw) -> list[MachineOp]:
    return through_accumulators(d, [window_operation(d, Depthwise)])


def accumulated(d: Draw) -> list[MachineOp]:
    kind = Convolution if d.between(0, 1) else Depthwise
    first = window_operation(d, kind, emit=0)
    second = window_operation(d, kind, accumulate=1, emit=0, like=first)
    return through_accumulators(d, [first, second, window_operation(d, kind, accumulate=1, like=first)])


def matrix_product(d: Draw) -> list[MachineOp]:
    rows, inner, columns = d.between(1, 5), d.between(1, 9), d.between(1, 5)
    ops = []
    pieces = d.between(1, 2)
    for i in range(pieces):
        a_row = (inner + d.between(0, 2)) * d.size
        b_row, b_column = (columns * d.size, d.size) if d.between(0, 1) else (d.size, inner * d.size)
        multiplier, shift = d.scale()
        low, high = d.clamp()
        row = columns * d.size + 2 * d.between(0, 1)
        ops.append(
            make(
                MatrixProduct,
                a_address=d.place(rows * a_row),
                a_row_stride=a_row,
                b_address=d.place(inner * columns * d.size),
                b_row_stride=b_row,
                b_column_stride=b_column,
                output_address=d.place(rows * row),
                output_row_stride=row,
                rows=rows,
                inner=inner,
                columns=columns,
                a_zero_point=d.zero(),
                b_zero_point=d.zero(),
                output_zero_point=d.zero(),
                multiplier=multiplier,
                shift=shift,
                clamp_low=low,
                clamp_high=high,
                accumulate=int(i > 0),
                emit=int(i == pieces - 1),
            )
        )
    return through_accumulators(d, ops)


def pool(d: Draw) -> list[MachineOp]:
    f, height, width = d.window()
    channels = d.between(1, 5)
    multiplier, shift = d.scale()
    f |= {"kind": PoolKind(d.between(0, 1)), "channels": channels, "multiplier": multiplier, "shift": shift}
    f |= d.map("input", height, width, channels) | d.map("output", f["output_height"], f["output_width"], channels)
    f["clamp_low"], f["clamp_high"] = d.clamp()
    return [make(Pool, **f, input_zero_point=d.zero(), output_zero_point=d.zero())]


def elementwise(d: Draw) -> list[MachineOp]:
    height, width, channels = d.between(1, 4), d.between(1, 4), d.between(1, 5)
    f: dict[str, Any] = {"kind": ElementwiseKind(d.between(0, 4)), "height": height, "width": width, "channels": channels}
    for name in ("a", "b"):
        f |= d.map(name, height, width, channels)
        for key, stride in (("row", f[f"{name}_row_stride"]), ("column", f[f"{name}_column_stride"]), ("channel", d.size)):
            f[f"{name}_{key}_stride"] = stride if d.between(0, 3) > 0 else 0
        f[f"{name}_zero_point"] = d.zero()
        f[f"{name}_multiplier"], f[f"{name}_shift"] = d.scale()
    f["output_multiplier"], f["output_shift"] = d.scale()
    f |= d.map("output", height, width, channels)
    f |= {"output_zero_point": d.zero(), "left_shift": d.between(0, 12)}
    f["clamp_low"], f["clamp_high"] = d.clamp()
    return [make(Elementwise, **f)]


def table(d: Draw) -> list[MachineOp]:
    height, width, channels = d.between(1, 4), d.between(1, 4), d.between(1, 5)
    f = d.map("input", height, width, channels) | d.map("output", height, width, channels)
    return [make(Table, height=height, width=width, channels=channels, **f, table_address=d.place(table_bytes(0, d.chip)))]


def softmax(d: Draw) -> list[MachineOp]:
    """Make a softmax with an input scale between 1/64 and 1/4."""
    rows, columns = d.between(1, 4), d.between(1, 40)
    source, target = d.tile(1, rows, columns), d.tile(1, rows, columns)
    return [
        make(
            Softmax,
            rows=rows,
            columns=columns,
            input_address=source[0],
            input_row_stride=source[2],
            output_address=target[0],
            output_row_stride=target[2],
            input_multiplier=d.between(1 << 29, (1 << 31) - 1),
            input_shift=d.between(7, 9),
        )
    ]


def moves(d: Draw) -> list[MachineOp]:
    n0, n1, n2, inner = (d.between(1, 3) for _ in range(4))
    s2 = inner + d.between(0, 2)
    s1 = n2 * s2 + d.between(0, 3)
    s0 = n1 * s1 + d.between(0, 3)
    t2, t0 = inner + 1, inner * 4
    t1 = n0 * t0 + n2 * t2
    copy = make(
        Copy,
        source_space=Space.SRAM,
        source_address=d.place(n0 * s0),
        destination_space=Space.SRAM,
        destination_address=d.place(n0 * n1 * (t0 + t1 + n2 * t2)),
        inner_bytes=inner,
        count0=n0,
        count1=n1,
        count2=n2,
        source_stride0=s0,
        source_stride1=s1,
        source_stride2=s2,
        destination_stride0=max(t0, n2 * t2),
        destination_stride1=n0 * max(t0, n2 * t2),
        destination_stride2=t2,
    )
    row = inner * d.size + 2
    fill = make(
        Fill,
        destination_space=Space.SRAM,
        destination_address=d.place(n0 * n1 * n2 * row),
        inner_elements=inner,
        count0=n0,
        count1=n1,
        count2=n2,
        destination_stride0=n1 * n2 * row,
        destination_stride1=n2 * row,
        destination_stride2=row,
        value=d.code(),
    )
    return [copy, fill]


def turned(d: Draw) -> list[MachineOp]:
    """A copy of four dimensions that transposes or not, and a fill of four."""
    no, n0, n1 = (d.between(1, 3) for _ in range(3))
    rows, columns, turn = d.between(1, 6), d.between(1, 6), d.between(0, 1)

    def strides(run: int, count: int) -> tuple[int, int, int, int]:
        s2 = run + d.size * d.between(0, 2)
        s1 = count * s2 + d.size * d.between(0, 2)
        s0 = n1 * s1 + d.size * d.between(0, 2)
        return n0 * s0 + d.size * d.between(0, 2), s0, s1, s2

    so, s0, s1, s2 = strides(columns * d.size, rows)
    to, t0, t1, t2 = strides(rows * d.size, columns) if turn else strides(columns * d.size, rows)
    copy = make(
        Copy,
        source_space=Space.SRAM,
        source_address=d.place(no * so),
        destination_space=Space.SRAM,
        destination_address=d.place(no * to),
        inner_bytes=columns * d.size,
        count_outer=no,
        count0=n0,
        count1=n1,
        count2=rows,
        transpose=turn,
        source_stride_outer=so,
        source_stride0=s0,
        source_stride1=s1,
        source_stride2=s2,
        destination_stride_outer=to,
        destination_stride0=t0,
        destination_stride1=t1,
        destination_stride2=t2,
    )
    fo, f0, f1, f2 = strides(columns * d.size, rows)
    fill = make(
        Fill,
        destination_space=Space.SRAM,
        destination_address=d.place(no * fo),
        inner_elements=columns,
        value=d.code(),
        count_outer=no,
        count0=n0,
        count1=n1,
        count2=rows,
        destination_stride_outer=fo,
        destination_stride0=f0,
        destination_stride1=f1,
        destination_stride2=f2,
    )
    return [copy, fill]


def batched(d: Draw) -> list[MachineOp]:
    """Several whole products, of which one operand may serve all; a memory of sums holds those of one."""
    if d.chip.array.accumulators.memory is not None:
        return matrix_product(d)
    product_ops = next(ops for ops in iter(lambda: matrix_product(d), None) if len(ops) == 1)
    op: Any = product_ops[0]
    batches, size = d.between(2, 4), d.size
    a_stride = (op.rows * op.a_row_stride + size * d.between(0, 2)) * d.between(0, 1)
    b_stride = (op.inner * op.columns + d.between(0, 2)) * size * d.between(0, 1)
    y_stride = op.rows * op.output_row_stride + size * d.between(0, 2)
    places = {"a_address": a_stride, "b_address": b_stride, "output_address": y_stride}
    addresses = {name: d.place(batches * stride + 300) for name, stride in places.items()}
    strides = {"a_batch_stride": a_stride, "b_batch_stride": b_stride, "output_batch_stride": y_stride}
    return [replace(op, batches=batches, **addresses, **strides)]
