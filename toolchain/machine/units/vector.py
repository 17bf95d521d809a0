"""The vector engine: its functions and its cycles."""

from __future__ import annotations

from collections.abc import Collection

from toolchain.hw.chip import Chip
from toolchain.machine.columns import Whole, ceil_div
from toolchain.machine.operation import Demand


def vector_demand(chip: Chip, elements: Whole, read_bytes: Whole, passes: Whole = 1) -> Demand:
    """startup + ceil(elements / lanes) cycles, that many for each pass; every element is written once."""
    vector, sram = chip.engines.vector, chip.memories.sram
    return Demand(
        vector.startup_cycles + passes * ceil_div(elements, vector.lanes),
        sram_read_bytes=read_bytes,
        sram_write_bytes=elements * chip.activation_bytes,
        latency_cycles=sram.latency_cycles + sram.write_latency_cycles,
    )


def needed_functions(names: Collection[str], chip: Chip) -> str | None:
    """The reason for an operation that does these functions of `engines.vector.operations`."""
    used = sorted({*names} & {*chip.engines.vector.operations})
    return f"engines.vector.operations has {', '.join(used)}" if used else None
