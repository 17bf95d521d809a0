"""Requantizes accumulators to the integers of the next layer: y = clamp(round(acc * m / 2**s) + zero_point).

`requantize` is the entry. One result has several ways to it, of which the cheapest exact one is taken. They are float64 where
that is exact, float64 with the doubtful few in integers, int64, and two limbs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from quant.fixed_point.core.compiled_requantization import requantize_compiled
from quant.fixed_point.core.device_arrays import as_like, is_foreign
from quant.fixed_point.core.fixed_point_errors import FixedPointError
from quant.fixed_point.core.requant import Requant
from quant.fixed_point.core.rounding import Rounding, round_shift, round_shift_wide
from quant.fixed_point.core.scale import float32_from_bits
from quant.fixed_point.core.widths import type_limits, wrap_to_bits

Array = NDArray[Any]
_BLOCK_ELEMENTS = 1 << 15  # float64 blocks of 256 KiB stay in a core's L2
_BROADCAST_CHANNELS = 256  # from here on an inner loop of c elements costs no more than a longer one
_SMALL = 4096
_SIGN_BIT = np.uint64(1 << 63)
_HALF = np.array([0.5])
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def requantize(acc: Array, r: Requant, dtype: DTypeLike = np.int8, axis: int = -1) -> Array:
    """Requantize acc and return dtype[same shape], exact by r.rounding.

    `acc`: int32 or int64[..., c, ...], not changed; int8 and int16 are taken as int32.
    `axis`: of the channels, where r has several.

    A product of acc with the multiplier that exceeds int64 is kept in two limbs.
    Raise FixedPointError where c disagrees with the multipliers, acc is no integer, or [low, high] lies outside dtype. Source:
    TOSA 1.0 RESCALE; TFLite `MultiplyByQuantizedMultiplier`; ONNX QLinearConv (kind 'float32').
    """
    dtype = np.dtype(dtype)
    acc = _accumulators(acc, r, dtype, axis)
    if is_foreign(acc):
        return _requantize_foreign(acc, r, dtype, axis)
    if r.channels > 1 and axis not in (-1, acc.ndim - 1):
        moved = np.ascontiguousarray(np.moveaxis(acc, axis, -1))
        return np.ascontiguousarray(np.moveaxis(_requantize_last(moved, r, dtype), -1, axis))
    if acc.flags.c_contiguous:
        return _requantize_last(acc, r, dtype)
    return _requantize_last(np.ascontiguousarray(acc), r, dtype).reshape(acc.shape)


def requantize_with_bias(sums: Array, bias: Array, r: Requant, dtype: np.dtype) -> Array | None:
    """Return requantize(sums + bias, r, dtype) in one compiled pass; None where there is no such pass.

    `sums`: int32[..., c], not changed. With the bias they wrap to 32 bits.
    `bias`: int[c].

    None also where shapes disagree, which `requantize` or the bias's addition refuses. Raise FixedPointError where the clamp of r
    lies outside dtype.
    """
    channels = sums.shape[-1]
    if is_foreign(sums) or not sums.flags.c_contiguous or sums.size == 0:
        return None
    if bias.shape != (channels,) or r.channels not in (1, channels):
        return None
    _check_clamp(r, dtype)
    return requantize_compiled(sums, bias, r, dtype)


def _accumulators(acc: Array, r: Requant, dtype: np.dtype, axis: int) -> Array:
    """Return acc as int32 or int64. Raise FixedPointError as `requantize`."""
    acc = acc if hasattr(acc, "dtype") else np.asarray(acc)
    if acc.dtype.kind not in "iu" or acc.dtype == np.uint64:
        raise FixedPointError(f"requantize: accumulators are {acc.dtype}; must be int32 or int64")
    if acc.dtype != np.int32 and acc.dtype != np.int64:
        acc = acc.astype(np.int32 if acc.dtype.itemsize < 4 else np.int64)
    _check_clamp(r, dtype)
    channels = r.channels
    if channels > 1 and (acc.ndim == 0 or acc.shape[axis] != channels):
        raise FixedPointError(
            f"requantize: {channels} multipliers for shape {acc.shape}, axis {axis}; give one, or one for each channel"
        )
    return acc


def _check_clamp(r: Requant, dtype: np.dtype) -> None:
    """Raise FixedPointError where the clamp lies outside dtype."""
    lowest, highest = type_limits(dtype)
    if r.low < lowest or r.high > highest:
        raise FixedPointError(
            f"requantize: clamp {r.low}..{r.high} lies outside {dtype.name} ({lowest}..{highest}); "
            f"narrow low and high, or ask for a wider dtype"
        )


def float32_codes(v: Array, r: Requant, dtype: DTypeLike = np.int8) -> Array:
    """Return rint(v) as dtype[same shape], saturated or wrapped, and clamped as r says, for v: float32[...].
    v is scaled already and includes r's zero point. NaN is below everything.
    Raise FixedPointError where the clamp lies outside dtype.
    """
    dtype = np.dtype(dtype)
    _check_clamp(r, dtype)
    y = np.fmin(np.fmax(np.rint(v), -(2.0**62)), 2.0**62).astype(np.int64)
    if is_foreign(v):
        return np.clip(_wrap(y, r, dtype), r.low, r.high).astype(dtype)
    out = np.empty(v.shape, dtype)
    _wrap_and_clamp(y, r, out)
    return out


def _requantize_foreign(acc: Array, r: Requant, dtype: np.dtype, axis: int) -> Array:
    """Requantize an array of another library as a whole, by the exact integer form alone."""
    along = [1] * acc.ndim
    along[axis] = -1
    multiplier, shift = (as_like(p.reshape(along if p.size > 1 else ()), acc) for p in r.integer_form)
    x = acc.astype(np.int64)
    if r.rounding is Rounding.FP32_RNE:
        scale = float32_from_bits(r.multiplier)
        v = np.rint(acc.astype(np.float32) * as_like(scale.reshape(along if scale.size > 1 else ()), acc))
        y = np.clip(v, -(2.0**62), 2.0**62).astype(np.int64)
    elif acc.dtype == np.int32 and r.rounding is not Rounding.SCALE16:
        y = round_shift(x * multiplier, shift, r.rounding, x)
    else:
        y = round_shift_wide(wrap_to_bits(x, 48) if r.rounding is Rounding.SCALE16 else x, multiplier, shift, r.rounding)
    y = (y if r.wrap else np.clip(y, -(1 << 62), 1 << 62)) + r.zero_point
    return np.clip(_wrap(y, r, dtype), r.low, r.high).astype(dtype)


def _requantize_last(acc: Array, r: Requant, dtype: np.dtype) -> Array:
    """Requantize contiguous int32 or int64[..., c], channels last, in blocks of a size that stays in cache."""
    out = np.empty(acc.shape, dtype)
    if acc.size == 0:
        return out
    codes = requantize_compiled(acc, None, r, dtype)
    if codes is not None:
        return codes
    step, parameters = _choose_step(acc, r)
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
    buffers = np.empty((2, min(rows, total), *source.shape[1:]))
    for start in range(0, total, rows):
        part = source[start : start + rows]
        if source.ndim == 1 and part.size < rows:
            parameters = tuple(p[: part.size] if p.size > 1 else p for p in parameters)
        step(r, part, parameters, target[start : start + rows], buffers[:, : part.shape[0]])
    return out


# requant, accumulators, parameters, output, float64[2, accumulators' shape] to work in
Step = Callable[[Requant, Array, tuple[Array, ...], Array, Array], None]


def _choose_step(acc: Array, r: Requant) -> tuple[Step, tuple[Array, ...]]:
    """Return the cheapest exact form for these accumulators, and its parameters, each [1] or [c]."""
    if r.rounding is Rounding.FP32_RNE:
        return _float32_step, (float32_from_bits(r.multiplier),)
    if r.float64_is_exact:
        return _float64_step, r.float64_parameters
    if r.float64_guard is not None:
        return _choose_guarded_step, (*r.float64_parameters, *r.integer_form)
    multiplier, shift = r.integer_form
    if r.rounding is Rounding.SCALE16:
        return _scale16_step, (multiplier, shift)
    wide = acc.dtype == np.int64 and _exceeds_int64(acc, int(multiplier.max()))
    return (_wide_step if wide else _integer_step), (multiplier, shift)


def _exceeds_int64(acc: Array, multiplier: int) -> bool:
    """Return whether products of the accumulators with the multiplier may exceed 62 bits."""
    largest = max(abs(int(acc.min())), abs(int(acc.max())))
    return multiplier >= 1 << 31 or largest * max(multiplier, 1) >= 1 << 61


def _float64_step(r: Requant, x: Array, p: tuple[Array, ...], out: Array, buffers: Array) -> None:
    """Exact in float64 (see Requant.float64_is_exact): product, offset, clamp, and a cast that is a floor from 0 up.

    Values are moved so that `low` lies at 0; the cast goes to the unsigned type, and `low` is added modulo its width.
    """
    v = _product_float64(x, p[0], buffers[0])
    if len(p) == 3:
        v += _with_sign_of(v, p[2], buffers[1])
    if len(p) >= 2:
        v += p[1]
    else:
        _round_float64(v, r.rounding, buffers[1])
        v += r.zero_point - r.low
    _store_clamped(v, r, out)


def _product_float64(x: Array, scale: Array, buffer: Array) -> Array:
    """Return x scale in `buffer`, for integers x and float64 scale.
    Converting first avoids numpy's buffered mixed loop.
    """
    np.copyto(buffer, x)
    return np.multiply(buffer, scale, out=buffer)


def _with_sign_of(v: Array, magnitude: Array, buffer: Array) -> Array:
    """Return `magnitude` >= 0 with the signs of v, in `buffer`: copysign by bits, three times as fast as numpy's."""
    bits = buffer.view(np.uint64)
    np.bitwise_and(v.view(np.uint64), _SIGN_BIT, out=bits)
    np.bitwise_or(bits, magnitude.view(np.uint64), out=bits)
    return buffer


def _store_clamped(v: Array, r: Requant, out: Array) -> None:
    """Floor, clamp and store v: float64 counted from r.low, changed in place."""
    if v.size > _SMALL:
        np.clip(v, 0.0, float(r.high - r.low), out=v)
    else:  # np.clip is one pass of two, after 4 us of Python
        np.maximum(v, 0.0, out=v)
        np.minimum(v, float(r.high - r.low), out=v)
    u = out.view(_UNSIGNED[out.dtype.itemsize])
    np.copyto(u, v, casting="unsafe")
    if r.low:
        np.add(u, u.dtype.type(r.low % (1 << 8 * out.dtype.itemsize)), out=u)


def _choose_guarded_step(r: Requant, x: Array, p: tuple[Array, ...], out: Array, buffers: Array) -> None:
    """Compute a step like `_float64_step` where float64 is not always exact; the few results near a tie are computed in
    integers."""
    multiplier, shift = p[-2:]
    v = _product_float64(x, p[0], buffers[0])
    if len(p) == 5:
        v += _with_sign_of(v, p[2], buffers[1])
    v += p[1]
    distance = np.rint(v, out=buffers[1])
    distance -= v
    np.abs(distance, out=distance)
    guard: float = r.float64_guard  # type: ignore[assignment]
    doubtful = distance < guard if distance.min() < guard else None
    _store_clamped(v, r, out)
    if doubtful is None:
        return
    at = np.nonzero(doubtful)
    m, s = (np.broadcast_to(q, x.shape)[at] for q in (multiplier, shift))
    exact = np.empty(m.shape, out.dtype)
    _wide_step(r, x[at].astype(np.int64), (m, s), exact, buffers)
    out[at] = exact


def _round_float64(v: Array, rounding: Rounding, buffer: Array) -> None:
    """Round in place to an integer: FLOOR, TRUNCATE, HALF_EVEN or HALF_AWAY. The sum v + 1/2 must be exact where it matters."""
    if rounding is Rounding.FLOOR:
        np.floor(v, out=v)
    elif rounding is Rounding.TRUNCATE:
        np.trunc(v, out=v)
    elif rounding is Rounding.HALF_EVEN:
        np.rint(v, out=v)
    else:
        v += _with_sign_of(v, _HALF, buffer)
        np.trunc(v, out=v)


def _float32_step(r: Requant, x: Array, p: tuple[Array, ...], out: Array, buffers: Array) -> None:
    """Compute rint(float32(acc) * float32(scale)), then zero point and clamp, as ONNX QLinearConv."""
    v: Array = x.astype(np.float32)
    v *= p[0]
    np.rint(v, out=v)
    _finish(np.clip(v, -(2.0**62), 2.0**62).astype(np.int64), r, out)


def _integer_step(r: Requant, x: Array, p: tuple[Array, ...], out: Array, buffers: Array) -> None:
    """Compute a step in int64, for products that fit it."""
    x = x.astype(np.int64)
    _finish(round_shift(x * p[0], p[1], r.rounding, x), r, out)


def _wide_step(r: Requant, x: Array, p: tuple[Array, ...], out: Array, buffers: Array) -> None:
    """Compute a step in two limbs, for products of any size."""
    _finish(round_shift_wide(x, p[0], p[1], r.rounding), r, out)


def _scale16_step(r: Requant, x: Array, p: tuple[Array, ...], out: Array, buffers: Array) -> None:
    """Compute a step of rounding SCALE16, for which accumulators wrap to 48 bits first."""
    x = wrap_to_bits(x.astype(np.int64), 48)
    # a product of 48 and 15 bits has no room for the rounding offset: two limbs where it is large
    large = int(np.abs(x).max()) * int(p[0].max()) >= 1 << 61
    rounded = round_shift_wide(x, p[0], p[1], r.rounding) if large else round_shift(x * p[0], p[1], r.rounding)
    _finish(rounded, r, out)


def _finish(y: Array, r: Requant, out: Array) -> None:
    """Add the zero point to y (int64), wrap or saturate, clamp, and store into `out`."""
    # the zero point is far below 2**62: clamping first keeps its addition from overflowing
    _wrap_and_clamp((y if r.wrap else np.clip(y, -(1 << 62), 1 << 62)) + r.zero_point, r, out)


def _wrap_and_clamp(y: Array, r: Requant, out: Array) -> None:
    """Clamp y and store it.

    `y`: int64, changed in place where it helps.
    """
    y = _wrap(y, r, out.dtype)
    np.clip(y, r.low, r.high, out=y)
    np.copyto(out, y, casting="unsafe")


def _wrap(y: Array, r: Requant, dtype: np.dtype) -> Array:
    """Return y: int64[...] in the width of the output's codes, where r wraps."""
    if not r.wrap:
        return y
    return wrap_to_bits(y, r.width_bits or dtype.itemsize * 8, signed=r.low < 0 or dtype.kind == "i")
