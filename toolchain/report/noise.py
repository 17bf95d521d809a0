"""Measure signal and noise of one tensor that is rounded to codes, as energies (sums of squares), gathered sample by sample.

The layer errors of report.layer_errors are built on it: `RoundingError` for float's tensor, `noise_energy` for a layer's
result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolchain.ir.graph import Quant
from toolchain.ir.masks import MASK_LOW

Array = NDArray[Any]
_CHUNK = 1 << 16  # elements worked on at once: they stay in the cache
_SOME = 1 << 11  # values of a sample that a median is taken of


@dataclass
class RoundingError:
    """The effect of rounding a tensor's float values to its codes, summed over the calls of `codes`.

    Energies are sums of squares. Where the tensor's channels are scaled, they are in the file's own units.

    `masks`: the tensor masks with minus infinity. Such values are left out of all figures, since the least code means the same.
    `signal`: energy of the values.
    `noise`: energy of all errors.
    `clipped_noise`: energy of the errors of values outside the codes, of which there are `clipped`.
    `count`: number of values.
    `low`, `high`: range of the values as they are rounded; inf and -inf before any.
    """

    masks: bool = False

    signal: float = 0.0
    noise: float = 0.0
    clipped_noise: float = 0.0
    clipped: int = 0
    count: int = 0
    low: float = math.inf
    high: float = -math.inf
    _power: float = 0.0  # of the values as they are rounded
    _first: float = math.inf
    _last: float = -math.inf
    _some: list[Array] = field(default_factory=list[Array])

    def codes(self, x: Array, quant: Quant, dtype: str, unscaled: Array | None = None) -> Array:
        """Return the codes of float `x`, saturated, and add its rounding error to the sums.

        The codes are those that the host makes on the way into a region: float32, halves to even.

        `dtype`: the type of the codes.
        `unscaled`: factor that turns `x` into the file's numbers, broadcasts to it; None without a factor.
        """
        flat, back = np.ravel(x), _ravel_unscaling(unscaled, x)
        some = flat[:: -(-flat.size // _SOME) or 1]
        floor = _floor(quant, dtype) if self.masks else -math.inf
        unmasked = _find_unmasked(some, floor)
        some = np.abs(some if unmasked is None else some[unmasked])
        self._some.append(some[some > 0])
        limits = np.iinfo(dtype)
        all_codes = np.empty(flat.size, dtype)
        scale, zero = np.float32(quant.scale), np.float32(quant.zero_point)
        for start in range(0, flat.size, _CHUNK):
            part = flat[start : start + _CHUNK].astype(np.float32, copy=False)
            with np.errstate(over="ignore"):  # infinity saturates
                steps = np.rint(part / scale) + zero
            if all_codes.dtype.itemsize > 2:  # float32 has no largest code of 32 bits
                steps = steps.astype(np.float64)
            clipped_steps = np.clip(steps, limits.min, limits.max)
            all_codes[start : start + _CHUNK] = clipped_steps
            part_unscaling = None if back is None else back[start : start + _CHUNK]
            unmasked = _find_unmasked(part, floor)
            if unmasked is not None:
                part, steps, clipped_steps, part_unscaling = (
                    part[unmasked],
                    steps[unmasked],
                    clipped_steps[unmasked],
                    None if part_unscaling is None else part_unscaling[unmasked],
                )
            if not part.size:
                continue
            self._add(part, (clipped_steps - zero) * scale - part, steps != clipped_steps, part_unscaling)
            self._first, self._last = min(self._first, float(clipped_steps.min())), max(self._last, float(clipped_steps.max()))
        return all_codes.reshape(x.shape)

    def _add(self, part: Array, error: Array, outside: Array, unscaled: Array | None) -> None:
        """Add values, their errors, and whether each lies outside the codes, to the sums."""
        self.count += part.size
        self.low, self.high = min(self.low, float(part.min())), max(self.high, float(part.max()))
        power = _energy(part)
        self._power += power
        if unscaled is not None:
            error = error * unscaled
            power = _energy(part * unscaled)
        self.signal += power
        self.noise += _energy(error)
        clipped = int(np.count_nonzero(outside))
        if clipped:
            self.clipped += clipped
            self.clipped_noise += _energy(error[outside])

    @property
    def one_code(self) -> bool:
        """Return whether all values have the same code although they differ."""
        return self._first == self._last and self.low < self.high

    @property
    def usual(self) -> float:
        """Return the median magnitude of the values that are not zero, from a subset of each sample; 0 where there are none."""
        return float(np.median(np.concatenate(self._some))) if any(s.size for s in self._some) else 0.0

    @property
    def rms(self) -> float:
        """Return the root mean square of the rounded values."""
        return math.sqrt(self._power / self.count) if self.count else 0.0


def noise_energy(x: Array, codes: Array, quant: Quant, masks: bool = False, unscaled: Array | None = None) -> float:
    """Return the sum of squared differences between the real values of the codes and `x`, of the same shape.

    `masks`: values of `x` that mask are left out.
    `unscaled`: factor of the differences, as in `RoundingError.codes`.
    """
    flat, other, back = np.ravel(x), np.ravel(codes), _ravel_unscaling(unscaled, x)
    scale, zero = np.float32(quant.scale), np.float32(quant.zero_point)
    floor = _floor(quant, codes.dtype) if masks else -math.inf
    energy = 0.0
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        error = (other[start : start + _CHUNK].astype(np.float32) - zero) * scale - part
        if back is not None:
            error = error * back[start : start + _CHUNK]
        unmasked = _find_unmasked(part, floor)
        energy += _energy(error if unmasked is None else error[unmasked])
    return energy


def _ravel_unscaling(unscaled: Array | None, x: Array) -> Array | None:
    return None if unscaled is None else np.ravel(np.broadcast_to(unscaled, x.shape))


def _floor(quant: Quant, dtype: str | np.dtype[Any]) -> float:
    """Return the value below which a value of a masking tensor masks: half a step below its codes, at least MASK_LOW."""
    return max(MASK_LOW, quant.scale * (int(np.iinfo(dtype).min) - quant.zero_point - 0.5))


def _find_unmasked(x: Array, floor: float) -> Array | None:
    """Return where `x` does not mask, None where that is everywhere."""
    return x > floor if x.size and x.min() <= floor else None


def _energy(x: Array) -> float:
    """Return the energy of `x` in float64, since squares of float32 end at 3e38."""
    wide = x.astype(np.float64)
    return float(wide @ wide)
