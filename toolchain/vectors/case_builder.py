"""Build the memories and operations of one test case: the object that the draws in `vectors.draws` work on.

MARGIN_BYTES random bytes lie around a result, which must stay as they are. A case uses FAR_BYTES of DRAM at most, which may lie
at the end of a larger one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point import FixedPointError
from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.scale import choose_scale
from toolchain.hw.unit_map import Unit
from toolchain.isa import Machine
from toolchain.machine import MachineOp, code_bytes, granule_of, memory_type

Array = NDArray[Any]
MARGIN_BYTES = 8
FAR_BYTES = 1 << 20


class NotApplicable(Exception):
    """An exception for a case that the machine cannot have; the case is then left out."""


class FeatureMapSite(NamedTuple):
    """The place of a feature map: its address, and strides in bytes between rows and columns.

    `surface`: bytes between channel granules; 0: all channels of a pixel lie together.
    """

    address: int
    row: int
    column: int
    surface: int = 0

    def get_parameters(self, operand: str) -> dict[str, int]:
        """Return address and strides as parameters of this operand, by name; the surface stride only where it is not 0."""
        surface = {f"{operand}_surface_stride": self.surface} if self.surface else {}
        return {
            f"{operand}_address": self.address,
            f"{operand}_row_stride": self.row,
            f"{operand}_column_stride": self.column,
        } | surface


class CaseBuilder:
    """A test case while it is drawn. Operands are placed one after the other; operations are appended to `ops`.

    `memory`: uint8 of each memory, of the DRAM a part (`FAR_BYTES` at most). `byte_mask`: the bytes that the case
    defines. `far_bytes`: bytes of DRAM that lie before that part. `rng`: all that is random.
    """

    def __init__(self, machine: Machine, name: str, at_end: bool = False, in_granules: bool = False):
        """Begin a case with empty memories.

        `name`: name of the operation and the case; everything random follows from it. `at_end`: memories are filled
        from their last byte downwards. `in_granules`: feature maps lie in channel granules; raise NotApplicable where
        the machine has none.
        """
        self.machine, self.chip, self.at_end = machine, machine.chip, at_end
        self.granule = granule_of(self.chip) if in_granules else 0
        if in_granules and not self.granule:
            raise NotApplicable("no granules of channels")
        self.rng = np.random.default_rng(crc32(name.encode()))
        sizes = [min(s.memory.size, FAR_BYTES) if i == 0 else s.memory.size for i, s in enumerate(self.chip.spaces)]
        self.far_bytes = self.chip.dram.size - sizes[0] if at_end else 0
        self.memory = [np.zeros(size, np.uint8) for size in sizes]
        self.byte_mask = [np.zeros(size, np.bool_) for size in sizes]
        self._next = [0] * len(sizes)
        self.ops: list[MachineOp] = []

    # places

    def place(self, space: int, size_bytes: int, step: int = 1) -> int:
        """Reserve so many bytes and return their address, a multiple of `step`. Raise NotApplicable where the memory is full."""
        used, size = self._next[space], self.memory[space].size
        address = (size - used - size_bytes) // step * step if self.at_end else -(-used // step) * step
        self._next[space] = size - address if self.at_end else address + size_bytes
        if address < 0 or address + size_bytes > size:
            raise NotApplicable(f"{self.chip.spaces[space].name} is too small")
        return address

    def put(self, space: int, address: int, data: bytes | Array) -> None:
        """Write data into a memory; these bytes are then defined."""
        byte_codes = np.frombuffer(data if isinstance(data, bytes) else data.tobytes(), np.uint8)
        self.memory[space][address : address + byte_codes.size] = byte_codes
        self.byte_mask[space][address : address + byte_codes.size] = True

    def block(self, space: int, data: bytes, step: int = 1) -> int:
        """Place these bytes in a memory, at a multiple of `step`, and return their address."""
        address = self.place(space, len(data), step)
        self.put(space, address, data)
        return address

    def room(self, space: int, size_bytes: int) -> int:
        """Return the address of `size_bytes` bytes for a result. They hold random bytes, and so do up to 8 bytes before
        and after.
        """
        before = 0 if self.at_end or self._next[space] == 0 else MARGIN_BYTES
        margin_after = 0 if self.at_end and self._next[space] == 0 else MARGIN_BYTES
        total_bytes = before + size_bytes + margin_after
        address = self.place(space, total_bytes)
        self.put(space, address, self.rng.integers(0, 256, total_bytes, dtype=np.uint8))
        return address + before

    # codes

    def type(self, number: int) -> CodeType:
        """Return the activation type of this number."""
        return self.chip.code_types[number]

    def codes(self, shape: Sequence[int], number: int = 0) -> Array:
        """Return random codes of the activation type of this number; about a third are the least or the largest code."""
        codes = self.type(number)
        values = self.rng.integers(codes.low, codes.high, shape, np.int64, endpoint=True)
        ends = self.rng.integers(0, 6, shape)
        return np.select([ends == 0, ends == 1], [codes.low, codes.high], values).astype(codes.dtype)

    def feature_map(self, unit: Unit, role: str, values: Array, gap: int = 1) -> FeatureMapSite:
        """Place codes [h, w, c] in the unit's memory for this role, and return their place.

        `gap`: elements between columns, and between rows. Gaps are undefined bytes.
        """
        size = values.dtype.itemsize
        strides, offsets = self._laid(values.shape, size, gap)
        filled = self.rng.integers(0, 2, offsets.shape).astype(values.dtype)
        filled[..., : values.shape[2]] = values
        space = unit.roles[role]
        address = self.place(space, int(offsets.max(initial=0)) + size)
        lying = np.ascontiguousarray(filled).astype(memory_type(values.dtype)).reshape(-1, 1).view(np.uint8)
        at = address + offsets.reshape(-1, 1) + np.arange(size)
        self.memory[space][at], self.byte_mask[space][at] = lying, True
        return FeatureMapSite(address, *strides)

    def output(self, unit: Unit, shape: tuple[int, int, int], number: int = 0, gap: int = 1) -> FeatureMapSite:
        """Reserve room for an output [h, w, c] of codes and return its place. Its gaps hold random bytes, which must
        stay as they are.

        `number`: of the codes' type. `gap`: elements between columns, and between rows.
        """
        size = int(code_bytes(number, self.chip))
        strides, offsets = self._laid(shape, size, gap)
        return FeatureMapSite(self.room(unit.roles["output"], int(offsets.max(initial=0)) + size), *strides)

    def _laid(self, shape: Sequence[int], size: int, gap: int) -> tuple[tuple[int, int, int], Array]:
        """Return strides of (rows, columns, granules), and the offset of each element, with those that fill the last
        granule.
        """
        height, width, channels = shape
        together = self.granule or channels
        count = -(-channels // together)
        column = (together + gap) * size
        row = width * column + gap * size
        surface = (height * row + gap * size) if self.granule else 0
        y, x, g, e = np.ogrid[:height, :width, :count, :together]
        offsets = y * row + x * column + g * surface + e * size
        return (row, column, surface), offsets.reshape(height, width, -1)

    # operations

    def unit(self, operation: type[MachineOp], number: int = 0) -> Unit:
        """Return the unit of this number that runs the operation. Raise NotApplicable where there is none."""
        units = self.chip.of_kind(operation.ENGINE or "")
        if number >= len(units):
            raise NotApplicable(f"no unit {number} of {operation.ENGINE}")
        return units[number]

    def add(self, operation: type[MachineOp], /, **fields: Any) -> Any:
        """Append an operation to the case and return it. Fields that are not given have their `usual` values."""
        names = operation.parameters()
        new_op = operation(**{name: fields.pop(name) if name in fields else self.usual(operation, name) for name in names})
        assert not fields, f"{operation.NAME} has no {', '.join(fields)}"
        self.ops.append(new_op)
        return new_op

    def stretch_last_operation(self) -> None:
        """Give the last operation the largest strides. All of its sizes must be 1, so that no byte moves.

        Strides between channels stay as they are, and so do strides of 0.
        """
        op: Any = self.ops.pop()
        operation = cast("type[MachineOp]", type(op))
        names = [n for n in op.parameters() if n.endswith("stride") and not n.endswith("channel_stride")]
        self.ops.append(replace(op, **{n: operation.need(n, self.chip).high for n in names if getattr(op, n)}))

    def usual(self, operation: type[MachineOp], name: str) -> Any:
        """Return the usual value of a field: mostly the least that programs give it. Clamps are open, scales are 1."""
        description, need = operation.get_descriptions()[name], operation.need(name, self.chip)
        kinds = description.kinds or int
        if description.choice or need.low == need.high:
            return kinds(description.absent if description.choice else need.low)
        if name.endswith(("clamp_low", "clamp_high")):
            return self.type(0).low if name.endswith("low") else self.type(0).high
        if name.endswith(("multiplier", "shift")) and not name.endswith("left_shift"):
            return self.scale(0)[name.endswith("shift")]
        if name.endswith("zero_point"):
            return max(need.low, 0)
        return kinds(need.low)

    def zero(self, operation: type[MachineOp], name: str, number: int = 0) -> int:
        """Return a random zero point of the type of this number; 0 where the machine or the type has no other."""
        need, codes = operation.need(name, self.chip), self.type(number)
        if need.low == need.high or codes.is_wide:
            return 0
        return int(self.rng.integers(codes.low, codes.high, endpoint=True))

    def scale(self, shift: int, mantissa: float = 1.0) -> tuple[int, int]:
        """Return (multiplier, shift) of the scale mantissa / 2**shift. Raise NotApplicable where the machine has no
        such scale.
        """
        try:
            fixed_scale = choose_scale(mantissa * 2.0**-shift, self.chip.numerics.scale)
        except FixedPointError as fault:
            raise NotApplicable(str(fault)) from None
        return int(fixed_scale.multiplier[0]), int(fixed_scale.shift[0])
