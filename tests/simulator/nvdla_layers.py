"""Assemble a convolution as NVDLA small runs it: one hardware layer, with its bytes and the integers it must
give.

The behaviour follows the description of its units and the RTL of nv_small.
Sources: nvdla.org/hw/v1/ias/unit_description.html, github.com/nvdla/hw.
CDMA fetches features and weights by turns on the one port to memory.
The computation begins when all of the features and the first eight kernels (ATOMIC_K) are in the buffer.
Further kernels come by groups of eight, cyclically in the rest of the buffer, while the MACs are busy.
Results leave by surfaces of eight channels, one stripe after the other as they are made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle
from typing import NamedTuple

import numpy as np

from quant.fixed_point import Requant, Rounding, requantize
from tests.simulator.machine_programs import load, make, store
from toolchain.codegen.lower import PlacedOp
from toolchain.codegen.synchronise import synchronise
from toolchain.hw.chip import Chip
from toolchain.machine import Convolution, Copy, MachineOp, accesses

ATOM = 8  # ATOMIC_C, ATOMIC_K and the channels of a surface
FETCHES_FEATURES, FETCHES_WEIGHTS, STORES = range(3)  # DMA channels
# After which the other of the two that fetch has its turn: 64 in the RTL; longer ones make fewer operations, and the same cycles
TURN_BYTES = 512
RESULT_BYTES = 8192  # of results that leave while others are made
MULTIPLIER, SHIFT = 20_000, 26

Pair = tuple[int, int]


class Stripe(NamedTuple):
    """Outputs of an operation."""

    rows: range
    columns: range

    @property
    def pixels(self) -> int:
        return len(self.rows) * len(self.columns)


@dataclass(frozen=True)
class HardwareLayer:
    """Sizes as (height, width); pads: rows and columns of padding on both sides together."""

    output: Pair
    kernels: int
    channels: int
    kernel: Pair
    input: Pair
    pads: Pair = (0, 0)
    stride: Pair = (1, 1)
    dilation: Pair = (1, 1)

    @property
    def pixels(self) -> int:
        return self.output[0] * self.output[1]

    @property
    def inner(self) -> int:
        """Weights of a kernel."""
        return self.kernel[0] * self.kernel[1] * self.channels

    @property
    def groups(self) -> list[range]:
        """Return the groups of kernels."""
        return [range(k, min(k + ATOM, self.kernels)) for k in range(0, self.kernels, ATOM)]

    @property
    def stripes(self) -> list[Stripe]:
        """Return the stripes of RESULT_BYTES each: whole rows, or pieces of one."""
        (height, width), most = self.output, RESULT_BYTES // ATOM
        across, down = min(width, most), max(1, most // width)
        rows, columns = (
            [range(at, min(at + step, size)) for at in range(0, size, step)] for size, step in ((height, down), (width, across))
        )
        return [Stripe(r, c) for r in rows for c in columns]

    @property
    def surface_bytes(self) -> Pair:
        """Return the surface bytes of the input and of the output."""
        return self.input[0] * self.input[1] * ATOM, self.pixels * ATOM

    @property
    def feature_bytes(self) -> int:
        return -(-self.channels // ATOM) * self.surface_bytes[0]

    @property
    def parts(self) -> tuple[int, int, int, int]:
        """Return where features, weights, parameters and results begin in DRAM."""
        weights = self.feature_bytes
        parameters = weights + -(-self.kernels * self.inner // ATOM) * ATOM
        return 0, weights, parameters, parameters + self.kernels * ATOM

    @property
    def dram_bytes(self) -> int:
        return self.parts[3] + len(self.groups) * self.surface_bytes[1]

    @cached_property
    def values(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """int8[h, w, c], int8[kernel, ky, kx, c], int32[kernel]: features, weights, biases."""
        rng = np.random.default_rng(self.inner * self.kernels)
        features = rng.integers(-128, 128, (*self.input, self.channels), np.int8)
        weights = rng.integers(-128, 128, (self.kernels, *self.kernel, self.channels), np.int8)
        return features, weights, rng.integers(-(1 << 16), 1 << 16, self.kernels, np.int32)

    def dram(self) -> np.ndarray:
        """uint8[dram_bytes] before it runs."""
        features, weights, biases = self.values
        memory = np.zeros(self.dram_bytes, np.uint8)
        parameters = np.zeros(self.kernels, [("bias", "<i4"), ("multiplier", "<u2"), ("shift", "<u2")])
        parameters["bias"], parameters["multiplier"], parameters["shift"] = biases, MULTIPLIER, SHIFT
        for first, data in zip(self.parts, (in_surfaces(features), weights, parameters)):
            memory[first : first + data.nbytes] = data.reshape(-1).view(np.uint8)
        return memory

    def compute_expected(self) -> np.ndarray:
        """Return int8: the results as they lie in DRAM, computed from the convolution's definition."""
        features, weights, biases = self.values
        top, left = self.pads[0] // 2, self.pads[1] // 2
        bottom, right = self.pads[0] - top, self.pads[1] - left
        padded = np.pad(features.astype(np.float64), ((top, bottom), (left, right), (0, 0)))  # exact: sums below 2**53
        (height, width), (down, across) = self.output, self.stride
        sums = np.zeros((height, width, self.kernels))
        for ky in range(self.kernel[0]):
            for kx in range(self.kernel[1]):
                y, x = ky * self.dilation[0], kx * self.dilation[1]
                inputs = padded[y : y + (height - 1) * down + 1 : down, x : x + (width - 1) * across + 1 : across]
                sums += inputs @ weights[:, ky, kx].T.astype(np.float64)
        requant = Requant(np.array([MULTIPLIER]), np.array([SHIFT]), Rounding.HALF_AWAY, 0, -128, 127)
        return in_surfaces(requantize(sums.astype(np.int64) + biases, requant)).reshape(-1)


def in_surfaces(codes: np.ndarray) -> np.ndarray:
    """int8[h, w, c] -> int8[c / 8, h, w, 8]; 0 fills the last surface."""
    height, width, channels = codes.shape
    padded = np.pad(codes, ((0, 0), (0, 0), (0, -channels % ATOM)))
    return padded.reshape(height, width, -1, ATOM).transpose(2, 0, 1, 3).copy()


def program(layer: HardwareLayer, chip: Chip, turn_bytes: int = TURN_BYTES) -> tuple[MachineOp, ...]:
    """The operations of the layer, with their signals and waits. turn_bytes: 0 where the memory itself serves by turns. Raises
    ValueError where the buffer does not hold it."""
    placed = [PlacedOp(op, 0, accesses(op, chip)) for op in _operations(layer, chip.memories["sram"].size, turn_bytes)]
    return synchronise(placed, chip, layer.dram_bytes).ops


def _operations(layer: HardwareLayer, buffer_bytes: int, turn_bytes: int) -> Iterator[MachineOp]:
    """Yield the operations. The buffer holds features, parameters, two places for outgoing results, and weights
    cyclically in the rest.
    """
    parameters, group_bytes, count = layer.feature_bytes, layer.inner * ATOM, len(layer.groups)
    results, weight_bytes = parameters + layer.kernels * ATOM, layer.kernels * layer.inner
    weights = results + 2 * RESULT_BYTES
    slots = min(count, (buffer_bytes - weights) // group_bytes)
    if slots < min(2, count):
        raise ValueError(f"{buffer_bytes} bytes hold {max(slots, 0)} groups of kernels beside features and results")

    def fetched(first: int, last: int) -> Copy:
        at = weights + first // group_bytes % slots * group_bytes + first % group_bytes
        return load(layer.parts[1] + first, at, last - first, FETCHES_WEIGHTS)

    yield load(layer.parts[2], parameters, layer.kernels * ATOM, FETCHES_WEIGHTS)
    sent = 0  # bytes of weights
    step = turn_bytes or layer.feature_bytes
    for at in range(0, layer.feature_bytes, step):
        yield load(at, at, min(step, layer.feature_bytes - at), FETCHES_FEATURES)
        end = min(sent + turn_bytes, slots * group_bytes, weight_bytes)
        if sent < end:
            yield fetched(sent, end)
            sent = end
    places = cycle((results, results + RESULT_BYTES))
    for n, kernels in enumerate(layer.groups):
        for group in range(n, min(n + 2, count)):
            end = min((group + 1) * group_bytes, weight_bytes)
            if sent < end:
                yield fetched(sent, end)
                sent = end
        to = layer.parts[3] + n * layer.surface_bytes[1]
        for stripe, out in zip(layer.stripes, places):
            operands = weights + n % slots * group_bytes, parameters + kernels.start * ATOM, out
            yield _convolution(layer, stripe, len(kernels), operands)
            first = stripe.rows.start * layer.output[1] + stripe.columns.start
            yield store(out, to + first * ATOM, stripe.pixels * ATOM, STORES)


def _convolution(layer: HardwareLayer, stripe: Stripe, kernels: int, operands: tuple[int, int, int]) -> Convolution:
    """Return the convolution of a group of kernels.

    `operands`: addresses of its weights, its parameters and its results.
    """
    (row, rows, above), (column, columns, pad_left) = (
        _find_input_span(first.start, layer.stride[axis], layer.pads[axis] // 2, layer.input[axis])
        for axis, first in enumerate((stripe.rows, stripe.columns))
    )
    sizes = {"kernel": layer.kernel, "stride": layer.stride, "dilation": layer.dilation, "input": (rows, columns)}
    sizes["output"] = len(stripe.rows), len(stripe.columns)
    axes = {f"{name}_{axis}": n for name, pair in sizes.items() for axis, n in zip(("height", "width"), pair)}
    places = dict(zip(("weight_address", "parameter_address", "output_address"), operands))
    return make(
        Convolution,
        **axes,
        **places,
        input_address=(row * layer.input[1] + column) * ATOM,
        input_row_stride=layer.input[1] * ATOM,
        input_column_stride=ATOM,
        input_surface_stride=layer.surface_bytes[0],
        pad_top=above,
        pad_left=pad_left,
        output_row_stride=len(stripe.columns) * ATOM,
        output_column_stride=ATOM,
        output_surface_stride=RESULT_BYTES,
        clamp_low=-128,
        clamp_high=127,
        emit=1,
        input_channels=layer.channels,
        output_channels=kernels,
    )


def _find_input_span(first: int, stride: int, pad: int, size: int) -> tuple[int, int, int]:
    """The first row of the input that outputs from `first` on see, how many there are from it on, and padding in front of it."""
    begin = min(max(first * stride - pad, 0), size)
    return begin, size - begin, max(pad - first * stride, 0)
