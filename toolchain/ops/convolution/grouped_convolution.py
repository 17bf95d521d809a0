"""Run neighbouring groups of a convolution together, where the array has no mode for them.

Channels of one group alone are short runs in memory, each charged whole bursts, and few columns of the array.
So tiles take neighbouring groups together, loaded and stored as one box.
An instruction takes as many of them as pays, as a dense convolution whose weights between groups are 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from quant.fixed_point.core.codes import CodeType
from toolchain import machine
from toolchain.machine import dense_bytes, parameter_bytes
from toolchain.machine.units.array import operands_of, product_cycles
from toolchain.ops.convolution.constants import Constants, DeferredBytes, complete_constants
from toolchain.ops.convolution.parameters import ConvolutionParameters
from toolchain.ops.convolution.tiles import KernelPart, Lowering, Pair, Tile, cut
from toolchain.ops.kit.operator import Array, Layer
from toolchain.ops.kit.requants import pack_dense
from toolchain.ops.kit.residual import no_residual_fields
from toolchain.ops.kit.tile import BoxLocation, TileTask, Tiling, halvings, spans
from toolchain.ops.kit.window import Taps


def list_grouped_tilings(op: ConvolutionParameters, layer: Layer) -> Iterable[Tiling]:
    """Yield the tilings that take several groups at once; none where the machine's limits forbid it.

    `channels`: outputs of neighbouring groups.
    `inner`: input channels of one instruction, whose sums are complete.
    """
    _, height, width, outputs = layer.output.shape
    group_outputs, together = outputs // op.groups, _groups_together(op, layer)
    if not together:
        return
    inner = together * layer.input_type(0).shape[3] // op.groups
    entries = op.array(layer).accumulators.entries // (together * group_outputs)
    widths = op.widths(layer)
    columns = min(width, entries, widths[0])
    for groups in halvings(op.groups, together):
        if groups == 1:
            continue
        for rows in halvings(height):
            if rows * columns > entries and rows > 1:
                continue
            for wide in dict.fromkeys((columns, *widths[1:])):
                yield Tiling(rows, wide, groups * group_outputs, inner, False)
                if groups < op.groups and (rows < height or wide < width):
                    yield Tiling(rows, wide, groups * group_outputs, inner, True)
        for part in halvings(columns)[1:]:
            yield Tiling(1, part, groups * group_outputs, inner, False)


def _groups_together(op: ConvolutionParameters, layer: Layer) -> int:
    """Return how many groups of one instruction take the fewest cycles a group, of array and weight loads; 0 where limits
    forbid one.
    """
    chip, limits = layer.chip, op.limits(layer)
    mac, dram = op.array(layer), chip.dram
    operands = operands_of(mac, CodeType(layer.input_type(0).dtype), op.weight_type)
    _, height, width, outputs = layer.output.shape
    _, kh, kw, inputs = layer.constants[layer.node.inputs[1]].shape
    group_outputs = outputs // op.groups
    most = min(
        op.groups,
        (limits.max_input_channels or inputs * op.groups) // inputs,
        (limits.max_output_channels or outputs) // group_outputs,
        mac.accumulators.entries // group_outputs,
    )
    best, least, kind = 0, float("inf"), chip.weight_types.index(op.weight_type)
    for count in range(1, min(most, max(1, mac.columns // group_outputs)) + 1):
        array = (
            product_cycles(mac, height * width, kh * kw * count * inputs, count * group_outputs, operands, taps=kh * kw).cycles
            / count
        )
        loads = dense_bytes(count * group_outputs, kh * kw * count * inputs, kind, chip) / count / dram.read_bytes_per_cycle
        if array + loads <= least:
            best, least = count, array + loads
    return best


class Grouped(Lowering):
    """Lowers neighbouring groups together: a tile task has the instructions of all its groups and parts of the kernel.

    So its box is loaded and stored once.
    """

    def __init__(self, op: ConvolutionParameters, layer: Layer, tiling: Tiling):
        self.groups, self.reduction, self.outputs = 1, tiling.inner, layer.output.shape[3]
        self.group_outputs = self.outputs // op.groups
        self.inputs = layer.input_type(0).shape[3] // op.groups
        self.at_once = tiling.inner // self.inputs
        super().__init__(op, layer, tiling)

    def _make_tasks(self, point: tuple[Any, ...], taps: list[tuple[Taps, Taps]]) -> list[TileTask]:
        """Return the one task of a tile, for all its groups; none where its channels are no whole groups."""
        tile, _ = self._tile(point)
        start, count = tile.channels[0] // self.group_outputs, tile.channels[1] // self.group_outputs
        if (start * self.group_outputs, count * self.group_outputs) != tile.channels:
            return []  # a part of a group is made by no work
        met = [taps.index(part) for part in self._met(tile, taps)] or [0]
        box = self.read(tile, KernelPart(*taps[0], tile.channels), (start * self.inputs, count * self.inputs))
        write = self.write(tile)
        pieces = spans(count, self.at_once)
        constants, offsets = self._pack_groups(tile, taps, pieces)

        def emit(sites: Sequence[BoxLocation], blocks: Sequence[int], out: BoxLocation | None) -> tuple[machine.MachineOp, ...]:
            instructions: list[machine.MachineOp] = []
            for index, piece in enumerate(pieces):
                site, parameters = (
                    _offset_channels(sites[0], piece[0] * self.inputs),
                    parameter_bytes(piece[0] * self.group_outputs, self.layer.chip),
                )
                for at in met:
                    last, weights = at == met[-1], offsets[index * len(taps) + at]
                    instructions.append(
                        machine.Convolution(
                            **self.window_fields(tile, KernelPart(*taps[at], piece), box, site),
                            **self.array_fields(constants.at(blocks, weights, parameters), at != met[0], last),
                            **self._results(piece, out if last else None),
                        )
                    )
            return tuple(instructions)

        return [TileTask((box,), constants.blocks, write, emit, (*self.tiling.variant, *self.get_padded_edges(tile, box)))]

    def _results(self, piece: Pair, out: BoxLocation | None) -> dict[str, int]:
        """Return the fields for the sums of a piece of the groups, and for its number of channels."""
        return {
            **self.output_fields(_offset_channels(out, piece[0] * self.group_outputs) if out else None),
            **no_residual_fields(),
            "input_channels": piece[1] * self.inputs,
            "output_channels": piece[1] * self.group_outputs,
        }

    def _pack_groups(self, tile: Tile, taps: list[tuple[Taps, Taps]], pieces: list[Pair]) -> tuple[Constants, tuple[int, ...]]:
        """Return the weights of every piece and kernel part with all parameters, and the byte at which each of the weights
        begins.
        """
        chip, (start, _) = self.layer.chip, tile.channels
        offsets: list[int] = []
        end = 0
        for _, count in pieces:
            for ky, kx in taps:
                offsets.append(end)
                end += dense_bytes(count * self.group_outputs, ky.size * kx.size * count * self.inputs, self.weight_number, chip)

        def data() -> bytes:
            wide = [self._diagonal(start + first * self.group_outputs, count) for first, count in pieces]
            rows = [w[:, ky.slice, kx.slice].reshape(len(w), -1) for w in wide for ky, kx in taps]
            return b"".join(pack_dense(r, self.op.weight_type, chip) for r in rows)

        key = (self.layer.node.name, tile.channels, self.at_once)
        constants = complete_constants(
            key, DeferredBytes(end, data), self.parameters(*tile.channels), self.table_blocks, self.parameter_step
        )
        return constants, tuple(offsets)

    def _diagonal(self, channel: int, count: int) -> Array:
        """Return the weights of `count` groups from output `channel` on, [count * own, kh, kw, count * inputs], 0 between
        groups.
        """
        weights = self.layer.constants[self.weights]
        wide = np.zeros((count * self.group_outputs, self.kh, self.kw, count * self.inputs), weights.dtype)
        for i in range(count):
            rows, columns = (i * self.group_outputs, self.group_outputs), (i * self.inputs, self.inputs)
            wide[cut(rows), :, :, cut(columns)] = weights[cut((channel + i * self.group_outputs, self.group_outputs))]
        return wide


def _offset_channels(site: BoxLocation, channels: int) -> BoxLocation:
    """Return the location `channels` further along the last dimension."""
    return BoxLocation(site.address + site.strides.offset_bytes((0, 0, 0, channels)), site.strides)
