"""The parameters file: what calibration found, for people to edit and the build to take back."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from quant.encodings import SUFFIXES, read_encodings
from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.groups import GROUP_STEP, LARGEST_GROUP, LEAST_GROUP, WeightScaling
from quant.fixed_point.core.numerics import Numerics
from quant.observe import Range
from quant.parameters import SMALLEST_SCALE, activation_quant
from quant.repair.file import Repair, RepairSection, array_file, packed_layers, repair_of, section_of
from quant.repair.step import AS_IN_THE_MODEL, Quantization
from quant.suggestion import suggestion
from toolchain.errors import ConfigError
from toolchain.files import write_files, write_whole
from toolchain.hw import Source, read_yaml, validate
from toolchain.ir.graph import Quant

VERSION = 1
_LARGEST = float(np.finfo(np.float32).max)
_OTHER_SCALE = "give one that fits the data, or low and high"
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


@dataclass(frozen=True)
class Parameters:
    """`tensors`: for each float tensor a range, whose scale the build chooses for its machine, or the scale and zero point.
    types: of those whose codes are not of the machine's first type. By node of the selected graph, `weights`: which of its
    weights share a scale where that is not the machine's choice; `weight_types`: their type, where it is not."""

    tensors: Mapping[str, Range | Quant]
    observer: str = "minmax"
    samples: int = 0
    data: str = ""
    model: str = ""
    hardware: str = ""
    sources: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    repair: Repair | None = None
    types: Mapping[str, CodeType] = field(default_factory=lambda: MappingProxyType({}))
    weights: Mapping[str, WeightScaling] = field(default_factory=lambda: MappingProxyType({}))
    weight_types: Mapping[str, CodeType] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def quantization(self) -> Quantization:
        """All of it: ranges, types, scales of weights, and what was repaired."""
        found = Quantization({}) if self.repair is None else self.repair.quantization
        scaled = {n: replace(found.layers.get(n, AS_IN_THE_MODEL), scaling=s) for n, s in self.weights.items()}
        layers = {**found.layers, **scaled}
        return replace(found, ranges=self.tensors, types=self.types, layers=layers, weight_types=self.weight_types)

    def quant(self, name: str, numerics: Numerics) -> Quant:
        """Scale and zero point of a tensor on a machine."""
        entry = self.tensors[name]
        return entry if isinstance(entry, Quant) else activation_quant(entry, _of(self.types.get(name), numerics))


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    low: FiniteFloat | None = None
    high: FiniteFloat | None = None
    scale: Annotated[FiniteFloat, Field(gt=0)] | None = None
    zero_point: int | None = None
    type: Annotated[CodeType, Field(strict=False)] | None = None

    @model_validator(mode="after")
    def _one_form(self) -> _Entry:
        given = {key for key, value in self.__dict__.items() if value is not None and key != "type"}
        if given not in ({"low", "high"}, {"scale", "zero_point"}):
            raise ValueError("needs low and high, or scale and zero_point, and not both")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low {self.low!r} is above high {self.high!r}")
        return self


class _Weights(BaseModel):
    """scales: one for all, one an output channel, or one for so many weights along the reduction."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    scales: (
        Literal["tensor", "channel"] | Annotated[int, Field(ge=LEAST_GROUP, le=LARGEST_GROUP, multiple_of=GROUP_STEP)] | None
    ) = None
    type: Annotated[CodeType, Field(strict=False)] | None = None

    @model_validator(mode="after")
    def _says_something(self) -> _Weights:
        if self.scales is None and self.type is None:
            raise ValueError("needs scales, type or both")
        return self

    @property
    def scaling(self) -> WeightScaling | None:
        if self.scales is None:
            return None
        group = 0 if isinstance(self.scales, str) else self.scales
        return WeightScaling(None if self.scales == "tensor" else 0, group)


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    version: Literal[1]
    model: str = ""
    hardware: str = ""
    observer: str = "minmax"
    samples: Annotated[int, Field(ge=0)] = 0
    data: str = ""
    repair: RepairSection | None = None
    weights: dict[str, _Weights] = Field(default_factory=dict)
    tensors: dict[str, _Entry]


# --- writing


def render_parameters(parameters: Parameters, arrays: tuple[str, bytes] | None = None) -> str:
    """The file's text; reading it back gives the same parameters, every float to the last bit. arrays: name and bytes of the
    file with the codes that repair chose."""
    lines = [
        "# Quantization parameters. Edit them and give the file back with --quant.",
        "# A tensor has either low and high, the real values to be covered (the build chooses the scale that its machine can",
        "# express), or scale and zero_point: real = scale * (code - zero_point). type, such as int16, gives it codes of another",
        "# type than the machine's first, where the machine has it.",
        f"version: {VERSION}",
        f"model: {_text(parameters.model)}",
        f"hardware: {_text(parameters.hardware)}",
        f"observer: {_text(parameters.observer)}",
        f"samples: {parameters.samples}",
        f"data: {_text(parameters.data)}",
        *(() if parameters.repair is None else _repair_lines(section_of(parameters.repair, arrays))),
        *_weight_lines(parameters),
        "tensors:" if parameters.tensors else "tensors: {}",
    ]
    for name, entry in parameters.tensors.items():
        if isinstance(entry, Quant):
            value = f"scale: {_number(entry.scale)}, zero_point: {entry.zero_point}"
        else:
            value = f"low: {_number(entry.low)}, high: {_number(entry.high)}"
        if name in parameters.types:
            value += f", type: {parameters.types[name]}"
        source = " ".join(parameters.sources.get(name, "").split())
        lines.append(f"  {_text(name)}: {{{value}}}" + (f"  # {source}" if source else ""))
    return "\n".join(lines) + "\n"


def _weight_lines(parameters: Parameters) -> Iterator[str]:
    """Of each layer that has scales or a type of its own."""
    scales, types = parameters.weights, parameters.weight_types
    if scales or types:
        yield "weights:"
    for name in dict.fromkeys((*scales, *types)):
        said = [f"scales: {_scales_text(scales[name])}"] if name in scales else []
        said += [f"type: {types[name]}"] if name in types else []
        yield f"  {_text(name)}: {{{', '.join(said)}}}"


def _scales_text(scaling: WeightScaling) -> str:
    return str(scaling.group) if scaling.group else "tensor" if scaling.axis is None else "channel"


def write_parameters(path: Path, parameters: Parameters) -> None:
    """Whole or not at all: a file that is there stays until the new one is complete. Codes of weights, where repair chose
    some, go to a second file beside it."""
    repair = parameters.repair
    if repair is None or not repair.quantization.layers:
        write_whole(path, render_parameters(parameters).encode())
        return
    beside, data = array_file(path), packed_layers(repair.quantization.layers)
    write_files({beside: data, path: render_parameters(parameters, (beside.name, data)).encode()})


def _repair_lines(section: Mapping[str, Any]) -> list[str]:
    """One line for each entry of its lists and mappings."""
    lines = [
        "# What repair changed (docs/repair.md): edit or remove steps' choices by their keys; `steps` are only read.",
        "repair:",
    ]
    for key, value in section.items():
        if isinstance(value, dict) and key != "arrays":
            lines += [f"  {key}:", *(f"    {_text(name)}: {_flow(entry)}" for name, entry in value.items())]
        elif key == "steps":
            lines += [f"  {key}:" if value else f"  {key}: []", *(f"    - {_flow(entry)}" for entry in value)]
        else:
            lines.append(f"  {key}: {_flow(value)}")
    return lines


def _flow(value: Any) -> str:
    """YAML in flow style, floats to the last bit."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int | float):
        return _number(value) if isinstance(value, float) else str(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(entry)}" for key, entry in value.items()) + "}"
    return "[" + ", ".join(map(_flow, value)) + "]"


def _number(value: float) -> str:
    """The shortest text that reads back as the same float; YAML 1.1 wants a point before an exponent."""
    text = repr(float(value))
    return text.replace("e", ".0e") if "e" in text and "." not in text else text


def _text(value: str) -> str:
    """A double-quoted YAML scalar."""
    escaped = "".join(
        c if c.isprintable() and c not in '"\\' else f"\\{c}" if c in '"\\' else f"\\U{ord(c):08X}" for c in value
    )  # fmt: skip
    return f'"{escaped}"'


# --- reading


def read_parameters(
    path: Path,
    *,
    tensors: Collection[str] | Callable[[Quantization], Collection[str]] | None = None,
    known: Collection[str] | None = None,
    layers: Callable[[], Collection[str]] | None = None,
    numerics: Numerics | None = None,
) -> Parameters:
    """Of a file of ours, or of AIMET's encodings by its suffix. tensors: those that must have an entry, which may hang on what
    was repaired; known: those that may have one (default: no others); layers: that have weights, asked for last; numerics: the
    machine that must be able to express the scales. Raises ConfigError with every fault as `file:line: path: reason`;
    CompileError where what was repaired is not of this model."""
    if path.suffix in SUFFIXES:
        wanted = tensors(Quantization({})) if callable(tensors) else tensors
        return _encoded(path, wanted or (), numerics)
    source = _numbers(read_yaml(path, str(path)))
    if isinstance(source.data, dict) and not {"version", "tensors"}.intersection(source.data):
        raise ConfigError([f"{path}:1: is no parameters file: no version, no tensors; scripts/calibrate.py writes one"])
    file, faults = validate(_File, source)
    if file is None:
        raise ConfigError(faults)
    repair = None if file.repair is None else repair_of(file.repair, path)
    faults = []
    if callable(tensors):
        tensors = tensors(Quantization({}) if repair is None else repair.quantization)
    if tensors is not None:
        faults += _name_faults(file, source, tensors, tensors if known is None else known)
    if layers is not None and file.weights:
        faults += _layer_faults(file, source, layers())
    if numerics is not None:
        faults += [
            source.fault(("tensors", name, key), reason)
            for name, entry in file.tensors.items()
            for key, reason in _machine_faults(entry, numerics)
        ]
        faults += [
            source.fault(("weights", name, key), reason)
            for name, entry in file.weights.items()
            for key, reason in _weight_faults(entry, numerics)
        ]
    if faults:
        raise ConfigError(faults)
    entries = {name: _value(entry) for name, entry in file.tensors.items()}
    types = {name: entry.type for name, entry in file.tensors.items() if entry.type is not None}
    weights = {name: scaling for name, entry in file.weights.items() if (scaling := entry.scaling) is not None}
    weight_types = {name: entry.type for name, entry in file.weights.items() if entry.type is not None}
    of = (file.observer, file.samples, file.data, file.model, file.hardware)
    return Parameters(entries, *of, repair=repair, types=types, weights=weights, weight_types=weight_types)


def _encoded(path: Path, tensors: Collection[str], numerics: Numerics | None) -> Parameters:
    """An AIMET file names the tensors of the framework's graph as well: those that nobody asks for are passed over."""
    given = read_encodings(path, numerics)
    absent = [n for n in tensors if n not in given]
    if absent:
        raise ConfigError(
            [
                f"{path}: tensor {n!r} of the model has no activation encoding{suggestion(n, given)}; add it, or calibrate with "
                "scripts/calibrate.py"
                for n in absent
            ]
        )
    return Parameters({n: e for n, e in given.items() if not tensors or n in tensors})


def _numbers(source: Source) -> Source:
    """1e-5 is text to YAML 1.1, and a number to the person who wrote it."""

    def number(value: Any) -> Any:
        return float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value

    if not isinstance(source.data, dict) or not isinstance(source.data.get("tensors"), dict):
        return source
    tensors = {
        name: {k: number(v) for k, v in entry.items()} if isinstance(entry, dict) else entry
        for name, entry in source.data["tensors"].items()
    }
    return replace(source, data={**source.data, "tensors": tensors})


def _value(entry: _Entry) -> Range | Quant:
    if entry.low is not None and entry.high is not None:
        return Range(entry.low, entry.high)
    assert entry.scale is not None and entry.zero_point is not None
    return Quant(entry.scale, entry.zero_point)


def _name_faults(file: _File, source: Source, tensors: Collection[str], known: Collection[str]) -> list[str]:
    missing = [name for name in tensors if name not in file.tensors]
    unknown = []
    for name in file.tensors:
        if name not in known:
            reason = f"the model has no such tensor{suggestion(name, missing or known)}; mend or remove its entry"
            unknown.append(source.fault(("tensors", name), reason, at_key=True))
    absent = [
        source.fault(("tensors",), f"tensor {name!r} of the model has no entry; add it, or calibrate again", at_key=True)
        for name in missing
    ]
    return unknown + absent


def _layer_faults(file: _File, source: Source, layers: Collection[str]) -> list[str]:
    faults: list[str] = []
    chosen = {} if file.repair is None else file.repair.layers
    for name in file.weights:
        if name not in layers:
            reason = f"the machine has no such layer with weights{suggestion(name, layers)}; mend or remove its entry"
        elif file.weights[name].scales is not None and name in chosen and chosen[name].weights:
            reason = "repair.layers has codes of its weights, with their scales; remove one of the two"
        else:
            continue
        faults.append(source.fault(("weights", name), reason, at_key=True))
    return faults


def _weight_faults(entry: _Weights, numerics: Numerics) -> Iterator[tuple[str, str]]:
    """(key, reason)"""
    if entry.type is not None and entry.type not in numerics.weight_types:
        yield "type", f"{entry.type} where the machine has {', '.join(numerics.weight_types)} weights; give one of these"
    if entry.scales == "channel" and not numerics.weights_per_channel:
        yield "scales", "the machine has one scale for all weights of a layer (numerics.weights_per_channel); use tensor"
    sizes = () if numerics.groups is None else numerics.groups.sizes
    if isinstance(entry.scales, int) and entry.scales not in sizes:
        known = f"use {', '.join(map(str, sizes))}, channel or tensor" if sizes else "use channel or tensor"
        yield "scales", f"the machine has no groups of {entry.scales} weights (engines.mac.groups); {known}"


def _machine_faults(entry: _Entry, numerics: Numerics) -> list[tuple[str, str]]:
    ends = (("low", entry.low), ("high", entry.high))
    faults = [(key, f"{end!r} is beyond float32") for key, end in ends if end is not None and abs(end) > _LARGEST]
    if entry.type is not None and entry.type not in numerics.types:
        return [
            *faults,
            ("type", f"{entry.type} where the machine has {', '.join(numerics.types)} activations; give one of these"),
        ]
    if entry.scale is None or entry.zero_point is None:
        return faults
    numerics = _of(entry.type, numerics)
    low, high = numerics.activation.limits
    if entry.scale < SMALLEST_SCALE:
        faults.append(("scale", f"{entry.scale!r} is below the smallest, 2^-40 ({SMALLEST_SCALE:.2g}); {_OTHER_SCALE}"))
    elif entry.scale * (high - low) > _LARGEST:
        faults.append(("scale", f"{entry.scale!r} spreads the codes beyond float32; {_OTHER_SCALE}"))
    if numerics.scale.kind == "pow2" and not _is_power_of_two(entry.scale):
        below, above = _neighbours(entry.scale)
        faults.append(
            ("scale", f"{entry.scale!r} is no power of two, and the machine has no others (numerics.scale.kind); "
             f"use {below!r} or {above!r}, or give low and high")
        )  # fmt: skip
    if numerics.symmetric_activations and entry.zero_point != 0:
        faults.append(
            (
                "zero_point",
                f"{entry.zero_point} where the machine has none (numerics.symmetric_activations); use 0, or give low and high",
            )
        )
    elif not low <= entry.zero_point <= high:
        faults.append(("zero_point", f"{entry.zero_point} is no {numerics.activation} code; use {low} to {high}"))
    return faults


def _of(codes: CodeType | None, numerics: Numerics) -> Numerics:
    """Of tensors of this type, None: of the machine's first."""
    return numerics.of(numerics.activation if codes is None else codes)


def _is_power_of_two(value: float) -> bool:
    return math.frexp(value)[0] == 0.5


def _neighbours(value: float) -> tuple[float, float]:
    exponent = math.frexp(value)[1]
    return 2.0 ** (exponent - 1), 2.0**exponent
