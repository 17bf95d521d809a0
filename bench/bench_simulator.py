"""Measure the speed of the simulator: a program of ResNet-50's 54 products (4.1 GMAC) on one machine, with random weights.

    `python bench/bench_simulator.py [--hw NAME|FILE] [--layers N]`.

The program is plain on purpose, because it measures the simulator and not the compiler.
It has tiles of a row or more, two buffers of each kind, and no fusion beyond the residual sum.
Weights are loaded again for each block of output channels.
The script prints CPU seconds, and how many cycles of the program go into one.
`times alone`: a run without checks and values.
`run again`: a run on another image, with the program prepared before.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator import prepare_program, simulate
from simulator.check_program import check_program
from simulator.cycle_breakdown import attribute_cycles
from simulator.program_order import program_order
from simulator.timeline import timeline
from simulator.touched_bytes import TouchedBytes
from toolchain.cli.application import report_errors
from toolchain.hw import Chip, load_chip
from toolchain.machine import Convolution, Copy, End, MachineOp, Signal, Space, Wait, demands, pack_parameters

MAC, DMA = 0, 2
LOADED, DONE, STORED = range(3)
WEIGHT_BYTES, INPUT_BYTES = 128 << 10, 104 << 10


@dataclass(frozen=True)
class Layer:
    """A convolution of a `size` x `size` input; with `add` a residual of the output's shape is added."""

    size: int
    inputs: int
    outputs: int
    kernel: int
    stride: int
    add: bool = False

    @property
    def output_size(self) -> int:
        """The rows and columns of its output."""
        return -(-self.size // self.stride)


def resnet50() -> Iterator[Layer]:
    """Yield the 53 convolutions and the last product, in the order of the network (stride on the 3x3)."""
    yield Layer(224, 3, 64, 7, 2)
    size, inputs = 56, 64
    for stage, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
        for block in range(blocks):
            stride = 2 if block == 0 and stage > 0 else 1
            if block == 0:
                yield Layer(size, inputs, 4 * width, 1, stride)
            yield Layer(size, inputs, width, 1, 1)
            yield Layer(size, width, width, 3, stride)
            size //= stride
            yield Layer(size, width, 4 * width, 1, 1, add=True)
            inputs = 4 * width
    yield Layer(1, 2048, 1000, 1, 1)


def operation(kind: type[MachineOp], **fields: Any) -> Any:
    """Return a machine operation; fields that are not set are 1 for counts, kernels, strides and dilations, else 0."""
    ones = ("count", "kernel", "stride_", "dilation")
    return kind(**{n: fields.pop(n, int(n.startswith(ones))) for n in kind.parameters()}, **fields)


class Writer:
    """Emits the program; `dram` collects what it holds at the start."""

    def __init__(self, chip: Chip):
        self.chip, self.ops, self.tile = chip, [], 0
        self.weight_block, self.next = 0, 0
        self.constants: list[tuple[int, np.ndarray]] = []
        self.rng = np.random.default_rng(0)
        self.ready: list[MachineOp] = []

    def place(self, size_bytes: int) -> int:
        """Return the address of new bytes in DRAM, aligned to 64."""
        address = self.next
        self.next += -(-size_bytes // 64) * 64
        return address

    def constant(self, data: np.ndarray) -> int:
        """Place data in DRAM and return their address."""
        address = self.place(data.size)
        self.constants.append((address, data))
        return address

    def layer(self, layer: Layer, source: int, addend: int) -> int:
        """Append the operations of one layer and return the address of its output in DRAM.

        `source`, `addend`: addresses of its inputs.
        """
        n, k = layer.output_size, layer.kernel
        inner = k * k * layer.inputs
        entries = self.chip.array.accumulators.entries
        channels = max(1, min(layer.outputs, entries // n, WEIGHT_BYTES // (inner + 16)))
        channels = channels if channels < 16 else channels // 16 * 16
        most = INPUT_BYTES // (layer.size * layer.inputs)
        rows = max(1, min(n, entries // (n * channels), (most - k) // layer.stride + 1))
        target = self.place(n * n * layer.outputs)
        self.flush()  # the layer reads what the one before it has stored
        for first in range(0, layer.outputs, channels):
            count = min(channels, layer.outputs - first)
            weights = self.constant(self.block(count, inner))
            for y in range(0, n, rows):
                self.one_tile(layer, (source, addend, target), (first, count), (y, min(rows, n - y)), weights if y == 0 else -1)
        return target

    def flush(self) -> None:
        """Append the operations that were held back."""
        self.ops += self.ready
        self.ready = []

    def block(self, count: int, inner: int) -> np.ndarray:
        """Return the bytes of the parameters and then of the weights of `count` channels."""
        bias = self.rng.integers(-5000, 5000, count)
        multiplier = self.rng.integers(1 << 30, (1 << 31) - 1, count)
        entries = pack_parameters(bias, multiplier, np.array([38 + int(np.log2(inner) / 2)]), self.chip)
        weights = self.rng.integers(-127, 128, count * inner, dtype=np.int8)
        return np.concatenate((np.frombuffer(entries, np.uint8), weights.view(np.uint8)))

    def one_tile(
        self, layer: Layer, places: tuple[int, int, int], channels: tuple[int, int], rows: tuple[int, int], weights: int
    ) -> None:
        """Append the operations of one tile.

        `places`: addresses of input, addend and output.
        `channels`, `rows`: first and number.
        `weights`: address of the weights to load; negative: they are there.
        """
        (source, addend, target), (first, count), (y, height) = places, channels, rows
        parity, n, k, pad = self.tile % 2, layer.output_size, layer.kernel, layer.kernel // 2
        if weights >= 0:
            self.weight_block += 1
        block = (self.weight_block % 2) * WEIGHT_BYTES
        at_input = 2 * WEIGHT_BYTES + parity * INPUT_BYTES
        at_output = 2 * (WEIGHT_BYTES + INPUT_BYTES) + parity * 8192
        inner, row = k * k * layer.inputs, layer.size * layer.inputs
        top = max(0, y * layer.stride - pad)
        bottom = min(layer.size, (y + height - 1) * layer.stride - pad + k)
        loads: list[MachineOp] = []
        if weights >= 0:
            loads.append(self.load(weights, block, count * (inner + 16)))
        loads.append(self.load(source + top * row, at_input, (bottom - top) * row))
        if layer.add:
            loads.append(self.move(addend, at_output + 4096, layer, first, count, y, height, False))
        self.ops += [*loads, Signal(DMA, LOADED)]
        self.flush()
        self.ready = [
            Wait(MAC, LOADED),
            *([Wait(MAC, STORED)] if self.tile >= 2 else []),
            operation(
                Convolution,
                input_address=at_input,
                input_row_stride=row,
                input_column_stride=layer.inputs,
                input_height=bottom - top,
                input_width=layer.size,
                input_channels=layer.inputs,
                pad_top=max(0, pad - y * layer.stride),
                pad_left=pad,
                kernel_height=k,
                kernel_width=k,
                stride_height=layer.stride,
                stride_width=layer.stride,
                weight_address=block + 16 * count,
                parameter_address=block,
                output_address=at_output,
                output_row_stride=n * count,
                output_column_stride=count,
                output_height=height,
                output_width=n,
                output_channels=count,
                input_zero_point=3,
                output_zero_point=-4,
                clamp_low=-128,
                clamp_high=127,
                emit=1,
                use_add=int(layer.add),
                addend_address=at_output + 4096,
                addend_row_stride=n * count,
                addend_column_stride=count,
                add_left_shift=self.chip.numerics.add_left_shift,
                add_input_multiplier=1 << 30,
                add_input_shift=31,
                add_addend_multiplier=1 << 30,
                add_addend_shift=31,
                add_output_multiplier=1 << 30,
                add_output_shift=49,
                add_clamp_low=-128,
                add_clamp_high=127,
            ),
            Signal(MAC, DONE),
            Wait(DMA, DONE),
            self.move(target, at_output, layer, first, count, y, height, True),
            Signal(DMA, STORED),
        ]
        self.tile += 1

    def load(self, address: int, sram: int, size_bytes: int) -> Copy:
        """Return a copy of bytes from DRAM to SRAM."""
        return operation(
            Copy,
            source_space=Space.DRAM,
            source_address=address,
            destination_space=Space.SRAM,
            destination_address=sram,
            inner_bytes=size_bytes,
        )

    def move(self, dram: int, sram: int, layer: Layer, first: int, count: int, y: int, height: int, out: bool) -> Copy:
        """Return a copy of a tile of a feature map, dense in SRAM; `out`: to DRAM."""
        n = layer.output_size
        address = dram + y * n * layer.outputs + first
        ends = [(Space.SRAM, sram, n * count, count), (Space.DRAM, address, n * layer.outputs, layer.outputs)]
        (s, source, s1, s2), (d, target, d1, d2) = ends if out else reversed(ends)
        return operation(
            Copy,
            source_space=s,
            source_address=source,
            destination_space=d,
            destination_address=target,
            inner_bytes=count,
            count1=height,
            count2=n,
            source_stride1=s1,
            source_stride2=s2,
            destination_stride1=d1,
            destination_stride2=d2,
        )

    def finish(self) -> list[MachineOp]:
        """Return all operations. The last two stores signal nobody."""
        self.flush()
        ops = self.ops
        spare = [i for i, op in enumerate(ops) if op == Signal(DMA, STORED)][-2:]
        return [op for i, op in enumerate(ops) if i not in spare] + [End()]


def write_program(chip: Chip, layers: list[Layer]) -> tuple[list[MachineOp], np.ndarray, list[tuple[int, int]]]:
    """Return the operations of a program of these layers, the DRAM's first bytes, and the ranges (start, end) that hold data
    then."""
    writer = Writer(chip)
    image = writer.constant(writer.rng.integers(0, 256, 224 * 224 * 3, dtype=np.uint8))
    address_by_shape: dict[tuple[int, int], int] = {(224, 3): image}
    shape = (224, 3)
    for layer in layers:
        input_shape = (layer.size, layer.inputs)
        if input_shape not in address_by_shape:  # pooling is left out: fresh data of the right shape instead
            address_by_shape[input_shape] = writer.constant(
                writer.rng.integers(0, 256, layer.size**2 * layer.inputs, dtype=np.uint8)
            )
        shape = (layer.output_size, layer.outputs)
        address_by_shape[shape] = writer.layer(layer, address_by_shape[input_shape], address_by_shape.get(shape, 0))
    ops = writer.finish()
    dram = np.zeros(writer.next, np.uint8)
    for address, data in writer.constants:
        dram[address : address + data.size] = data
    return ops, dram, [(a, a + d.size) for a, d in writer.constants]


def main() -> None:
    """Simulate the program and print CPU seconds and simulated cycles a CPU second of each stage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hw", default="edge16", help="machine: a shipped name or a YAML file (int8, 512 KiB of sram)")
    parser.add_argument("--layers", type=int, default=54, help="how many layers from the first")
    options = parser.parse_args()
    with report_errors():
        chip = load_chip(options.hw)
    ops, dram, written = write_program(chip, list(resnet50())[: options.layers])
    begin = time.process_time()
    order = program_order(chip, ops)
    touched = TouchedBytes(chip, ops)
    op_accesses = list(touched)
    seconds = {"order": time.process_time() - begin}
    begin = time.process_time()
    check_program(chip, ops, order, op_accesses, dram.size, written)
    seconds["check"] = time.process_time() - begin
    begin = time.process_time()
    timeline(chip, ops, order, demands(ops, chip), touched, None)
    seconds["timing"] = time.process_time() - begin
    begin = time.process_time()
    run = simulate(chip, ops, None, dram, written)
    seconds["all"] = time.process_time() - begin
    seconds["values"] = seconds["all"] - sum(seconds[stage] for stage in ("order", "check", "timing"))
    begin = time.process_time()
    attribute_cycles(chip, run)
    seconds["attribution"] = time.process_time() - begin
    begin = time.process_time()
    simulate(chip, ops, None, dram, written, values=False, check=False)
    seconds["times alone"] = time.process_time() - begin
    ready = prepare_program(chip, ops, None, dram.size, written)
    begin = time.process_time()
    ready.run(dram)
    seconds["run again"] = time.process_time() - begin
    moved = f"{run.dram_read_bytes / 1e6:.0f} MB read, {run.dram_write_bytes / 1e6:.0f} MB written"
    busy = ", ".join(f"{name} {cycles / run.cycles:.0%}" for name, cycles in run.busy_cycles.items())
    print(f"{chip.name}: {len(ops)} operations, {run.macs / 1e9:.2f} GMAC, {run.cycles:,} cycles, {moved}; busy: {busy}")
    for stage, cpu_seconds in seconds.items():
        each, rate = 1e6 * cpu_seconds / len(ops), run.cycles / cpu_seconds
        print(f"{stage:11} {cpu_seconds:6.2f} CPU s, {each:6.1f} us an operation, {rate:8.1e} cycles a CPU s")


if __name__ == "__main__":
    main()
