"""Find, read and check machine files: `load_chip` for a sound one, `read_chip_file` for one with its faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from toolchain.errors import NO_FILE, ConfigError
from toolchain.hw.chip import Chip
from toolchain.hw.cross_section_rules import find_broken_rules
from toolchain.hw.fault_recovery import RecoveredFault, RecoveredModels, readings
from toolchain.hw.formats import MACHINE_FORMAT, take_format, upgrade_hint
from toolchain.hw.validation import find_faults, format_fault, in_order, suggest, words_of
from toolchain.hw.yaml_source import KeyPath, Source, is_section, read_yaml

SHIPPED = "hw_configs"
Changes = Sequence[tuple[KeyPath, Any]]  # of keys of a machine file


@dataclass(frozen=True)
class ChipFile:
    """A machine's file as it was read. `chip`: None where there are `faults`, which are texts `file:line: path:
    reason`.

    `sibling`: returns (label, file) of a name relative to this file, or of a shipped one. `models_with_fixes`: for a
    file with faults, the models that it gives with sound values in their places.
    """

    source: Source
    chip: Chip | None
    faults: tuple[str, ...]
    sibling: Callable[[str], tuple[str, Traversable]]
    models_with_fixes: RecoveredModels[Chip]


def list_shipped_names() -> tuple[str, ...]:
    """Return the names of the machines that come with the toolchain, sorted."""
    return tuple(sorted(f.name.removesuffix(".yaml") for f in files(SHIPPED).iterdir() if f.name.endswith(".yaml")))


def is_shipped(name_or_path: str) -> bool:
    """Return whether this is the name of a machine that comes with the toolchain, not a path."""
    return not _is_path(name_or_path) and name_or_path in list_shipped_names()


def load_chip(name_or_path: str, table: str | None = None) -> Chip:
    """Return the chip of a shipped name or of a YAML file. Its instruction table is not read.

    Raise ConfigError with every fault. `table`: the isa.file of a machine without a section isa, which is a fault
    otherwise.
    """
    chip_file = read_chip_file(name_or_path, table)
    if chip_file.chip is None:
        raise ConfigError(list(chip_file.faults))
    return chip_file.chip


def read_chip_file(name_or_path: str, table: str | None = None, changes: Changes = ()) -> ChipFile:
    """Return one machine's file as read and checked, with its faults.

    Raise ConfigError only where there is nothing to check: no file, no YAML, or an instruction table. `table`: as in
    `load_chip`. `changes`: (path of a key, value) in place of the file's values.
    """
    label, file = _locate(name_or_path)
    if not file.is_file() and (hint := _get_shipped_hint(label)):
        raise ConfigError([f"{label}: {NO_FILE}{hint}"])
    source, format_faults = take_format(read_yaml(file, label, doubles=True), MACHINE_FORMAT)
    if is_section(source.data) and "operations" in source.data and "memories" not in source.data:
        raise ConfigError([f"{label}:1: is an instruction table; give the machine that names it in isa.file"])
    if table is not None and is_section(source.data):
        source = replace(source, data={"isa": {"file": table}, **source.data})
    source = replace(source, data=change_keys(source.data, changes))
    try:
        chip, models_with_fixes = _read(source)
    except RecursionError:
        raise ConfigError([source.fault((), "nests too deep")]) from None
    faults = in_order([*format_faults, *source.doubles, *(fault.reason for fault in models_with_fixes.faults)])
    faults = [*upgrade_hint(source), *faults] if faults else faults

    def sibling(relative: str) -> tuple[str, Traversable]:
        if isinstance(file, Path) and (sibling_file := _inside(file.parent, relative)) is not None:
            return str(Path(label).parent / relative), sibling_file
        # A user's machine may name a shipped table without copying it.
        return f"{SHIPPED}/{relative}", files(SHIPPED).joinpath(relative)

    return ChipFile(source, None if faults else chip, tuple(faults), sibling, models_with_fixes)


def change_keys(data: Any, changes: Changes) -> Any:
    """Return nested mappings with other values at some paths; `data` is not changed. Missing sections on a path are
    added.
    """
    for path, value in changes:
        data = _change_key(data, path, value)
    return data


def _change_key(data: Any, path: KeyPath, value: Any) -> Any:
    """Return a copy of the data with this value at the path. Sections that are missing, or are none, are made."""
    if not path:
        return value
    section = data if is_section(data) else {}
    return {**section, path[0]: _change_key(section.get(path[0]), path[1:], value)}


def _read(source: Source) -> tuple[Chip | None, RecoveredModels[Chip]]:
    """Return (chip, no faults), or (None, all faults of its file)."""

    def judged(data: Any) -> Chip | list[RecoveredFault]:
        result = find_faults(Chip, data)
        if isinstance(result, list):
            here = replace(source, data=data)
            return [
                RecoveredFault(w.path, format_fault(Chip, here, w), words_of(w.error), grave=True, around=w.is_unknown)
                for w in result
            ]
        return [RecoveredFault(path, source.fault(path, reason)) for path, reason in find_broken_rules(result)] or result

    result = judged(source.data)
    return (None, readings(judged, source.data)) if isinstance(result, list) else (result, RecoveredModels())


def _inside(folder: Path, relative: str) -> Path | None:
    """Return the file of that name in the folder, or None, also where a link leads out of the folder."""
    path = folder / relative
    return path if path.is_file() and path.resolve().is_relative_to(folder.resolve()) else None


def machine_files(name_or_path: str) -> tuple[Path, Path | None]:
    """Return the paths of a machine's file and of its instruction table; None for the table where the file has faults.

    Raise ConfigError as `read_chip_file` does.
    """
    chip_file = read_chip_file(name_or_path)
    table = None if chip_file.chip is None else chip_file.sibling(chip_file.chip.isa.file)[1]
    return Path(str(_locate(name_or_path)[1])), None if table is None else Path(str(table))


def _get_shipped_hint(label: str) -> str:
    """Return a hint for a shipped name that was given as if it were a file."""
    name = Path(label).stem
    shipped = label == f"{name}.yaml" and name in list_shipped_names()
    return f"; the shipped machine is written without .yaml: {name}" if shipped else ""


def _is_path(name_or_path: str) -> bool:
    """Return whether a text means a file and not a shipped machine."""
    path = Path(name_or_path)
    return path.suffix in (".yaml", ".yml") or len(path.parts) > 1 or path.is_file()


def _locate(name_or_path: str) -> tuple[str, Traversable]:
    """Return (name for messages, file) of a machine. Raise ConfigError for an unknown name."""
    if _is_path(name_or_path):
        return name_or_path, Path(name_or_path)
    names = list_shipped_names()
    if name_or_path not in names:
        raise ConfigError([f"no machine named {name_or_path!r}{suggest(name_or_path, names)} (or give the path of a YAML file)"])
    return f"{SHIPPED}/{name_or_path}.yaml", files(SHIPPED).joinpath(f"{name_or_path}.yaml")
