"""Reads a parameters file, or AIMET's encodings, and refuses it with every fault at once, each with its line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel

from quant.encodings import SUFFIXES, read_encodings
from quant.file.faults import layer_faults, machine_faults, name_faults, weight_faults
from quant.file.parameters import Parameters
from quant.file.schema import VERSION, Entry, File, Weights
from quant.fixed_point.core.numerics import Numerics
from quant.observe import Range, Tails
from quant.repair.choices import Quantization
from quant.repair.file import Repair, RepairSection, repair_of
from quant.suggestion import suggestion
from toolchain.errors import CompileError, ConfigError
from toolchain.foundation.type_guards import is_dict
from toolchain.hw import Source, read_yaml, validate
from toolchain.ir.graph import Quant

_AS_THEY_ARE: Mapping[str, str] = MappingProxyType({})


def read_parameters(
    path: Path,
    *,
    tensors: Collection[str] | Callable[[Quantization], Collection[str]] | None = None,
    allowed: Collection[str] | None = None,
    source_names: Mapping[str, str] = _AS_THEY_ARE,
    layers: Callable[[], Collection[str]] | None = None,
    numerics: Numerics | None = None,
) -> Parameters:
    """Return the parameters of a file of this project, or of AIMET's encodings (by its suffix, .encodings or .json).

    `tensors`: tensors that must have an entry, or a function that returns them for the file's repair; None: not checked.
    `allowed`: tensors that may have an entry (default: no others).
    `source_names`: by tensor, another name, which messages use and an entry may have instead.
    `layers`: returns the layers that have weights; called last, and only where the file has a section `weights`; None: not
    checked.
    `numerics`: of the machine that must be able to express the scales; None: not checked.

    Encodings may name tensors that the model lacks: those are dropped, and `layers` is not called.
    Raise ConfigError with every fault as `file:line: path: reason`. Raise CompileError where the repair is not of this model.
    """
    if path.suffix in SUFFIXES:
        required = tensors(Quantization({})) if callable(tensors) else tensors
        return _read_encodings_file(path, required or (), source_names, numerics)
    source = _numbers(read_yaml(path, str(path)))
    if is_dict(source.data) and not {"version", "tensors"}.intersection(source.data):
        raise ConfigError([f"{path}:1: is no parameters file: no version, no tensors; scripts/calibrate.py writes one"])
    file, faults = _readable(source)
    try:
        repair = None if file.repair is None else repair_of(file.repair, path)
        faults += _faults_of(file, repair, source, tensors, allowed, source_names, layers, numerics)
    except CompileError:
        if faults:
            raise ConfigError(faults) from None
        raise
    if faults:
        raise ConfigError(faults)
    entries = {name: _value(entry) for name, entry in file.tensors.items()}
    types = {name: entry.type for name, entry in file.tensors.items() if entry.type is not None}
    weights = {name: scaling for name, entry in file.weights.items() if (scaling := entry.scaling) is not None}
    weight_types = {name: entry.type for name, entry in file.weights.items() if entry.type is not None}
    of = (file.observer, file.samples, file.data, file.model, file.hardware)
    return Parameters(entries, *of, repair=repair, types=types, weights=weights, weight_types=weight_types)


def _readable(source: Source) -> tuple[File, list[str]]:
    """Return the part of the file that has the right form, and the faults of the rest.

    Raise ConfigError where the form of the whole leaves nothing to read.
    """
    file, faults = validate(File, source)
    if file is not None:
        return file, []
    data = source.data
    sections = is_dict(data) and all(isinstance(data.get(s, {}), dict) for s in ("tensors", "weights"))
    if not sections or "tensors" not in data or data.get("version") != VERSION:
        raise ConfigError(faults)

    def sound(model: type[BaseModel], entry: Any) -> bool:
        return validate(model, replace(source, data=entry))[0] is not None

    rest: dict[str, Any] = {
        "version": VERSION,
        "tensors": {name: entry for name, entry in data["tensors"].items() if sound(Entry, entry)},
        "weights": {name: entry for name, entry in data.get("weights", {}).items() if sound(Weights, entry)},
    }
    if "repair" in data and sound(RepairSection, data["repair"]):
        rest["repair"] = data["repair"]
    return File.model_validate_json(json.dumps(rest)), faults


def _faults_of(
    file: File,
    repair: Repair | None,
    source: Source,
    tensors: Collection[str] | Callable[[Quantization], Collection[str]] | None,
    allowed: Collection[str] | None,
    source_names: Mapping[str, str],
    layers: Callable[[], Collection[str]] | None,
    numerics: Numerics | None,
) -> list[str]:
    """Return the faults of the part that has the right form.
    The tensors and layers depend on the repair; where it cannot be read, names are not checked.
    Raise CompileError where the repair is not of this model.
    """
    faults: list[str] = []
    if repair is not None or source.data.get("repair") is None:
        if callable(tensors):
            tensors = tensors(Quantization({}) if repair is None else repair.quantization)
        if tensors is not None:
            faults += name_faults(source, tensors, tensors if allowed is None else allowed, source_names)
        if layers is not None and source.data.get("weights"):
            faults += layer_faults(file, source, layers())
    if numerics is None:
        return faults
    faults += [
        source.fault(("tensors", name, key), reason)
        for name, entry in file.tensors.items()
        for key, reason in machine_faults(entry, numerics)
    ]
    faults += [
        source.fault(("weights", name, key), reason)
        for name, entry in file.weights.items()
        for key, reason in weight_faults(entry, numerics)
    ]
    return faults


def _read_encodings_file(
    path: Path, tensors: Collection[str], source_names: Mapping[str, str], numerics: Numerics | None
) -> Parameters:
    """Return the parameters of an AIMET file: entries of the required tensors, or all where none is required.

    Such a file names the tensors of the framework's graph as well, which are ignored. Raise ConfigError for a tensor without
    entry.
    """
    entries, types = read_encodings(path, numerics)
    absent = dict.fromkeys(source_names.get(n, n) for n in tensors if n not in entries and source_names.get(n, n) not in entries)
    if absent:
        raise ConfigError(
            [
                f"{path}: tensor {n!r} of the model has no activation encoding{suggestion(n, entries)}; add it, or calibrate "
                "with "
                "scripts/calibrate.py"
                for n in absent
            ]
        )
    required = {*tensors, *(source_names.get(n, n) for n in tensors)}
    selected = {n: e for n, e in entries.items() if not tensors or n in required}
    return Parameters(selected, types={n: codes for n, codes in types.items() if n in selected})


def _numbers(source: Source) -> Source:
    """Return the source with texts such as 1e-5 as numbers; YAML 1.1 reads them as text, their author did not."""

    def number(value: Any) -> Any:
        return float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value

    if not is_dict(source.data) or not is_dict(source.data.get("tensors")):
        return source
    tensors = {
        name: {k: number(v) for k, v in entry.items()} if is_dict(entry) else entry
        for name, entry in source.data["tensors"].items()
    }
    return replace(source, data={**source.data, "tensors": tensors})


_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


def _value(entry: Entry) -> Range | Quant:
    """Return the range of an entry, with tails and step, or its scale and zero point."""
    if entry.low is not None and entry.high is not None:
        if entry.values is None or entry.below is None or entry.above is None:
            return Range(entry.low, entry.high, step=entry.step)
        return Range(entry.low, entry.high, Tails(entry.values, entry.below, entry.above), entry.step)
    assert entry.scale is not None and entry.zero_point is not None
    return Quant(entry.scale, entry.zero_point)
