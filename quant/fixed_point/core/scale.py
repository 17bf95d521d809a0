"""Converts real scales to what a machine can express: multiplier and right shift, a power of two, or a float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quant.fixed_point.core.fixed_point_errors import FixedPointError, ScaleRangeError

Array = NDArray[Any]
ScaleKind = Literal["multiplier", "pow2", "float32"]


@dataclass(frozen=True)
class ScaleForm:
    """A form of scales that a machine can express: multiplier / 2**shift, 1 / 2**shift, or any float32.

    `kind`: `multiplier`, `pow2` or `float32`: the three forms as listed.
    `multiplier_bits`: magnitude bits, 1..31; multipliers are normalised to [2**(bits-1), 2**bits).
    `shift_min`, `shift_max`: right shift, inclusive, within 0..62. With kind 'pow2' it is within -31..62; below 0 is to the left.

    Raise FixedPointError for other values.
    """

    kind: ScaleKind = "multiplier"
    multiplier_bits: int = 31
    shift_min: int = 0
    shift_max: int = 62

    def __post_init__(self) -> None:
        if self.kind not in ("multiplier", "pow2", "float32"):
            raise FixedPointError(f"scale kind {self.kind!r}: must be 'multiplier', 'pow2' or 'float32'")
        if not 1 <= self.multiplier_bits <= 31:
            raise FixedPointError(f"multiplier_bits {self.multiplier_bits}: must be 1..31")
        lowest = -31 if self.kind == "pow2" else 0
        if not lowest <= self.shift_min <= self.shift_max <= 62:
            raise FixedPointError(
                f"shift range {self.shift_min}..{self.shift_max}: must lie within {lowest}..62 for kind {self.kind!r}"
            )

    @property
    def word_bits(self) -> int:
        """The bits of a multiplier in instructions and parameters: a float32 without its sign, a power of two's 1."""
        return {"pow2": 1, "float32": 31}.get(self.kind, self.multiplier_bits)

    @property
    def shifts(self) -> tuple[int, int]:
        """The range of the shift's field: (shift_min if negative, else 0; shift_max). A float32 has no shift, so (0, 0)."""
        return min(0, self.shift_min), 0 if self.kind == "float32" else self.shift_max

    @property
    def extremes(self) -> tuple[float, float]:
        """The smallest and the largest scale above 0, as floats; of float32 the smallest normal one.

        Subnormal ones, which `choose_scale` gives too, are below it.
        """
        if self.kind == "float32":
            return float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
        largest = 1 if self.kind == "pow2" else (1 << self.multiplier_bits) - 1
        return 2.0**-self.shift_max, largest * 2.0**-self.shift_min


@dataclass(frozen=True, eq=False)
class Scale:
    """Scales of channels as multiplier and shift, int64[c] each; the value is multiplier / 2**shift.

    With kind 'float32' multiplier holds its IEEE bits, and shift is 0.
    `relative_error`: float64[c], (value - real) / real.
    """

    kind: ScaleKind
    multiplier: Array
    shift: Array
    relative_error: Array


def float32_bits(scale: ArrayLike) -> Array:
    """Return the IEEE bits of the nearest float32 as int64[...], for float[...]."""
    return np.asarray(scale, np.float32).view(np.int32).astype(np.int64)


def float32_from_bits(bits: ArrayLike) -> Array:
    """Return float32[...] of these IEEE bits, int64[...]; the inverse of `float32_bits`."""
    return np.asarray(bits, np.int64).astype(np.int32).view(np.float32)


def choose_scale(real_scale: ArrayLike, form: ScaleForm) -> Scale:
    """Return the nearest scale that `form` expresses, per channel, to real_scale: float[c] or scalar, each finite and >= 0.

    A scalar gives one channel.

    The multiplier is round_half_away(q 2**bits) with q, e = frexp(real) (TFLite `QuantizeMultiplier` at 31 bits). Where the shift
    would exceed shift_max the multiplier loses significant bits instead. Powers of two: nearest in log2 (the two neighbours'
    geometric mean rounds up). A scale of 0 gives multiplier 0 and no error, but is refused for powers of two.
    Raise ScaleRangeError where a scale above 0 rounds to 0, or to a power of two below 2**-shift_max.
    Raise it too where the rounded scale exceeds the form's largest, or the scale is negative or not finite.
    """
    real = np.atleast_1d(np.asarray(real_scale, np.float64))
    bad = ~np.isfinite(real) | (real < 0)
    if bad.any():
        i = int(np.argmax(bad))
        raise ScaleRangeError(f"scale {float(real[i])!r} (channel {i}): must be finite and >= 0")
    if form.kind == "float32":
        return _choose_float32(real)
    if form.kind == "pow2":
        return _choose_pow2(real, form)
    return _choose_multiplier(real, form)


def _choose_multiplier(real: Array, form: ScaleForm) -> Scale:
    """Return the nearest multipliers and shifts to float64[c], as `choose_scale`."""
    bits = form.multiplier_bits
    q, e = np.frexp(real)
    multiplier = np.floor(np.ldexp(q, bits) + 0.5).astype(np.int64)
    carried = multiplier == 1 << bits
    multiplier = np.where(carried, multiplier >> 1, multiplier)
    shift = bits - (e.astype(np.int64) + carried)
    zero = real == 0
    _refuse(
        (shift < form.shift_min) & ~zero,
        real,
        f"is above {float((1 << bits) - 1) * 2.0**-form.shift_min:.9g}, the largest that {bits} multiplier bits and "
        f"shift_min={form.shift_min} express",
        "lower shift_min, or choose a larger output scale",
    )
    beyond = shift > form.shift_max
    denormal = np.floor(np.ldexp(real, form.shift_max) + 0.5)
    multiplier = np.where(beyond, np.where(beyond, denormal, 0).astype(np.int64), multiplier)
    shift = np.where(beyond, form.shift_max, shift)
    _refuse(
        (multiplier == 0) & ~zero,
        real,
        f"is below {2.0 ** -(form.shift_max + 1):.9g}, half the smallest that shift_max={form.shift_max} expresses",
        "raise shift_max, or choose a smaller output scale",
    )
    shift = np.where(zero, form.shift_min, shift)
    return _scale("multiplier", multiplier, shift, real, np.ldexp(multiplier.astype(np.float64), -shift))


def _choose_pow2(real: Array, form: ScaleForm) -> Scale:
    """Return the nearest powers of two to float64[c], as `choose_scale`; a scale of 0 is refused."""
    zero = real == 0
    q, e = np.frexp(real)
    shift = np.where(q * q >= 0.5, -e, 1 - e).astype(np.int64)
    above, below = (shift < form.shift_min) & ~zero, (shift > form.shift_max) & ~zero
    needs_large, needs_small = (f"needs 2**{-int(shift[np.argmax(bad)])}" if bad.any() else "" for bad in (above, below))
    _refuse(
        above,
        real,
        f"{needs_large}, above 2**{-form.shift_min}, the largest that shift_min={form.shift_min} gives",
        "lower shift_min, or choose a larger output scale",
    )
    _refuse(
        below,
        real,
        f"{needs_small}, below 2**{-form.shift_max}, the smallest that shift_max={form.shift_max} gives",
        "raise shift_max, or choose a smaller output scale",
    )
    _refuse(zero, real, "is 0, and powers of two have no zero", "drop the channel, or give it any scale")
    multiplier = np.ones(real.shape, np.int64)
    return _scale("pow2", multiplier, shift, real, np.ldexp(1.0, -shift))


def _choose_float32(real: Array) -> Scale:
    """Return the nearest float32 to float64[c], as `choose_scale`."""
    with np.errstate(over="ignore"):
        value = real.astype(np.float32)
    _refuse(~np.isfinite(value), real, "is above 3.4028235e38, the largest float32", "choose a larger output scale")
    _refuse((value == 0) & (real != 0), real, "is below the smallest float32", "choose a smaller output scale")
    bits = float32_bits(value)
    return _scale("float32", bits, np.zeros(real.shape, np.int64), real, value.astype(np.float64))


def _refuse(bad: Array, real: Array, reason: str, way_out: str) -> None:
    """Raise ScaleRangeError for the first channel of which `bad` is true."""
    if bad.any():
        i = int(np.argmax(bad))
        raise ScaleRangeError(f"scale {float(real[i]):.9g} (channel {i}) {reason}; {way_out}")


def _scale(kind: ScaleKind, multiplier: Array, shift: Array, real: Array, value: Array) -> Scale:
    safe = np.where(real == 0, 1.0, real)
    error = np.where(real == 0, 0.0, (value - real) / safe)
    return Scale(kind, multiplier, shift.astype(np.int64), error)
