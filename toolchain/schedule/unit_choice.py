"""The units that can run the operations of a work."""

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
    """The operations of a layer's work whose operands lie dense at address 0: what its time depends on is all there."""

    def dense(box: Box) -> BoxLocation:
        return BoxLocation(0, layer.strides(box))

    sites = [dense(r) for r in tile.reads]
    out = dense(tile.write) if tile.write else None
    return tile.emit(sites, [0] * len(tile.blocks), out)


def units_for(ops: Sequence[MachineOp], chip: Chip) -> tuple[Unit, ...]:
    """The units of the kind that runs the operations of one tile."""
    kinds = {op.ENGINE for op in ops}
    if len(kinds) != 1:
        raise InternalError(f"one work has operations of {', '.join(sorted(map(str, kinds)))}")
    return chip.workers(kinds.pop() or "")


def find_capable_units(ops: Sequence[MachineOp], chip: Chip) -> Mapping[Unit, tuple[MachineOp, ...]]:
    """The operations of one tile as each unit runs them, without units whose rules they break. The only unit of its kind is
    always among them: the program's check says what it lacks."""
    operations = {unit: lower_to_unit(ops, unit, chip, AccumulatorAddresses(chip)) for unit in units_for(ops, chip)}
    if len(operations) == 1:
        return operations
    return {unit: lowered for unit, lowered in operations.items() if all(find_unsupported(op, chip) is None for op in lowered)}


def lower_to_unit(ops: Sequence[MachineOp], unit: Unit, chip: Chip, where: AccumulatorAddresses) -> tuple[MachineOp, ...]:
    """The operations of one work as this unit runs them, and those of others that take its sums out. `where`: these lie."""
    numbered = [replace(op, unit=unit.number) for op in ops] if unit.number else ops  # type: ignore[call-arg]
    return tuple(split_emit(numbered, unit, chip, where))


def speed(unit: Unit) -> int:
    """The relative speed of units of one kind: multipliers of an array, elements a cycle of a vector engine's fastest
    function."""
    if unit.kind == "mac_array":
        return unit.array.multipliers
    return max((rate.lanes for rate in unit.vector.functions.values()), default=1)


def turn(units: Sequence[Unit]) -> int:
    """Works after which every unit has had one; where they are very unequal, the slow ones may have none."""
    rates = [speed(unit) for unit in units]
    return min(_LONGEST_TURN, round(sum(rates) / min(rates)))


def earliest(ends: Mapping[Unit, tuple[int, int]]) -> Unit:
    """The unit on which something ends first. `ends`: that, and when the unit is free: of equal ones the one that is free
    first."""
    return min(ends, key=ends.__getitem__)


def chain_of(tiles: Iterable[TileTask]) -> list[TileTask]:
    """The first works, until sums leave their array: those that follow a first one stay where it is."""
    chain: list[TileTask] = []
    for tile in tiles:
        chain.append(tile)
        if tile.write is not None:
            break
    return chain
