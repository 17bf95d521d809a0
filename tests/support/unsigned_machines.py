"""Machines whose activations are of the other type of 8 bits: each code is 128 higher or lower, and nothing else changed."""

from __future__ import annotations

import json
from dataclasses import replace

from quant.fixed_point.core.codes import CodeType
from tests.support.random_cases import first_table
from toolchain.hw.chip import Chip
from toolchain.hw.cross_section_rules import find_broken_rules
from toolchain.isa import Machine
from toolchain.isa.encoding_needs import find_encoding_gaps

HALF = 128


def make_unsigned(machine: Machine) -> Machine:
    """A machine of int8 with uint8."""
    return _with_codes(machine, CodeType.UINT8)


def make_signed(machine: Machine) -> Machine:
    """A machine of uint8 with int8."""
    return _with_codes(machine, CodeType.INT8)


def _with_codes(machine: Machine, code_type: CodeType) -> Machine:
    data = json.loads(machine.chip.model_dump_json())
    machine_type = data["numerics"]["activation"]
    data["name"] += f"_{code_type}"
    data["numerics"] |= {"activation": code_type, "more_activations": [], "table": {"entries": 256}}
    weights = (data["numerics"]["weight"], *data["numerics"]["more_weights"])
    for engine in data["engines"].values():
        if "types" in engine:
            remaining_rates = [rate for rate in engine["types"] if rate["activation"] in (machine_type, "int16")]
            have = {rate["weight"] for rate in remaining_rates if rate["activation"] == machine_type}
            missing_rates = [
                {"activation": machine_type, "weight": weight} for weight in weights if weight not in have
            ]  # of other types before
            engine["types"] = [*remaining_rates, *missing_rates]
    for rate in (rate for engine in data["engines"].values() for rate in engine.get("types", ())):
        rate["activation"] = code_type if rate["activation"] == machine_type else rate["activation"]
    chip = Chip.model_validate_json(json.dumps(data))
    assert not find_broken_rules(chip), find_broken_rules(chip)
    # a first table of a machine has no bits for the other type's codes
    isa = first_table(chip, machine.isa.kind) if find_encoding_gaps(chip, machine.isa) else machine.isa
    return replace(machine, chip=chip, isa=isa)
