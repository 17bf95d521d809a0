"""A machine is a chip and its instruction set. Load it from two files, check both together, and write it as JSON.

`model.npu` holds the machine as this JSON.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

from toolchain.errors import ConfigError, ProgramError, first_line
from toolchain.foundation.type_guards import is_dict
from toolchain.hw import (
    TABLE_FORMAT,
    Broken,
    Changes,
    Chip,
    ChipFile,
    Source,
    find_broken_rules,
    is_shipped,
    read_chip_file,
    read_yaml,
    render_path,
    table_name_fault,
    take_format,
    validate,
)
from toolchain.isa.encoding import Isa
from toolchain.isa.encoding_needs import find_encoding_gaps, unknown_functions
from toolchain.isa.instruction_table import TABLES, RegisterTable, Table
from toolchain.isa.word_layout import broken_layout

_NO_PROGRAM = ("description", "host")  # sections that no program depends on


@dataclass(frozen=True)
class Machine:
    """A chip and its instruction set, which is tied to this chip."""

    chip: Chip
    isa: Isa

    def __post_init__(self) -> None:
        if self.isa.chip is not self.chip:
            object.__setattr__(self, "isa", Isa(self.isa.table, self.chip))

    @cached_property
    def _parts(self) -> dict[str, dict[str, Any]]:
        return {
            "chip": self.chip.model_dump(mode="json"),
            "isa": self.isa.table.model_dump(mode="json", by_alias=True),
        }

    @cached_property
    def _text(self) -> str:
        return _canonical(self._parts)

    @cached_property
    def _digest(self) -> str:
        """The SHA-256 of all keys but those that no program depends on, in hex."""
        keys_by_part = {part: {k: v for k, v in keys.items() if k not in _NO_PROGRAM} for part, keys in self._parts.items()}
        return hashlib.sha256(_canonical(keys_by_part).encode()).hexdigest()


def load_machine(name_or_path: str, changes: Changes = ()) -> Machine:
    """Return a shipped machine by its name, or one from the path of a YAML file.

    `changes`: (path of a key, value) in place of the file's values. Raise ConfigError with every fault of the machine's
    file and its instruction table, as `file:line: path: reason`.
    """
    if is_shipped(name_or_path) and not changes:
        return _shipped(name_or_path)
    return _load_by_name(name_or_path, changes)


def _load_by_name(name_or_path: str, changes: Changes = ()) -> Machine:
    """Return the machine of a name or path. Raise ConfigError with all faults of both files."""
    chip_file = read_chip_file(name_or_path, changes=changes)
    isa, faults = _read_isa(chip_file)
    unknown = _certain(unknown_functions, chip_file)
    faults = [*chip_file.faults, *(chip_file.source.fault(path, reason, at_key=True) for path, reason in unknown), *faults]
    if chip_file.chip is None or isa is None or faults:
        raise ConfigError(faults)
    return Machine(chip_file.chip, isa)


_shipped = cache(_load_by_name)  # files that stay as they are


def _read_isa(chip_file: ChipFile) -> tuple[Isa | None, list[str]]:
    """Return (instruction set, faults). It is (None, []) where the chip's own faults say why, (None, faults) where the
    table is not sound.
    """
    name = _entry(_entry(chip_file.source.data, "isa"), "file")
    if not isinstance(name, str) or table_name_fault(name):
        return None, []  # the chip's own faults say so
    label, file = chip_file.sibling(name)
    if not file.is_file():
        reason = f"there is no file {name!r} beside this one or among the shipped"
        machine = chip_file.source.label
        table_path = Path(machine).parent / name
        folder = "" if table_path.parent.is_dir() else f"mkdir -p {table_path.parent} && "
        way_out = f"{folder}python -m toolchain.isa {machine} descriptors -o {table_path} writes a first one"
        return None, [chip_file.source.fault(("isa", "file"), f"{reason}; {way_out}")]
    try:
        source = read_yaml(file, label, doubles=True)
    except ConfigError as broken:
        return None, broken.faults
    table, faults = read_table(source)
    if table is None:
        return None, faults
    broken = _certain(lambda chip: find_encoding_gaps(chip, Isa(table, chip)), chip_file)
    return Isa(table, chip_file.chip), [source.fault(path, reason) for path, reason in broken]


def _entry(data: Any, key: str) -> Any:
    """Return the value of a key, or None where `data` is no mapping or lacks it."""
    return data.get(key) if is_dict(data) else None


def _certain(broken: Callable[[Chip], Sequence[Broken]], chip_file: ChipFile) -> Sequence[Broken]:
    """Return the broken rules of the chip.

    Where its file has faults, return those rules that are broken whatever stands in their places.
    """
    return chip_file.models_with_fixes.certain(broken) if chip_file.chip is None else broken(chip_file.chip)


def read_table(source: Source) -> tuple[Table | None, list[str]]:
    """Return (the instruction table of a YAML source, []) or (None, its faults)."""
    source, format_faults = take_format(source, TABLE_FORMAT)
    if format_faults:
        return None, format_faults
    if not is_dict(source.data):
        return None, validate(RegisterTable, source)[1]  # tables of every kind are mappings
    kind = source.data.get("kind")
    if not isinstance(kind, str) or kind not in TABLES:
        return None, [source.fault(("kind",), f"must be one of {', '.join(sorted(TABLES))}, got {kind!r}")]
    table, faults = validate(TABLES[kind], source)
    if table is not None:
        faults = [source.fault(path, reason) for path, reason in broken_layout(table)]
    return (None if faults else table), faults


def machine_to_json(machine: Machine) -> str:
    """Return the machine as canonical JSON: equal machines give equal text, whatever their YAML looks like."""
    return machine._text  # pyright: ignore[reportPrivateUsage]


def _canonical(data: dict[str, dict[str, Any]]) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


@lru_cache(maxsize=16)
def machine_from_json(text: str) -> Machine:
    """Return the machine of a text of `machine_to_json`. Raise ProgramError where the text is no sound machine."""
    try:
        data = json.loads(text)
        chip = Chip.model_validate_json(json.dumps(data["chip"]))
        table = TABLES[data["isa"]["kind"]].model_validate_json(json.dumps(data["isa"]))
    except (ValueError, KeyError, TypeError, RecursionError) as fault:
        raise ProgramError(f"embedded machine is damaged: {first_line(fault)}") from None
    broken = find_broken_rules(chip) or [*unknown_functions(chip), *broken_layout(table)]
    isa = None if broken else Isa(table, chip)
    broken = broken if isa is None else find_encoding_gaps(chip, isa)
    if isa is None or broken:
        path, reason = broken[0]
        raise ProgramError(f"embedded machine is damaged: {render_path(path)}: {reason}")
    return Machine(chip, isa)


def machine_digest(machine: Machine) -> str:
    """Return the SHA-256 of the machine's JSON without descriptions and host prices, as 64 hexadecimal digits.

    Programs depend on nothing that it leaves out.
    """
    return machine._digest  # pyright: ignore[reportPrivateUsage]
