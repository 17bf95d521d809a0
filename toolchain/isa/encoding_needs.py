"""What values a chip's programs use in each parameter: an instruction table must hold them all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from toolchain.hw import Chip, KeyPath, suggest
from toolchain.isa.encoding import Isa, OperationPlan
from toolchain.machine import Need, Space
from toolchain.machine.registry import FUNCTIONS, OPERATIONS

_NO_BITS = "has no bits for"
_FIRST_TABLE = "let python -m toolchain.isa FILE.yaml write a first table"
_FEW = 3  # so many fields that one key outgrows are reported one by one


def find_encoding_gaps(chip: Chip, isa: Isa) -> list[tuple[KeyPath, str]]:
    """Operations that the chip needs and the table lacks, and fields too small for the chip."""
    found = list(_missing_operations(chip, isa))
    short: dict[str, list[_Short]] = {}
    advised = bool(found)
    for name, plan in isa.plans.items():
        for parameter in plan.operation.parameters():
            wanted = plan.operation.need(parameter, chip)
            reason = _unmet(plan, parameter, wanted, isa)
            slot = plan.slot_of.get(parameter)
            if reason is None:
                continue
            path = _path(plan, parameter, isa)
            kinds = plan.operation.described()[parameter].kinds
            if not advised and (kinds is Space or reason.startswith(_NO_BITS)):
                reason, advised = reason + _way_out(wanted, kinds is Space), True
            if slot is None or slot.lowest > wanted.low or slot.highest >= wanted.high:
                found.append((path, reason))
            else:
                key = "memories.sram.size" if wanted.reason == "memories.sram" else wanted.reason
                short.setdefault(key, []).append(_Short(path, name, parameter, slot.highest, wanted.high, reason))
    for key, fields in short.items():
        found += [(f.path, f.reason) for f in fields] if len(fields) <= _FEW else [_together(key, fields)]
    return [*found, *_folded_semaphores(chip, isa)]


def unknown_functions(chip: Chip) -> list[tuple[KeyPath, str]]:
    """Functions of vector engines that no machine operation does."""
    return [
        (("engines", unit.engine, "functions", name), f"no such function{suggest(name, FUNCTIONS)}")
        for unit in chip.of_kind("vector")
        for name in unit.vector.functions
        if name not in FUNCTIONS
    ]


@dataclass(frozen=True)
class _Short:
    """A field whose largest value `holds` is below the largest that the chip uses."""

    path: KeyPath
    operation: str
    parameter: str
    holds: int
    uses: int
    reason: str


def _together(key: str, fields: list[_Short]) -> tuple[KeyPath, str]:
    """One fault for many fields that one key of the chip outgrows, at the place of the first."""
    operations = dict.fromkeys(f.operation for f in fields)
    names = "; ".join(f"{o}: {' '.join(f.parameter for f in fields if f.operation == o)}" for o in operations)
    holds, uses = fields[0].holds, max(f.uses for f in fields)
    return fields[0].path, (
        f"holds at most {holds}, but this chip uses up to {uses} ({key}); widen this field and "
        f"{len(fields) - 1} others like it, or lower {key}: {names}"
    )


def _way_out(wanted: Need, memories: bool) -> str:
    """What to do where the table has no bits. memories: for codes of the machine's memories."""
    page = "docs/machine.md, Memories beside the SRAM" if memories else "docs/instructions.md"
    return f"; give it {wanted.high.bit_length()} bits, or {_FIRST_TABLE} ({page})"


def _unmet(plan: OperationPlan, parameter: str, wanted: Need, isa: Isa) -> str | None:
    fixed = dict(plan.fixed)
    this_chip = f"this chip uses {wanted.low} to {wanted.high} ({wanted.reason})"
    if parameter in fixed and wanted.low == wanted.high == fixed[parameter]:
        return None
    if parameter in fixed:
        bound = parameter in isa.table.operations[plan.operation.NAME].fixed
        return f"is fixed to {fixed[parameter]}, but {this_chip}" if bound else f"{_NO_BITS} {parameter}, but {this_chip}"
    slot = plan.slot_of[parameter]
    highest = wanted.high - wanted.high % wanted.step
    if wanted.step % slot.step or (wanted.low != wanted.high and (wanted.low - slot.bias) % slot.step):
        return f"holds only multiples of {slot.step}, but {this_chip} in steps of {wanted.step}"
    if slot.lowest > wanted.low or slot.highest < highest:
        return f"{slot.width} bits hold {slot.lowest} to {slot.highest}, but {this_chip}"
    return None


def _path(plan: OperationPlan, parameter: str, isa: Isa) -> KeyPath:
    row = isa.table.operations[plan.operation.NAME]
    for place in ("fields", "bind", "fixed"):
        if parameter in getattr(row, place, {}):
            return ("operations", plan.operation.NAME, place, parameter)
    return ("operations", plan.operation.NAME)


def list_needed_operations(chip: Chip) -> dict[str, str]:
    """The operations that the chip's programs use, in the order of `OPERATIONS`, and the key that says so."""
    reasons = ((name, operation.needed(chip)) for name, operation in OPERATIONS.items())
    return {name: reason for name, reason in reasons if reason is not None}


def _missing_operations(chip: Chip, isa: Isa) -> Iterator[tuple[KeyPath, str]]:
    """The first one found says what to do."""
    way_out = f"; give it a row, or {_FIRST_TABLE} (docs/instructions.md)"
    for name, reason in list_needed_operations(chip).items():
        if not isa.supports(name):
            yield ("operations",), f"has no {name}; {reason}{way_out}"
            way_out = ""


def _folded_semaphores(chip: Chip, isa: Isa) -> Iterator[tuple[KeyPath, str]]:
    sync = getattr(isa.table, "sync", None)
    if sync is None:
        return
    last = chip.sync.semaphores - 1
    for name in ("wait_semaphore", "signal_semaphore"):
        high, low = getattr(sync, name)
        largest = (1 << (high - low + 1)) - 1
        if largest < last:
            reason = f"{high - low + 1} bits hold 0 to {largest}, but this chip uses 0 to {last} (sync.semaphores)"
            yield ("sync", name), reason
