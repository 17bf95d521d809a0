"""Machines whose front end repeats and calls: any machine with the section `control`, and a first instruction table for it."""

from __future__ import annotations

import json
from typing import Any

from toolchain.hw import read_source
from toolchain.hw.chip import Chip
from toolchain.isa import Isa, Machine, make_default_table
from toolchain.isa.machine import read_table

CONTROL: dict[str, Any] = {
    "bases": 3,
    "repeat": {"depth": 2, "max_count": 100},
    "call": {"blocks": 2, "depth": 2},
    "indirect": {"max_index": 1000},
}


def with_control(machine: Machine, kind: str = "descriptors", bits: int | None = None, control: Any = None) -> Machine:
    data = json.loads(machine.chip.model_dump_json())
    data["control"] = CONTROL if control is None else control
    chip = Chip.model_validate_json(json.dumps(data))
    table, faults = read_table(read_source(make_default_table(chip, kind, bits), "first.yaml"))
    assert table is not None, faults
    return Machine(chip, Isa(table, chip))
