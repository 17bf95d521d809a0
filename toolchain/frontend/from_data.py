"""Inputs that decide shapes and are bound to the value that all samples of the data hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import onnx

from quant.data import open_data
from quant.sample import NoArray, Sample, shown
from toolchain.errors import CompileError, counted
from toolchain.frontend.bind import Bound
from toolchain.frontend.values import hold_values
from toolchain.frontend.walk import Static, static_graph
from toolchain.ir.graph import TensorType

_ELEMENTS = 4096  # as `infer.MAX_DATA`: larger tensors never decide a shape
_INPUTS = 16  # the most that are tried, each with a walk through the graph


@dataclass(frozen=True)
class ModelData:
    """Where samples of a model lie: `spec` as `quant.data.open_data` takes it, None: nowhere. limit: as many are read at most.
    judge: more data, which must agree."""

    spec: str | None = None
    limit: int | None = None
    judge: str | None = None


NO_DATA = ModelData()


@dataclass(frozen=True)
class BoundByData:
    """A static graph, the inputs that are constants of it because the data say so, and a note of each."""

    static: Static
    values: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    notes: tuple[str, ...] = ()


def static_by_data(proto: onnx.ModelProto, bound: Bound, data: ModelData) -> BoundByData:
    """The graph as it is; where that has shapes that depend on values, with the fewest inputs bound that mend it, which become
    initializers of `proto`. Raises CompileError as `static_graph`, and says which input would mend it but differs."""
    try:
        return BoundByData(static_graph(proto, bound.types))
    except CompileError as fault:
        candidates = [n for n, t in bound.types.items() if len(t.shape) < 2 and t.elements <= _ELEMENTS]
        if data.spec is None or not candidates:
            raise
        held = _held(data.spec, data.limit, bound.types, candidates)
        values = None if held is None else _fewest(proto, bound, held.values)
        if held is None or not values:
            raise _explained(proto, bound, fault, held) from None
    if data.judge is not None:
        _require_equal(data.judge, bound.types, values)
    hold_values(proto.graph, values)
    types = {n: t for n, t in bound.types.items() if n not in values}
    return BoundByData(static_graph(proto, types), values, tuple(held.note(n) for n in values))


@dataclass(frozen=True)
class _Held:
    """values: of inputs that are alike in all of `count` samples; first: of all inputs in the first; other: by input, the first
    sample that has another value, and the value."""

    source: str
    count: int
    values: Mapping[str, np.ndarray]
    first: Mapping[str, np.ndarray]
    other: Mapping[str, tuple[int, np.ndarray]]

    def note(self, name: str) -> str:
        value = shown(self.values[name])
        what = f'input "{name}": shapes depend on it; bound to {value}, which'
        proof = "is in the one sample" if self.count == 1 else f"all {counted(self.count, 'sample')} hold"
        doubt = ": one sample alone is no proof that it is always so" if self.count == 1 else ""
        return f"{what} {proof} of {self.source}{doubt}; a run that feeds another value is refused"


def _samples(spec: str, limit: int | None, types: Mapping[str, TensorType]) -> Iterator[Sample]:
    """Of all inputs that the data hold."""
    try:
        samples = open_data(spec, types, limit=limit)
        next(iter(samples))
    except NoArray as fault:
        kept = {n: t for n, t in types.items() if n not in fault.inputs}
        if not kept:
            return iter(())
        samples = open_data(spec, kept, limit=limit)
    return iter(samples)


def _held(spec: str, limit: int | None, types: Mapping[str, TensorType], names: list[str]) -> _Held | None:
    """None: the data do not fit the inputs, or there are none."""
    try:
        samples = _samples(spec, limit, types)
        first = next(samples, {})
        known = {n: first[n] for n in names if n in first}
        other: dict[str, tuple[int, np.ndarray]] = {}
        count = 1
        for count, sample in enumerate(samples, 2):
            for name in known.keys() - other.keys():
                if not np.array_equal(sample[name], known[name]):
                    other[name] = count - 1, sample[name]
    except (CompileError, StopIteration):
        return None
    return _Held(spec, count, {n: v for n, v in known.items() if n not in other}, known, other) if known else None


def _fewest(proto: onnx.ModelProto, bound: Bound, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Of these values those without any of which the graph is not static; none where all together do not help."""
    needed = dict(islice(values.items(), _INPUTS))
    if not _is_static(proto, bound, needed):
        return {}
    for name in sorted(needed, key=lambda n: needed[n].dtype.kind != "f"):  # floats are data more often
        fewer = {n: v for n, v in needed.items() if n != name}
        if fewer and _is_static(proto, bound, fewer):
            needed = fewer
    return needed


def _is_static(proto: onnx.ModelProto, bound: Bound, values: Mapping[str, np.ndarray]) -> bool:
    tried = onnx.ModelProto()
    tried.CopyFrom(proto)
    hold_values(tried.graph, values)
    try:
        static_graph(tried, {n: t for n, t in bound.types.items() if n not in values})
    except CompileError:
        return False
    return True


def _explained(proto: onnx.ModelProto, bound: Bound, fault: CompileError, held: _Held | None) -> CompileError:
    """The fault, and which inputs would mend it if they did not differ."""
    needed = _fewest(proto, bound, held.first) if held is not None and held.other else {}
    differing = [n for n in needed if held is not None and n in held.other]
    if held is None or not differing:
        return fault
    name = differing[0]
    sample, value = held.other[name]
    there = f"sample 0 of {held.source} holds {shown(held.first[name])}, sample {sample} {shown(value)}"
    way_out = (
        f"it depends on input {name!r}, which differs: {there}; fix it with --value {name}=V0,V1 and give data of that value"
    )
    return CompileError(f"{fault}\n  help: {way_out}")


def _require_equal(spec: str, types: Mapping[str, TensorType], values: Mapping[str, np.ndarray]) -> None:
    """Raises CompileError: a sample holds another value than the input is bound to."""
    for index, sample in enumerate(_samples(spec, None, types)):
        for name, value in values.items():
            if name in sample and not np.array_equal(sample[name], value):
                raise CompileError(
                    f"{spec}: sample {index}: input {name!r} is {shown(sample[name])}; shapes depend on it, and the calibration "
                    f"data bind it to {shown(value)}: remove the sample"
                )
