"""The instructions of a depthwise convolution, tile by tile."""

from __future__ import annotations

from collections.abc import Sequence

from toolchain import machine
from toolchain.machine import weight_bytes
from toolchain.ops.convolution.constants import DeferredBytes
from toolchain.ops.convolution.parameters import ConvolutionParameters
from toolchain.ops.convolution.tiles import KernelPart, Lowering, Tile, cut
from toolchain.ops.kit.operator import Array, Layer
from toolchain.ops.kit.requants import pack_weights
from toolchain.ops.kit.tile import BoxLocation, TileTask, Tiling


class Depthwise(Lowering):
    """One weight plane a channel: w[ky, kx, c] in memory."""

    def __init__(self, op: ConvolutionParameters, layer: Layer, tiling: Tiling):
        self.groups, self.reduction, self.outputs = 1, 1, layer.output.shape[3]
        super().__init__(op, layer, tiling)

    def make_task(self, tile: Tile, part: KernelPart, accumulate: bool, last: bool) -> TileTask:
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
        """Row by row."""
        return DeferredBytes(
            shape[0] * weight_bytes(shape[1], self.weight_number, self.layer.chip),
            lambda: pack_weights(self.rows(tile, part).reshape(shape), self.op.weight_type),
        )

    def rows(self, tile: Tile, part: KernelPart) -> Array:
        channel_weights = self.layer.constants[self.weights][cut(tile.channels), part.ky.slice, part.kx.slice, 0]
        return channel_weights.transpose(1, 2, 0)
