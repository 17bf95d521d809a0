"""Store what repair chose in the parameters file: a section for people, and next to it an array file with the codes of
weights."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, NonNegativeInt, PositiveInt

from quant.array_files import read_array_headers
from quant.fixed_point.sums.grouped_sums import WeightGroups, group_count
from quant.parameters import WeightQuant
from quant.repair.choices import LayerParameters, Offset, Quantization
from toolchain.errors import CompileError, InternalError
from toolchain.foundation.atomic_files import read_limited
from toolchain.input_limits import ARRAY_BYTES

Positive = Annotated[FiniteFloat, Field(gt=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class _Offset(_Strict):
    operands: list[int]
    output: int


class _Layer(_Strict):
    """A description of one layer's part of the array file; no weights: the model's, no bias: the model's."""

    weights: list[PositiveInt] = []
    scales: NonNegativeInt = 0
    group: NonNegativeInt = 0  # weights that share a scale of their own; 0: all of a channel
    minima: bool = False  # of groups
    bias: NonNegativeInt = 0

    @property
    def groups(self) -> int:
        """Return the number of groups."""
        return (
            0 if not self.group or not self.weights else self.weights[0] * group_count(int(np.prod(self.weights[1:])), self.group)
        )


class _Arrays(_Strict):
    file: str
    sha256: str


class RepairSection(_Strict):
    """A section of the parameters file with the result of a repair.

    `steps`: the steps that were tried, for people to read; the program ignores them.
    """

    effort: str
    held_out: NonNegativeInt = 0
    steps: list[dict[str, Any]] = []
    hosted: list[str] = []
    factors: dict[str, list[Positive]] = {}
    offsets: dict[str, _Offset] = {}
    arrays: _Arrays | None = None
    layers: dict[str, _Layer] = {}


@dataclass(frozen=True)
class Repair:
    """A record of a repair: its effort, steps and `quantization` without ranges."""

    quantization: Quantization
    effort: str
    held_out: int = 0
    steps: Sequence[Mapping[str, Any]] = ()


# --- writing


def array_file(parameters: Path) -> Path:
    """Return the path of the array file next to the parameters file."""
    return parameters.with_name(f"{parameters.stem}.weights.npz")


def pack_layers(layers: Mapping[str, LayerParameters]) -> bytes:
    """All codes, scales and biases, one layer behind the other in the order of their names."""
    ordered_layers = [layers[name] for name in sorted(layers)]
    weights = [p.weight for p in ordered_layers if p.weight is not None]
    if any(w.axis != 0 for w in weights):
        raise InternalError("codes of weights whose scales do not lie along axis 0")
    groups = [w.groups for w in weights if w.groups is not None]
    arrays: dict[str, Any] = {
        "codes": _join_arrays([w.codes for w in weights], np.int8),
        "scales": _join_arrays([w.scales for w in weights], np.float64),
        "group_scales": _join_arrays([g.scales for g in groups], np.int32),
        "group_minima": _join_arrays([g.minima for g in groups if g.minima is not None], np.int32),
        "biases": _join_arrays([p.bias for p in ordered_layers if p.bias is not None], np.float64),
    }
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def _join_arrays(arrays: Sequence[np.ndarray], dtype: Any) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype), *(np.ascontiguousarray(a, dtype).ravel() for a in arrays)])


def section_of(repair: Repair, arrays: tuple[str, bytes] | None) -> dict[str, Any]:
    """Return the section as it stands in the file.

    `arrays`: name and bytes of the array file, where layers were chosen.
    """
    q = repair.quantization
    layers = {name: _layer_of(p) for name, p in sorted(q.layers.items())}
    section: dict[str, Any] = {"effort": repair.effort, "held_out": repair.held_out, "steps": [dict(s) for s in repair.steps]}
    section |= {"hosted": list(q.hosted)} if q.hosted else {}
    section |= {"factors": {n: [float(v) for v in f] for n, f in sorted(q.factors.items())}} if q.factors else {}
    offsets = {n: {"operands": list(o.operands), "output": o.output} for n, o in sorted(q.offsets.items())}
    section |= {"offsets": offsets} if offsets else {}
    if layers and arrays is not None:
        name, data = arrays
        section |= {"arrays": {"file": name, "sha256": hashlib.sha256(data).hexdigest()}, "layers": layers}
    return section


def _layer_of(p: LayerParameters) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "weights": [] if p.weight is None else [int(n) for n in p.weight.codes.shape],
        "scales": 0 if p.weight is None else int(p.weight.scales.size),
        "bias": 0 if p.bias is None else int(p.bias.size),
    }
    groups = None if p.weight is None else p.weight.groups
    return entry if groups is None else {**entry, "group": groups.size, "minima": groups.minima is not None}


# --- reading


def repair_of(section: RepairSection, path: Path) -> Repair:
    """Return the repair that a section describes.
    Raise CompileError where the array file is absent, or not the one that was written with it.

    `path`: the parameters file.
    """
    layers = _layers(section, path) if section.layers else {}
    offsets = {n: Offset(tuple(o.operands), o.output) for n, o in section.offsets.items()}
    factors = {n: np.array(f, np.float64) for n, f in section.factors.items()}
    quantization = Quantization({}, factors, layers, offsets, tuple(section.hosted))
    return Repair(quantization, section.effort, section.held_out, section.steps)


def _layers(section: RepairSection, path: Path) -> dict[str, LayerParameters]:
    if section.arrays is None:
        raise CompileError(f"{path}: repair.layers: their codes lie in an array file, and repair.arrays names none")
    file = path.with_name(Path(section.arrays.file).name)
    if not file.is_file():
        raise CompileError(f"{file}: is not there; {path} takes the codes of its weights from it, keep the two together")
    if hashlib.sha256(read_limited(file, ARRAY_BYTES)).hexdigest() != section.arrays.sha256:
        raise CompileError(f"{file}: is not the file that {path} was written with (repair.arrays.sha256); repair again")
    stored = read_array_headers(file, lone=False)
    layers = section.layers.values()
    size_by_array = {
        "codes": sum(int(np.prod(e.weights)) for e in layers if e.weights),
        "scales": sum(e.scales for e in layers),
        "group_scales": sum(e.groups for e in layers),
        "group_minima": sum(e.groups for e in layers if e.minima),
        "biases": sum(e.bias for e in layers),
    }
    arrays = {name: stored[name].read() for name in size_by_array if name in stored}
    for name, size in size_by_array.items():
        stored_size = arrays[name].size if name in arrays else 0
        if stored_size != size:
            what = name.replace("_", " ")
            raise CompileError(
                f"{path}: repair.layers: ask for {size} {what}, {file} holds {stored_size}; leave them as they were written"
            )
    return _unpack_layers(section.layers, arrays)


def _unpack_layers(layers: Mapping[str, _Layer], arrays: Mapping[str, np.ndarray]) -> dict[str, LayerParameters]:
    at = dict.fromkeys(arrays, 0)

    def take(name: str, size: int) -> np.ndarray:
        at[name] += size
        return arrays[name][at[name] - size : at[name]]

    parameters_by_layer: dict[str, LayerParameters] = {}
    for name in sorted(layers):
        entry, weight = layers[name], None
        if entry.weights:
            codes = take("codes", int(np.prod(entry.weights))).reshape(entry.weights).astype(np.int8)
            weight = WeightQuant(codes, take("scales", entry.scales).astype(np.float64), 0, _groups(entry, take))
        parameters_by_layer[name] = LayerParameters(weight, take("biases", entry.bias).astype(np.float64) if entry.bias else None)
    return parameters_by_layer


def _groups(entry: _Layer, take: Callable[[str, int], np.ndarray]) -> WeightGroups | None:
    if not entry.group:
        return None
    shape = entry.weights[0], -1
    scales = take("group_scales", entry.groups).astype(np.int32).reshape(shape)
    return WeightGroups(
        entry.group, scales, take("group_minima", entry.groups).astype(np.int32).reshape(shape) if entry.minima else None
    )
