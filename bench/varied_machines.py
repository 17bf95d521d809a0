"""Makes machines with other arithmetic: a shipped machine or a file's, with keys of its `numerics` changed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import yaml

from toolchain.errors import CompileError
from toolchain.hw.cross_section_rules import ROUNDINGS, find_broken_rules
from toolchain.hw.numerics import NumericsKeys, ScaleKeys
from toolchain.isa import Machine, load_machine

_SCALE = "scale."
_KEYS = (*(k for k in NumericsKeys.model_fields if k != "scale"), *(_SCALE + k for k in ScaleKeys.model_fields))
# What a form of scales or a rounding asks of the other keys.
_NEEDS = {
    "pow2": {"scale.shift_min": -31, "scale.shift_max": 31},
    "scale16": {"scale.multiplier_bits": 15},
    "reduced16": {"scale.shift_min": 17},
}


def vary_machine(text: str) -> Machine:
    """Return the machine of a text such as `edge16,rounding=floor,scale.kind=pow2`: a shipped name or a YAML file, and keys.

    Raise CompileError: no such key, no such value, or keys that do not go together.
    """
    name, *changes = text.split(",")
    machine = load_machine(name)
    numerics_keys = machine.chip.numerics_keys.model_dump()
    for change in changes:
        key, separator, value = change.partition("=")
        if not separator or key not in _KEYS:
            raise CompileError(f"--hw {text}: {change} is no KEY=VALUE of numerics; keys are {', '.join(_KEYS)}")
        section: dict[str, Any] = numerics_keys["scale"] if key.startswith(_SCALE) else numerics_keys
        section[key.removeprefix(_SCALE)] = yaml.safe_load(value)
    try:
        keys = NumericsKeys.model_validate(numerics_keys)
    except ValueError as fault:
        raise CompileError(f"--hw {text}: {str(fault).splitlines()[-1].strip()}") from None
    machine_name = re.sub(r"[^A-Za-z0-9_-]+", "_", "_".join((machine.chip.name, *changes)))
    chip = machine.chip.model_copy(update={"numerics_keys": keys, "name": machine_name})
    for path, reason in find_broken_rules(chip) if changes else ():
        raise CompileError(f"--hw {text}: {'.'.join(map(str, path))}: {reason}")
    return replace(machine, chip=chip)


def every_arithmetic(name: str) -> Iterator[str]:
    """Yield texts for `vary_machine`: the machine of this name with each form of scales and each rounding that the form has."""
    for kind, roundings in ROUNDINGS.items():
        for rounding in roundings:
            keys = {"scale.kind": kind, "rounding": rounding, **_NEEDS.get(kind, {}), **_NEEDS.get(rounding, {})}
            yield ",".join((name, *(f"{key}={value}" for key, value in keys.items())))
