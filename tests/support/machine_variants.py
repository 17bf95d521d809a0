"""Machines with keys of a shipped one replaced, and a first instruction table for each."""

from __future__ import annotations

import json
from typing import Any

from toolchain.hw import Chip, read_source
from toolchain.hw.cross_section_rules import find_broken_rules
from toolchain.isa import Isa, Machine, load_machine, make_default_table
from toolchain.isa.machine import read_table


def with_keys(machine: Machine, **keys: Any) -> Machine:
    """The machine with keys of its file replaced, and a first instruction table."""
    chip = Chip.model_validate_json(json.dumps(json.loads(machine.chip.model_dump_json()) | keys))
    assert not find_broken_rules(chip)
    table, faults = read_table(read_source(make_default_table(chip), "first.yaml"))
    assert table is not None, faults
    return Machine(chip, Isa(table, chip))


def with_sram(name: str, kib: float) -> Machine:
    """A shipped machine with so much SRAM."""
    base = load_machine(name)
    memories = base.chip.model_dump(mode="json")["memories"]
    memories["sram"]["size"] = int(kib * 1024)
    return with_keys(base, memories=memories)
