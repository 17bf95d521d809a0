"""Requantization: accumulators to the integers of the next layer, y = clamp(round(acc * m / 2**s) + zero_point)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from quant.fixed_point.errors import FixedPointError
from quant.fixed_point.rounding import (
    HALF_UP_RULES,
    Rounding,
    reduced_multiplier,
    round_shift,
    round_shift_wide,
)
from quant.fixed_point.scale import ScaleForm, ScaleKind, choose_scale, float32_from_bits

Array = NDArray[Any]
_BLOCK_ELEMENTS = 1 << 15  # float64 blocks of 256 KiB stay in a core's L2
_BROADCAST_CHANNELS = 256  # from here on an inner loop of c elements costs no more than a longer one
_SMALL = 4096
_SIGN_BIT = np.uint64(1 << 63)
_HALF = np.array([0.5])
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True, eq=False)
class Requant:
    """The requantization of one operator, as a machine is programmed.

    multiplier, shift: int64[1] (per tensor) or int64[c] (per channel). The real scale is multiplier / 2**shift; with
    kind 'float32' multiplier holds IEEE bits and shift is 0; with kind 'pow2' multiplier is 1.
    zero_point: of the output. low, high: final clamp, inclusive, in the output's integers (fused ReLU, Clip: narrower).
    wrap: overflow wraps to width_bits (None: the output type's) instead of saturating, before the clamp.
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "multiplier", np.atleast_1d(np.asarray(self.multiplier, np.int64)))
        object.__setattr__(self, "shift", np.atleast_1d(np.asarray(self.shift, np.int64)))
        object.__setattr__(self, "rounding", Rounding(self.rounding))
        fault = _fault(self)
        if fault:
            raise FixedPointError(f"Requant: {fault}")

    @cached_property
    def channels(self) -> int:
        """How many channels have multipliers or shifts of their own; 1: per tensor."""
        return max(self.multiplier.size, self.shift.size)

    @cached_property
    def real_scale(self) -> Array:
        """float64[1] or [c]: what the accumulator is multiplied by."""
        if self.kind == "float32":
            return float32_from_bits(self.multiplier).astype(np.float64)
        if self.rounding is Rounding.REDUCED16:
            return np.ldexp(reduced_multiplier(self.multiplier).astype(np.float64), 16 - self.shift)
        return np.ldexp(self.multiplier.astype(np.float64), -self.shift)

    @cached_property
    def _integer(self) -> tuple[Array, Array]:
        """int64[1] or [c] each: multiplier and right shift (0..62) that the exact integer form uses."""
        if self.kind == "float32":
            return _mantissa_and_shift(float32_from_bits(self.multiplier))
        multiplier, shift = np.broadcast_arrays(self.multiplier, self.shift)
        if self.rounding is Rounding.REDUCED16:
            return reduced_multiplier(multiplier), shift - 16
        left = np.maximum(-shift, 0)
        return np.left_shift(multiplier, left), np.maximum(shift, 0)

    @cached_property
    def _float64_is_exact(self) -> bool:
        """True where float64 arithmetic gives the exact result for any int32 or int64 accumulator.

        A product that lands inside the clamp has at most bits(clamp) + shift significant bits; beyond 53 it would be
        rounded. Products outside the clamp stay outside, for rounding is monotonic.
        """
        if self.wrap or self.rounding in (Rounding.SCALE16, Rounding.FP32_RNE):
            return False
        bound = max(abs(self.low - self.zero_point), abs(self.high - self.zero_point), abs(self.zero_point)) + 2
        return bound.bit_length() + 1 + int(self._integer[1].max()) <= 53

    @cached_property
    def _float64_guard(self) -> float | None:
        """How near to an integer a float64 result before the floor may lie and still need the exact form; None: never use.

        For half up and DOUBLE_ROUND with shifts too large for `_float64_is_exact`: product, offset and nudge each round
        by at most 2**-53 of the clamp's range, so results farther off than this are certain.
        """
        rules = self.rounding is Rounding.DOUBLE_ROUND or self.rounding in HALF_UP_RULES
        if self.wrap or not rules or self.rounding is Rounding.SCALE16:
            return None
        bound = max(abs(self.low - self.zero_point), abs(self.high - self.zero_point), abs(self.zero_point)) + 2
        bits = bound.bit_length() + 1
        return 2.0 ** (bits - 50) if bits <= 30 else None

    @cached_property
    def _float64_parameters(self) -> tuple[Array, ...]:
        """float64[1] or [c] each: scale; where rounding is an offset before a floor, that offset (moved by zero point
        and low); where DOUBLE_ROUND has a second rounding, its nudge."""
        multiplier, shift = self._integer
        scale = np.ldexp(multiplier.astype(np.float64), -shift)
        if self.rounding not in HALF_UP_RULES and self.rounding is not Rounding.DOUBLE_ROUND:
            return (scale,)
        offset = np.where(shift > 0, 0.5, 0.0) + (self.zero_point - self.low)
        offset = offset if np.ptp(offset) else offset[:1]
        if self.rounding is Rounding.DOUBLE_ROUND and (shift > 31).any():
            return scale, offset, np.where(shift > 31, np.ldexp(1.0, 30 - shift), 0.0)
        return scale, offset


def _fault(r: Requant) -> str | None:
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
    if r.shift.min() < lowest or r.shift.max() > 62:
        return f"shifts {r.shift.min()}..{r.shift.max()}; must be {lowest}..62 for rounding {r.rounding.value}"
    return None


def _float32_fault(r: Requant) -> str | None:
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
    """float32[c] -> int64[c] each: 24-bit mantissa and right shift, exactly; 0 gives (0, 0)."""
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
    """real_scale: float or float[c] (S_in S_w / S_out) -> Requant with the nearest scale that `form` expresses.

    Raises ScaleRangeError as `choose_scale`.
    """
    s = choose_scale(real_scale, form)
    return Requant(s.multiplier, s.shift, rounding, zero_point, low, high, wrap, form.kind, width_bits)


def identity_requant(zero_point: int, low: int, high: int) -> Requant:
    """acc + zero_point, clamped: a Requant of scale 1."""
    return Requant(np.array([1]), np.array([0]), Rounding.FLOOR, zero_point, low, high)


def requantize(acc: Array, r: Requant, dtype: DTypeLike = np.int8, axis: int = -1) -> Array:
    """acc: int32 or int64[..., c, ...] -> dtype[same shape]; channels lie on `axis`. Exact by r.rounding for any value.

    acc beyond int64's product with the multiplier is kept in two limbs. int8 and int16 accumulators are taken as int32.
    Raises FixedPointError where c disagrees with the multipliers, or [low, high] lies outside dtype.
    Source: TOSA 1.0 RESCALE; TFLite `MultiplyByQuantizedMultiplier`; ONNX QLinearConv (kind 'float32').
    """
    dtype = np.dtype(dtype)
    acc = _accumulators(acc, r, dtype, axis)
    if r.channels > 1 and axis not in (-1, acc.ndim - 1):
        moved = np.ascontiguousarray(np.moveaxis(acc, axis, -1))
        return np.ascontiguousarray(np.moveaxis(_requantize_last(moved, r, dtype), -1, axis))
    if acc.flags.c_contiguous:
        return _requantize_last(acc, r, dtype)
    return _requantize_last(np.ascontiguousarray(acc), r, dtype).reshape(acc.shape)


def _accumulators(acc: Array, r: Requant, dtype: np.dtype, axis: int) -> Array:
    acc = np.asarray(acc)
    if acc.dtype.kind not in "iu" or acc.dtype == np.uint64:
        raise FixedPointError(f"requantize: accumulators are {acc.dtype}; must be int32 or int64")
    if acc.dtype != np.int32 and acc.dtype != np.int64:
        acc = acc.astype(np.int32 if acc.dtype.itemsize < 4 else np.int64)
    lowest, highest = type_limits(dtype)
    if r.low < lowest or r.high > highest:
        raise FixedPointError(
            f"requantize: clamp {r.low}..{r.high} lies outside {dtype.name} ({lowest}..{highest}); "
            f"narrow low and high, or ask for a wider dtype"
        )
    channels = r.channels
    if channels > 1 and (acc.ndim == 0 or acc.shape[axis] != channels):
        raise FixedPointError(
            f"requantize: {channels} multipliers for shape {acc.shape}, axis {axis}; give one, or one for each channel"
        )
    return acc


@lru_cache(maxsize=32)
def type_limits(dtype: np.dtype) -> tuple[int, int]:
    """(lowest, highest) of an integer type."""
    limits = np.iinfo(dtype.name)
    return int(limits.min), int(limits.max)


def _requantize_last(acc: Array, r: Requant, dtype: np.dtype) -> Array:
    """acc: contiguous int32 or int64[..., c], channels last. Blocks of a size that stays in cache."""
    out = np.empty(acc.shape, dtype)
    if acc.size == 0:
        return out
    step, parameters = _step(acc, r)
    channels = r.channels
    if channels == 1 or acc.size <= _BLOCK_ELEMENTS or channels >= _BROADCAST_CHANNELS:
        shape = (-1,) if channels == 1 else (-1, channels)
        rows = max(1, _BLOCK_ELEMENTS // channels)
    else:
        # few channels: repeat the parameters, so that the inner loops are long
        repeats = _BLOCK_ELEMENTS // channels
        parameters = tuple(np.tile(p, repeats) if p.size > 1 else p for p in parameters)
        shape, rows = (-1,), repeats * channels
    source, target = acc.reshape(shape), out.reshape(shape)
    total = source.shape[0]
    work = np.empty((2, min(rows, total), *source.shape[1:]))
    for start in range(0, total, rows):
        part = source[start : start + rows]
        if source.ndim == 1 and part.size < rows:
            parameters = tuple(p[: part.size] if p.size > 1 else p for p in parameters)
        step(r, part, parameters, target[start : start + rows], work[:, : part.shape[0]])
    return out


# requant, accumulators, parameters, output, float64[2, accumulators' shape] to work in
Step = Callable[[Requant, Array, tuple[Array, ...], Array, Array], None]


def _step(acc: Array, r: Requant) -> tuple[Step, tuple[Array, ...]]:
    """The cheapest exact form for these accumulators, and its parameters, each [1] or [c]."""
    if r.rounding is Rounding.FP32_RNE:
        return _float32_step, (float32_from_bits(r.multiplier),)
    if r._float64_is_exact:
        return _float64_step, r._float64_parameters
    if r._float64_guard is not None:
        return _guarded_float64_step, (*r._float64_parameters, *r._integer)
    multiplier, shift = r._integer
    if r.rounding is Rounding.SCALE16:
        return _scale16_step, (multiplier, shift)
    wide = acc.dtype == np.int64 and _exceeds_int64(acc, int(multiplier.max()))
    return (_wide_step if wide else _integer_step), (multiplier, shift)


def _exceeds_int64(acc: Array, multiplier: int) -> bool:
    largest = max(abs(int(acc.min())), abs(int(acc.max())))
    return multiplier >= 1 << 31 or largest * max(multiplier, 1) >= 1 << 61


def _float64_step(r: Requant, x: Array, p: tuple[Array, ...], out: Array, work: Array) -> None:
    """Exact in float64 (see Requant._float64_is_exact): product, offset, clamp, and a cast that is a floor from 0 up.

    Values are moved so that `low` lies at 0; the cast goes to the unsigned type, and `low` is added modulo its width.
    """
    v = _product_float64(x, p[0], work[0])
    if len(p) == 3:
        v += _with_sign_of(v, p[2], work[1])
    if len(p) >= 2:
        v += p[1]
    else:
        _round_float64(v, r.rounding, work[1])
        v += r.zero_point - r.low
    _store_clamped(v, r, out)


def _product_float64(x: Array, scale: Array, work: Array) -> Array:
    """x: integers, scale: float64 -> x scale in work. Converting first spares numpy its buffered mixed loop."""
    np.copyto(work, x)
    return np.multiply(work, scale, out=work)


def _with_sign_of(v: Array, magnitude: Array, work: Array) -> Array:
    """magnitude >= 0 with the signs of v, in work: copysign by bits, three times as fast as numpy's."""
    bits = work.view(np.uint64)
    np.bitwise_and(v.view(np.uint64), _SIGN_BIT, out=bits)
    np.bitwise_or(bits, magnitude.view(np.uint64), out=bits)
    return work


def _store_clamped(v: Array, r: Requant, out: Array) -> None:
    """v: float64 counted from r.low, changed in place; floor, clamp, store."""
    if v.size > _SMALL:
        np.clip(v, 0.0, float(r.high - r.low), out=v)
    else:  # np.clip is one pass of two, after 4 us of Python
        np.maximum(v, 0.0, out=v)
        np.minimum(v, float(r.high - r.low), out=v)
    u = out.view(_UNSIGNED[out.dtype.itemsize])
    np.copyto(u, v, casting="unsafe")
    if r.low:
        np.add(u, u.dtype.type(r.low % (1 << 8 * out.dtype.itemsize)), out=u)


def _guarded_float64_step(r: Requant, x: Array, p: tuple[Array, ...], out: Array, work: Array) -> None:
    """As `_float64_step` where float64 is not always exact: the few results beside a tie are computed in integers."""
    multiplier, shift = p[-2:]
    v = _product_float64(x, p[0], work[0])
    if len(p) == 5:
        v += _with_sign_of(v, p[2], work[1])
    v += p[1]
    distance = np.rint(v, out=work[1])
    distance -= v
    np.abs(distance, out=distance)
    guard: float = r._float64_guard  # type: ignore[assignment]
    doubtful = distance < guard if distance.min() < guard else None
    _store_clamped(v, r, out)
    if doubtful is None:
        return
    at = np.nonzero(doubtful)
    m, s = (np.broadcast_to(q, x.shape)[at] for q in (multiplier, shift))
    exact = np.empty(m.shape, out.dtype)
    _wide_step(r, x[at].astype(np.int64), (m, s), exact, work)
    out[at] = exact


def _round_float64(v: Array, rounding: Rounding, work: Array) -> None:
    """In place, to an integer: FLOOR, TRUNCATE, HALF_EVEN or HALF_AWAY. v + 1/2 must be exact where it matters."""
    if rounding is Rounding.FLOOR:
        np.floor(v, out=v)
    elif rounding is Rounding.TRUNCATE:
        np.trunc(v, out=v)
    elif rounding is Rounding.HALF_EVEN:
        np.rint(v, out=v)
    else:
        v += _with_sign_of(v, _HALF, work)
        np.trunc(v, out=v)


def _float32_step(r: Requant, x: Array, p: tuple[Array, ...], out: Array, work: Array) -> None:
    """rint(float32(acc) * float32(scale)), then zero point and clamp. ONNX QLinearConv."""
    v: Array = x.astype(np.float32)
    v *= p[0]
    np.rint(v, out=v)
    _finish(np.clip(v, -(2.0**62), 2.0**62).astype(np.int64), r, out)


def _integer_step(r: Requant, x: Array, p: tuple[Array, ...], out: Array, work: Array) -> None:
    x = x.astype(np.int64)
    _finish(round_shift(x * p[0], p[1], r.rounding, x), r, out)


def _wide_step(r: Requant, x: Array, p: tuple[Array, ...], out: Array, work: Array) -> None:
    _finish(round_shift_wide(x, p[0], p[1], r.rounding), r, out)


def _scale16_step(r: Requant, x: Array, p: tuple[Array, ...], out: Array, work: Array) -> None:
    x = wrap_to_bits(x.astype(np.int64), 48)
    # a product of 48 and 15 bits has no room for the rounding offset: two limbs where it is large
    large = int(np.abs(x).max()) * int(p[0].max()) >= 1 << 61
    rounded = round_shift_wide(x, p[0], p[1], r.rounding) if large else round_shift(x * p[0], p[1], r.rounding)
    _finish(rounded, r, out)


def _finish(y: Array, r: Requant, out: Array) -> None:
    """Zero point, wrap or saturation, clamp. y: int64, changed in place where it helps."""
    if r.wrap:
        bits = r.width_bits or out.dtype.itemsize * 8
        y = wrap_to_bits(y + r.zero_point, bits, signed=r.low < 0 or out.dtype.kind == "i")
    else:
        # the zero point is far below 2**62: clamping first keeps its addition from overflowing
        y = np.clip(y, -(1 << 62), 1 << 62) + r.zero_point
    np.clip(y, r.low, r.high, out=y)
    np.copyto(out, y, casting="unsafe")


def wrap_to_bits(x: Array, bits: int, signed: bool = True) -> Array:
    """int64[...] -> int64[...], its low `bits` (1..64) read as two's complement, or unsigned (then at most 63)."""
    if not signed:
        return x & ((1 << bits) - 1)
    spare = 64 - bits
    return (x << spare) >> spare
