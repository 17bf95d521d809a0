"""Check an instruction table against a chip: its fields must hold every value that the chip's programs use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from toolchain.hw import Chip, KeyPath, suggest
from toolchain.isa.encoding import BitField, Isa, OperationPlan
from toolchain.machine import Need, Space
from toolchain.machine.registry import FUNCTIONS, OPERATIONS

_NO_BITS = "has no bits for"
_FIRST_TABLE = "let python -m toolchain.isa FILE.yaml write a first table"
_FEW = 3  # so many fields that one key outgrows are reported one by one


def find_encoding_gaps(chip: Chip, isa: Isa) -> list[tuple[KeyPath, str]]:
    """Return (path in the table, reason) for each fault of the table with this chip; empty where it suits the chip.

    A fault is an operation that the chip needs and the table lacks, or a field that does not hold every value in use.
    More than three fields that one key of the chip outgrows are one fault. A descriptor's own semaphores are checked too.
    """
    gaps = list(_missing_operations(chip, isa))
    short: dict[str, list[_Short]] = {}
    advised = bool(gaps)
    for name, plan in isa.plans.items():
        for parameter in plan.operation.parameters():
            need = plan.operation.need(parameter, chip)
            reason = _unmet(plan, parameter, need, isa)
            slot = plan.slot_of.get(parameter)
            if reason is None:
                continue
            path = _path(plan, parameter, isa)
            kinds = plan.operation.get_descriptions()[parameter].kinds
            if not advised and (kinds is Space or reason.startswith(_NO_BITS)):
                reason, advised = reason + _way_out(need, kinds is Space), True
            if slot is None or slot.lowest > need.low or slot.highest >= need.high or not _reaches_steps(slot, need):
                gaps.append((path, reason))
            else:
                key = "memories.sram.size" if need.reason == "memories.sram" else need.reason
                short.setdefault(key, []).append(_Short(path, name, parameter, slot.highest, need.high, reason))
    for key, fields in short.items():
        if len(fields) > _FEW:
            gaps.append(_together(key, fields))
            continue
        narrow = [(f.path, f.reason) for f in fields]
        if not advised:
            narrow[0], advised = (fields[0].path, f"{fields[0].reason}; widen it, or {_FIRST_TABLE}"), True
        gaps += narrow
    return [*gaps, *_check_folded_semaphores(chip, isa)]


def unknown_functions(chip: Chip) -> list[tuple[KeyPath, str]]:
    """Return (path in the machine's file, reason) for each function of a vector engine that no machine operation does."""
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
    """Return one fault for many fields that one key of the chip outgrows, at the path of the first."""
    operations = dict.fromkeys(f.operation for f in fields)
    names = "; ".join(f"{o}: {' '.join(f.parameter for f in fields if f.operation == o)}" for o in operations)
    holds, uses = fields[0].holds, max(f.uses for f in fields)
    return fields[0].path, (
        f"holds at most {holds}, but this chip uses up to {uses} ({key}); widen this field and "
        f"{len(fields) - 1} others like it, lower {key}, or {_FIRST_TABLE}: {names}"
    )


def _way_out(need: Need, memories: bool) -> str:
    """Return the advice for a table that has not enough bits.

    `memories`: the parameter holds codes of the machine's memories.
    """
    page = "docs/machine.md, Memories beside the SRAM" if memories else "docs/instructions.md"
    return f"; give it {need.high.bit_length()} bits, or {_FIRST_TABLE} ({page})"


def _unmet(plan: OperationPlan, parameter: str, need: Need, isa: Isa) -> str | None:
    """Return why the encoding does not hold all values of a parameter, or None."""
    fixed = dict(plan.fixed)
    this_chip = f"this chip uses {need.low} to {need.high} ({need.reason})"
    if parameter in fixed and need.low == need.high == fixed[parameter]:
        return None
    if parameter in fixed:
        bound = parameter in isa.table.operations[plan.operation.NAME].fixed
        return f"is fixed to {fixed[parameter]}, but {this_chip}" if bound else f"{_NO_BITS} {parameter}, but {this_chip}"
    slot = plan.slot_of[parameter]
    highest = need.high - need.high % need.step
    if not _reaches_steps(slot, need):
        return f"holds only multiples of {slot.step}, but {this_chip} in steps of {need.step}"
    if slot.lowest > need.low or slot.highest < highest:
        return f"{slot.width} bits hold {slot.lowest} to {slot.highest}, but {this_chip}"
    return None


def _reaches_steps(slot: BitField, need: Need) -> bool:
    """Return whether the field's own steps meet all values in use, as far as it reaches."""
    return not (need.step % slot.step or (need.low != need.high and (need.low - slot.bias) % slot.step))


def _path(plan: OperationPlan, parameter: str, isa: Isa) -> KeyPath:
    """Return the path of the parameter's entry in the table, or of the operation."""
    row = isa.table.operations[plan.operation.NAME]
    for place in ("fields", "bind", "fixed"):
        if parameter in getattr(row, place, {}):
            return ("operations", plan.operation.NAME, place, parameter)
    return ("operations", plan.operation.NAME)


def list_needed_operations(chip: Chip) -> dict[str, str]:
    """Return the operations that the chip's programs use, in the order of `OPERATIONS`, each with the key because of
    which they do.
    """
    reasons = ((name, operation.find_required_key(chip)) for name, operation in OPERATIONS.items())
    return {name: reason for name, reason in reasons if reason is not None}


def _missing_operations(chip: Chip, isa: Isa) -> Iterator[tuple[KeyPath, str]]:
    """Yield a fault for each operation that is missing; the first also says what to do."""
    way_out = f"; give it a row, or {_FIRST_TABLE} (docs/instructions.md)"
    for name, reason in list_needed_operations(chip).items():
        if not isa.supports(name):
            yield ("operations",), f"has no {name}; {reason}{way_out}"
            way_out = ""


def _check_folded_semaphores(chip: Chip, isa: Isa) -> Iterator[tuple[KeyPath, str]]:
    """Yield faults where a descriptor's own wait or signal cannot name every semaphore."""
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
