"""The machine operations once more, in plain Python integers and loops, written from their docstrings alone."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from quant.fixed_point import softmax8, softmax16
from toolchain.hw.chip import Chip
from toolchain.machine import (
    Convolution,
    Copy,
    Depthwise,
    Elementwise,
    Emit,
    Fill,
    MachineOp,
    MatrixProduct,
    Pool,
    Softmax,
    Table,
)

ACCUMULATORS = 2  # code of the one memory beside dram and sram


def run_plain(chip: Chip, ops: list[MachineOp], dram: bytes) -> bytes:
    """Memory afterwards, the operations run one after another in program order."""
    machine = PlainMachine(chip, dram)
    for op in ops:
        step = getattr(machine, f"run_{op.NAME}", None)
        if step:
            step(op)
    return bytes(machine.memory[0])


def round_scaled(x: int, m: int, s: int, rule: str) -> int:
    """x m / 2**s by a rounding rule."""
    p = x * m
    if s <= 0:
        return p << -s
    half, unit = 1 << (s - 1), 1 << s
    if rule in ("single_half_up", "pow2"):
        return (p + half) // unit
    if rule == "double_round":
        nudge = (1 << 30) * (1 if x >= 0 else -1) if s > 31 else 0
        return (p + half + nudge) // unit
    if rule == "floor":
        return p // unit
    if rule == "truncate":
        return abs(p) // unit * (1 if p >= 0 else -1)
    if rule == "half_away":
        return (abs(p) + half) // unit * (1 if p >= 0 else -1)
    assert rule == "half_even"
    q, r = divmod(p, unit)
    return q + (r > half or (r == half and q % 2 == 1))


def wrap(x: int, bits: int) -> int:
    return (x + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))


class PlainMachine:
    def __init__(self, chip: Chip, dram: bytes):
        self.chip = chip
        self.memory: list[bytearray] = [bytearray(dram), *(bytearray(s.memory.size) for s in chip.spaces[1:])]
        self.word = chip.array.accumulators.sum_bytes if chip.array.accumulators.memory else 0
        kind = str(chip.numerics.activation)
        self.size, self.signed = (2 if kind.endswith("16") else 1), not kind.startswith("u")
        self.least = -(1 << (8 * self.size - 1)) if self.signed else 0
        self.acc: dict[tuple[int, ...], int] = {}

    # numbers: activations where no size is given, else signed

    def get(self, address: int, size: int = 0, space: int = 1) -> int:
        end = address + (size or self.size)
        return int.from_bytes(self.memory[space][address:end], "little", signed=size > 0 or self.signed)

    def put(self, address: int, value: int, space: int = 1, size: int = 0) -> None:
        data = value.to_bytes(size or self.size, "little", signed=size > 0 or self.signed)
        self.memory[space][address : address + len(data)] = data

    # channels of a pixel, which begins at `address`: together where `surface` is 0, else in granules, whole ones

    def channel(self, address: int, c: int, surface: int) -> int:
        """Return the address of channel c."""
        if not surface:
            return address + c * self.size
        granule = self._granule()
        return address + c // granule * surface + c % granule * self.size

    def _granule(self) -> int:
        maps = self.chip.layout.feature_maps
        assert maps is not None
        return maps.granule

    def list_fill_addresses(self, address: int, channels: int, surface: int) -> list[int]:
        """Return the addresses of the elements that fill the last granule."""
        granule = self._granule() if surface else 1
        return [self.channel(address, c, surface) for c in range(channels, -(-channels // granule) * granule)]

    def read(self, address: int, c: int, channels: int, surface: int) -> int:
        for rest in self.list_fill_addresses(address, channels, surface) if c == channels - 1 else ():
            self.get(rest)
        return self.get(self.channel(address, c, surface))

    def write(self, address: int, c: int, channels: int, surface: int, q: int) -> None:
        self.put(self.channel(address, c, surface), q)
        for rest in self.list_fill_addresses(address, channels, surface) if c == channels - 1 else ():
            self.put(rest, 0)

    # sums in the accumulators, or in the memory that they are

    def read_sum(self, op: Any, at: tuple[int, ...], number: int) -> int:
        return self.get(op.sums_address + number * self.word, self.word, ACCUMULATORS) if self.word else self.acc[at]

    def hold(self, op: Any, sums: dict[tuple[int, ...], int]) -> None:
        self.acc = sums
        for number, total in enumerate(sums.values()):
            if self.word:
                self.put(op.sums_address + number * self.word, total, ACCUMULATORS, self.word)

    def requantize(self, key: Any, x: int, m: int, s: int, zero: int, low: int, high: int, bits: int = 0) -> int:
        numerics = self.chip.numerics
        y = round_scaled(x, m, s, numerics.rounding_of(key)) + zero
        if numerics.overflow == "wrap":
            y = wrap(y, bits or 8 * self.size) if bits or self.signed else y % 256
        return max(low, min(high, y))

    def inner(self, key: str, x: int, m: int, s: int) -> int:
        return self.requantize(key, x, m, s, 0, -(1 << 31), (1 << 31) - 1, 32)

    def add_operands(self, key: str, p: dict[str, int], a: int, b: int, sign: int) -> int:
        ta = self.inner(key, (a - p["za"]) << p["left"], p["ma"], p["sa"])
        tb = self.inner(key, (b - p["zb"]) << p["left"], p["mb"], p["sb"])
        return self.requantize(key, ta + sign * tb, p["mo"], p["so"], p["zo"], p["low"], p["high"])

    def look_up(self, x: int, table: int) -> int:
        if self.size == 1:
            return self.get(table + x - self.least)
        i, f = (x + 32768) >> 7, (x + 32768) & 127
        t0, t1 = self.get(table + 2 * i, 2), self.get(table + 2 * i + 2, 2)
        if self.chip.numerics.interpolation == "tflite":  # in int16 throughout
            return wrap(t0 + ((wrap(t1 - t0, 16) * f + 64) >> 7), 16)
        return t0 + (((t1 - t0) * f + 64) >> 7)

    def weight(self, kind: str, address: int, row: int, row_elements: int, i: int) -> int:
        if kind == "int8":
            return self.get(address + row * row_elements + i, 1)
        byte = self.memory[1][address + row * ((row_elements + 1) // 2) + i // 2]
        nibble = byte >> 4 if i % 2 else byte & 15
        return nibble - 16 if nibble >= 8 else nibble

    # moves

    def run_copy(self, op: Copy) -> None:
        moved = []
        element = self.size if op.transpose else op.inner_bytes
        for o, i, j, k in product(*map(range, (op.count_outer, op.count0, op.count1, op.count2))):
            source = op.source_address + o * op.source_stride_outer + i * op.source_stride0
            source += j * op.source_stride1 + k * op.source_stride2
            target = op.destination_address + o * op.destination_stride_outer + i * op.destination_stride0
            target += j * op.destination_stride1
            for c in range(op.inner_bytes // element):
                data = bytes(self.memory[op.source_space][source + c * element : source + (c + 1) * element])
                row, column = (c, k) if op.transpose else (k, c)
                moved.append((target + row * op.destination_stride2 + column * element, data))
        for target, data in moved:
            self.memory[op.destination_space][target : target + len(data)] = data

    def run_fill(self, op: Fill) -> None:
        counts = (op.count_outer, op.count0, op.count1, op.count2, op.inner_elements)
        for o, i, j, k, e in product(*map(range, counts)):
            at = op.destination_address + o * op.destination_stride_outer + i * op.destination_stride0
            at += j * op.destination_stride1 + k * op.destination_stride2 + e * self.size
            self.put(at, op.value, op.destination_space)

    # the array

    def run_convolution(self, op: Convolution) -> None:
        taps, kind = op.kernel_height * op.kernel_width * op.input_channels, self.chip.weight_types[op.weight_type]

        def weights(o, ky, kx, i):
            at, tile = (ky * op.kernel_width + kx) * op.input_channels + i, self.chip.layout.weight_tile
            if tile is None:
                return self.weight(kind, op.weight_address, o, taps, at)
            rows, columns = tile
            before = o // columns * -(-taps // rows) + at // rows
            return self.weight(kind, op.weight_address, before, rows * columns, at % rows * columns + o % columns)

        self.array(op, op.output_channels, op.input_channels, lambda o: range(op.input_channels), weights)

    def run_depthwise(self, op: Depthwise) -> None:
        kind = self.chip.weight_types[op.weight_type]

        def weights(o, ky, kx, i):
            return self.weight(kind, op.weight_address, ky * op.kernel_width + kx, op.channels, o)

        self.array(op, op.channels, op.channels, lambda o: (o,), weights)

    def array(self, op, outputs, inputs, inputs_of, weights) -> None:
        bits = self.chip.array.accumulators.bits
        sums = {}
        for y in range(op.output_height):
            for x in range(op.output_width):
                for o in range(outputs):
                    total = self.read_sum(op, (y, x, o), len(sums)) if op.accumulate else 0
                    for ky in range(op.kernel_height):
                        for kx in range(op.kernel_width):
                            row = y * op.stride_height + ky * op.dilation_height - op.pad_top
                            column = x * op.stride_width + kx * op.dilation_width - op.pad_left
                            if not (0 <= row < op.input_height and 0 <= column < op.input_width):
                                continue
                            at = op.input_address + row * op.input_row_stride + column * op.input_column_stride
                            for i in inputs_of(o):
                                value = self.read(at, i, inputs, op.input_surface_stride) - op.input_zero_point
                                total += value * weights(o, ky, kx, i)
                    sums[y, x, o] = wrap(total, bits)
        self.hold(op, sums)
        if op.emit:
            for (y, x, o), total in sums.items():
                self.emit(op, (y, x, o), outputs, total, bits)

    def emit(self, op, at: tuple[int, int, int], channels: int, total: int, bits: int) -> None:
        entry, signed = self.chip.layout.parameters, self.chip.numerics_keys.scale.shift_min < 0
        first = op.parameter_address + entry.size_bytes * at[2]
        word, widths = (
            int.from_bytes(self.memory[1][first : first + entry.size_bytes], "little"),
            (entry.bias_bits, entry.multiplier_bits),
        )
        total = wrap(total + wrap(word, widths[0]), bits)
        m = (word >> widths[0]) % (1 << widths[1]) if widths[1] else 1
        s = (word >> sum(widths)) % (1 << entry.shift_bits)
        s = wrap(s, entry.shift_bits) if signed else s
        q = self.requantize("convolution", total, m, s, op.output_zero_point, op.clamp_low, op.clamp_high)
        self.way_out(op, at, channels, q)

    def way_out(self, op, at: tuple[int, int, int], channels: int, q: int) -> None:
        y, x, o = at
        if op.use_table:
            q = self.look_up(q, op.table_address)
        if getattr(op, "use_add", 0):
            pixel = op.addend_address + y * op.addend_row_stride + x * op.addend_column_stride
            b = self.read(pixel, o, channels, op.addend_surface_stride)
            p = {
                "za": op.add_input_zero_point,
                "zb": op.add_addend_zero_point,
                "zo": op.add_output_zero_point,
                "left": op.add_left_shift,
                "ma": op.add_input_multiplier,
                "sa": op.add_input_shift,
                "mb": op.add_addend_multiplier,
                "sb": op.add_addend_shift,
                "mo": op.add_output_multiplier,
                "so": op.add_output_shift,
                "low": op.add_clamp_low,
                "high": op.add_clamp_high,
            }
            q = self.add_operands("add", p, q, b, 1)
        pixel = op.output_address + y * op.output_row_stride + x * op.output_column_stride
        self.write(pixel, o, channels, op.output_surface_stride, q)

    def run_matrix_product(self, op: MatrixProduct) -> None:
        bits = self.chip.array.accumulators.bits
        sums = {}
        for g, r, c in product(range(op.batches), range(op.rows), range(op.columns)):
            total = self.read_sum(op, (g, r, c), len(sums)) if op.accumulate else 0
            for k in range(op.inner):
                a = op.a_address + g * op.a_batch_stride + r * op.a_row_stride + k * self.size
                b = op.b_address + g * op.b_batch_stride + k * op.b_row_stride + c * op.b_column_stride
                total += (self.get(a) - op.a_zero_point) * (self.get(b) - op.b_zero_point)
            sums[g, r, c] = wrap(total, bits)
        self.hold(op, sums)
        if not op.emit:
            return
        for (g, r, c), total in sums.items():
            limits = (op.output_zero_point, op.clamp_low, op.clamp_high)
            q = self.requantize("matrix_product", total, op.multiplier, op.shift, *limits)
            self.put(op.output_address + g * op.output_batch_stride + r * op.output_row_stride + c * self.size, q)

    # the vector engine

    def run_emit(self, op: Emit) -> None:
        bits = self.chip.array.accumulators.bits
        places = [(y, x, o) for y in range(op.height) for x in range(op.width) for o in range(op.channels)]
        totals = [self.read_sum(op, at, number) for number, at in enumerate(places)]
        for (y, x, o), total in zip(places, totals):
            if op.kind == 0:
                self.emit(op, (y, x, o), op.channels, total, bits)
            else:
                limits = (op.output_zero_point, op.clamp_low, op.clamp_high)
                q = self.requantize("matrix_product", total, op.multiplier, op.shift, *limits)
                self.way_out(op, (y, x, o), op.channels, q)

    def run_pool(self, op: Pool) -> None:
        code_by_place = {}
        for y in range(op.output_height):
            for x in range(op.output_width):
                for c in range(op.channels):
                    elements = []
                    for ky in range(op.kernel_height):
                        for kx in range(op.kernel_width):
                            row = y * op.stride_height + ky * op.dilation_height - op.pad_top
                            column = x * op.stride_width + kx * op.dilation_width - op.pad_left
                            if 0 <= row < op.input_height and 0 <= column < op.input_width:
                                at = op.input_address + row * op.input_row_stride + column * op.input_column_stride
                                elements.append(self.read(at, c, op.channels, op.input_surface_stride))
                    if op.kind == 0:
                        q = max(op.clamp_low, min(op.clamp_high, max(elements, default=self.least)))
                    else:
                        total = sum(v - op.input_zero_point for v in elements)
                        limits = (op.output_zero_point, op.clamp_low, op.clamp_high)
                        q = self.requantize("average_pool", total, op.multiplier, op.shift, *limits)
                    code_by_place[y * op.output_row_stride + x * op.output_column_stride, c] = q
        for (pixel, c), q in code_by_place.items():
            self.write(op.output_address + pixel, c, op.channels, op.output_surface_stride, q)

    def run_elementwise(self, op: Elementwise) -> None:
        key = ("add", "sub", "mul", "rescale", "prelu")[op.kind]
        code_by_place = {}
        for y in range(op.height):
            for x in range(op.width):
                for c in range(op.channels):
                    a = self.operand(op, "a", y, x, c)
                    b = self.operand(op, "b", y, x, c) if key != "rescale" else 0
                    q = self.element(op, key, a, b)
                    code_by_place[y * op.output_row_stride + x * op.output_column_stride, c] = q
        for (pixel, c), q in code_by_place.items():
            self.write(op.output_address + pixel, c, op.channels, op.output_surface_stride, q)

    def operand(self, op: Elementwise, name: str, y: int, x: int, c: int) -> int:
        row, column, channel, surface = (getattr(op, f"{name}_{key}_stride") for key in ("row", "column", "channel", "surface"))
        pixel = getattr(op, f"{name}_address") + y * row + x * column
        return self.read(pixel, c if channel else 0, op.channels if channel else 1, surface)

    def element(self, op: Elementwise, key: str, a: int, b: int) -> int:
        out = (op.output_zero_point, op.clamp_low, op.clamp_high)
        v, w = a - op.a_zero_point, b - op.b_zero_point
        if key == "mul":
            return self.requantize(key, v * w, op.output_multiplier, op.output_shift, *out)
        if key == "rescale":
            return self.requantize(key, v, op.output_multiplier, op.output_shift, *out)
        if key == "prelu" and v >= 0:
            return self.requantize(key, v, op.a_multiplier, op.a_shift, *out)
        if key == "prelu":
            return self.requantize(key, v * w, op.b_multiplier, op.b_shift, *out)
        p = {
            "za": op.a_zero_point,
            "zb": op.b_zero_point,
            "zo": op.output_zero_point,
            "left": op.left_shift,
            "ma": op.a_multiplier,
            "sa": op.a_shift,
            "mb": op.b_multiplier,
            "sb": op.b_shift,
            "mo": op.output_multiplier,
            "so": op.output_shift,
            "low": op.clamp_low,
            "high": op.clamp_high,
        }
        return self.add_operands(key, p, a, b, 1 if key == "add" else -1)

    def run_softmax(self, op: Softmax) -> None:
        kind = np.dtype(str(self.chip.numerics.activation))
        scale = op.input_multiplier * 2.0 ** (-op.input_shift - 26)
        rows = [
            [self.get(op.input_address + r * op.input_row_stride + c * self.size) for c in range(op.columns)]
            for r in range(op.rows)
        ]
        for r, row in enumerate((softmax16 if self.size == 2 else softmax8)(np.array(rows, kind), scale)):
            for c, q in enumerate(row):
                self.put(op.output_address + r * op.output_row_stride + c * self.size, int(q))

    def run_table(self, op: Table) -> None:
        for y in range(op.height):
            for x in range(op.width):
                for c in range(op.channels):
                    at = op.input_address + y * op.input_row_stride + x * op.input_column_stride
                    q = self.look_up(self.read(at, c, op.channels, op.input_surface_stride), op.table_address)
                    to = op.output_address + y * op.output_row_stride + x * op.output_column_stride
                    self.write(to, c, op.channels, op.output_surface_stride, q)
