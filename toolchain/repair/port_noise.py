"""Measure what the codes at a port lose of its data, part by part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from quant.fit_sample import Sample
from quant.fixed_point.core.numerics import Numerics
from quant.float_session import FloatSession
from quant.observe import Range
from quant.parameters import activation_quant
from toolchain.frontend import NormalModel
from toolchain.ir.float_submodel import FloatSubmodel

_MOST_SAMPLES = 64  # docs/accuracy.md
_MOST_ELEMENTS = 1 << 24  # docs/accuracy.md: of tensors that are held, over all samples
_MOST_PARTS = 64  # docs/accuracy.md: of one axis
_CLEAN_DB = 200.0  # docs/accuracy.md: of a part without noise


@dataclass(frozen=True)
class ModelPart:
    """A part of a float network, as a model for `FloatSession`."""

    inputs: Sequence[str]
    part: Callable[[Sequence[str], Sequence[str]], FloatSubmodel]

    def parts(self, names: Sequence[str]) -> Iterator[FloatSubmodel]:
        """Yield the part that computes these tensors."""
        yield self.part(self.inputs, names)


def run_float(model: NormalModel, names: Sequence[str], samples: Iterable[Sample]) -> dict[str, np.ndarray] | None:
    """Return the float values of tensors, samples along a new first axis, or None where some are
    not finite."""
    elements = sum(model.types[n].elements for n in names)
    session = FloatSession(ModelPart(model.inputs, model.normal_part), names, few_runs=True)
    rows = [session.run(sample) for sample in islice(samples, min(_MOST_SAMPLES, max(_MOST_ELEMENTS // elements, 1)))]
    if not rows or any(not np.isfinite(value).all() for row in rows for value in row):
        return None
    return {name: np.stack([np.asarray(row[i], np.float32) for row in rows]) for i, name in enumerate(names)}


def round_to_codes(values: np.ndarray, numerics: Numerics) -> np.ndarray:
    """Return the values of the nearest codes of a scale that covers all of them."""
    quant = activation_quant(Range(float(values.min()), float(values.max())), numerics)
    low, high = numerics.activation.limits
    codes = np.clip(np.rint(values.astype(np.float64) / quant.scale) + quant.zero_point, low, high)
    return ((codes - quant.zero_point) * quant.scale).astype(np.float32)


def find_worst_part(exact: Mapping[str, np.ndarray], noisy: Mapping[str, np.ndarray]) -> float:
    """Return the least signal to noise in dB over the channels and last indices of tensors. The signal is what varies."""
    worst = _CLEAN_DB
    for name, values in noisy.items():
        rank = values.ndim - 1
        for axis in {2, rank} if rank != 4 else {2}:  # rows and columns of a feature map are no parts
            if axis <= rank and 1 < values.shape[axis] <= _MOST_PARTS:
                worst = min(worst, *_list_decibels(exact[name], values, axis))
        worst = min(worst, *_list_decibels(exact[name][..., None], values[..., None], rank + 1))
    return worst


def _list_decibels(exact: np.ndarray, noisy: np.ndarray, axis: int) -> list[float]:
    """Return the signal to noise of each index of an axis in dB; constant ones count as without noise."""
    signal, noise = (np.moveaxis(v, axis, 0).reshape(exact.shape[axis], -1).astype(np.float64) for v in (exact, noisy))
    power = signal.var(axis=1)
    error = np.mean((signal - noise) ** 2, axis=1)
    floor = (1e-6 * np.abs(signal).max(axis=1)) ** 2  # float32's own rounding
    varies = power > floor
    ratio = np.where(varies, power, 1.0) / np.maximum(np.where(varies, error, 0.0), 1e-30)
    return [float(d) for d in np.minimum(10 * np.log10(np.maximum(ratio, 1e-30)), _CLEAN_DB)]
