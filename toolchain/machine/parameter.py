"""What a parameter of a machine operation is: its unit, and the values that programs for a chip may give it.

Encodings (their fields must hold these values), first instruction tables, manuals and the checks of a program read it
here; a limit of the machine's YAML is named once, at the parameter that it limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from math import gcd
from typing import Any

from toolchain.hw.chip import Chip
from toolchain.machine.columns import is_column

# A parameter whose limit the chip leaves open is at most this.
OPEN_LIMIT = (1 << 16) - 1


class Space(IntEnum):
    """The address spaces of `chip.memories`."""

    DRAM = 0
    SRAM = 1


def space_of(value: Any) -> Any:
    """The Space of a code, or the column itself. Raises ValueError where the code is none."""
    return value if is_column(value) else Space(value)


@dataclass(frozen=True)
class Need:
    """Every value low..high that `step` divides; `reason` is the key of the chip that says so."""

    low: int
    high: int
    reason: str
    step: int = 1


# The operation's name (its section of `limits`) and the chip -> the values.
Values = Callable[[str, Chip], Need]


@dataclass(frozen=True)
class Limit:
    """A key of the operation's section of `limits`; `index` of a pair [height, width]. text: what exceeds it, `{}` its value."""

    key: str
    text: str
    index: int | None = None

    def of(self, operation: str, chip: Chip) -> int | None:
        """The largest value allowed; None: no limit."""
        value = getattr(getattr(chip.limits, operation), self.key, None)
        return value if value is None or self.index is None else value[self.index]


@dataclass(frozen=True)
class Parameter:
    """unit: bytes, elements, bits, codes or none. least: checked in every program. kinds: the enumeration of its codes."""

    unit: str
    values: Values
    least: int | None = None
    limit: Limit | None = None
    kinds: type[IntEnum] | None = None


def parameter(unit: str, values: Values, **more: Any) -> Any:
    """A field of an operation's dataclass."""
    return field(metadata={"parameter": Parameter(unit, values, **more)})


# Addresses and strides


def sram_address(alignment_bytes: int = 0) -> Any:
    """Of a byte of the SRAM; alignment_bytes: a block that starts on a multiple of it and of the memory's alignment."""

    def values(operation: str, chip: Chip) -> Need:
        sram = chip.memories.sram
        if not alignment_bytes:
            return Need(0, sram.size - 1, "memories.sram.size")
        step = sram.alignment_bytes if alignment_bytes == 1 else gcd(sram.alignment_bytes, alignment_bytes)
        return Need(0, sram.size - 1, "memories.sram", step)

    return parameter("bytes", values)


def sram_stride() -> Any:
    return parameter("bytes", lambda operation, chip: Need(0, chip.memories.sram.size - 1, "memories.sram.size"))


def memory_address() -> Any:
    """Of a byte of any memory."""
    return parameter("bytes", _any_memory)


def _any_memory(operation: str, chip: Chip) -> Need:
    return Need(0, max(chip.memories.sram.size, chip.memories.dram.size) - 1, "memories.dram.size")


def move_stride(dimension: int) -> Any:
    """Between the runs of dimension 0, 1 or 2 of a strided move; 0 where the DMA has fewer dimensions."""

    def values(operation: str, chip: Chip) -> Need:
        return _absent_dimension(dimension, 0, chip) or _any_memory(operation, chip)

    return parameter("bytes", values)


def move_count(dimension: int) -> Any:
    """Runs along dimension 0, 1 or 2 of a strided move; 1 where the DMA has fewer dimensions."""

    def values(operation: str, chip: Chip) -> Need:
        return _absent_dimension(dimension, 1, chip) or Need(1, chip.memories.sram.size, "memories.sram.size")

    return parameter("", values, least=1)


def _absent_dimension(dimension: int, value: int, chip: Chip) -> Need | None:
    dimensions = chip.engines.dma.dimensions
    return Need(value, value, f"engines.dma.dimensions {dimensions}") if dimension < 3 - dimensions else None


def memory_space() -> Any:
    return parameter("", lambda operation, chip: Need(0, max(Space), "dram 0, sram 1"), kinds=Space)


# Extents


def extent(limit: Limit | None = None, unit: str = "elements", least: int = 1) -> Any:
    """A size of at least `least`, at most what the machine's limit says, or what fits the SRAM."""

    def values(operation: str, chip: Chip) -> Need:
        highest = limit.of(operation, chip) if limit else None
        if limit and highest is not None:
            return Need(1, highest, f"limits.{operation}.{limit.key}")
        return Need(least, chip.memories.sram.size, "memories.sram.size")

    return parameter(unit, values, least=least or None, limit=limit)


def window_extent_of(name: str, index: int) -> Any:
    """Kernel, stride, dilation (from 1) or padding (from 0) of a window; index: 0 height, 1 width."""
    least = 0 if name == "pad" else 1
    limit = Limit(f"max_{name}", f"{name} {{}}", index)

    def values(operation: str, chip: Chip) -> Need:
        if operation == "pool" and name in ("pad", "dilation"):
            # A pool is padded by less than its kernel; its dilation has no limit of its own.
            kernel = chip.limits.pool.max_kernel
            reason = f"limits.pool.max_kernel{'' if kernel else ' is not set'}"
            return Need(least, kernel[index] - (name == "pad") if kernel else OPEN_LIMIT, reason)
        highest = limit.of(operation, chip)
        reason = f"limits.{operation}.{limit.key}" if highest else f"limits.{operation} sets no {limit.key}"
        return Need(least, OPEN_LIMIT if highest is None else highest, reason)

    return parameter("elements", values, least=least or None, limit=limit)


# Codes and scales


def code() -> Any:
    """An activation's code: a bound of a clamp, a value."""
    return parameter("codes", _code)


def zero_point() -> Any:
    return parameter("codes", _zero_point)


def _code(operation: str, chip: Chip) -> Need:
    half = code_limit(chip)
    return Need(-half, half - 1, f"numerics.activation {chip.numerics.activation}")


def _zero_point(operation: str, chip: Chip) -> Need:
    return Need(0, 0, "numerics.symmetric_activations") if chip.numerics.symmetric_activations else _code(operation, chip)


def code_limit(chip: Chip) -> int:
    """Codes of activations are -limit .. limit - 1."""
    return 1 << (8 * chip.activation_bytes - 1)


def multiplier() -> Any:
    return parameter("", _multiplier)


def _multiplier(operation: str, chip: Chip) -> Need:
    scale = chip.numerics.scale
    bits = {"pow2": 1, "float32": 31}.get(scale.kind, scale.multiplier_bits)
    return Need(0, (1 << bits) - 1, f"numerics.scale, kind {scale.kind}")


def shift() -> Any:
    return parameter("bits", _shift)


def _shift(operation: str, chip: Chip) -> Need:
    scale = chip.numerics.scale
    return Need(min(0, scale.shift_min), 0 if scale.kind == "float32" else scale.shift_max, "numerics.scale")


def left_shift() -> Any:
    return parameter("bits", _left_shift)


def _left_shift(operation: str, chip: Chip) -> Need:
    return Need(0, chip.numerics.add_left_shift, "numerics.add_left_shift")


# Choices


def flag() -> Any:
    return parameter("", lambda operation, chip: Need(0, 1, "a flag"))


def post_flag(post: str) -> Any:
    """Whether outputs pass through what `engines.mac.post` has."""
    return parameter("", lambda operation, chip: Need(0, int(post in chip.engines.mac.post), "engines.mac.post"))


def only_with(post: str, wanted: Any) -> Any:
    """The same parameter, 0 on machines whose `engines.mac.post` lacks this."""
    inner: Parameter = wanted.metadata["parameter"]

    def values(operation: str, chip: Chip) -> Need:
        return inner.values(operation, chip) if post in chip.engines.mac.post else Need(0, 0, f"engines.mac.post has no {post}")

    return parameter(inner.unit, values)


def function(kinds: type[IntEnum], names: Mapping[str, IntEnum]) -> Any:
    """Which of the vector engine's functions; names: of `engines.vector.operations`."""

    def values(operation: str, chip: Chip) -> Need:
        used = [int(names[name]) for name in chip.engines.vector.operations if name in names] or [0]
        return Need(min(used), max(used), "engines.vector.operations")

    return parameter("", values, kinds=kinds)


def dma_channel() -> Any:
    return parameter("", lambda operation, chip: Need(0, chip.engines.dma.channels - 1, "engines.dma.channels"))


def engine_of_sync() -> Any:
    last = "mac, vector and engines.dma.channels"
    return parameter("", lambda operation, chip: Need(0, 1 + chip.engines.dma.channels, last))


def semaphore() -> Any:
    return parameter("", lambda operation, chip: Need(0, chip.sync.semaphores - 1, "sync.semaphores"))
