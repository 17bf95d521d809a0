"""Describe a chip as text: every key with its value, defaults included; and in which keys two chips differ.

By key, _ABSENT says what it means that a machine has no value for it, as the comment beside `null`. A limit that is not there is
"no limit".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from toolchain.foundation.type_guards import is_list
from toolchain.hw.chip import Chip
from toolchain.hw.section import write_bytes, write_hertz
from toolchain.hw.unit_map import DRAM, SRAM
from toolchain.hw.yaml_source import KeyPath, is_section, render_path

_ABSENT = {
    "energy": "not given",
    "private_to": "shared",
    "memories": "all",
    "repeat": "none",
    "call": "none",
    "indirect": "none",
    "sums": "none",
    "memory": "the array's own",
    "groups": "none",
    "weight_tile": "none",
    "type_lanes": "lanes",
    "feature_maps": "none",
    "frequency": "the chip's",
    "shared_outputs": "columns",
    "depthwise_taps": "depth",
    "input_edge_bytes": "an element of each row",
    "weight_edge_bytes": "an element of each column",
    "lanes": "columns",
    "addend_lanes": "lanes",
}


def chip_lines(chip: Chip) -> list[str]:
    """Return the whole chip as YAML that loads again, one key a line, and the figures that follow from it as comments."""
    return [*_yaml(chip.model_dump(mode="json"), 0), *_describe_derived_values(chip)]


def chip_differences(a: Chip, b: Chip) -> list[tuple[str, str, str]]:
    """Return (key, value in a, value in b) of every key that differs, in the order of the sections; '-' where one has none.

    An engine that only has another name is one difference.
    """
    renamed = _match_renamed_engines(a, b)
    left, right = dict(_flat(_with_names(a, renamed), ())), dict(_flat(b.model_dump(mode="json"), ()))
    paths = list(left) + [path for path in right if path not in left]
    differences = [("engines (renamed)", old, new) for old, new in renamed.items()]
    for path in paths:
        values = [_value(path, side[path]) if path in side else "-" for side in (left, right)]
        if values[0] != values[1]:
            differences.append((render_path(path), values[0], values[1]))
    return differences


def _match_renamed_engines(a: Chip, b: Chip) -> dict[str, str]:
    """Return the name in b of each engine of a that has another name there and is equal in all else."""
    unmatched = [name for name in b.engines if name not in a.engines]
    twin_by_name: dict[str, str] = {}
    for name in (n for n in a.engines if n not in b.engines):
        twin = next((new for new in unmatched if b.engines[new] == a.engines[name]), None)
        if twin is not None:
            unmatched.remove(twin)
            twin_by_name[name] = twin
    return twin_by_name


def _with_names(chip: Chip, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the chip as data, with its engines renamed."""
    data = chip.model_dump(mode="json")
    engines = {names.get(name, name): engine for name, engine in data["engines"].items()}
    memories = {name: {**m, "private_to": names.get(m["private_to"], m["private_to"])} for name, m in data["memories"].items()}
    return {**data, "engines": engines, "memories": memories}


def _flat(data: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Yield (path, value) of everything in nested sections."""
    if is_section(data):
        for key, value in data.items():
            yield from _flat(value, (*path, key))
    else:
        yield path, data


def _value(path: KeyPath, value: Any) -> str:
    """Return the text of a value; sizes and frequencies get a unit."""
    if path[-1:] == ("size",):
        return write_bytes(value)
    if path[-1:] == ("frequency",) and value is not None:
        return write_hertz(value)
    return _inline(value)


def _inline(value: Any) -> str:
    """Return the text of a value in one line, as YAML writes it; None is "none"."""
    if is_list(value):
        return f"[{', '.join(_inline(v) for v in value)}]"
    if is_section(value):
        return f"{{{', '.join(f'{k}: {_inline(v)}' for k, v in value.items())}}}"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "none" if value is None else str(value)


def _yaml(data: dict[str, Any], depth: int) -> Iterator[str]:
    """Yield the lines of a section as YAML, with what a missing value means as comment."""
    for key, value in data.items():
        if is_section(value) and value:
            yield f"{'  ' * depth}{key}:"
            yield from _yaml(value, depth + 1)
        elif key == "description":
            yield f"{'  ' * depth}{key}: {json.dumps(value)}"
        elif value is None:
            yield f"{'  ' * depth}{key}: null  # {_ABSENT.get(key, 'no limit')}"
        else:
            yield f"{'  ' * depth}{key}: {_value((key,), value)}"


def _describe_derived_values(chip: Chip) -> Iterator[str]:
    """Yield comments with figures that follow from the keys: peaks, rates, balance."""
    clock = chip.clock.frequency
    macs = chip.macs_per_cycle
    rates = {
        "memories.dram.read_bytes_per_cycle": chip.dram.read_bytes_per_cycle,
        f"{chip.key('dma')}: channels x bytes_per_cycle": sum(u.dma.bytes_per_cycle for u in chip.of_kind("dma")),
        "memories.sram.write_bytes_per_cycle": chip.sram.write_bytes_per_cycle,
    }
    key = min(rates, key=lambda k: rates[k])
    rate = rates[key]
    yield f"# peak: {macs:g} MAC a cycle, {macs * clock / 1e9:g} GMAC/s"
    arrays = {u.engine for u in chip.of_kind("mac_array")}
    yield from (f"# not in the peak: engines.{name}, {reason}" for name, reason in chip.unused.items() if name in arrays)
    yield f"# loads from DRAM: at most {rate:g} bytes a cycle, {rate * clock / 1e9:g} GB/s ({key})"
    foreign = [codes for codes in chip.operand_types if codes not in chip.array_types]
    if foreign and chip.array_types:
        yield f"# {', '.join(foreign)}: rescaled for arrays, {chip.key('mac_array')}.types has no pair with them"
    for code in chip.staging:
        if code != SRAM:
            yield f"# {_buffer(chip, code)}"
    yield f"# balance: {macs / rate:g} MAC for each byte loaded, to be bound by neither"


def _buffer(chip: Chip, code: int) -> str:
    """Return the text that says what a memory beside the sram is for, and how fast it is filled."""
    space = chip.spaces[code]
    operand_roles = [f"{role} of {u.name}" for u in chip.units for role, where in u.roles.items() if where == code]
    dma_bytes_per_cycle = sum(u.dma.bytes_per_cycle for u in chip.of_kind("dma") if u.reach >= {DRAM, code})
    rate = min(chip.dram.read_bytes_per_cycle, dma_bytes_per_cycle, space.memory.write_bytes_per_cycle)
    return (
        f"{space.name}: {write_bytes(space.memory.size)} for {', '.join(operand_roles)}, filled with at most {rate:g} bytes a "
        "cycle"
    )
