"""Provide what the operations' functions compute with: a machine's numerics, and views of its memories."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point import ConvWeights, Requant, add, conv2d
from quant.fixed_point.pointwise.tables import lookup8, lookup16
from quant.fixed_point.sums.conv import finish_sums, requantize_sums
from simulator.decode_constants import ConstantDecoder
from simulator.machine_state import MachineState
from toolchain.hw.chip import Chip
from toolchain.hw.unit_map import SUMS
from toolchain.machine import (
    Convolution,
    Depthwise,
    Emit,
    MachineOp,
    MatrixProduct,
    Pool,
    WeightedWindowOp,
    WindowOp,
    granule_of,
    in_granules,
    memory_type,
    out_of_granules,
    parameter_bytes,
    table_bytes,
    weight_bytes,
)

Array = NDArray[Any]
Pads = tuple[int, int, int, int]


class Context:
    """One machine while a program runs, handed to every operation's function.

    `state`: the memories and accumulators, which operations change. `decoded`: parameters of operations and constants.
    Types of codes are given by number, an index into `chip.code_types`.
    A `role` names an operand's memory in the unit that runs the operation: input, output, weights, parameters or tables.
    """

    def __init__(self, chip: Chip, state: MachineState, decoder: ConstantDecoder | None = None):
        """Set up a run. `decoder`: shared by runs of one program; None: a new one."""
        self.chip, self.state, self.numerics = chip, state, chip.numerics
        self.decoded = decoder or ConstantDecoder(chip)
        self._kinds = tuple(memory_type(codes.dtype) for codes in chip.code_types)

    def space(self, op: MachineOp, role: str) -> int:
        """Return the code of the memory in which the operation's operands of this role lie."""
        return op.unit_in(self.chip).roles[role]

    def kind(self, number: int) -> np.dtype:
        """Return how codes of the type with that number are stored in memory."""
        return self._kinds[number]

    def feature_map(
        self,
        op: MachineOp,
        role: str,
        address: int,
        shape: tuple[int, ...],
        outer: tuple[int, ...],
        number: int,
        surface_stride: int = 0,
    ) -> Array:
        """Return codes [..., c] as they lie at `address`, of the type with that number.

        `outer`: strides of all dimensions but the last, in bytes.
        A writable view where channels have no gaps (`surface_stride` 0).
        Otherwise a copy: channels are cut into granules, `surface_stride` bytes apart.
        """
        kind, space = self._kinds[number], self.space(op, role)
        if not surface_stride:
            return self.state.feature_map(space, address, shape, (*outer, kind.itemsize), kind)
        return out_of_granules(self._granules(space, address, shape, outer, kind, surface_stride), shape[-1])

    def _granules(
        self, space: int, address: int, shape: tuple[int, ...], outer: tuple[int, ...], kind: np.dtype, surface_stride: int
    ) -> Array:
        """Return a writable view [..., granules, channels of one] of codes that have a shape [..., c]."""
        granule = granule_of(self.chip)
        granule_shape = (*shape[:-1], -(-shape[-1] // granule), granule)
        return self.state.feature_map(space, address, granule_shape, (*outer, surface_stride, kind.itemsize), kind)

    def bytes_of(self, op: MachineOp, role: str, address: int, size_bytes: int) -> Array:
        """Return a writable view of uint8[size_bytes]."""
        return self.state.bytes_of(self.space(op, role), address, size_bytes)

    def look_up_table(self, x: Array, op: MachineOp, role: str, address: int, number: int) -> Array:
        """Return the codes that the table at `address` has for x, of the type with that number.

        `role`: role of the memory that holds the table. Tables of 16-bit codes are interpolated.
        """
        entries = self.bytes_of(op, role, address, table_bytes(number, self.chip)).view(self._kinds[number])
        return lookup8(x, entries) if x.dtype.itemsize == 1 else lookup16(x, entries, self.numerics.interpolation)

    def write(self, op: Any, values: Array, number: int) -> None:
        """Write values to the output of the operation, as codes of the type with that number.

        `values`: [h, w, c].
        """
        outer, surface, address = (op.output_row_stride, op.output_column_stride), op.output_surface_stride, op.output_address
        if not surface:
            self.feature_map(op, "output", address, values.shape, outer, number)[...] = values
            return
        filled = in_granules(values, granule_of(self.chip))
        self._granules(self.space(op, "output"), address, values.shape, outer, self._kinds[number], surface)[...] = filled

    def window_input(self, op: WindowOp, channels: int, padding: int) -> tuple[Array, Pads]:
        """Return (x, pads): the part of the input that windows reach, [1, h, w, c], and the padding around it.

        Pads are top, left, bottom, right. Where windows reach padding alone, x is made of `padding` and has no pads.
        """
        number = op.code_types()[0]
        full_height = (op.output_height - 1) * op.stride_height + (op.kernel_height - 1) * op.dilation_height + 1
        full_width = (op.output_width - 1) * op.stride_width + (op.kernel_width - 1) * op.dilation_width + 1
        rows = min(op.input_height, max(0, full_height - op.pad_top))
        columns = min(op.input_width, max(0, full_width - op.pad_left))
        if rows == 0 or columns == 0:
            return np.full((1, full_height, full_width, channels), padding, self.kind(number)), (0, 0, 0, 0)
        outer = (0, op.input_row_stride, op.input_column_stride)
        shape, surface = (1, rows, columns, channels), op.surfaces()[0]
        x = self.feature_map(op, "input", op.input_address, shape, outer, number, surface)
        return x, (op.pad_top, op.pad_left, full_height - op.pad_top - rows, full_width - op.pad_left - columns)

    def dense_weights(self, op: Convolution) -> ConvWeights:
        """Return the weights of a convolution."""
        return self.decoded.weights(
            self.bytes_of(op, "weights", op.weight_address, op.weight_bytes(self.chip)).tobytes(),
            self.chip.weight_types[op.weight_type],
            op.output_channels,
            op.kernel_height,
            op.kernel_width,
            op.input_channels,
            op.group,
        )

    def depthwise_weights(self, op: Depthwise) -> ConvWeights:
        """Return the weights of a depthwise convolution."""
        taps = op.kernel_height * op.kernel_width
        raw = self.bytes_of(op, "weights", op.weight_address, taps * weight_bytes(op.channels, op.weight_type, self.chip))
        return self.decoded.depthwise_weights(
            raw, self.chip.weight_types[op.weight_type], op.kernel_height, op.kernel_width, op.channels
        )

    def window_sums(self, op: WeightedWindowOp, channels: int, weights: Any) -> Array:
        """Return the sums of a convolution without bias, int32 or int64[oh, ow, oc], wrapped to the accumulators' width.

        `weights`: of `dense_weights` or `depthwise_weights`. `channels`: of the input.
        """
        x, pads = self.window_input(op, channels, op.input_zero_point)
        return conv2d(
            x,
            weights,
            strides=(op.stride_height, op.stride_width),
            dilations=(op.dilation_height, op.dilation_width),
            pads=pads,
            x_zero_point=op.input_zero_point,
            accumulator_bits=self.numerics.accumulator_bits,
        )[0]

    def accumulate(self, op: Convolution | Depthwise | MatrixProduct, sums: Array) -> Array:
        """Pass sums through the unit's accumulators and return them, those already there added where the operation says so.

        The accumulators keep the result unless the operation emits; a memory of accumulators keeps it anyway.
        """
        if SUMS in op.unit_in(self.chip).roles:
            accumulator_sums = self.state.sums(self.space(op, SUMS), op.sums_address, sums.shape)
            accumulator_sums[...] = (
                finish_sums(sums + accumulator_sums, None, self.numerics.accumulator_bits) if op.accumulate else sums
            )
            return accumulator_sums
        accumulator_sums = self.state.accumulators.pop(op.unit, None)
        if op.accumulate and accumulator_sums is not None:
            sums = finish_sums(sums + accumulator_sums, None, self.numerics.accumulator_bits)
        if not op.emit:
            self.state.accumulators[op.unit] = sums
        return sums

    def emit_outputs(self, op: Convolution | Depthwise, sums: Array, channels: int) -> Array | None:
        """Return the outputs of accumulated sums, requantized and looked up; None where the accumulators keep the sums."""
        sums = self.accumulate(op, sums)
        if not op.emit:
            return None
        number = op.output_type
        q = self.channels_requantized(op, "parameters", sums, channels)
        return self.look_up_table(q, op, "parameters", op.table_address, number) if op.use_table else q

    def channels_requantized(self, op: Convolution | Depthwise | Emit, role: str, sums: Array, channels: int) -> Array:
        """Return sums requantized with the bias and scale of each channel. Changes `sums`.

        `role`: the parameters are read where the unit has operands of this role.
        """
        block = self.bytes_of(op, role, op.parameter_address, parameter_bytes(channels, self.chip)).tobytes()
        bias, requant = self.decoded.channel_requant(block, op.output_zero_point, op.clamp_low, op.clamp_high)
        return requantize_sums(sums, bias, self.numerics.accumulator_bits, requant, self.kind(op.output_type))

    def with_addend(self, op: Convolution | Emit, q: Array) -> Array:
        """Return the residual sum of q, codes, and what lies at the addend's address."""
        key, inner = "add", self.decoded.inner_requant
        outer = (op.addend_row_stride, op.addend_column_stride)
        return add(
            q,
            self.feature_map(op, "input", op.addend_address, q.shape, outer, op.addend_type, op.addend_surface_stride),
            inner(key, op.add_input_multiplier, op.add_input_shift),
            inner(key, op.add_addend_multiplier, op.add_addend_shift),
            self.decoded.requant(
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
            dtype=self.kind(op.output_type),
        )

    def output_requant(self, key: str, op: MatrixProduct | Pool | Emit) -> Requant:
        """Return the requantization of the operation's output.

        `key`: key of `numerics.per_op`.
        """
        return self.decoded.requant(key, op.multiplier, op.shift, op.output_zero_point, op.clamp_low, op.clamp_high)
