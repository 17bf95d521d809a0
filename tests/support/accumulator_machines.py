"""Machines whose accumulators are a memory, from which a vector engine emits, and a first instruction table for each."""

from __future__ import annotations

import json
from typing import Any

from toolchain.hw import read_source
from toolchain.hw.chip import Chip
from toolchain.hw.cross_section_rules import find_broken_rules
from toolchain.isa import Isa, Machine, make_default_table
from toolchain.isa.machine import read_table


def emitting(machine: Machine, kind: str = "descriptors", banks: int = 2, lanes: int = 16, **engines: Any) -> Machine:
    """Return the machine with accumulators in a memory, from which its vector engine emits.

    `banks`: how often the memory holds the accumulators of one instruction.
    `lanes`: lanes of the function emit.
    `engines`: further keys, by engine.
    """
    data = json.loads(machine.chip.model_dump_json())
    accumulators = machine.chip.array.accumulators
    rates = {"read_bytes_per_cycle": 64.0, "write_bytes_per_cycle": 64.0, "alignment_bytes": accumulators.sum_bytes}
    data["memories"]["acc"] = {"size": banks * accumulators.entries * accumulators.sum_bytes, **rates}
    data["engines"]["mac"]["accumulators"]["memory"] = "acc"
    data["engines"]["vector"]["memories"]["sums"] = "acc"
    data["engines"]["vector"]["functions"]["emit"] = {"lanes": lanes, "startup": 8}
    for engine, keys in engines.items():
        data["engines"][engine] |= keys
    chip = Chip.model_validate_json(json.dumps(data))
    assert not find_broken_rules(chip), find_broken_rules(chip)
    table, faults = read_table(read_source(make_default_table(chip, kind), "first.yaml"))
    assert table is not None, faults
    return Machine(chip, Isa(table, chip))
