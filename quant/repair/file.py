"""Stores what repair chose: a section of the parameters file for people, and an array file beside it with the weights' codes.

`quant.file` reads and writes the parameters file itself.
"""

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
    """A layer's part of the array file. An empty `weights` (its shape) or a `bias` of 0 means those of the model.

    `scales`, `bias`: numbers of entries.
    `group`: weights that share a scale of their own; 0: all of a channel.
    `minima`: groups have minima.
    """

    weights: list[PositiveInt] = []
    scales: NonNegativeInt = 0
    group: NonNegativeInt = 0  # weights that share a scale of their own; 0: all of a channel
    minima: bool = False  # of groups
    bias: NonNegativeInt = 0

    @property
    def groups(self) -> int:
        """The number of groups of all channels; 0 without groups."""
        return (
            0 if not self.group or not self.weights else self.weights[0] * group_count(int(np.prod(self.weights[1:])), self.group)
        )


class _Arrays(_Strict):
    file: str
    sha256: str


class RepairSection(_Strict):
    """The section `repair` of a parameters file, as pydantic reads it.

    `effort`: the level of repair.
    `held_out`: samples that judged its steps.
    `steps`: the steps that were tried, for people to read; the program ignores them.
    `hosted`, `factors`, `offsets`: as in `quant.repair.choices.Quantization`.
    `arrays`: name and hash of the array file.
    `layers`: what that file holds of each layer.
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
    """A record of what repair chose: its effort, samples held out, steps, and the `quantization`, whose ranges are empty."""

    quantization: Quantization
    effort: str
    held_out: int = 0
    steps: Sequence[Mapping[str, Any]] = ()


# --- writing


def array_file(parameters: Path) -> Path:
    """Return the path of the array file next to the parameters file."""
    return parameters.with_name(f"{parameters.stem}.weights.npz")


def pack_layers(layers: Mapping[str, LayerParameters]) -> bytes:
    """Return the bytes of an .npz with all codes, scales and biases, one layer behind the other in the order of their names.

    Raise InternalError where scales do not lie along axis 0.
    """
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
    """Return all elements as one flat array."""
    return np.concatenate([np.zeros(0, dtype), *(np.ascontiguousarray(a, dtype).ravel() for a in arrays)])


def section_of(repair: Repair, arrays: tuple[str, bytes] | None) -> dict[str, Any]:
    """Return the section as it stands in the file; empty parts are left out.

    `arrays`: name and bytes of the array file; None: layers are left out.
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
    """Return the entry of a layer in the section `layers`."""
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

    `path`: the parameters file, beside which the array file lies. It is read only where the section has layers.

    Raise CompileError where the array file is absent or not the one that was written with it. Its sizes must be those of the
    section.
    """
    layers = _layers(section, path) if section.layers else {}
    offsets = {n: Offset(tuple(o.operands), o.output) for n, o in section.offsets.items()}
    factors = {n: np.array(f, np.float64) for n, f in section.factors.items()}
    quantization = Quantization({}, factors, layers, offsets, tuple(section.hosted))
    return Repair(quantization, section.effort, section.held_out, section.steps)


def _layers(section: RepairSection, path: Path) -> dict[str, LayerParameters]:
    """Return the layers' parameters from the array file. Raise CompileError where it is absent or does not match the section."""
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
    """Return the layers' parameters from flat arrays in which layers follow each other by sorted name."""
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
    """Return the groups of a layer; None where it has none."""
    if not entry.group:
        return None
    shape = entry.weights[0], -1
    scales = take("group_scales", entry.groups).astype(np.int32).reshape(shape)
    return WeightGroups(
        entry.group, scales, take("group_minima", entry.groups).astype(np.int32).reshape(shape) if entry.minima else None
    )
