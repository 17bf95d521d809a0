"""The product of two matrices of activations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from toolchain.hw.chip import Chip
from toolchain.machine.columns import where
from toolchain.machine.operation import Access, Demand, MachineOp, Sums
from toolchain.machine.operations.window import broken_accumulators, sram_access
from toolchain.machine.parameter import (
    Limit,
    Space,
    code,
    extent,
    flag,
    multiplier,
    shift,
    sram_address,
    sram_stride,
    zero_point,
)
from toolchain.machine.units.array import matrix_rate, operand_reads, product_cycles


@dataclass(frozen=True, slots=True)
class MatrixProduct(MachineOp):
    """acc[r, c] (+)= sum over k of (a[r, k] - a_zero_point) (b[k, c] - b_zero_point), both operands activations in SRAM.

    a's k is contiguous (element size apart), rows a_row_stride apart; b's element (k, c) lies at
    k b_row_stride + c b_column_stride.
    emit writes clamp(requantize(acc, multiplier, shift) + output_zero_point, clamp_low, clamp_high), c contiguous.
    """

    NAME = "matrix_product"
    ENGINE = "mac"
    a_address: int = sram_address()
    a_row_stride: int = sram_stride()
    b_address: int = sram_address()
    b_row_stride: int = sram_stride()
    b_column_stride: int = sram_stride()
    output_address: int = sram_address()
    output_row_stride: int = sram_stride()
    rows: int = extent()
    inner: int = extent(Limit("max_k", "inner size {}"))
    columns: int = extent(Limit("max_n", "{} columns"))
    a_zero_point: int = zero_point()
    b_zero_point: int = zero_point()
    output_zero_point: int = zero_point()
    multiplier: int = multiplier()
    shift: int = shift()
    clamp_low: int = code()
    clamp_high: int = code()
    accumulate: int = flag()
    emit: int = flag()

    @classmethod
    def needed(cls, chip: Chip) -> str | None:
        return "limits.matrix_product.computed_operand is true" if chip.limits.matrix_product.computed_operand else None

    def sums(self) -> Sums:
        return Sums((self.rows, self.columns), self.accumulate, self.emit)

    def ranges(self, chip: Chip) -> tuple[Access, ...]:
        size = chip.activation_bytes
        written = where(self.emit, self.columns * size, 0)
        return (
            sram_access(self.a_address, (self.rows,), (self.a_row_stride,), self.inner * size),
            sram_access(self.b_address, (self.inner, self.columns), (self.b_row_stride, self.b_column_stride), size),
            Access(Space.SRAM, self.output_address, (self.rows,), (self.output_row_stride,), written, True),
        )

    def demand(self, chip: Chip) -> Demand:
        mac, size, sram = chip.engines.mac, chip.activation_bytes, chip.memories.sram
        a_reads, b_reads = operand_reads(mac, self.rows, self.columns)
        return Demand(
            product_cycles(mac, self.rows, self.inner, self.columns, matrix_rate(chip)),
            sram_read_bytes=(a_reads * self.rows + b_reads * self.columns) * self.inner * size,
            sram_write_bytes=where(self.emit, self.rows * self.columns * size, 0),
            latency_cycles=sram.latency_cycles + where(self.emit, sram.write_latency_cycles, 0),
            macs=self.rows * self.inner * self.columns,
        )

    def broken(self, chip: Chip) -> Iterator[str]:
        yield from broken_accumulators(self.rows * self.columns, chip)
        if not chip.limits.matrix_product.computed_operand:
            yield "both operands are activations, limits.matrix_product.computed_operand is false"
