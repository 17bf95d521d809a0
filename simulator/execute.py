"""What each machine operation does to the bytes of the memories. All arithmetic is `quant.fixed_point`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point import Requant, add, conv2d, matmul, max_pool, mul, pool_sum, prelu, requantize, rescale
from quant.fixed_point.conv import finish_sums
from simulator.numerics import Arithmetic
from simulator.state import PARAMETERS, State
from toolchain.hw.chip import Chip
from toolchain.isa.accesses import PARAMETER_BYTES, table_bytes, weight_bytes
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
    PoolKind,
    Signal,
    Space,
    Table,
    Wait,
    WeightedWindowOp,
    WindowOp,
    untold,
)

Array = NDArray[Any]
Pads = tuple[int, int, int, int]


class Executor:
    """Runs operations one by one on `state`. The program's checks have passed: addresses lie inside the memories."""

    def __init__(self, chip: Chip, state: State):
        self.chip, self.state, self.arithmetic = chip, state, Arithmetic(chip)
        self.table_bytes = table_bytes(chip)
        self.size = state.activation.itemsize
        self.run: dict[type[MachineOp], Callable[[Any], None]] = {
            Copy: self._copy,
            Fill: self._fill,
            Convolution: self._convolution,
            Depthwise: self._depthwise,
            MatrixProduct: self._matrix_product,
            Pool: self._pool,
            Elementwise: self._elementwise,
            Table: self._table,
            Signal: _nothing,
            Wait: _nothing,
            End: _nothing,
        }

    def execute(self, op: MachineOp) -> None:
        run = self.run.get(type(op))
        if run is None:
            raise untold(type(op), "what it does (simulator.execute)")
        run(op)

    # Moves

    def _copy(self, op: Copy) -> None:
        shape = (op.count0, op.count1, op.count2, op.inner_bytes)
        source_strides = (op.source_stride0, op.source_stride1, op.source_stride2, 1)
        strides = (op.destination_stride0, op.destination_stride1, op.destination_stride2, 1)
        source = np.ndarray(shape, np.uint8, self.state.memory[Space(op.source_space)], op.source_address, source_strides)
        target = self.state.memory[Space(op.destination_space)]
        np.copyto(np.ndarray(shape, np.uint8, target, op.destination_address, strides), source)

    def _fill(self, op: Fill) -> None:
        shape = (op.count0, op.count1, op.count2, op.inner_elements)
        strides = (op.destination_stride0, op.destination_stride1, op.destination_stride2, self.size)
        target = self.state.memory[Space(op.destination_space)]
        view = np.ndarray(shape, self.state.activation, target, op.destination_address, strides)
        view[...] = np.array(op.value).astype(self.state.activation)

    # The array

    def _convolution(self, op: Convolution) -> None:
        taps = op.kernel_height * op.kernel_width
        weights = self.arithmetic.weights(
            self._bytes(op.weight_address, op.output_channels * weight_bytes(taps * op.input_channels, self.chip)),
            op.output_channels,
            op.kernel_height,
            op.kernel_width,
            op.input_channels,
        )
        sums = self._window_sums(op, op.input_channels, weights)
        q = self._emitted(op, sums, op.output_channels)
        if q is None:
            return
        if op.use_add:
            q = self._residual(op, q)
        self._output(op, op.output_channels)[...] = q

    def _depthwise(self, op: Depthwise) -> None:
        taps = op.kernel_height * op.kernel_width
        raw = self.state.sram_bytes(op.weight_address, taps * weight_bytes(op.channels, self.chip))
        weights = self.arithmetic.depthwise_weights(raw, op.kernel_height, op.kernel_width, op.channels)
        q = self._emitted(op, self._window_sums(op, op.channels, weights), op.channels)
        if q is not None:
            self._output(op, op.channels)[...] = q

    def _window_sums(self, op: WeightedWindowOp, channels: int, weights: Any) -> Array:
        """int32 or int64[oh, ow, oc]: sums without bias, wrapped to the accumulators' width."""
        x, pads = self._window_input(op, channels, op.input_zero_point)
        return conv2d(
            x,
            weights,
            strides=(op.stride_height, op.stride_width),
            dilations=(op.dilation_height, op.dilation_width),
            pads=pads,
            x_zero_point=op.input_zero_point,
            accumulator_bits=self.arithmetic.accumulator_bits,
        )[0]

    def _window_input(self, op: WindowOp, channels: int, padding: int) -> tuple[Array, Pads]:
        """The part of the input that windows reach, [1, h, w, c], and the padding around it."""
        full_height = (op.output_height - 1) * op.stride_height + (op.kernel_height - 1) * op.dilation_height + 1
        full_width = (op.output_width - 1) * op.stride_width + (op.kernel_width - 1) * op.dilation_width + 1
        rows = min(op.input_height, max(0, full_height - op.pad_top))
        columns = min(op.input_width, max(0, full_width - op.pad_left))
        if rows == 0 or columns == 0:
            return np.full((1, full_height, full_width, channels), padding, self.state.activation), (0, 0, 0, 0)
        strides = (0, op.input_row_stride, op.input_column_stride, self.size)
        x = self.state.feature_map(op.input_address, (1, rows, columns, channels), strides)
        return x, (op.pad_top, op.pad_left, full_height - op.pad_top - rows, full_width - op.pad_left - columns)

    def _emitted(self, op: WeightedWindowOp, sums: Array, channels: int) -> Array | None:
        """Through the accumulators: None where they keep the sums, else the outputs after the table."""
        sums = self._accumulated(op, sums)
        if not op.emit:
            return None
        block = self._bytes(op.parameter_address, channels * PARAMETER_BYTES)
        bias, requant = self.arithmetic.channel_requant(block, op.output_zero_point, op.clamp_low, op.clamp_high)
        q = requantize(finish_sums(sums, bias, self.arithmetic.accumulator_bits), requant, self.state.activation)
        if op.use_table:
            q = self.arithmetic.lookup(q, self.state.sram_bytes(op.table_address, self.table_bytes))
        return q

    def _accumulated(self, op: WeightedWindowOp | MatrixProduct, sums: Array) -> Array:
        if op.accumulate and self.state.accumulators is not None:
            sums = finish_sums(sums + self.state.accumulators, None, self.arithmetic.accumulator_bits)
        self.state.accumulators = None if op.emit else sums
        return sums

    def _residual(self, op: Convolution, q: Array) -> Array:
        key, inner = "add", self.arithmetic.inner_requant
        shape = (op.output_height, op.output_width, op.output_channels)
        strides = (op.addend_row_stride, op.addend_column_stride, self.size)
        return add(
            q,
            self.state.feature_map(op.addend_address, shape, strides),
            inner(key, op.add_input_multiplier, op.add_input_shift),
            inner(key, op.add_addend_multiplier, op.add_addend_shift),
            self.arithmetic.requant(
                key,
                op.add_output_multiplier,
                op.add_output_shift,
                op.add_output_zero_point,
                op.add_clamp_low,
                op.add_clamp_high,
            ),
            a_zero_point=op.add_input_zero_point,
            b_zero_point=op.add_addend_zero_point,
            left_shift=op.add_left_shift,
            dtype=self.state.activation,
        )

    def _matrix_product(self, op: MatrixProduct) -> None:
        a = self.state.feature_map(op.a_address, (op.rows, op.inner), (op.a_row_stride, self.size))
        b = self.state.feature_map(op.b_address, (op.inner, op.columns), (op.b_row_stride, op.b_column_stride))
        sums = matmul(
            a,
            b,
            a_zero_point=op.a_zero_point,
            b_zero_point=op.b_zero_point,
            accumulator_bits=self.arithmetic.accumulator_bits,
        )
        sums = self._accumulated(op, sums)
        if op.emit:
            requant = self._output_requant("matrix_product", op)
            q = requantize(sums, requant, self.state.activation)
            strides = (op.output_row_stride, self.size)
            self.state.feature_map(op.output_address, (op.rows, op.columns), strides)[...] = q

    # The vector engine

    def _pool(self, op: Pool) -> None:
        strides, kernel = (op.stride_height, op.stride_width), (op.kernel_height, op.kernel_width)
        dilations = (op.dilation_height, op.dilation_width)
        if op.kind == PoolKind.MAX:
            x, pads = self._window_input(op, op.channels, -(1 << (8 * self.size - 1)))
            q = max_pool(x, kernel=kernel, strides=strides, pads=pads, dilations=dilations, low=op.clamp_low, high=op.clamp_high)
            self._output(op, op.channels)[...] = q[0]
            return
        x, pads = self._window_input(op, op.channels, op.input_zero_point)
        if dilations == (1, 1):
            sums = pool_sum(x, kernel=kernel, strides=strides, pads=pads, x_zero_point=op.input_zero_point)
        else:
            ones = np.ones((op.channels, *kernel, 1), np.int8)
            zero = op.input_zero_point
            sums = conv2d(x, ones, strides=strides, dilations=dilations, pads=pads, groups=op.channels, x_zero_point=zero)
        requant = self._output_requant("average_pool", op)
        self._output(op, op.channels)[...] = requantize(sums[0], requant, self.state.activation)

    def _output_requant(self, key: str, op: MatrixProduct | Pool) -> Requant:
        return self.arithmetic.requant(key, op.multiplier, op.shift, op.output_zero_point, op.clamp_low, op.clamp_high)

    def _elementwise(self, op: Elementwise) -> None:
        kind, dtype = op.kind, self.state.activation
        key = _ELEMENTWISE_KEYS[kind]
        shape = (op.height, op.width, op.channels)
        a = self._operand(op.a_address, shape, (op.a_row_stride, op.a_column_stride, op.a_channel_stride))
        zeros = {"a_zero_point": op.a_zero_point, "b_zero_point": op.b_zero_point, "dtype": dtype}
        requant = self.arithmetic.requant
        limits = (op.output_zero_point, op.clamp_low, op.clamp_high)
        if kind == ElementwiseKind.RESCALE:
            q = rescale(
                a, requant(key, op.output_multiplier, op.output_shift, *limits), x_zero_point=op.a_zero_point, dtype=dtype
            )
            self._output(op, op.channels)[...] = q
            return
        b = self._operand(op.b_address, shape, (op.b_row_stride, op.b_column_stride, op.b_channel_stride))
        if kind == ElementwiseKind.MUL:
            q = mul(a, b, requant(key, op.output_multiplier, op.output_shift, *limits), **zeros)
        elif kind == ElementwiseKind.PRELU:
            positive = requant(key, op.a_multiplier, op.a_shift, *limits)
            negative = requant(key, op.b_multiplier, op.b_shift, *limits)
            q = prelu(a, b, positive, negative, x_zero_point=op.a_zero_point, alpha_zero_point=op.b_zero_point, dtype=dtype)
        elif kind in (ElementwiseKind.ADD, ElementwiseKind.SUB):
            inner = self.arithmetic.inner_requant
            q = add(
                a,
                b,
                inner(key, op.a_multiplier, op.a_shift),
                inner(key, op.b_multiplier, op.b_shift),
                requant(key, op.output_multiplier, op.output_shift, *limits),
                left_shift=op.left_shift,
                subtract=kind == ElementwiseKind.SUB,
                **zeros,
            )
        else:
            raise untold(type(op), f"what its kind {kind} does (simulator.execute)")
        self._output(op, op.channels)[...] = q

    def _operand(self, address: int, shape: tuple[int, int, int], strides: tuple[int, int, int]) -> Array:
        """A view with 1 where the operand is broadcast: numpy then computes what does not change once."""
        kept = tuple(n if stride else 1 for n, stride in zip(shape, strides))
        return self.state.feature_map(address, kept, strides)

    def _table(self, op: Table) -> None:
        shape = (op.height, op.width, op.channels)
        x = self.state.feature_map(op.input_address, shape, (op.input_row_stride, op.input_column_stride, self.size))
        table = self.state.sram_bytes(op.table_address, self.table_bytes)
        self._output(op, op.channels)[...] = self.arithmetic.lookup(np.ascontiguousarray(x), table)

    # Views

    def _output(self, op: Any, channels: int) -> Array:
        """int8 or int16[oh, ow, c] where the operation writes."""
        height = op.height if isinstance(op, Elementwise | Table) else op.output_height
        width = op.width if isinstance(op, Elementwise | Table) else op.output_width
        strides = (op.output_row_stride, op.output_column_stride, self.size)
        return self.state.feature_map(op.output_address, (height, width, channels), strides)

    def _bytes(self, address: int, size_bytes: int) -> bytes:
        return self.state.sram_bytes(address, size_bytes).tobytes()


def _nothing(_: MachineOp) -> None:
    """Signals, waits and ends change no bytes."""


_ELEMENTWISE_KEYS = {kind: kind.name.lower() for kind in ElementwiseKind}
assert PARAMETERS.itemsize == PARAMETER_BYTES
