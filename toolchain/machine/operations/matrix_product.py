"""The operation matrix_product: an array multiplies two matrices of activations, once or for several batches.

Members are those of `machine.operation.MachineOp`: `meaning` yields the manual's text, `ranges` returns the touched
bytes. `demand` returns cycles and traffic, and `broken` yields the reasons why a machine cannot run it.
`find_required_key` returns the machine file's key because of which programs use the operation, None where they do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from quant.fixed_point.core.codes import CodeType
from toolchain.hw.chip import Chip
from toolchain.machine.access import Access, AccumulatorUse, read_of
from toolchain.machine.accumulator_access import array_latency_cycles, broken_accumulators, sums_accesses, sums_moved
from toolchain.machine.columns import IntOrColumn, by_type, code_bytes, where
from toolchain.machine.manual_text import chosen, describe_base_registers, formula, scale_index, sums_in_memory, sums_kept
from toolchain.machine.operation import MachineOp
from toolchain.machine.operations.window import broken_choice
from toolchain.machine.parameters.addresses import batch_stride, operand_address, operand_base_of, operand_stride, sums_address
from toolchain.machine.parameters.codes import code, code_type, multiplier, shift, zero_point
from toolchain.machine.parameters.description import Limit
from toolchain.machine.parameters.extents import batch_count, extent
from toolchain.machine.parameters.modes import dataflow, flag, on_the_way_out
from toolchain.machine.parameters.numbers import unit_number
from toolchain.machine.traffic import Compute, Demand, traffic
from toolchain.machine.units.array import Operands, matrix_operands, operand_reads, product_cycles, with_output


@dataclass(frozen=True, slots=True)
class MatrixProduct(MachineOp):
    """A product a[rows, inner] x b[inner, columns] of activations; b comes through the array's weight port."""

    NAME = "matrix_product"
    ENGINE = "mac_array"
    a_address: int = operand_address("input")
    a_row_stride: int = operand_stride("input")
    b_address: int = operand_address("weights")
    b_row_stride: int = operand_stride("weights")
    b_column_stride: int = operand_stride("weights")
    output_address: int = on_the_way_out(operand_address("output"))
    output_row_stride: int = on_the_way_out(operand_stride("output"))
    rows: int = extent()
    inner: int = extent(Limit("max_k", "inner size {}"))
    columns: int = extent(Limit("max_n", "{} columns"))
    a_zero_point: int = zero_point("a_type")
    b_zero_point: int = zero_point("b_type")
    output_zero_point: int = on_the_way_out(zero_point("output_type"))
    multiplier: int = on_the_way_out(multiplier())
    shift: int = on_the_way_out(shift())
    clamp_low: int = on_the_way_out(code("output_type"))
    clamp_high: int = on_the_way_out(code("output_type"))
    accumulate: int = flag()
    emit: int = on_the_way_out(flag())
    batches: int = batch_count()
    a_batch_stride: int = batch_stride("input")
    b_batch_stride: int = batch_stride("weights")
    output_batch_stride: int = batch_stride("output")
    unit: int = unit_number()
    a_base: int = operand_base_of("a_address")
    b_base: int = operand_base_of("b_address")
    output_base: int = operand_base_of("output_address")
    sums_address: int = sums_address()
    dataflow: int = dataflow()
    a_type: int = code_type()
    b_type: int = code_type()
    output_type: int = code_type()

    @classmethod
    def meaning(cls, chip: Chip) -> Iterator[str]:
        yield "A product of two matrices, both activations, for 0 <= r < rows, 0 <= c < columns:"
        yield formula(
            "sum[r, c] (+)= sum over 0 <= k < inner of (a[r, k] - a_zero_point) (b[k, c] - b_zero_point)",
            f"a[r, k] lies at    a_address + r a_row_stride + {scale_index('k', 'a_type', chip)}",
            "b[k, c] lies at    b_address + k b_row_stride + c b_column_stride",
            f"out[r, c] lies at  output_address + r output_row_stride + {scale_index('c', 'output_type', chip)}",
        )
        yield "b is codes like a, but comes through the array's port of weights."
        yield from sums_kept("rows, columns", chip)
        if not sums_in_memory(chip):
            yield "`emit` = 1 makes, for each sum:"
            yield formula("out[r, c] = requantize(sum[r, c], multiplier, shift, output_zero_point, clamp_low, clamp_high)")
            yield "There is no bias, and no table; one multiplier and shift for all."
        if cls.need("batches", chip).high > 1:
            yield (
                "`batches`: so many such products one after another, n = 0 to batches - 1; a_address, b_address and "
                "output_address grow by n times a_batch_stride, b_batch_stride and output_batch_stride (0: the same operand "
                "for all). Each is a whole sum: accumulate is 0 and emit 1."
            )
        yield from chosen(False, chip)
        yield from describe_base_registers(cls.pair_bases_with_addresses(), chip, operands=True)

    @classmethod
    def find_required_key(cls, chip: Chip) -> str | None:
        return "limits.matrix_product.computed_operand is true" if chip.limits.matrix_product.computed_operand else None

    def sums(self) -> AccumulatorUse:
        return AccumulatorUse((self.rows, self.columns), self.accumulate, self.emit, self.sums_address, self.dataflow)

    def ranges(self, chip: Chip) -> tuple[Access, ...]:
        a, b, out = (code_bytes(t, chip) for t in (self.a_type, self.b_type, self.output_type))
        unit, written = self.unit_in(chip), where(self.emit, self.columns * out, 0)
        return (
            read_of(
                unit,
                "input",
                self.a_address,
                (self._count_operands(self.a_batch_stride), self.rows),
                (self.a_batch_stride, self.a_row_stride),
                self.inner * a,
            ),
            read_of(
                unit,
                "weights",
                self.b_address,
                (self._count_operands(self.b_batch_stride), self.inner, self.columns),
                (self.b_batch_stride, self.b_row_stride, self.b_column_stride),
                b,
            ),
            Access(
                unit.roles["output"],
                self.output_address,
                (self.batches, self.rows),
                (self.output_batch_stride, self.output_row_stride),
                written,
                True,
            ),
            *sums_accesses(self.sums(), unit),
        )

    def _count_operands(self, stride: IntOrColumn) -> IntOrColumn:
        """Return the number of batches of an operand with this batch stride; with stride 0 all batches share one."""
        return where(stride, self.batches, 1)

    def list_moved_operands(self, chip: Chip) -> Iterator[tuple[Access, IntOrColumn]]:
        a, b, *others = self.ranges(chip)
        yield from zip((a, b), self._get_streamed_bytes(chip))
        yield from ((access, access.bytes) for access in others)

    def _get_streamed_bytes(self, chip: Chip) -> tuple[IntOrColumn, IntOrColumn]:
        """Return the bytes that are read of a and of b, repeated reads included."""
        a, b = (self.inner * code_bytes(t, chip) for t in (self.a_type, self.b_type))
        a_reads, b_reads = operand_reads(self.unit_in(chip).array, self.rows, self.columns, self.dataflow)
        return self.batches * a_reads * self.rows * a, self.batches * b_reads * self.columns * b

    def demand(self, chip: Chip) -> Demand:
        unit, (a, b) = self.unit_in(chip), self._get_streamed_bytes(chip)
        mac, out = unit.array, code_bytes(self.output_type, chip)
        moved = traffic(
            unit,
            ("input", a, 0),
            ("weights", b, 0),
            ("output", 0, where(self.emit, self.batches * self.rows * self.columns * out, 0)),
            *sums_moved(self.sums(), unit),
        )

        def by_second(first: CodeType) -> Compute:
            return by_type(self.b_type, chip.code_types, lambda second: cycles(matrix_operands(mac, first, second)))

        def cycles(operands: Operands) -> Compute:
            return product_cycles(mac, self.rows, self.inner, self.columns, operands, self.batches, self.dataflow)

        folds: Compute = by_type(self.a_type, chip.code_types, by_second)
        compute = with_output(mac, folds, self.batches * self.rows, self.columns, 0, 0, self.emit)
        latency = array_latency_cycles(self.sums(), unit, chip, ("input", "weights"))
        macs = self.batches * self.rows * self.inner * self.columns
        return Demand(compute.cycles, latency, macs, moved, compute.lost)

    def broken(self, chip: Chip) -> Iterator[str]:
        unit = self.unit_in(chip)
        yield from broken_accumulators(self.sums(), unit)
        yield from broken_choice("dataflow", self.dataflow, "dataflow and more_dataflows", unit.array.dataflows, unit)
        if self.batches > 1 and (self.accumulate or not self.emit):
            yield f"batches={self.batches}, must be 1 where accumulate is 1 or emit 0: accumulators hold the sums of one product"
        for name, number in (("a_type", self.a_type), ("b_type", self.b_type)):
            codes = chip.code_types[int(number)]
            if not any(rate.activation == codes for rate in unit.array.types):
                yield f"{name}={number}, {unit.key}.types has no {codes} activations"
        if not chip.limits.matrix_product.computed_operand:
            yield "both operands are activations, limits.matrix_product.computed_operand is false"
