"""Yields calibration samples from a generator function, or a calibration data reader, in a user's Python file.

`quant.calibration_data` uses it for data of the form `file.py:FUNCTION`.
"""

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
    """Yield the samples of FUNCTION in the file, checked against `inputs`. The file runs when the first sample is asked for.

    FUNCTION is called without arguments and yields {input name: array}, or arrays where there is one input. It may also be a
    class, constructed without arguments, or an object with `get_next` (onnxruntime's CalibrationDataReader).
    `inputs`: type and shape by input of the model.
    `loose`: inputs that may hold NaN and infinity.

    Raise CompileError for whatever the user's code raises, for samples that do not fit (`fit_sample`), and for none at all.
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
    """Return an iterator over what `produce`, or its result where it is callable, yields."""
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
