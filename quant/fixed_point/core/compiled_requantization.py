"""Requantizes sums of 32 bits in one pass that numba compiles, where the extra `fast` is installed.

The results are those of `quant.fixed_point.core.requantization`, which calls it. Numba is loaded once the elements that went
without it cost as much as loading does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.core.requant import Requant

Array = NDArray[Any]
Kernel = Callable[..., None]

# Loading numba and two kernels from its cache takes 0.5 CPU s, an element 1.7 ns more without them; measured on one AVX512 core.
_LOADING_ELEMENTS = 300_000_000


@dataclass(eq=False)
class _Count:
    """A count of the elements that were requantized without the compiled kernels."""

    elements: int = 0


@cache
def _get_count() -> _Count:
    return _Count()


@cache
def load_compiler() -> Callable[[Callable[..., Any]], Any] | None:
    """Return a decorator that compiles a function on its first call; None where numba is not installed."""
    try:
        import numba  # pyright: ignore[reportMissingModuleSource]
    except ImportError:
        return None

    def compile_function(function: Callable[..., Any]) -> Any:
        try:
            return numba.njit(cache=True, nogil=True)(function)
        except RuntimeError:  # no folder for the cache can be written
            return numba.njit(nogil=True)(function)

    return compile_function


def requantize_channels(
    sums: Array,
    bias: Array,
    multiplier: Array,
    offsets: tuple[Array, Array],
    shift: Array,
    limits: tuple[int, int, int],
    out: Array,
) -> None:
    """Requantize sums + bias, wrapped to 32 bits, int32[n, c], with a scale for each channel, and write the integers to out[n,
    c].

    `bias`: int32[c].
    `multiplier`, `shift`: int64[c].
    `offsets`: int64[c] each, added to products of sums of 0 and more, and of sums below 0.
    `limits`: zero point, low and high.
    """
    positive, negative = offsets
    zero_point, low, high = limits
    for row in range(sums.shape[0]):
        for c in range(sums.shape[1]):
            x = np.int64(np.int32(sums[row, c] + bias[c]))
            offset = positive[c] if x >= 0 else negative[c]
            y = ((x * multiplier[c] + offset) >> shift[c]) + zero_point
            out[row, c] = min(max(y, low), high)


def requantize_tensor(
    sums: Array, multiplier: int, offsets: tuple[int, int], shift: int, limits: tuple[int, int, int], out: Array
) -> None:
    """Requantize sums int32[n] with one scale, and write the integers to out[n]; the rest is as in `requantize_channels`."""
    positive, negative = offsets
    zero_point, low, high = limits
    for k in range(sums.size):
        x = np.int64(sums[k])
        offset = positive if x >= 0 else negative
        y = ((x * multiplier + offset) >> shift) + zero_point
        out[k] = min(max(y, low), high)


@cache
def _load_kernels() -> tuple[Kernel, Kernel] | None:
    compile_function = load_compiler()
    return None if compile_function is None else (compile_function(requantize_channels), compile_function(requantize_tensor))


def find_kernels(elements: int) -> tuple[Kernel, Kernel] | None:
    """Return the compiled kernels; None where they are not loaded yet, or cannot be.

    `elements`: added to the count of elements that went without them, which decides when they are loaded.
    """
    count = _get_count()
    if count.elements < _LOADING_ELEMENTS:
        count.elements += elements
        return None
    return _load_kernels()


def requantize_compiled(sums: Array, bias: Array | None, r: Requant, dtype: np.dtype) -> Array | None:
    """Return requantized sums as dtype[same shape]; None where the compiled pass is not there or does not suit them.

    `sums`: int32[..., c], C-contiguous.
    `bias`: int[c], added to the sums, which wrap to 32 bits; None: no bias.
    """
    kernels = find_kernels(sums.size if bias is None else 0)  # with a bias they come again, the bias added
    if kernels is None or sums.dtype != np.int32 or r.integer_offsets is None:
        return None
    bias = None if bias is None else bias.astype(np.int32)
    return run_kernels(kernels, sums, bias, r, dtype)


def run_kernels(kernels: tuple[Kernel, Kernel], sums: Array, bias: Array | None, r: Requant, dtype: np.dtype) -> Array:
    """Return the result of `requantize_compiled` by these kernels.

    `r`: has `integer_offsets`.
    """
    over_channels, over_all = kernels
    assert r.integer_offsets is not None
    multiplier, shift = r.integer_form
    out = np.empty(sums.shape, dtype)
    limits = (r.zero_point, r.low, r.high)
    if bias is None and r.channels == 1:
        positive, negative = (int(o[0]) for o in r.integer_offsets)
        over_all(sums.reshape(-1), int(multiplier[0]), (positive, negative), int(shift[0]), limits, out.reshape(-1))
        return out
    channels: int = sums.shape[-1]
    addends: Array = np.zeros(channels, np.int32) if bias is None else bias
    multiplier, shift, positive, negative = (_repeat(p, channels) for p in (multiplier, shift, *r.integer_offsets))
    rows = (-1, channels)
    over_channels(sums.reshape(rows), addends, multiplier, (positive, negative), shift, limits, out.reshape(rows))
    return out


def _repeat(parameters: Array, channels: int) -> Array:
    """Return int64[c] from int64[1] or [c]."""
    return parameters if parameters.size == channels else np.full(channels, parameters[0])
