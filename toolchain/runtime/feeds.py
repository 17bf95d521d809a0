"""What a session is given: the model's inputs by name."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from toolchain.codegen import IoType
from toolchain.errors import CompileError, shown_elements

NOT_BOUND: Mapping[str, np.ndarray] = MappingProxyType({})


def check_feeds(
    inputs: Sequence[IoType],
    feeds: Mapping[str, np.ndarray],
    states: Sequence[IoType] = (),
    bound: Mapping[str, np.ndarray] = NOT_BOUND,
    loose: Collection[str] = (),
) -> None:
    """states: inputs that need not be given; bound: such that may only be given as they are; loose: such that may hold NaN and
    infinity. Raises CompileError with every fault of the feeds."""
    _require_mapping("feeds", "input", feeds, inputs)
    wrong = [_unequal(name, np.asarray(feeds[name]), value) for name, value in bound.items() if name in feeds]
    feeds = {name: value for name, value in feeds.items() if name not in bound}
    missing = [t for t in inputs if t.name not in feeds]
    faults = [f"input {t.name!r} is missing; give an array of {t.dtype} {list(t.shape)}" for t in missing]
    _raise_all([*faults, *filter(None, wrong), *_misfits("input", feeds, inputs, states, loose)])


def _unequal(name: str, given: np.ndarray, value: np.ndarray) -> str:
    """What is wrong with what a bound input is given; nothing where it is the value that it was built for."""
    if given.dtype == value.dtype and np.array_equal(given, value, equal_nan=value.dtype.kind == "f"):
        return ""
    said, built = (f"{a.dtype}{list(a.shape)} {shown_elements(a)}" for a in (given, value))
    return (
        f"input {name!r} is {said}; the model was built for {built} alone: leave it out, or build with data that hold the other"
    )


def check_states(states: Sequence[IoType], values: Mapping[str, np.ndarray]) -> None:
    """Raises CompileError with every fault of what states are set to, any of which may be left out."""
    _require_mapping("reset", "state", values, states)
    _raise_all(_misfits("state", values, states))


def _require_mapping(whole: str, kind: str, values: object, known: Sequence[IoType]) -> None:
    if not isinstance(values, Mapping):
        named = ", ".join(f"{t.name!r}: array" for t in known)
        raise CompileError(f"{whole}: is {type(values).__name__}; give a mapping from the {kind}s' names, {{{named}}}")


def _raise_all(faults: Sequence[str]) -> None:
    if faults:
        raise CompileError("\n".join(faults))


def _misfits(
    kind: str,
    values: Mapping[str, np.ndarray],
    types: Sequence[IoType],
    states: Sequence[IoType] = (),
    loose: Collection[str] = (),
) -> list[str]:
    """kind: what `types` are called; states: what else may be given; loose: what may hold NaN and infinity."""
    known, faults = {t.name: t for t in (*types, *states)}, list[str]()
    named = ", ".join(sorted(t.name for t in types)) or "none"
    named += f"; its states, {', '.join(sorted(t.name for t in states))}, may be given too" if states else ""
    for name, value in values.items():
        value = np.asarray(value)
        if name not in known:
            faults.append(f"there is no {kind} {name!r}; the model's {kind}s are {named}")
        elif value.shape != known[name].shape:
            faults.append(f"{kind} {name!r} {_misshapen(name, value.shape, known[name].shape)}")
        elif value.dtype != known[name].dtype:
            wanted = known[name].dtype
            way_out = f"give {name}.astype({wanted!r}), nothing is rounded here where bits are compared"
            faults.append(f"{kind} {name!r} is {value.dtype}; the model takes {wanted}: {way_out}")
        elif value.dtype.kind == "f" and name not in loose and not np.isfinite(value).all():
            faults.append(f"{kind} {name!r} holds NaN or infinity; codes cannot hold them")
    return faults


def _misshapen(name: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    said = f"has shape {list(shape)}; the model takes {list(wanted)}"
    if len(shape) == len(wanted) and shape[1:] == wanted[1:] and shape[0] > wanted[0]:
        return f"{said} at once: give so much of it, for example {name}[:{wanted[0]}]"
    return said


def random_feeds(inputs: Sequence[IoType], seed: int = 0) -> dict[str, np.ndarray]:
    """One sample of the kind that calibration without data uses."""
    from quant.calibration_data import random_data
    from toolchain.ir.graph import TensorType

    types = {t.name: TensorType(t.shape, t.dtype) for t in inputs}
    return next(iter(random_data(types, samples=1, seed=seed)))
