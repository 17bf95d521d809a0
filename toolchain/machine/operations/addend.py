"""The addend of an array's results (a residual sum in the epilogue): parameters and bytes that such operations share.

ADDEND has the names of the parameters, in the order of the constructor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

from toolchain.hw.chip import Chip
from toolchain.hw.unit_map import Unit
from toolchain.machine.access import Access
from toolchain.machine.channel_blocks import count_stored_channels, extent_of
from toolchain.machine.columns import IntOrColumn, code_bytes, is_column, where
from toolchain.machine.parameters.addresses import operand_address, operand_stride
from toolchain.machine.parameters.codes import code, make_left_shift, multiplier, shift, zero_point
from toolchain.machine.parameters.modes import only_with, post_flag


def sum_lines(a: str, b: str, names: tuple[str, str, str], prefix: str, key: str, chip: Chip) -> list[str]:
    """Return the lines of the manual's formula for a sum; for `key` "sub", of a difference.

    `names`: of the parameters of a, b and the result, up to _multiplier. `prefix`: of left_shift and the clamps.
    Source: `quant.fixed_point.pointwise.elementwise.add`.
    """
    (ours, theirs, out), sign = names, "-" if key == "sub" else "+"
    if chip.numerics.sums_in_float32(key):
        return [
            f"ra, rb = the float32 numbers {ours}_multiplier, {'-' if key == 'sub' else ''}{theirs}_multiplier",
            f"fixed = {out}_zero_point - fma({ours}_zero_point, ra, {theirs}_zero_point rb)",
            f"q = clamp(rint(fma({a}, ra, fma({b}, rb, fixed))), {prefix}clamp_low, {prefix}clamp_high)",
        ]
    return [
        f"ta = inner(({a} - {ours}_zero_point) << {prefix}left_shift, {ours}_multiplier, {ours}_shift)",
        f"tb = inner(({b} - {theirs}_zero_point) << {prefix}left_shift, {theirs}_multiplier, {theirs}_shift)",
        f"q = requantize(ta {sign} tb, {out}_multiplier, {out}_shift, {out}_zero_point, {prefix}clamp_low, {prefix}clamp_high)",
    ]


@dataclass(frozen=True)
class WithAddend:
    """A base, next to MachineOp, for operations that may add a tensor of the same shape to their results (`use_add`).

    The sum is that of Elementwise ADD of a, the results, and b, the values at addend_address.
    """

    __slots__ = ()  # they are the operation's
    use_add: int = post_flag("add")
    addend_address: int = only_with("add", operand_address("input"))
    addend_row_stride: int = only_with("add", operand_stride("input"))
    addend_column_stride: int = only_with("add", operand_stride("input"))
    add_input_zero_point: int = only_with("add", zero_point("output_type"))
    add_addend_zero_point: int = only_with("add", zero_point("addend_type"))
    add_output_zero_point: int = only_with("add", zero_point("output_type"))
    add_left_shift: int = only_with("add", make_left_shift())
    add_input_multiplier: int = only_with("add", multiplier())
    add_input_shift: int = only_with("add", shift())
    add_addend_multiplier: int = only_with("add", multiplier())
    add_addend_shift: int = only_with("add", shift())
    add_output_multiplier: int = only_with("add", multiplier())
    add_output_shift: int = only_with("add", shift())
    add_clamp_low: int = only_with("add", code("output_type"))
    add_clamp_high: int = only_with("add", code("output_type"))

    def addend(self) -> tuple[IntOrColumn, IntOrColumn]:
        """Return (number of the addend's type, bytes between its channel granules). It is abstract."""
        raise NotImplementedError

    @classmethod
    def describe_sum(cls, chip: Chip) -> list[str]:
        """Describe the sum in a formula of results q; empty on machines that have none."""
        if not any("add" in unit.array.post for unit in chip.of_kind("mac_array")):
            return []
        steps = sum_lines("q", "addend[y, x, o]", ("add_input", "add_addend", "add_output"), "add_", "add", chip)
        return ["where use_add = 1:", *(f"    {line}" for line in steps)]

    def addend_bytes(self, channels: IntOrColumn, chip: Chip) -> IntOrColumn:
        """Return the bytes of one pixel's addend; 0 where `use_add` is 0."""
        number, surface_stride = self.addend()
        return where(self.use_add, count_stored_channels(channels, surface_stride, chip) * code_bytes(number, chip), 0)

    def addend_accesses(
        self, unit: Unit, pixels: tuple[IntOrColumn, IntOrColumn], channels: IntOrColumn, chip: Chip
    ) -> tuple[Access, ...]:
        """Return the reads of the addend; none where `use_add` is 0.

        `pixels`: (rows, columns). `channels`: of each pixel, 0 where none is read.
        """
        if not is_column(self.use_add) and not self.use_add:
            return ()
        strides, (number, surface_stride) = (self.addend_row_stride, self.addend_column_stride), self.addend()
        used = where(self.use_add, channels, 0)
        extent = extent_of(pixels, strides, used, surface_stride, code_bytes(number, chip), chip)
        return (Access(unit.roles["input"], self.addend_address, *extent, False, in_step=True),)


ADDEND = tuple(f.name for f in fields(WithAddend))


def broken_post(key: str, flags: Iterable[tuple[str, IntOrColumn]], posts: Iterable[str]) -> Iterator[str]:
    """Yield a sentence for each output step that an operation asks for and the array lacks.

    `key`: owner of the `post` key. `flags`: (name of the step, flag). `posts`: the steps that there are.
    """
    available_steps = set(posts)
    for name, used in flags:
        if used and name not in available_steps:
            yield f"use_{name}=1, {key}.post has no {name}"
