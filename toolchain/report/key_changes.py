"""List changes of one key of a machine's file that may shorten a program, by the causes of its cycles.

The trials of `--explain` (judging.try_keys) rank the causes and take the keys that each depends on, with another value for
each. They time the program again on each changed machine.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator import COMPUTING, StallCause
from toolchain.hw import Chip
from toolchain.hw.cross_section_rules import find_broken_rules
from toolchain.hw.unit_map import Unit

_Change = Callable[[Any], Any]  # a key's value -> another one; None where there is none


@dataclass(frozen=True)
class KeyChange:
    """A change of one key of the machine's file.

    `path`: the key's names, from the file's top.
    `before`, `after`: its values.
    """

    path: tuple[str, ...]
    before: Any
    after: Any

    @property
    def key(self) -> str:
        """Return the path with dots: `engines.mac.rows`."""
        return ".".join(self.path)

    def __hash__(self) -> int:
        return hash(self.describe())  # values may be lists

    def describe(self) -> str:
        """Return a text such as `engines.mac.rows 16 -> 32`, with values as JSON."""
        return f"{self.key} {_value_text(self.before)} -> {_value_text(self.after)}"


@dataclass(frozen=True, order=True)
class CauseCycles:
    """The cycles of a network or a layer that one cause took; useful work is a cause too.

    `cycles`: how many.
    `of`: the name of the unit whose cause it is, or of the memory.
    """

    cycles: int
    cause: StallCause
    of: str


def _value_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _twice(value: Any) -> Any:
    return 2 * value if isinstance(value, int | float) else None


def _half(value: Any) -> Any:
    """Return half of a number; whole numbers are rounded down."""
    return value / 2 if isinstance(value, float) else value // 2


def _set_to(after: Any) -> _Change:
    """Return a change to a fixed value, which is none where the key has it already."""
    return lambda value: None if value == after else after


_KEYS: Mapping[tuple[str, StallCause], Sequence[tuple[str, _Change]]] = {
    ("mac_array", StallCause.USEFUL): (("rows", _twice), ("columns", _twice)),
    ("mac_array", StallCause.FILL_DRAIN): (("folds_overlap", _set_to(True)), ("timing.fold_cycles", _set_to(0))),
    ("mac_array", StallCause.PARTIAL_FOLDS): (("timing.reduction", _set_to("dense")),),
    ("mac_array", StallCause.EDGES): (("timing.input_edge_bytes", _twice), ("timing.weight_edge_bytes", _twice)),
    ("mac_array", StallCause.OUTPUT_PATH): (("timing.output.overlaps", _set_to(True)), ("timing.output.lanes", _twice)),
    ("dma", StallCause.USEFUL): (("bytes_per_cycle", _twice),),
    ("dma", StallCause.EDGES): (("runs", _set_to("packed")),),
    ("dma", StallCause.REQUESTS): (("request_cycles", _half), ("run_cycles", _half)),
}
_MEMORY_KEYS = (("read_bytes_per_cycle", _twice), ("latency_cycles", _half))


def rank_causes(attribution: Mapping[str, Mapping[str, Any]]) -> list[CauseCycles]:
    """Return the causes of the cycles of the unit that computed longest, the largest first; empty where no unit computed.

    Cycles spent waiting for another unit are divided among that unit's computing causes. Idle cycles are divided among all
    causes of the busiest other unit.

    `attribution`: by unit, its cycles by cause, as in the report.
    """
    computed = {unit: sum(stalls.get(cause, 0) for cause in COMPUTING) for unit, stalls in attribution.items()}
    if not any(computed.values()):
        return []
    main = max(computed, key=computed.__getitem__)
    work_by_unit = {unit: _list_work(unit, stalls) for unit, stalls in attribution.items()}
    busiest = max(
        (unit for unit in work_by_unit if unit != main), key=lambda unit: sum(work_by_unit[unit].values()), default=main
    )
    sums = Counter[tuple[StallCause, str]](work_by_unit[main])
    stalls = attribution[main]
    for unit, waited in stalls.get(StallCause.SIGNAL, {}).items():
        _share_out(waited, {key: cycles for key, cycles in work_by_unit[unit].items() if key[0] in COMPUTING}, sums)
    _share_out(stalls.get(StallCause.NOTHING, 0), work_by_unit[busiest], sums)
    return sorted((CauseCycles(cycles, cause, of) for (cause, of), cycles in sums.items() if cycles), reverse=True)


def _share_out(waited: int, cycles_by_cause: Mapping[tuple[StallCause, str], int], sums: Counter[tuple[StallCause, str]]) -> None:
    """Add `waited` cycles to `sums`, divided among the causes in proportion to their cycles."""
    for cause, cycles in cycles_by_cause.items():
        sums[cause] += round(waited * cycles / max(1, sum(cycles_by_cause.values())))


def _list_work(unit: str, stalls: Mapping[str, Any]) -> dict[tuple[StallCause, str], int]:
    """Return the cycles of a unit in which it waited for no other, by cause and by the unit or memory whose cause it is."""
    cycles_by_cause: dict[tuple[StallCause, str], int] = {}
    for name, cycles in stalls.items():
        cause = StallCause(name)
        if cause is StallCause.MEMORY:
            cycles_by_cause |= {(cause, memory): waited for memory, waited in cycles.items()}
        elif cause not in (StallCause.SIGNAL, StallCause.NOTHING):
            cycles_by_cause[cause, unit] = cycles
    return cycles_by_cause


def list_changes(chip: Chip, cause_cycles: CauseCycles) -> list[KeyChange]:
    """Return changes of the keys that this cause depends on, most keys twice or half their value; the list may be empty.

    Causes of memory, dispatch and queue have the same keys on every unit. Keys that the file leaves out have their defaults.
    """
    if cause_cycles.cause is StallCause.MEMORY:
        space = next(space for space in chip.spaces if space.name == cause_cycles.of)
        return _make_changes(chip, ("memories", space.key), _MEMORY_KEYS)
    if cause_cycles.cause is StallCause.DISPATCH:
        return _make_changes(chip, ("isa",), (("word_cycles", _half),))
    unit = next(unit for unit in chip.units if unit.name == cause_cycles.of)
    keys = (
        (("queue_depth", _twice),) if cause_cycles.cause is StallCause.QUEUE else _KEYS.get((unit.kind, cause_cycles.cause), ())
    )
    return _make_changes(chip, ("engines", unit.engine), keys, unit)


def _make_changes(
    chip: Chip, section: tuple[str, ...], keys: Sequence[tuple[str, _Change]], unit: Unit | None = None
) -> list[KeyChange]:
    """Return the changes of these keys of a section that the machine's values allow. unit: the unit of the section, for implied
    values."""
    values, changes = chip.model_dump(mode="json"), list[KeyChange]()
    for key, change in keys:
        path = (*section, *key.split("."))
        before = values
        for name in path:
            before = before[name]
        if before is None and unit is not None:
            before = _find_implied_value(unit, key)
        after = change(before)
        if after is not None and after != before:
            changes.append(KeyChange(path, before, after))
    return changes


def _find_implied_value(unit: Unit, key: str) -> int | None:
    """Return the value that a key of an array has where the file leaves it out; None for a key without such a value."""
    inputs, weights = unit.array.edge_bytes
    implied = {
        "timing.input_edge_bytes": inputs,
        "timing.weight_edge_bytes": weights,
        "timing.output.lanes": unit.array.columns,
    }
    return implied.get(key)


def change_chip(chip: Chip, change: KeyChange) -> Chip | None:
    """Return a copy of the chip with the key set to its new value, None where that breaks a rule between sections.

    Raise pydantic's ValidationError for a value outside the schema.
    """
    values = chip.model_dump(mode="json")
    section = values
    for name in change.path[:-1]:
        section = section[name]
    section[change.path[-1]] = change.after
    changed = Chip.model_validate_json(json.dumps(values))
    return None if find_broken_rules(changed) else changed
