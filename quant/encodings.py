"""Reads and writes AIMET's encodings file: scales and offsets of activations as JSON, versions 0.6.1 and 1.0.0.

The file says: real = scale (q + offset) for q from 0 to 2^bitwidth - 1. `Quant` says: scale (code - zero_point), codes of the
machine's type. It is an alternative to the parameters file (`quant.file`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.numerics import Numerics
from quant.observe import Range
from quant.parameters import activation_quant, quant_range
from toolchain.errors import ConfigError
from toolchain.foundation.atomic_files import read_limited
from toolchain.foundation.type_guards import is_dict, is_list
from toolchain.input_limits import ENCODINGS_BYTES
from toolchain.ir.graph import Quant

Types = Mapping[str, CodeType]
_NONE: Types = MappingProxyType({})
SUFFIXES = (".encodings", ".json")
VERSIONS = ("0.6.1", "1.0.0")


def render_encodings(tensors: Mapping[str, Range | Quant], numerics: Numerics, types: Types = _NONE) -> str:
    """Return the file's text in version 0.6.1, without encodings of weights, which the reader chooses.

    `tensors`: a range, whose scale is chosen for the machine, or a scale and zero point, by tensor.
    `types`: types of tensors whose codes are not of the machine's first type.
    """
    encodings = {}
    for name, entry in tensors.items():
        tensor_numerics = numerics.of(types.get(name, numerics.activation))
        quant = entry if isinstance(entry, Quant) else activation_quant(entry, tensor_numerics)
        code_range = quant_range(quant, tensor_numerics)
        encodings[name] = [
            {
                "bitwidth": tensor_numerics.activation.bits,
                "dtype": "int",
                "is_symmetric": str(tensor_numerics.symmetric_activations),
                "max": code_range.high,
                "min": code_range.low,
                "offset": tensor_numerics.activation.low - quant.zero_point,
                "scale": quant.scale,
            }
        ]
    file: dict[str, Any] = {"version": VERSIONS[0], "activation_encodings": encodings, "param_encodings": {}}
    return json.dumps(file, indent=1, sort_keys=True) + "\n"


def read_encodings(path: Path, numerics: Numerics | None) -> tuple[dict[str, Range | Quant], dict[str, CodeType]]:
    """Return an entry for each tensor, and the code types of tensors whose width is not that of the machine's first type.

    An entry is a Quant where the machine can use the file's scale, else the range that it covers. Encodings of weights are
    ignored. Types that the machine lacks are left out.
    `numerics`: of the machine; None: every entry is a range, and there are no types.

    Raise ConfigError with every fault of the content; OSError where the file cannot be read or is too large.
    """
    try:
        data = json.loads(read_limited(path, ENCODINGS_BYTES))
    except (UnicodeDecodeError, ValueError, RecursionError) as fault:
        raise ConfigError(
            [f"{path}: is no JSON: {fault}; give an encodings file of AIMET, or one of scripts/calibrate.py"]
        ) from None
    version = data.get("version") if is_dict(data) else None
    if version not in VERSIONS:
        versions = " or ".join(VERSIONS)
        raise ConfigError([f"{path}: version {version!r} is no encodings file that is known; export one of version {versions}"])
    entries, faults = _entries(data.get("activation_encodings"), path)
    entry_by_tensor: dict[str, Range | Quant] = {}
    types: dict[str, CodeType] = {}
    for name, entry in entries.items():
        try:
            entry_by_tensor[name], codes = _value(entry, numerics)
            if numerics is not None and codes not in (None, numerics.activation):
                types[name] = codes
        except (ArithmeticError, KeyError, LookupError, TypeError, ValueError) as fault:
            reason = f"lacks {fault}" if isinstance(fault, KeyError) else str(fault)
            faults.append(f"{path}: activation_encodings.{name}: {reason}; it needs bitwidth, scale and offset of integers")
    if faults:
        raise ConfigError(faults)
    return entry_by_tensor, types


def _entries(section: Any, path: Path) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
    """Return the one encoding of each tensor, by name, and the faults of entries that have another form.

    `section`: a mapping (0.6.1) or a list (1.0.0). Raise ConfigError where it is neither.
    """
    if is_list(section):
        named: list[tuple[Any, Any]] = [(e.get("name", i) if is_dict(e) else i, [e]) for i, e in enumerate(section)]
    elif is_dict(section):
        named = list(section.items())
    else:
        raise ConfigError([f"{path}: activation_encodings: must be a mapping (0.6.1) or a list (1.0.0)"])
    entries, faults = dict[str, Mapping[str, Any]](), list[str]()
    for index, (name, encodings) in enumerate(named):
        if not isinstance(name, str | int):
            faults.append(f"{path}: activation_encodings[{index}].name: is {name!r:.80}; give the name of a tensor")
        elif not is_list(encodings) or len(encodings) != 1 or not is_dict(encodings[0]):
            faults.append(f"{path}: activation_encodings.{name}: must have one encoding; a scale a channel is for weights alone")
        else:
            entries[str(name)] = encodings[0]
    return entries, faults


def _value(entry: Mapping[str, Any], numerics: Numerics | None) -> tuple[Range | Quant, CodeType | None]:
    """Return the range or the Quant of an encoding, and the machine's code type of that width, None where it has none.

    Raise ValueError, KeyError or TypeError for an entry that is no integer encoding.
    """
    if str(entry.get("dtype", "int")).lower() != "int":
        raise ValueError(f"dtype {entry['dtype']!r} is no integer")
    bits = int(entry["bw"] if "bw" in entry else entry["bitwidth"])
    scale, offset = (_number(entry[key]) for key in ("scale", "offset"))
    if not 2 <= bits <= 32 or not 0 < scale < float("inf") or offset != int(offset) or not -(2**bits) < offset <= 0:
        raise ValueError(f"bitwidth {bits}, scale {scale:g}, offset {offset:g}")
    covered = Range(scale * offset, scale * (offset + 2**bits - 1))
    codes = None if numerics is None else next((t for t in numerics.types if t.bits == bits and not t.is_wide), None)
    if numerics is None or codes is None or numerics.scale.kind == "pow2":
        return covered, codes
    zero_point = codes.low - int(offset)
    return covered if numerics.of(codes).symmetric_activations and zero_point else Quant(scale, zero_point), codes


def _number(value: Any) -> float:
    """Return a float from a number, or from a list of one number as version 1.0.0 has it."""
    if is_list(value):
        (value,) = value
    return float(value)
