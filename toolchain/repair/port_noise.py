"""Measure what rounding to codes at a port loses of its data, part by part, for the placement of nodes at ports.

A part is one index of the channels or of the last axis. Levels are dB of what varies over noise, 200 at most.

Constants in dB: below POOR_DB a part loses by its port's codes, below LOW_DB it may. GAIN_DB is the gain that is worth a change,
and levels that differ by less than SAME_DB are alike. FEW_SAMPLES show whether a port is poor; MOST_SAMPLES are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from quant.fidelity import POOR_SQNR_DB
from quant.fit_sample import Sample
from quant.fixed_point.core.numerics import Numerics
from quant.float_session import FloatSession
from quant.observe import Range
from quant.parameters import activation_quant
from quant.part_sums import MANY_VALUES
from toolchain.frontend import NormalModel
from toolchain.ir.float_submodel import FloatSubmodel
from toolchain.ir.graph import Quant

POOR_DB = 20.0  # docs/accuracy.md: what one scale of codes leaves of a part that is 44 times smaller than the largest value
GAIN_DB = 3.0  # docs/accuracy.md: half a bit
FEW_SAMPLES = 16  # docs/accuracy.md: that show whether a port is poor
LOW_DB = 35.0  # docs/accuracy.md: a part at 30 dB by its port's codes alone is below that behind other layers
SAME_DB = 0.5  # docs/accuracy.md: levels that differ by less are alike
MOST_SAMPLES = 64  # docs/accuracy.md
_MOST_ELEMENTS = 1 << 24  # docs/accuracy.md: of tensors that are held, over all samples
_MOST_PARTS = 64  # docs/accuracy.md: of one axis
_CLEAN_DB = 200.0  # docs/accuracy.md: of a part without noise


@dataclass(frozen=True)
class ModelPart:
    """A part of a float network with other inputs, as a model for `FloatSession`.

    `part`: cuts out of the network what computes the second names from the first.
    """

    inputs: Sequence[str]
    part: Callable[[Sequence[str], Sequence[str]], FloatSubmodel]

    def parts(self, names: Sequence[str]) -> Iterator[FloatSubmodel]:
        """Yield the part that computes these tensors."""
        yield self.part(self.inputs, names)


def run_float(
    model: NormalModel, names: Sequence[str], samples: Iterable[Sample], most: int = MOST_SAMPLES
) -> dict[str, np.ndarray] | None:
    """Return the float values of tensors in up to `most` samples, stacked along a new first axis, fewer where they are large.

    Return None without samples, or where a value is not finite.
    """
    elements = sum(model.types[n].elements for n in names)
    session = FloatSession(ModelPart(model.inputs, model.normal_part), names, few_runs=True)
    rows = [session.run(sample) for sample in islice(samples, min(most, max(_MOST_ELEMENTS // elements, 1)))]
    if not rows or any(not np.isfinite(value).all() for row in rows for value in row):
        return None
    return {name: np.stack([np.asarray(row[i], np.float32) for row in rows]) for i, name in enumerate(names)}


def round_to_codes(values: np.ndarray, numerics: Numerics) -> np.ndarray:
    """Return the values rounded to the codes of one scale that covers all of them, as real float32.

    The codes are of the machine's default type of activations. Infinity and NaN, as a logarithm makes of a code of zero, become
    the largest float32 and zero.
    """
    codes, quant = find_nearest_codes(np.nan_to_num(values), numerics)
    return ((codes - quant.zero_point) * quant.scale).astype(np.float32)


def find_nearest_codes(values: np.ndarray, numerics: Numerics) -> tuple[np.ndarray, Quant]:
    """Return the nearest codes of one scale that covers all values, as float64 whole numbers, and its qparams."""
    quant = activation_quant(Range(float(values.min()), float(values.max())), numerics)
    codes = np.rint(values.astype(np.float64) / quant.scale) + quant.zero_point
    return np.clip(codes, *numerics.activation.limits), quant


@dataclass(frozen=True)
class PartLevels:
    """Signal to noise in dB of the parts of tensors. The signal is what varies, so a constant part counts as without noise.

    `total_by_tensor`: of all values of a tensor.
    `part_by_axis`: float64[indices] by tensor and axis of the stacked values.
    """

    total_by_tensor: Mapping[str, float]
    part_by_axis: Mapping[tuple[str, int], np.ndarray]

    @property
    def worst(self) -> float:
        """Return the least level in dB of all tensors and parts."""
        parts = (float(level.min()) for level in self.part_by_axis.values())
        return min([_CLEAN_DB, *self.total_by_tensor.values(), *parts])

    def improves_on(self, other: PartLevels, limit_db: float, gain_db: float) -> bool:
        """Return whether a tensor or part below `limit_db` in `other` gains `gain_db` here and is no longer poor."""
        pairs = [(level, np.float64(other.total_by_tensor[name])) for name, level in self.total_by_tensor.items()]
        pairs += [(level, other.part_by_axis[key]) for key, level in self.part_by_axis.items()]
        return any(bool(np.any((y < limit_db) & (x >= np.maximum(y + gain_db, POOR_SQNR_DB)))) for x, y in pairs)

    def keeps(self, other: PartLevels) -> bool:
        """Return whether no tensor and no part is more than SAME_DB below its level in `other`. A part may fall as far as
        LOW_DB."""
        if any(level < other.total_by_tensor[name] - SAME_DB for name, level in self.total_by_tensor.items()):
            return False
        least = {key: np.minimum(level - SAME_DB, LOW_DB) for key, level in other.part_by_axis.items()}
        return all(bool(np.all(level >= least[key])) for key, level in self.part_by_axis.items())


def list_part_axes(shape: Sequence[int]) -> list[int]:
    """Return the axes of a tensor whose indices are parts: its channels and its last axis, if they have 2 to 64 indices.

    Rows and columns of a feature map are none.
    """
    axes = {1} if len(shape) == 4 else {1, len(shape) - 1}
    return [axis for axis in sorted(axes) if 0 <= axis < len(shape) and 1 < shape[axis] <= _MOST_PARTS]


def measure_parts(exact: Mapping[str, np.ndarray], noisy: Mapping[str, np.ndarray]) -> PartLevels:
    """Return the levels of `noisy` against `exact`, of tensors and of parts with enough values. Samples are along the first
    axis."""
    parts = dict[tuple[str, int], np.ndarray]()
    for name, values in noisy.items():
        for axis in (1 + axis for axis in list_part_axes(values.shape[1:])):
            if values.size // values.shape[axis] >= MANY_VALUES:
                parts[name, axis] = _list_decibels(exact[name], values, axis)
    totals = {name: float(_list_decibels(exact[name][None], values[None], 0)[0]) for name, values in noisy.items()}
    return PartLevels(totals, parts)


def _list_decibels(exact: np.ndarray, noisy: np.ndarray, axis: int) -> np.ndarray:
    """Return the signal to noise of each index of an axis in dB; constant ones count as without noise."""
    signal, noise = (np.moveaxis(v, axis, 0).reshape(exact.shape[axis], -1).astype(np.float64) for v in (exact, noisy))
    power = signal.var(axis=1)
    error = np.mean((signal - noise) ** 2, axis=1)
    floor = (1e-6 * np.abs(signal).max(axis=1)) ** 2  # float32's own rounding
    varies = power > floor
    ratio = np.where(varies, power, 1.0) / np.maximum(np.where(varies, error, 0.0), 1e-30)
    return np.minimum(10 * np.log10(np.maximum(ratio, 1e-30)), _CLEAN_DB)
