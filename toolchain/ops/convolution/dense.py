"""Make the tile tasks and instructions of a dense or a depthwise convolution. `tiles.Lowering` has the loops and common
fields.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quant.fixed_point.sums.grouped_sums import group_count
from toolchain import machine
from toolchain.machine import dense_bytes, weight_bytes
from toolchain.ops.convolution.constants import DeferredBytes
from toolchain.ops.convolution.parameters import ConvolutionParameters
from toolchain.ops.convolution.tiles import KernelPart, Lowering, Tile, cut
from toolchain.ops.kit.grouped_weights import lay_groups
from toolchain.ops.kit.operator import Array, Layer
from toolchain.ops.kit.requants import pack_dense, pack_weights
from toolchain.ops.kit.residual import no_residual_fields, residual_fields
from toolchain.ops.kit.tile import BoxLocation, TileTask, Tiling


class Dense(Lowering):
    """Lowers a convolution group by group: every output channel sees every input channel of its group."""

    def __init__(self, op: ConvolutionParameters, layer: Layer, tiling: Tiling):
        self.groups = op.groups
        self.reduction, self.outputs = layer.input_type(0).shape[3] // op.groups, layer.output.shape[3] // op.groups
        super().__init__(op, layer, tiling)

    def make_task(self, tile: Tile, part: KernelPart, accumulate: bool, last: bool) -> TileTask:
        """Return the task of one machine.Convolution. The last of a tile reads the addend too, where there is one."""
        box = self.read(tile, part, (tile.group * self.reduction + part.inner[0], part.inner[1]))
        write = self.write(tile) if last else None
        reads = [box]
        if last and self.op.residual is not None:
            reads.append(self.write(tile)._replace(tensor=self.layer.node.inputs[3]))
        shape = (tile.channels[1], part.ky.size * part.kx.size * part.inner[1])
        constants = self.constants(tile, part, shape, last)

        def emit(sites: Sequence[BoxLocation], blocks: Sequence[int], out: BoxLocation | None) -> tuple[machine.MachineOp, ...]:
            residual = self.op.residual if len(sites) > 1 else None
            return (
                machine.Convolution(
                    **self.window_fields(tile, part, box, sites[0]),
                    **self.array_fields(constants.at(blocks), accumulate, last),
                    **self.output_fields(out),
                    **(
                        no_residual_fields()
                        if residual is None
                        else residual_fields(residual, sites[1], self.layer.type_number(self.layer.node.inputs[3]))
                    ),
                    input_channels=part.inner[1],
                    output_channels=tile.channels[1],
                    group=self.op.group,
                ),
            )

        return TileTask(tuple(reads), constants.blocks, write, emit, self.variant(tile, part, box, last))

    def pack_kernel(self, tile: Tile, part: KernelPart, shape: tuple[int, int]) -> DeferredBytes:
        """Return the packed weights, with scales and minima of their groups where they have any. `shape`: rows x row length."""
        chip, number, groups = self.layer.chip, self.weight_number, self.op.weight_groups
        keys = None if groups is None else self.op.array(self.layer).groups
        size = dense_bytes(*shape, number, chip, self.op.group, keys)

        def codes() -> bytes:
            return pack_dense(self.rows(tile, part).reshape(shape), self.op.weight_type, chip)

        if groups is None or keys is None:
            return DeferredBytes(size, codes)
        first, inner = part.inner
        one_bytes = weight_bytes(groups.size, number, chip)
        of_them = groups.part(cut(tile.channels), slice(first // groups.size, group_count(first + inner, groups.size)))

        def data() -> bytes:
            return lay_groups(np.frombuffer(codes(), np.uint8).reshape(shape[0], -1), of_them, one_bytes, keys)

        return DeferredBytes(size, data)

    def rows(self, tile: Tile, part: KernelPart) -> Array:
        """Return the weights [o, ky, kx, i] of the tile's channels and the kernel part."""
        return self.layer.constants[self.weights][cut(tile.channels), part.ky.slice, part.kx.slice, cut(part.inner)]


class Depthwise(Lowering):
    """Lowers a convolution of one weight plane a channel; weights lie as w[ky, kx, c] in memory."""

    def __init__(self, op: ConvolutionParameters, layer: Layer, tiling: Tiling):
        self.groups, self.reduction, self.outputs = 1, 1, layer.output.shape[3]
        super().__init__(op, layer, tiling)

    def make_task(self, tile: Tile, part: KernelPart, accumulate: bool, last: bool) -> TileTask:
        """Return the task of one machine.Depthwise."""
        box = self.read(tile, part, tile.channels)
        constants = self.constants(tile, part, (part.ky.size * part.kx.size, tile.channels[1]), last)

        def emit(sites: Sequence[BoxLocation], blocks: Sequence[int], out: BoxLocation | None) -> tuple[machine.MachineOp, ...]:
            return (
                machine.Depthwise(
                    **self.window_fields(tile, part, box, sites[0]),
                    **self.array_fields(constants.at(blocks), accumulate, last),
                    **self.output_fields(out),
                    channels=tile.channels[1],
                    mode=self.tiling.mode,
                ),
            )

        write = self.write(tile) if last else None
        return TileTask((box,), constants.blocks, write, emit, self.variant(tile, part, box, last))

    def pack_kernel(self, tile: Tile, part: KernelPart, shape: tuple[int, int]) -> DeferredBytes:
        """Return the packed weights, row by row. `shape`: kernel elements x channels."""
        return DeferredBytes(
            shape[0] * weight_bytes(shape[1], self.weight_number, self.layer.chip),
            lambda: pack_weights(self.rows(tile, part).reshape(shape), self.op.weight_type),
        )

    def rows(self, tile: Tile, part: KernelPart) -> Array:
        """Return the weights [ky, kx, c] of the tile's channels and the kernel part."""
        channel_weights = self.layer.constants[self.weights][cut(tile.channels), part.ky.slice, part.kx.slice, 0]
        return channel_weights.transpose(1, 2, 0)
