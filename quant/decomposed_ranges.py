"""Applies the bounds of tensors between the steps of decomposed operators, during calibration and to its ranges.

`toolchain.passes.decompose` writes an operator as several ONNX nodes. A rule may bound a tensor between them (`ClippedRange`), or
let several share one range. In all functions `decomposition` is None where no operator was decomposed.
"""

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
    """Interface of a model of which operators were decomposed.

    `original_model`: the model before, in which a Softmax that reads a mask can still be seen.
    `within`: bounds by tensor between steps.
    """

    @property
    def original_model(self) -> onnx.ModelProto: ...
    @property
    def within(self) -> Mapping[str, ClippedRange]: ...


def get_original(model: onnx.ModelProto, decomposition: Decomposition | None) -> onnx.ModelProto:
    """Return the model before its decomposition, in which masks and scores can be seen; `model` where it has none."""
    return model if decomposition is None else decomposition.original_model


def cut(name: str, x: np.ndarray, decomposition: Decomposition | None) -> np.ndarray:
    """Return the values of a tensor clipped to its bounds, infinite ones too; NaN stays. Without bounds it is `x` itself."""
    bounds = None if decomposition is None else decomposition.within.get(name)
    return x if bounds is None else np.clip(x, bounds.low, bounds.high, dtype=x.dtype)


def get_range_owner(name: str, decomposition: Decomposition | None) -> str:
    """Return the name under which tensors share one range; the tensor's own name where it shares none."""
    bounds = None if decomposition is None else decomposition.within.get(name)
    return name if bounds is None else bounds.as_one or name


def clip_ranges(ranges: Mapping[str, EntryT], decomposition: Decomposition | None) -> dict[str, EntryT | Range]:
    """Return a copy with ranges cut to the bounds of their tensors, widened to hold `ClippedRange.reaches` where that is set.

    A range that lies outside its bounds stays, and so does an entry that is no Range (a scale).
    """
    clipped_ranges: dict[str, EntryT | Range] = dict(ranges)
    for name, bounds in decomposition.within.items() if decomposition is not None else ():
        tensor_range = clipped_ranges.get(name)
        if isinstance(tensor_range, Range) and tensor_range.low < bounds.high and tensor_range.high > bounds.low:
            clipped = tensor_range.within(bounds.low, bounds.high)
            clipped_ranges[name] = clipped if bounds.reaches is None else clipped.union(Range(bounds.reaches, bounds.reaches))
    return clipped_ranges
