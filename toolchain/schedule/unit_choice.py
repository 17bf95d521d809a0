"""Find the units (arrays, vector engines) that can run a tile task, and its operations on each of them.

Tiles are dealt in turns of at most _LONGEST_TURN, however different the units' speeds are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from toolchain.errors import InternalError
from toolchain.hw.chip import Chip
from toolchain.hw.unit_map import Unit
from toolchain.machine import MachineOp, find_unsupported
from toolchain.ops.kit.operator import Layer
from toolchain.ops.kit.tile import Box, BoxLocation, TileTask
from toolchain.schedule.accumulator_memory import AccumulatorAddresses, split_emit

_LONGEST_TURN = 8


def emit_at_zero(tile: TileTask, layer: Layer) -> tuple[MachineOp, ...]:
    """Return the operations of a tile task with dense operands at address 0, enough to judge its cost and its units."""

    def dense(box: Box) -> BoxLocation:
        return BoxLocation(0, layer.strides(box))

    sites = [dense(r) for r in tile.reads]
    out = dense(tile.write) if tile.write else None
    return tile.emit(sites, [0] * len(tile.blocks), out)


def units_for(ops: Sequence[MachineOp], chip: Chip) -> tuple[Unit, ...]:
    """Return all units of the kind that runs these operations of one tile. Raise InternalError where they are of
    several kinds.
    """
    kinds = {op.ENGINE for op in ops}
    if len(kinds) != 1:
        raise InternalError(f"one work has operations of {', '.join(sorted(map(str, kinds)))}")
    return chip.workers(kinds.pop() or "")


def find_capable_units(ops: Sequence[MachineOp], chip: Chip) -> Mapping[Unit, tuple[MachineOp, ...]]:
    """Return the operations as each unit would run them, for the units that can.

    The only unit of its kind is always among them: the check of the finished program says what it lacks.
    """
    operations = {unit: lower_to_unit(ops, unit, chip, AccumulatorAddresses(chip)) for unit in units_for(ops, chip)}
    if len(operations) == 1:
        return operations
    return {unit: lowered for unit, lowered in operations.items() if all(find_unsupported(op, chip) is None for op in lowered)}


def lower_to_unit(ops: Sequence[MachineOp], unit: Unit, chip: Chip, where: AccumulatorAddresses) -> tuple[MachineOp, ...]:
    """Return the operations as this unit runs them. Where its accumulators are a memory, emits on another unit are
    added.

    `where`: gives the addresses of sums; it changes.
    """
    numbered = [replace(op, unit=unit.number) for op in ops] if unit.number else ops  # type: ignore[call-arg]
    return tuple(split_emit(numbered, unit, chip, where))


def speed(unit: Unit) -> int:
    """Return the relative speed of a unit among those of its kind: multipliers of an array, or elements a cycle of a
    vector engine.
    """
    if unit.kind == "mac_array":
        return unit.array.multipliers
    return max((rate.lanes for rate in unit.vector.functions.values()), default=1)


def turn(units: Sequence[Unit]) -> int:
    """Return the number of tiles after which every unit has had one, at most _LONGEST_TURN; much slower units may have none by
    then.
    """
    rates = [speed(unit) for unit in units]
    return min(_LONGEST_TURN, round(sum(rates) / min(rates)))


def earliest(ends: Mapping[Unit, tuple[int, int]]) -> Unit:
    """Return the unit with the least (cycle at which the work would end, cycle at which the unit is free)."""
    return min(ends, key=ends.__getitem__)


def chain_of(tiles: Iterable[TileTask]) -> list[TileTask]:
    """Return the first tile tasks up to one that writes an output. They add to the same sums, so they stay on one
    array.

    The tasks are consumed from `tiles` where it is an iterator; the result is empty at its end.
    """
    chain: list[TileTask] = []
    for tile in tiles:
        chain.append(tile)
        if tile.write is not None:
            break
    return chain
