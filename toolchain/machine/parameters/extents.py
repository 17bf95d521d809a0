"""Makers of parameters that are sizes and counts: extents, windows, dimensions of moves, batches, weight groups.

Each function returns a dataclass field for an operation's class, with the parameter's unit and the values that a chip
allows. `Limit` names the key of the operation's section in the machine's `limits`.
"""

from __future__ import annotations

from typing import Any

from quant.fixed_point.core.weight_scaling import GROUP_STEP
from toolchain.hw.chip import Chip
from toolchain.machine.parameters.addresses import OUTER, absent_dimension
from toolchain.machine.parameters.description import OPEN_LIMIT, Limit, Need, choice, parameter


def extent(limit: Limit | None = None, unit: str = "elements", least: int = 1) -> Any:
    """Make a size of at least `least`, at most the machine's limit. Without one it is at most the bytes of the largest on-chip
    memory.

    A size with a limit is at least 1, whatever `least` is.
    """

    def values(operation: Any, chip: Chip) -> Need:
        highest = limit.of(operation, chip) if limit else None
        if limit and highest is not None:
            return Need(1, highest, f"limits.{operation.NAME}.{limit.key}")
        return Need(least, *_largest_on_chip(chip))

    return parameter(unit, values, least=least or None, limit=limit)


def move_count(dimension: int) -> Any:
    """Make the number of runs along dimension OUTER, 0, 1 or 2 of a strided move; 1 where the DMA lacks the dimension."""

    def values(operation: Any, chip: Chip) -> Need:
        return absent_dimension(dimension, 1, chip) or Need(1, *_largest_on_chip(chip))

    return choice("", values, 1, least=1) if dimension == OUTER else parameter("", values, least=1)


def batch_count() -> Any:
    """Make the number of products of one operation; a machine without max_batches makes one, and it has no bits there."""
    limit = Limit("max_batches", "{} products")

    def values(operation: Any, chip: Chip) -> Need:
        return Need(1, limit.of(operation, chip) or 1, f"limits.{operation.NAME}.{limit.key}")

    return choice("", values, 1, least=1, limit=limit)


def window_extent_of(name: str, index: int) -> Any:
    """Make a window's kernel, stride or dilation (at least 1) or padding (at least 0). `index`: 0 height, 1 width.

    `name`: kernel, stride, dilation or pad.
    """
    least = 0 if name == "pad" else 1
    limit = Limit(f"max_{name}", f"{name} {{}}", index)

    def values(operation: Any, chip: Chip) -> Need:
        if operation.NAME == "pool" and name in ("pad", "dilation"):
            # A pool is padded by less than its kernel; its dilation has no limit of its own.
            kernel = chip.limits.pool.max_kernel
            reason = f"limits.pool.max_kernel{'' if kernel else ' is not set'}"
            return Need(least, kernel[index] - (name == "pad") if kernel else OPEN_LIMIT, reason)
        highest = limit.of(operation, chip)
        reason = f"limits.{operation.NAME}.{limit.key}" if highest else f"limits.{operation.NAME} sets no {limit.key}"
        return Need(least, OPEN_LIMIT if highest is None else highest, reason)

    return parameter("elements", values, least=least or None, limit=limit)


def weight_group() -> Any:
    """Make the number of weights along the reduction that share a scale.

    0 means no groups; there are no bits where no array has groups.
    """

    def values(operation: Any, chip: Chip) -> Need:
        form = chip.numerics.groups
        return Need(0, max(form.sizes) if form else 0, f"{chip.key('mac_array')}.groups.sizes", GROUP_STEP)

    return choice("", values)


def _largest_on_chip(chip: Chip) -> tuple[int, str]:
    """Return (bytes of the largest on-chip memory, key that says so)."""
    name = max((n for n in chip.memories if n != "dram"), key=lambda n: (chip.memories[n].size, n == "sram"))
    return chip.memories[name].size, f"memories.{name}.size"
