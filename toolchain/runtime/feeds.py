"""Check and convert the feeds of a session: arrays for the model's inputs and states, by name.

NOT_BOUND stands for a model none of whose inputs are bound to values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

import numpy as np

from toolchain.codegen import IoType
from toolchain.errors import CompileError, first_line, shown_elements
from toolchain.foundation.type_guards import is_sequence

NOT_BOUND: Mapping[str, np.ndarray] = MappingProxyType({})


def check_feeds(
    inputs: Sequence[IoType],
    feeds: Mapping[str, np.ndarray],
    states: Sequence[IoType] = (),
    bound: Mapping[str, np.ndarray] = NOT_BOUND,
    loose: Collection[str] = (),
) -> None:
    """Raise CompileError with every fault of the feeds: missing or unknown names, other shapes or types, NaN and infinity.

    `states`: inputs that may be left out.
    `bound`: inputs that the model was built for one value of; they may be left out, and only this value may be given.
    `loose`: inputs that may hold NaN and infinity.
    """
    _require_mapping("feeds", "input", feeds, inputs)
    wrong = [_unequal(name, np.asarray(feeds[name]), value) for name, value in bound.items() if name in feeds]
    feeds = {name: value for name, value in feeds.items() if name not in bound}
    missing = [t for t in inputs if t.name not in feeds]
    faults = [f"input {t.name!r} is missing; give an array of {t.dtype} {list(t.shape)}" for t in missing]
    _raise_all([*faults, *filter(None, wrong), *_misfits("input", feeds, inputs, states, loose)])


def convert_feeds(inputs: Sequence[IoType], feeds: Any) -> Mapping[str, Any]:
    """Return feeds as arrays: lists in the type of their input, as onnxruntime takes them, and float64 as float32.

    All other values, and feeds that are no mapping, are returned as they are, for `check_feeds` to judge. Raise CompileError
    for a list that is no array of this type.
    """
    if not isinstance(feeds, Mapping):
        return feeds
    values = cast("Mapping[str, Any]", feeds)
    dtype_by_name = {t.name: t.dtype for t in inputs}
    return {name: _convert(name, value, dtype_by_name.get(name)) for name, value in values.items()}


def _convert(name: str, value: Any, dtype: str | None) -> Any:
    """Return one feed as an array. dtype: type of its input, None for an unknown name, whose value is returned as it is."""
    if dtype is None:
        return value
    if is_sequence(value):
        return _list_to_array(name, value, np.dtype(dtype))
    array = np.asarray(value)
    if array.dtype != np.float64 or dtype != "float32":
        return array
    with np.errstate(over="ignore"):  # infinity is refused by its name
        return array.astype(np.float32)


def _list_to_array(name: str, value: Sequence[Any], dtype: np.dtype[Any]) -> np.ndarray:
    """Return a list as an array of a type. Raise CompileError where its numbers are none of this type."""
    try:
        array = np.asarray(value)
        with np.errstate(over="ignore", invalid="ignore"):
            converted = array.astype(dtype)
    except (TypeError, ValueError, OverflowError) as fault:
        raise CompileError(f"input {name!r}: the list is no array of {dtype}: {first_line(fault)}") from None
    if array.dtype.kind not in "biuf":
        raise CompileError(f"input {name!r}: the list is no array of {dtype}: it holds {array.dtype}")
    if dtype.kind in "iu" and array.size and not np.array_equal(converted, array):
        raise CompileError(f"input {name!r}: the list holds numbers that {dtype} does not; give whole numbers in its range")
    return converted


def _unequal(name: str, fed_value: np.ndarray, value: np.ndarray) -> str:
    """Return the fault of the value fed to a bound input; empty where it is the value that the model was built for."""
    if fed_value.dtype == value.dtype and np.array_equal(fed_value, value, equal_nan=value.dtype.kind == "f"):
        return ""
    fed_text, built = (f"{a.dtype}{list(a.shape)} {shown_elements(a)}" for a in (fed_value, value))
    return (
        f"input {name!r} is {fed_text}; the model was built for {built} alone: leave it out, or build with data that hold "
        "the other"
    )


def check_states(states: Sequence[IoType], values: Mapping[str, np.ndarray]) -> None:
    """Raise CompileError with every fault of the values that states are set to. States may be left out."""
    _require_mapping("reset", "state", values, states)
    _raise_all(_misfits("state", values, states))


def _require_mapping(argument: str, kind: str, values: object, types: Sequence[IoType]) -> None:
    if not isinstance(values, Mapping):
        named = ", ".join(f"{t.name!r}: array" for t in types)
        raise CompileError(f"{argument}: is {type(values).__name__}; give a mapping from the {kind}s' names, {{{named}}}")


def _raise_all(faults: Sequence[str]) -> None:
    """Raise one CompileError with all faults, a line each; return where there are none."""
    if faults:
        raise CompileError("\n".join(faults))


def _misfits(
    kind: str,
    values: Mapping[str, np.ndarray],
    types: Sequence[IoType],
    states: Sequence[IoType] = (),
    loose: Collection[str] = (),
) -> list[str]:
    """Return the faults of values.

    `kind`: what messages call `types`.
    `states`: optional further values.
    `loose`: names that may hold NaN and infinity.
    """
    type_by_name, faults = {t.name: t for t in (*types, *states)}, list[str]()
    named = ", ".join(sorted(t.name for t in types)) or "none"
    named += f"; its states, {', '.join(sorted(t.name for t in states))}, may be given too" if states else ""
    for name, value in values.items():
        value = np.asarray(value)
        if name not in type_by_name:
            faults.append(f"there is no {kind} {name!r}; the model's {kind}s are {named}")
        elif value.shape != type_by_name[name].shape:
            faults.append(f"{kind} {name!r} {_misshapen(name, value.shape, type_by_name[name].shape)}")
        elif value.dtype != type_by_name[name].dtype:
            dtype = type_by_name[name].dtype
            way_out = f"give {name}.astype({dtype!r}), nothing is rounded here where bits are compared"
            faults.append(f"{kind} {name!r} is {value.dtype}; the model takes {dtype}: {way_out}")
        elif value.dtype.kind == "f" and name not in loose and not np.isfinite(value).all():
            faults.append(f"{kind} {name!r} holds NaN or infinity; codes cannot hold them")
    return faults


def _misshapen(name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> str:
    message = f"has shape {list(shape)}; the model takes {list(expected)}"
    if len(shape) == len(expected) and shape[1:] == expected[1:] and shape[0] > expected[0]:
        return f"{message} at once: give so much of it, for example {name}[:{expected[0]}]"
    return message


def random_feeds(inputs: Sequence[IoType], seed: int = 0) -> dict[str, np.ndarray]:
    """Return one random sample of the kind that calibration without data uses; the same seed gives the same."""
    from quant.calibration_data import random_data
    from toolchain.ir.graph import TensorType

    types = {t.name: TensorType(t.shape, t.dtype) for t in inputs}
    return next(iter(random_data(types, samples=1, seed=seed)))
