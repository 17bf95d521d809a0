"""Makers of parameters that number units, semaphores and blocks, and of counts of the front end.

Each function returns a dataclass field for an operation's class, with the parameter's unit and the values that a chip
allows.
"""

from __future__ import annotations

from typing import Any

from toolchain.hw.chip import Chip
from toolchain.machine.parameters.description import Need, choice, parameter


def unit_number() -> Any:
    """Make the number of the unit of its kind that runs the operation: no bits where a machine has one."""

    def values(operation: Any, chip: Chip) -> Need:
        units = chip.of_kind(operation.ENGINE)
        return Need(0, max(0, len(units) - 1), f"units {', '.join(u.name for u in units)}")

    return choice("", values)


def dma_channel() -> Any:
    """Make the number of the DMA channel that runs the operation."""
    return parameter("", lambda operation, chip: Need(0, len(chip.of_kind("dma")) - 1, f"{chip.key('dma')}.channels"))


def engine_of_sync() -> Any:
    """Make the number of the queue that a signal or a wait stands in, among all units."""
    return parameter("", lambda operation, chip: Need(0, len(chip.units) - 1, f"units {', '.join(u.name for u in chip.units)}"))


def semaphore() -> Any:
    """Make the number of a semaphore."""
    return parameter("", lambda operation, chip: Need(0, chip.sync.semaphores - 1, "sync.semaphores"))


def index_limit() -> Any:
    """Make the largest index that an operation takes from memory; 0 alone on machines without control.indirect."""

    def values(operation: Any, chip: Chip) -> Need:
        indirect = chip.control.indirect
        return Need(0, indirect.max_index if indirect else 0, "control.indirect.max_index")

    return parameter("", values)


def word_size() -> Any:
    """Make the size of a number in memory."""
    return parameter("bytes", lambda operation, chip: Need(1, 4, "words of 1, 2 and 4 bytes"))


def repeat_count() -> Any:
    """Make the number of iterations of a repeat, at least 1."""

    def values(operation: Any, chip: Chip) -> Need:
        repeat = chip.control.repeat
        return Need(1, repeat.max_count if repeat else 1, "control.repeat.max_count")

    return parameter("", values, least=1)


def block_number() -> Any:
    """Make the number of a block that is called."""

    def values(operation: Any, chip: Chip) -> Need:
        call = chip.control.call
        return Need(0, call.blocks - 1 if call else 0, "control.call.blocks")

    return parameter("", values)
