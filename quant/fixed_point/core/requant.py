"""Defines `Requant`, the parameters of a requantization y = clamp(round(acc * m / 2**s) + zero_point), as a machine has them.

`quant.fixed_point.core.requantization.requantize` computes with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.fixed_point_errors import FixedPointError
from quant.fixed_point.core.rounding import HALF_UP_RULES, Rounding, reduce_multiplier
from quant.fixed_point.core.scale import ScaleForm, ScaleKind, choose_scale, float32_from_bits

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Requant:
    """A requantization of one operator, as a machine is programmed. FixedPointError for parameters that its rounding does not
    take.

    `multiplier`, `shift`: int64[1] (per tensor) or int64[c] (per channel). The real scale is multiplier / 2**shift. With kind
    'float32' multiplier holds IEEE bits and shift is 0; with kind 'pow2' multiplier is 1.
    `zero_point`: of the output.
    `low`, `high`: final clamp, inclusive, in the output's integers (fused ReLU, Clip: narrower).
    `wrap`: overflow wraps to width_bits (None: the output type's) instead of saturating, before the clamp.
    `codes`: type of the output; None inside an operator, where it is an int32.
    """

    multiplier: Array
    shift: Array
    rounding: Rounding
    zero_point: int
    low: int
    high: int
    wrap: bool = False
    kind: ScaleKind = "multiplier"
    width_bits: int | None = None
    codes: CodeType | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "multiplier", np.atleast_1d(np.asarray(self.multiplier, np.int64)))
        object.__setattr__(self, "shift", np.atleast_1d(np.asarray(self.shift, np.int64)))
        object.__setattr__(self, "rounding", Rounding(self.rounding))
        fault = _fault(self)
        if fault:
            raise FixedPointError(f"Requant: {fault}")

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the output's codes."""
        return np.dtype(np.int32) if self.codes is None else self.codes.dtype

    @cached_property
    def channels(self) -> int:
        """The number of channels with their own multipliers or shifts; 1: per tensor."""
        return max(self.multiplier.size, self.shift.size)

    @cached_property
    def shifts(self) -> tuple[int, int]:
        """The least and the largest shift."""
        return int(self.shift.min()), int(self.shift.max())

    @cached_property
    def real_scale(self) -> Array:
        """The real numbers that the accumulator is multiplied by, float64[1] or [c]."""
        if self.kind == "float32":
            return float32_from_bits(self.multiplier).astype(np.float64)
        if self.rounding is Rounding.REDUCED16:
            return np.ldexp(reduce_multiplier(self.multiplier).astype(np.float64), 16 - self.shift)
        return np.ldexp(self.multiplier.astype(np.float64), -self.shift)

    @cached_property
    def integer_form(self) -> tuple[Array, Array]:
        """The multiplier and right shift (0..62) that the exact integer form uses, int64[1] or [c] each."""
        if self.kind == "float32":
            return _mantissa_and_shift(float32_from_bits(self.multiplier))
        multiplier, shift = self.multiplier, self.shift
        if self.rounding is Rounding.REDUCED16:
            return reduce_multiplier(multiplier), shift - 16
        if self.shifts[0] >= 0:
            return multiplier, shift
        return np.left_shift(multiplier, np.maximum(-shift, 0)), np.maximum(shift, 0)

    @cached_property
    def integer_offsets(self) -> tuple[Array, Array] | None:
        """Offsets of products of int32 accumulators, int64[1] or [c] each: of accumulators from 0 up, and below 0.

        The rounded product is the floor of (product + offset) / 2**shift, in int64. None where no offset gives it.
        """
        multiplier, shift = self.integer_form
        if self.wrap or self.rounding in (Rounding.FP32_RNE, Rounding.HALF_EVEN) or int(multiplier.max()) >= 1 << 31:
            return None
        half = np.where(shift > 0, np.left_shift(np.int64(1), np.maximum(shift, 1) - 1), 0)
        if self.rounding in HALF_UP_RULES:
            return half, half
        if self.rounding is Rounding.DOUBLE_ROUND:
            nudge = np.where(shift > 31, np.int64(1 << 30), np.int64(0))
            return half + nudge, half - nudge
        if self.rounding is Rounding.HALF_AWAY:
            return half, half - (shift > 0)
        none = np.zeros_like(half)
        return none, np.left_shift(np.int64(1), shift) - 1 if self.rounding is Rounding.TRUNCATE else none

    @cached_property
    def _clamp_bits(self) -> int:
        """Bits, sign included, of a result that lands inside the clamp or two beside it, before the zero point is added."""
        bound = max(abs(self.low - self.zero_point), abs(self.high - self.zero_point), abs(self.zero_point)) + 2
        return bound.bit_length() + 1

    @cached_property
    def float64_is_exact(self) -> bool:
        """True where float64 arithmetic gives the exact result for any int32 or int64 accumulator.

        A product that lands inside the clamp has at most bits(clamp) + shift significant bits; beyond 53 it would be
        rounded. Products outside the clamp stay outside, for rounding is monotonic.
        """
        if self.wrap or self.rounding in (Rounding.SCALE16, Rounding.FP32_RNE):
            return False
        return self._clamp_bits + int(self.integer_form[1].max()) <= 53

    @cached_property
    def float64_guard(self) -> float | None:
        """Return how near to an integer a float64 result before the floor needs the exact form; None: never use float64.

        This is for half up and DOUBLE_ROUND with shifts too large for `float64_is_exact`. Product, offset and nudge each round by
        at most 2**-53 of the clamp's range, so results farther off than this are certain.
        """
        rules = self.rounding is Rounding.DOUBLE_ROUND or self.rounding in HALF_UP_RULES
        if self.wrap or not rules or self.rounding is Rounding.SCALE16:
            return None
        return 2.0 ** (self._clamp_bits - 50) if self._clamp_bits <= 30 else None

    @cached_property
    def float64_parameters(self) -> tuple[Array, ...]:
        """Return float64[1] or [c] each: scale, and offset and nudge where the rounding has them.

        Where rounding is an offset before a floor, the second is that offset, moved by zero point and low. Where DOUBLE_ROUND has
        a second rounding, the third is its nudge.
        """
        multiplier, shift = self.integer_form
        scale = np.ldexp(multiplier.astype(np.float64), -shift)
        if self.rounding not in HALF_UP_RULES and self.rounding is not Rounding.DOUBLE_ROUND:
            return (scale,)
        halves = shift > 0
        halves = halves[:1] if halves.all() else halves
        offset = np.where(halves, 0.5, 0.0) + (self.zero_point - self.low)
        if self.rounding is not Rounding.DOUBLE_ROUND or not (shift > 31).any():
            return scale, offset
        nudge = np.where(shift > 31, np.ldexp(1.0, 30 - shift), 0.0)
        # a clamp at zero makes all negative values one, whichever way they are nudged: one offset does, in 2 / 3 of the time
        return (scale, offset + nudge) if self.low >= self.zero_point else (scale, offset, nudge)


def _fault(r: Requant) -> str | None:
    """Return why a Requant has no meaning; None where it has one."""
    if r.multiplier.ndim != 1 or r.shift.ndim != 1:
        return f"multiplier and shift must be one-dimensional, have shapes {r.multiplier.shape} and {r.shift.shape}"
    if 1 not in (r.multiplier.size, r.shift.size) and r.multiplier.size != r.shift.size:
        return f"{r.multiplier.size} multipliers and {r.shift.size} shifts; give one, or one for each channel"
    if r.low > r.high:
        return f"clamp low={r.low} is above high={r.high}"
    if r.width_bits is not None and not 2 <= r.width_bits <= 32:
        return f"width_bits={r.width_bits}; must be 2..32"
    if r.kind == "float32":
        return _float32_fault(r)
    if r.rounding is Rounding.FP32_RNE:
        return "rounding fp32_rne needs kind='float32'"
    if r.multiplier.min() < 0 or r.multiplier.max() >= 1 << 31:
        return f"multipliers {r.multiplier.min()}..{r.multiplier.max()}; must be 0..2147483647"
    if (r.kind == "pow2" or r.rounding is Rounding.POW2) and (r.multiplier != 1).any():
        return f"multiplier {r.multiplier[r.multiplier != 1][0]} with powers of two; must be 1"
    if r.rounding is Rounding.SCALE16 and r.multiplier.max() >= 1 << 15:
        return f"multiplier {r.multiplier.max()} with rounding scale16; must be below 32768 (multiplier_bits=15)"
    lowest = {Rounding.POW2: -31, Rounding.REDUCED16: 17}.get(r.rounding, -31 if r.kind == "pow2" else 0)
    if r.shifts[0] < lowest or r.shifts[1] > 62:
        return f"shifts {r.shifts[0]}..{r.shifts[1]}; must be {lowest}..62 for rounding {r.rounding.value}"
    return None


def _float32_fault(r: Requant) -> str | None:
    """Return why a Requant of kind 'float32' has no meaning; None where it has one."""
    if r.rounding in (Rounding.DOUBLE_ROUND, Rounding.SCALE16, Rounding.REDUCED16, Rounding.POW2):
        return f"rounding {r.rounding.value} is defined on integer multipliers; kind is 'float32'"
    if r.shift.any():
        return "shift must be 0 with kind='float32'"
    scale = float32_from_bits(r.multiplier)
    if not np.isfinite(scale).all() or (scale < 0).any():
        return "a float32 scale is negative or not finite"
    shift = _mantissa_and_shift(scale)[1]
    if r.rounding is not Rounding.FP32_RNE and (shift.min() < 0 or shift.max() > 62):
        return f"float32 scales {scale.min()}..{scale.max()} with rounding {r.rounding.value}; must be 2**-39..2**24"
    return None


def _mantissa_and_shift(scale: Array) -> tuple[Array, Array]:
    """Return the 24-bit mantissa and the right shift, int64[c] each, that give float32[c] exactly; 0 gives (0, 0)."""
    q, e = np.frexp(scale.astype(np.float64))
    mantissa = np.ldexp(q, 24).astype(np.int64)
    return mantissa, np.where(mantissa == 0, 0, 24 - e.astype(np.int64))


def make_requant(
    real_scale: ArrayLike,
    form: ScaleForm,
    rounding: Rounding,
    *,
    zero_point: int = 0,
    low: int,
    high: int,
    wrap: bool = False,
    width_bits: int | None = None,
) -> Requant:
    """Return a Requant with the nearest scale to real_scale that `form` expresses.

    `real_scale`: float or float[c], S_in S_w / S_out.
    `zero_point`, `low`, `high`, `wrap`, `width_bits`: as in `Requant`.

    Raise ScaleRangeError as `choose_scale`, FixedPointError as `Requant`.
    """
    s = choose_scale(real_scale, form)
    return Requant(s.multiplier, s.shift, rounding, zero_point, low, high, wrap, form.kind, width_bits)


def identity_requant(zero_point: int, low: int, high: int) -> Requant:
    """Return a Requant of scale 1: acc + zero_point, clamped to low..high."""
    return Requant(np.array([1]), np.array([0]), Rounding.FLOOR, zero_point, low, high)
