"""Makes copies of a machine whose integers are onnxruntime's, to compare with it bit for bit."""

from __future__ import annotations

import json
from dataclasses import replace

from toolchain.hw.chip import Chip
from toolchain.isa import Machine


def float32_machine(base: Machine) -> Machine:
    """Return the machine with onnxruntime's arithmetic: float32 scales, rounded once to nearest even."""
    data = json.loads(base.chip.model_dump_json())
    data["name"] = f"{base.chip.name}_float32"
    scale = {"kind": "float32", "multiplier_bits": 24, "shift_min": 0, "shift_max": 62}
    data["numerics"] |= {"scale": scale, "rounding": "fp32_rne"}
    return replace(base, chip=Chip.model_validate_json(json.dumps(data)))


def with_wide(base: Machine) -> Machine:
    """Return the machine with activations of int16 and int32 too, used where asked for.

    It serves the reference alone, since its encodings lack them.
    """
    data = json.loads(base.chip.model_dump_json())
    data["name"] = f"{base.chip.name}_wide"
    data["numerics"] |= {"more_activations": ["int16", "int32"], "add_left_shift": 14}
    types = [{"activation": a, "weight": "int8"} for a in ("int8", "int16")]
    data["engines"]["mac"] |= {"types": types, "accumulators": {"bits": 48, "entries": 4096}}
    return replace(base, chip=Chip.model_validate_json(json.dumps(data)))


def with_uint8(base: Machine) -> Machine:
    """Return the machine with codes of uint8, for the reference alone.

    A file's codes are the same numbers in int8, but onnxruntime's sums in float32 have zero points in them.
    With a zero point that is 128 lower a few in a million round otherwise.
    """
    data = json.loads(base.chip.model_dump_json().replace('"activation":"int8"', '"activation":"uint8"'))
    return replace(base, chip=Chip.model_validate_json(json.dumps({**data, "name": f"{base.chip.name}_u8"})))
