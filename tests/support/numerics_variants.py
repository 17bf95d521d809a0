"""Machines whose numerics differ in some keys."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from toolchain.hw.numerics import NumericsKeys
from toolchain.isa import Machine


def with_numerics(machine: Machine, **keys: Any) -> Machine:
    """The machine with these keys of `numerics`, those of `scale` added to its own. Rules between sections are not asked."""
    had = machine.chip.numerics_keys.model_dump(mode="json")
    scale = had["scale"] | keys.pop("scale", {})
    changed = NumericsKeys.model_validate_json(json.dumps(had | keys | {"scale": scale}))
    return replace(machine, chip=machine.chip.model_copy(update={"numerics_keys": changed}))
