"""Takes calibration and judging data that a caller holds as Python objects: arrays, iterables, readers, functions.

`as_data` wraps them, and `quant.calibration_data.open_data` opens them for a model's inputs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar, cast

import numpy as np

from quant.fit_sample import MissingArray, Sample, count_samples, fit_sample
from quant.suggestion import suggestion
from toolchain.errors import CompileError, ToolchainError, first_line, format_count, is_out_of_memory
from toolchain.ir.graph import TensorType

Result = TypeVar("Result")
Types = Mapping[str, TensorType]
Item = Mapping[str, np.ndarray] | tuple[np.ndarray, ...]  # of a sample or a batch: by name, or in the order of the inputs
FORMS = "a path, an array, a dict of arrays, an iterable of samples, a CalibrationDataReader or a function that returns one"
_END = object()


@dataclass(frozen=True, eq=False)
class MemoryData:
    """Data of a caller in this process.

    An iterable or a reader is read once and stays in memory; a function is called for every pass.
    `name`: the name in messages.
    `value`: an array, a dict of arrays, an iterable of samples or batches, a reader with `get_next`, or a function that returns
    one.
    `limit`: the most items that are read of an iterable; None: all.
    """

    name: str
    value: Any
    limit: int | None = None
    _items: list[Item] = field(default_factory=list[Item])  # of an iterable, after the first pass

    def __str__(self) -> str:
        return self.name

    def open(
        self, inputs: Types, loose: Collection[str] = ()
    ) -> tuple[int | None, Callable[[], Iterator[Sample]], tuple[str, ...]]:
        """Return the number of samples where it is known, a function that starts a pass over them, and notes.

        `loose`: inputs that may hold NaN and infinity.
        Raise CompileError where names, shapes or types are wrong, or where the caller's code fails.
        """
        if _is_mapping(self.value) or _has_shape(self.value):
            arrays = self._name_arrays(_arrays(self.value, self.name), inputs)
            count = _count(arrays, inputs, self.name)
            return count, lambda: self._samples([arrays], inputs, loose), ()
        if _is_function(self.value):
            return None, lambda: self._samples(_items_of(self.value, self.name), inputs, loose), ()
        if not self._items:
            self._items.extend(islice(_items_of(self.value, self.name), self.limit))
        items = [self._name_arrays(item, inputs) for item in self._items]
        counts = [_count(item, inputs, f"{self.name}: sample {index}") for index, item in enumerate(items)]
        unread = next((item for item in self._items if isinstance(item, tuple) and len(item) > len(inputs)), None)
        notes = () if unread is None else (self._note(unread, inputs),)
        return sum(counts), lambda: self._samples(items, inputs, loose), notes

    def _note(self, item: tuple[Any, ...], inputs: Types) -> str:
        """Return the note that arrays behind those of the inputs are not read."""
        return (
            f"{self.name}: of the {len(item)} arrays of a sample the first are taken for {', '.join(inputs)}; "
            "the others (labels) are not read"
        )

    def _name_arrays(self, item: Mapping[str, Any] | tuple[Any, ...], inputs: Types) -> Mapping[str, Any]:
        """Return the arrays of all inputs by name. Raise MissingArray."""
        arrays = item if isinstance(item, Mapping) else dict(zip(inputs, item))
        missing = [name for name in inputs if name not in arrays]
        if not missing:
            return {name: arrays[name] for name in inputs}
        names = ", ".join(map(repr, arrays)) if isinstance(item, Mapping) else format_count(len(item), "array")
        near = suggestion(missing[0], map(str, arrays)) if isinstance(item, Mapping) else ""
        way_out = f"give a dict with {missing[0]!r}"
        raise MissingArray(f"{self.name}: no array for input {missing[0]!r} (given: {names or 'none'}); {way_out}{near}", missing)

    def _samples(
        self, items: Iterable[Mapping[str, Any] | tuple[Any, ...]], inputs: Types, loose: Collection[str]
    ) -> Iterator[Sample]:
        """Yield the samples of all items. Raise CompileError where there are none."""
        number = 0
        for item in items:
            arrays = self._name_arrays(item, inputs)
            count = _count(arrays, inputs, f"{self.name}: sample {number}")
            parts = {n: arrays[n].reshape(count, *inputs[n].shape) for n in inputs}
            for index in range(count):
                sample = {n: part[index] for n, part in parts.items()}
                yield fit_sample(sample, inputs, f"{self.name}: sample {number}", loose)
                number += 1
        if number == 0:
            raise CompileError(f"{self.name}: holds 0 samples; calibration needs at least 1")


def as_data(value: Any, name: str, limit: int | None = None) -> str | MemoryData | None:
    """Return data as options hold them: a path or FILE.py:FUNCTION as text, else `MemoryData`; None stays None.

    Raise CompileError for an object that can hold no samples.
    """
    if value is None or isinstance(value, str | MemoryData):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(cast("os.PathLike[str]", value))
    is_bytes = isinstance(value, bytes | bytearray)
    if is_bytes or not (hasattr(value, "get_next") or _is_iterable(value) or _has_shape(value) or callable(value)):
        raise CompileError(f"{name}: is {type(value).__name__}; give {FORMS}")
    return MemoryData(name, value, limit)


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping)


def _is_iterable(value: Any) -> bool:
    return hasattr(value, "__iter__") or hasattr(value, "__getitem__")


def _is_function(value: Any) -> bool:
    """Return whether an object is called for its samples: a function, or a class, which is called without arguments."""
    return isinstance(value, type) or (callable(value) and not _is_iterable(value) and not hasattr(value, "get_next"))


def _has_shape(value: Any) -> bool:
    """Return whether an object is an array with dimensions: of numpy, torch, or another with `__array__`."""
    return not isinstance(value, type) and hasattr(value, "__array__") and len(getattr(value, "shape", (0,))) > 0


def _items_of(value: Any, name: str) -> Iterator[Item]:
    """Yield the arrays of each item, a sample or a batch of them. Raise CompileError for whatever the caller's code raises."""
    stream = _call(name, "give an iterable of samples", _stream, value)
    number = 0
    while (item := _call(f"{name}: sample {number}", "mend the data", next, stream, _END)) is not _END:
        yield _arrays(item, f"{name}: sample {number}")
        number += 1


def _stream(value: Any) -> Iterator[Any]:
    """Return an iterator over the items of an iterable or a reader, or of what a function returns."""
    samples = value() if _is_function(value) else value
    return iter(samples.get_next, None) if hasattr(samples, "get_next") else iter(samples)


def _arrays(item: Any, where: str) -> Item:
    """Return an item's arrays by name, or in the order of the inputs with labels behind them."""
    return _call(where, "give arrays of numbers", _convert_item, item)


def _convert_item(item: Any) -> Item:
    """Return the arrays of an item: by name for a mapping, else a tuple in the order of the inputs."""
    if isinstance(item, Mapping):
        return {str(name): _to_array(value) for name, value in cast(Mapping[Any, Any], item).items()}
    parts = cast(Sequence[Any], item) if isinstance(item, tuple | list) else ()
    if parts and _is_mapping(parts[0]):  # (inputs by name, labels)
        return _convert_item(parts[0])
    if parts and _has_shape(parts[0]):
        return tuple(_to_array(value) for value in parts)
    return (_to_array(item),)


def _to_array(value: Any) -> np.ndarray:
    """Return a numpy array of numbers, of a tensor of torch on any device too. Raise TypeError for other objects."""
    tensor = value.detach().cpu() if hasattr(value, "detach") and hasattr(value, "cpu") else value
    array = np.asarray(tensor)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"is an array of {array.dtype}")
    return array


def _count(arrays: Mapping[str, Any], inputs: Types, where: str) -> int:
    """Return how many samples the arrays hold; each may be one sample, with or without its batch of 1, or a batch of them."""
    counts = {
        name: 1 if arrays[name].shape == t.shape or (1, *arrays[name].shape) == t.shape else _count_rows(arrays, name, t, where)
        for name, t in inputs.items()
    }
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{n!r} {c}" for n, c in counts.items())
        raise CompileError(f"{where}: the inputs have different numbers of samples ({listed}); give each as many")
    return next(iter(counts.values()))


def _count_rows(arrays: Mapping[str, Any], name: str, t: TensorType, where: str) -> int:
    """Return how many samples an array of this input holds. Raise CompileError."""
    return count_samples(where, name, arrays[name].shape, t)


def _call(where: str, way_out: str, call: Callable[..., Result], *arguments: Any) -> Result:
    """Call code of the caller's; whatever it raises is a CompileError that names the place, with the cause behind it."""
    try:
        return call(*arguments)
    except ToolchainError:
        raise
    except Exception as fault:
        if is_out_of_memory(fault):
            raise
        raise CompileError(f"{where}: {type(fault).__name__}: {first_line(fault)}; {way_out}") from fault
