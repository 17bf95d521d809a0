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


def emit_at_zero(work: TileTask, layer: Layer) -> tuple[MachineOp, ...]:
    """The operations of a layer's work whose operands lie dense at address 0: what its time depends on is all there."""

    def dense(box: Box) -> BoxLocation:
        return BoxLocation(0, layer.strides(box))

    sites = [dense(r) for r in work.reads]
    out = dense(work.write) if work.write else None
    return work.emit(sites, [0] * len(work.blocks), out)


def units_for(ops: Sequence[MachineOp], chip: Chip) -> tuple[Unit, ...]:
    """Those of the kind that runs the operations of one work."""
    kinds = {op.ENGINE for op in ops}
    if len(kinds) != 1:
        raise InternalError(f"one work has operations of {', '.join(sorted(map(str, kinds)))}")
    return chip.workers(kinds.pop() or "")


def find_capable_units(ops: Sequence[MachineOp], chip: Chip) -> Mapping[Unit, tuple[MachineOp, ...]]:
    """The operations of one work as each unit runs them that breaks none of its rules; the only unit there is, whatever it
    lacks: the program's check says that."""
    made = {unit: lower_to_unit(ops, unit, chip, AccumulatorAddresses(chip)) for unit in units_for(ops, chip)}
    if len(made) == 1:
        return made
    return {unit: own for unit, own in made.items() if all(find_unsupported(op, chip) is None for op in own)}


def lower_to_unit(ops: Sequence[MachineOp], unit: Unit, chip: Chip, where: AccumulatorAddresses) -> tuple[MachineOp, ...]:
    """The operations of one work as this unit runs them, and those of others that take its sums out. where: these lie."""
    own = [replace(op, unit=unit.number) for op in ops] if unit.number else ops  # type: ignore[call-arg]
    return tuple(split_emit(own, unit, chip, where))


def speed(unit: Unit) -> int:
    """To compare units of one kind: multipliers of an array, elements a cycle of a vector engine's fastest function."""
    if unit.kind == "mac_array":
        return unit.array.multipliers
    return max((rate.lanes for rate in unit.vector.functions.values()), default=1)


def turn(units: Sequence[Unit]) -> int:
    """Works after which every unit has had one; where they are very unequal, the slow ones may have none."""
    rates = [speed(unit) for unit in units]
    return min(_LONGEST_TURN, round(sum(rates) / min(rates)))


def earliest(ends: Mapping[Unit, tuple[int, int]]) -> Unit:
    """The unit on which something ends first. ends: that, and when the unit is free: of equal ones the one that is free first."""
    return min(ends, key=ends.__getitem__)


def chain_of(works: Iterable[TileTask]) -> list[TileTask]:
    """The first works, until sums leave their array: those that follow a first one stay where it is."""
    chain: list[TileTask] = []
    for work in works:
        chain.append(work)
        if work.write is not None:
            break
    return chain
