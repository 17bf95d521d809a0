"""Define the integer operator that reads a lookup table: each code's entry, or an interpolation between two entries."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from toolchain import machine
from toolchain.ops.function_names import find_name_fault
from toolchain.ops.kit.box_tiles import PointwiseOp, box_nest, pad_to_three_dims, row_column
from toolchain.ops.kit.nest import Nest
from toolchain.ops.kit.operator import Array, Layer, PerSample, split_per_sample
from toolchain.ops.kit.requants import LookupTable
from toolchain.ops.kit.tile import Box, BoxLocation, ConstantBlock, Extent, TileTask, Tiling


@dataclass(frozen=True, eq=False)
class Lookup(PointwiseOp):
    """An integer operator y = table[x]: an entry for each code of 8 bits from the least on, or int16[513] interpolated.

    `function`: the name of the function, for the machine's rate only; None: the rate of tables.
    """

    NAME = "Lookup"
    VERSION = 2
    takes_device_arrays = True
    table: LookupTable
    function: str | None = None

    def find_own_fault(self) -> str | None:
        """Return why `function` is no name that a machine can have a rate for, or None."""
        fault = find_name_fault(self.function)
        return fault and f"Lookup: function {fault}"

    def reference(self, inputs: Sequence[Array]) -> Array:
        return self.table.apply(inputs[0])

    def per_sample(self, layer: Layer, axis: int, count: int) -> PerSample | None:
        return split_per_sample(self, layer, axis)

    def tiling_key(self) -> Hashable:
        return self.function

    def nest(self, layer: Layer, tiling: Tiling, extent: Extent | None = None) -> Nest:
        block = self.table.block(layer.node.name, "tables")
        return box_nest(layer.output.shape, tiling, lambda start, size: self._make_task(layer, start, size, block), extent)

    def _make_task(self, layer: Layer, start: tuple[int, ...], size: tuple[int, ...], block: ConstantBlock) -> TileTask:
        rate = machine.find_function_rate(self.function, layer.chip.functions)
        assert rate is not None, layer.node.name

        def emit(sites: Sequence[BoxLocation], blocks: Sequence[int], out: BoxLocation | None) -> tuple[machine.MachineOp, ...]:
            assert out is not None
            height, width, channels = pad_to_three_dims(size)[-3:]
            x_row, x_column = row_column(sites[0])
            y_row, y_column = row_column(out)
            return (
                machine.Table(
                    height=height,
                    width=width,
                    channels=channels,
                    input_address=sites[0].address,
                    input_row_stride=x_row,
                    input_column_stride=x_column,
                    input_surface_stride=sites[0].strides.surface_bytes,
                    output_address=out.address,
                    output_row_stride=y_row,
                    output_column_stride=y_column,
                    output_surface_stride=out.strides.surface_bytes,
                    table_address=blocks[0],
                    function=machine.TABLE_FUNCTIONS[rate],
                    element_type=layer.output_number,
                ),
            )

        reads = (Box(layer.node.inputs[0], start, size),)
        return TileTask(reads, (block,), Box(layer.node.outputs[0], start, size), emit)
