"""Machines of int8 activations whose codes are 128 higher: uint8, and nothing else changed."""

from __future__ import annotations

import json
from dataclasses import replace

from toolchain.hw.chip import Chip
from toolchain.hw.rules import broken_rules
from toolchain.isa import Machine
from toolchain.isa.needs import broken_needs

HALF = 128


def unsigned(machine: Machine) -> Machine:
    data = json.loads(machine.chip.model_dump_json())
    data["name"] += "_u8"
    data["numerics"]["activation"] = "uint8"
    for rate in (rate for engine in data["engines"].values() for rate in engine.get("types", ())):
        rate["activation"] = rate["activation"].replace("int8", "uint8")
    chip = Chip.model_validate_json(json.dumps(data))
    assert not broken_rules(chip), broken_rules(chip)
    assert not broken_needs(chip, machine.isa), broken_needs(chip, machine.isa)
    return replace(machine, chip=chip)
