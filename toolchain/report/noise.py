"""Energies of signal and noise of one tensor, gathered sample by sample."""

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
    """What rounding a tensor's float values to its codes does to them. Energies are sums of squares, in the file's numbers where
    the tensor's channels are scaled.

    noise: all of it; clipped_noise: of values outside the codes, of which there are `clipped`; low, high: of the values.
    masks: values that mask, minus infinity or what stands for it, are left out of all figures: the least code means the same.
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
    _some: list[Array] = field(default_factory=list)

    def codes(self, x: Array, quant: Quant, dtype: str, unscaled: Array | None = None) -> Array:
        """float32 x -> its codes, as the host makes them on the way into a region; adds what that costs. unscaled: what x is
        multiplied by to be the file's numbers, broadcasts to it; None: nothing."""
        flat, back = np.ravel(x), _raveled(unscaled, x)
        some = flat[:: -(-flat.size // _SOME) or 1]
        floor = _floor(quant, dtype) if self.masks else -math.inf
        seen = _seen(some, floor)
        some = np.abs(some if seen is None else some[seen])
        self._some.append(some[some > 0])
        limits = np.iinfo(dtype)
        made = np.empty(flat.size, dtype)
        scale, zero = np.float32(quant.scale), np.float32(quant.zero_point)
        for start in range(0, flat.size, _CHUNK):
            part = flat[start : start + _CHUNK].astype(np.float32, copy=False)
            with np.errstate(over="ignore"):  # infinity saturates
                steps = np.rint(part / scale) + zero
            if made.dtype.itemsize > 2:  # float32 has no largest code of 32 bits
                steps = steps.astype(np.float64)
            held = np.clip(steps, limits.min, limits.max)
            made[start : start + _CHUNK] = held
            own = None if back is None else back[start : start + _CHUNK]
            seen = _seen(part, floor)
            if seen is not None:
                part, steps, held, own = part[seen], steps[seen], held[seen], None if own is None else own[seen]
            if not part.size:
                continue
            self._add(part, (held - zero) * scale - part, steps != held, own)
            self._first, self._last = min(self._first, float(held.min())), max(self._last, float(held.max()))
        return made.reshape(x.shape)

    def _add(self, part: Array, error: Array, outside: Array, unscaled: Array | None) -> None:
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
        """True where unlike values all have the same code."""
        return self._first == self._last and self.low < self.high

    @property
    def usual(self) -> float:
        """Median magnitude of the values that are not zero."""
        return float(np.median(np.concatenate(self._some))) if any(s.size for s in self._some) else 0.0

    @property
    def rms(self) -> float:
        """Of the values as they are rounded."""
        return math.sqrt(self._power / self.count) if self.count else 0.0


def noise_energy(x: Array, codes: Array, quant: Quant, masks: bool = False, unscaled: Array | None = None) -> float:
    """Sum of squared differences of what the codes stand for from x, of the same shape. masks, unscaled: as of `Rounding`."""
    flat, other, back = np.ravel(x), np.ravel(codes), _raveled(unscaled, x)
    scale, zero = np.float32(quant.scale), np.float32(quant.zero_point)
    floor = _floor(quant, codes.dtype) if masks else -math.inf
    found = 0.0
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        error = (other[start : start + _CHUNK].astype(np.float32) - zero) * scale - part
        if back is not None:
            error = error * back[start : start + _CHUNK]
        seen = _seen(part, floor)
        found += _energy(error if seen is None else error[seen])
    return found


def _raveled(unscaled: Array | None, x: Array) -> Array | None:
    return None if unscaled is None else np.ravel(np.broadcast_to(unscaled, x.shape))


def _floor(quant: Quant, dtype: str | np.dtype[Any]) -> float:
    """What masks lies below: the codes of a tensor that masks end where nothing is left of a position."""
    return max(MASK_LOW, quant.scale * (int(np.iinfo(dtype).min) - quant.zero_point - 0.5))


def _seen(x: Array, floor: float) -> Array | None:
    """Where x does not mask; None: everywhere."""
    return x > floor if x.size and x.min() <= floor else None


def _energy(x: Array) -> float:
    """In float64: squares of float32 end at 3e38."""
    wide = x.astype(np.float64)
    return float(wide @ wide)


def decibels(signal: float, noise: float) -> float:
    """inf where there is no noise, -inf where there is only noise."""
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 and math.isfinite(noise) else -math.inf
