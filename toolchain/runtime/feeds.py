"""What a session is given: the model's inputs by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from toolchain.codegen import IoType
from toolchain.errors import CompileError


def check_feeds(inputs: Sequence[IoType], feeds: Mapping[str, np.ndarray], states: Sequence[IoType] = ()) -> None:
    """states: inputs that need not be given. Raises CompileError with every fault of the feeds."""
    needed = {t.name: t for t in inputs}
    known = {**needed, **{t.name: t for t in states}}
    if not isinstance(feeds, Mapping):
        named = ", ".join(f"{n!r}: array" for n in known)
        raise CompileError(f"feeds: is {type(feeds).__name__}; give a mapping from the inputs' names, {{{named}}}")
    faults = [f"input {n!r} is missing; give an array of {t.dtype} {list(t.shape)}" for n, t in needed.items() if n not in feeds]
    for name, value in feeds.items():
        value = np.asarray(value)
        if name not in known:
            faults.append(f"there is no input {name!r}; the model's inputs are {', '.join(sorted(known))}")
        elif value.shape != known[name].shape:
            faults.append(f"input {name!r} {_misshapen(name, value.shape, known[name].shape)}")
        elif value.dtype != known[name].dtype:
            wanted = known[name].dtype
            way_out = f"give {name}.astype({wanted!r}), nothing is rounded here where bits are compared"
            faults.append(f"input {name!r} is {value.dtype}; the model takes {wanted}: {way_out}")
        elif value.dtype.kind == "f" and not np.isfinite(value).all():
            faults.append(f"input {name!r} holds NaN or infinity; codes cannot hold them")
    if faults:
        raise CompileError("\n".join(faults))


def _misshapen(name: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    said = f"has shape {list(shape)}; the model takes {list(wanted)}"
    if len(shape) == len(wanted) and shape[1:] == wanted[1:] and shape[0] > wanted[0]:
        return f"{said} at once: give so much of it, for example {name}[:{wanted[0]}]"
    return said


def random_feeds(inputs: Sequence[IoType], seed: int = 0) -> dict[str, np.ndarray]:
    """One sample of the kind that calibration without data uses."""
    from quant.data import random_data
    from toolchain.ir.graph import TensorType

    types = {t.name: TensorType(t.shape, t.dtype) for t in inputs}
    return next(iter(random_data(types, samples=1, seed=seed)))
