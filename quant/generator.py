"""Calibration samples from a generator function in a user's Python file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from quant.fit_sample import Sample, fit_sample
from quant.users_python import call_user, load_function
from toolchain.errors import CompileError
from toolchain.foundation.type_guards import is_mapping
from toolchain.ir.graph import TensorType

_END = object()


def generator_samples(
    path: Path, function: str, inputs: Mapping[str, TensorType], loose: Collection[str] = ()
) -> Iterator[Sample]:
    """Yield the samples of FUNCTION in the file, called without arguments.
    FUNCTION may also be a class, made without arguments, or an object with `get_next` (onnxruntime's CalibrationDataReader).
    Raise CompileError for whatever the user's code raises.

    `loose`: as in `open_data`.
    """
    where = f"{path}:{function}"
    produce = load_function(path, function)
    stream = call_user(path, where, "it must return an iterable of samples", _iterator, produce)
    count = 0
    while True:
        sample = f"{where}: sample {count}"
        value = call_user(path, sample, "mend the generator", next, stream, _END)
        if value is _END:
            break
        arrays = call_user(path, f"{sample}: is no array", "yield numpy arrays", _arrays, value)
        yield fit_sample(arrays, inputs, sample, loose)
        count += 1
    if count == 0:
        raise CompileError(f"{where}: yields 0 samples; calibration needs at least 1")


def _iterator(produce: Any) -> Iterator[Any]:
    samples: Any = produce() if callable(produce) else produce
    return _read_all(samples) if hasattr(samples, "get_next") else iter(samples)


def _read_all(reader: Any) -> Iterator[Any]:
    """Yield what a calibration data reader of onnxruntime, also one without its base class, gives until it ends."""
    while (sample := reader.get_next()) is not None:
        yield sample


def _arrays(value: Any) -> Any:
    """Return what the user's code yielded as arrays, which run no code of the user's from then on."""
    if not is_mapping(value):
        return np.asarray(value)
    return {str(name): np.asarray(array) for name, array in value.items()}
