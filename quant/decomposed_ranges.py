"""A model some of whose operators were taken apart into steps, and what that changes in its calibration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from quant.observe import Range
from toolchain.ir.range_constraints import ClippedRange

if TYPE_CHECKING:
    import onnx

EntryT = TypeVar("EntryT")


class Decomposition(Protocol):
    """An interface of a decomposed model.

    `original_model`: the model before, in which a Softmax that reads a mask can still be seen.
    `within`: bounds of tensors between steps.
    """

    @property
    def original_model(self) -> onnx.ModelProto: ...
    @property
    def within(self) -> Mapping[str, ClippedRange]: ...


def cut(name: str, x: np.ndarray, divided: Decomposition | None) -> np.ndarray:
    """The values of a tensor that count, infinite ones too; NaN stays."""
    bounds = None if divided is None else divided.within.get(name)
    return x if bounds is None else np.clip(x, bounds.low, bounds.high, dtype=x.dtype)


def get_range_owner(name: str, divided: Decomposition | None) -> str:
    """The name that tensors share which have one range; else their own."""
    bounds = None if divided is None else divided.within.get(name)
    return name if bounds is None else bounds.as_one or name


def clip_ranges(ranges: Mapping[str, EntryT], divided: Decomposition | None) -> dict[str, EntryT | Range]:
    """Return the ranges within the bounds, up to what they reach; one that has nothing there stays, and scales do."""
    clipped_ranges: dict[str, EntryT | Range] = dict(ranges)
    for name, bounds in divided.within.items() if divided is not None else ():
        tensor_range = clipped_ranges.get(name)
        if isinstance(tensor_range, Range) and tensor_range.low < bounds.high and tensor_range.high > bounds.low:
            clipped = tensor_range.within(bounds.low, bounds.high)
            clipped_ranges[name] = clipped if bounds.reaches is None else clipped.union(Range(bounds.reaches, bounds.reaches))
    return clipped_ranges
