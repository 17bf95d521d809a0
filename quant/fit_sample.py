"""Checks one calibration sample, or a lone array, against the model's inputs and casts it to exactly their types and shapes.

Every reader of `quant.calibration_data` ends here. The two errors of data that callers tell apart are defined here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

import numpy as np

from quant.suggestion import suggestion
from toolchain.errors import CompileError, format_count
from toolchain.foundation.type_guards import is_mapping
from toolchain.ir.graph import TensorType

Sample = dict[str, np.ndarray]
_OTHER_SHAPE = "or bind other dimensions with --shape"
UNNAMED = "arr_0"  # what numpy.savez calls an array that is given no name


def get_sample_count(samples: Iterable[Any]) -> int | None:
    """Return the number of samples, or None where it is not known before they are read."""
    return len(samples) if isinstance(samples, Sized) else getattr(samples, "count", None)


class MissingArray(CompileError):
    """An error of calibration data: for some input there is no array.

    `inputs`: inputs for which the data hold nothing.
    """

    def __init__(self, message: str, inputs: Sequence[str]):
        super().__init__(message)
        self.inputs = tuple(inputs)


class NotFinite(CompileError):
    """An error: a sample holds NaN or infinity in a tensor of the model, or leads to them there.

    `tensor`: the tensor's name.
    `what`: a phrase such as `NaN in 2 of 6 elements`.
    """

    def __init__(self, message: str, tensor: str, kind: str, wrong: np.ndarray):
        """Make the error.

        `kind`: NaN or infinity.
        `wrong`: bool[...], the elements that are not finite.
        """
        super().__init__(message)
        self.tensor, self.what = tensor, f"{kind} in {int(wrong.sum()):,} of {format_count(wrong.size, 'element')}"


def fit_sample(value: Any, inputs: Mapping[str, TensorType], where: str, loose: Collection[str] = ()) -> Sample:
    """Return {input name: array} with exactly the types and shapes of the model's inputs; surplus arrays are dropped.

    `value`: {input name: array}, or an array where there is one input, which may be called `UNNAMED`. A batch dimension of 1 may
    be left out.
    `inputs`: type and shape by input.
    `where`: the sample's place, with which messages start.
    `loose`: inputs that may hold NaN and infinity.

    Raise MissingArray for an input without an array, and CompileError for a wrong shape or type. Raise NotFinite for NaN or
    infinity.
    """
    if not is_mapping(value):
        if len(inputs) != 1:
            listed = ", ".join(map(repr, inputs))
            problem = f"{where}: one array for a model of {len(inputs)} inputs ({listed}); give a mapping from names"
            raise MissingArray(problem, tuple(inputs))
        value = {next(iter(inputs)): value}
    if len(inputs) == 1 and value.keys() == {UNNAMED}:
        value = {next(iter(inputs)): next(iter(value.values()))}
    missing = [name for name in inputs if name not in value]
    if missing:
        listed = ", ".join(map(repr, value)) or "none"
        near = suggestion(missing[0], map(str, value))
        raise MissingArray(f"{where}: no array for input {missing[0]!r} (given: {listed}); add it{near}", missing)
    return {name: fit_array(np.asarray(value[name]), name, t, where, loose) for name, t in inputs.items()}


def count_samples(where: str | Path, name: str, shape: tuple[int, ...], t: TensorType) -> int:
    """Return how many samples of an input an array of this shape holds.

    Its leading dimension is samples x batch, or samples before the whole shape. Raise CompileError for any other shape.
    """
    if shape[1:] == t.shape and shape:
        return shape[0]
    if not t.shape or len(shape) != len(t.shape) or shape[1:] != t.shape[1:]:
        expected_shape = ", ".join(("samples", *map(str, t.shape[1:] if t.shape else ())))
        raise CompileError(
            f"{where}: array for input {name!r} has shape {list(shape)}; the input takes {list(t.shape)}, so it must be "
            f"[{expected_shape}]: {_suggest_transpose(shape, t.shape, True) or f'resize the samples, {_OTHER_SHAPE}'}"
        )
    count = _count_batches(shape[0], t.shape[0])
    if count is None:
        raise CompileError(
            f"{where}: array for input {name!r} has {shape[0]} rows, no multiple of the batch {t.shape[0]}; "
            "drop the odd rows, or bind another batch with --shape"
        )
    return count


def _count_batches(rows: int, batch: int) -> int | None:
    """Return how many batches the rows make, None where they are no whole number; 0 batches of 0 rows make none."""
    if not batch:
        return None if rows else 0
    return None if rows % batch else rows // batch


def fit_array(array: np.ndarray, name: str, t: TensorType, where: str, loose: Collection[str] = ()) -> np.ndarray:
    """Return the array as t.dtype[t.shape], contiguous in C order; it may be `array` itself.

    A leading dimension of 1 may be missing. Floats are cast to floats and integers to integers that hold them, nothing else.
    `loose`: inputs that may hold NaN and infinity.

    Raise CompileError for a wrong shape or type, or where a cast overflows. Raise NotFinite for NaN or infinity.
    """
    if (1, *array.shape) == t.shape:
        array = array[None]
    if array.shape != t.shape:
        raise CompileError(
            f"{where}: input {name!r} has shape {list(array.shape)}, the model takes {list(t.shape)}; "
            f"{_suggest_transpose(array.shape, t.shape, False) or f'resize it, {_OTHER_SHAPE}'}"
        )
    dtype = np.dtype(t.dtype)
    cast = array if array.dtype == dtype else _cast(array, dtype, name, where)
    wrong = ~np.isfinite(cast) if name not in loose else np.isinf(cast) & np.isfinite(array)
    if wrong.any():
        raise _not_finite(array, cast, wrong, f"{where}: input {name!r}", name)
    return np.asarray(cast, order="C")  # ascontiguousarray would give an array without dimensions one


def _suggest_transpose(shape: tuple[int, ...], target_shape: tuple[int, ...], several: bool) -> str:
    """Return how to move the channels of an array to where the model has them, empty where that is not what it lacks.

    Where its batch does not fit either, the advice says so.
    `shape`: of the array; its batch may be missing, or stand behind a number of samples.
    `target_shape`: the input's shape, its batch first.
    `several`: the array may hold several samples, and needs a dimension for them.
    """
    before = len(shape) - len(target_shape) + 1  # dimensions in front of one sample's own
    if len(target_shape) < 3 or not 0 <= before <= 2 or shape[before:] == target_shape[1:]:
        return ""
    axes = range(before, len(shape))
    for place, moved in (("last", (axes[-1], *axes[:-1])), ("first", (*axes[1:], axes[0]))):
        if tuple(shape[i] for i in moved) == target_shape[1:]:
            order = ", ".join(map(str, (*range(before), *moved)))
            added = "[None]" if several and not before else ""
            fits = _fits_batch(shape[:before], target_shape[0], several)
            rest = "" if fits else f" and resize its batch, {_OTHER_SHAPE}"
            return f"its channels are {place}, so save x.transpose({order}){added}{rest}"
    return ""


def _fits_batch(leading: tuple[int, ...], batch: int, several: bool) -> bool:
    """Return whether an array fits an input of this batch, all dimensions behind the batch being right.

    `leading`: the array's dimensions in front of those.
    `several`: it may hold several samples.
    """
    if several:
        return leading[1:] == (batch,) or (len(leading) < 2 and _count_batches((leading or (1,))[0], batch) is not None)
    return (leading or (1,)) == (batch,)


def _not_finite(array: np.ndarray, cast: np.ndarray, wrong: np.ndarray, thing: str, name: str) -> CompileError:
    """Return an error that quotes the first wrong element: a plain CompileError where the cast overflows, else NotFinite.

    `array`, `cast`: before and after the cast.
    `wrong`: bool[...], where `cast` is not finite.
    `thing`: the start of the message.
    """
    at = [int(i) for i in np.argwhere(wrong)[0]]
    value, way_out = array[tuple(at)], "calibration needs finite data, remove the sample"
    if np.isfinite(value):
        return CompileError(f"{thing} holds {value:g} at {at}, which overflows {cast.dtype.name}; {way_out}")
    kind = "NaN" if np.isnan(value) else "infinity"
    return NotFinite(f"{thing} holds {kind} at {at}; {way_out}", name, kind, wrong)


def _cast(array: np.ndarray, dtype: np.dtype[Any], name: str, where: str) -> np.ndarray:
    """Return the array in `dtype`, where both are floats, or both integers that hold it; else raise CompileError."""
    if array.dtype.kind == "f" and dtype.kind == "f":
        with np.errstate(over="ignore"):
            return array.astype(dtype)
    if array.dtype.kind in "iu" and dtype.kind in "iu":
        info = np.iinfo(dtype)
        if not array.size or (int(array.min()) >= info.min and int(array.max()) <= info.max):
            return array.astype(dtype)
        raise CompileError(
            f"{where}: input {name!r} holds {int(array.min())} to {int(array.max())}, "
            f"outside the {info.min} to {info.max} of the model's {dtype.name}; mend the data"
        )
    raise CompileError(
        f"{where}: input {name!r} is {array.dtype.name}, the model takes {dtype.name}; "
        f"save it with .astype({dtype.name!r}), scaled as the model was trained"
    )
