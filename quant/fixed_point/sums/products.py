"""Computes exact integer matrix products of two dimensions, by the fastest exact method on this CPU.

`product` is the entry; convolutions and `matmul` call it. Four methods are chosen by cost or forced:

`ONNXRUNTIME`: MatMulInteger, 8-bit operands (int16 left operands as two 8-bit halves). A self-test at first use finds CPUs whose
u8s8 kernel saturates (AVX2 without VNNI); there the u8u8 kernel is used.
`FLOAT32`, `FLOAT64`: BLAS, where the largest possible sum lies within 2**24 or 2**53.
`INT64`: numpy, exact modulo 2**64; forced, it is refused where sums may leave int64.

By method, _COSTS has the seconds of a product: a fixed part, per multiply-accumulate, per element converted. These were measured
on one core with AVX512-VNNI.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from quant.fixed_point.core.device_arrays import as_like, is_foreign
from quant.fixed_point.core.fixed_point_errors import FixedPointError
from quant.fixed_point.core.widths import type_limits
from quant.fixed_point.sums.sessions import product_session

Array = NDArray[Any]


class ProductMethod(StrEnum):
    """A method to compute a bulk product; all give the same integers."""

    ONNXRUNTIME = "onnxruntime"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    INT64 = "int64"


@dataclass(frozen=True, eq=False)
class Matrix:
    """A right operand [k, n] that keeps what is prepared of it between products (weights). Its parts are computed at need.

    `values`: int8, uint8, int16 or int32 [k, n], C-contiguous.
    `zero_point`: scalar, or int64[n].
    """

    values: Array
    zero_point: int | Array

    @cached_property
    def signed8(self) -> Array:
        """The values as int8[k, n]; uint8 values are lowered by 128."""
        if self.values.dtype == np.uint8:
            return np.bitwise_xor(self.values, np.uint8(128)).view(np.int8)
        return self.values

    @cached_property
    def unsigned8(self) -> Array:
        """The values as uint8[k, n]; int8 values are raised by 128."""
        if self.values.dtype == np.int8:
            return np.bitwise_xor(self.values.view(np.uint8), np.uint8(128))
        return self.values

    @cached_property
    def column_sums(self) -> Array:
        """The sums of values - zero_point over k, int64[n], for 8-bit values with zero points that are codes of their type.

        They are exact for k below 8,421,505, where 255 k leaves int32.
        """
        ones = np.ones((1, self.values.shape[0]), np.uint8)
        return matmul_integer().run(ones, self, 0)[0].astype(np.int64)

    @cached_property
    def largest(self) -> int:
        """An upper bound of abs(values - zero_point), by type and zero point; of int32, of which few use all bits, by the
        values."""
        lowest, highest = type_limits(self.values.dtype)
        if self.values.dtype.itemsize > 2:
            lowest, highest = int(self.values.min(initial=0)), int(self.values.max(initial=0))
        if isinstance(self.zero_point, int):
            return max(highest - self.zero_point, self.zero_point - lowest)
        return max(highest - int(self.zero_point.min()), int(self.zero_point.max()) - lowest)

    @property
    def zero_point_fits(self) -> bool:
        """True where every zero point is a code of the values' type."""
        lowest, highest = type_limits(self.values.dtype)
        if isinstance(self.zero_point, int):
            return lowest <= self.zero_point <= highest
        return lowest <= int(self.zero_point.min()) and int(self.zero_point.max()) <= highest

    @cached_property
    def float32(self) -> Array:
        """The values - zero_point as float32[k, n]."""
        return _as_float(self.values, self.zero_point, np.float32)

    @cached_property
    def float64(self) -> Array:
        """The values - zero_point as float64[k, n]."""
        return _as_float(self.values, self.zero_point, np.float64)


def _as_float(values: Array, zero_point: int | Array, dtype: DTypeLike) -> Array:
    """Return values - zero_point as floats of `dtype`, in a new array."""
    converted = values.astype(dtype)
    if isinstance(zero_point, np.ndarray) or zero_point != 0:
        converted -= np.asarray(zero_point, dtype)
    return converted


_COSTS: dict[ProductMethod, tuple[float, float, float]] = {
    ProductMethod.ONNXRUNTIME: (14e-6, 6e-12, 0.1e-9),
    ProductMethod.FLOAT32: (5e-6, 16e-12, 0.4e-9),
    ProductMethod.FLOAT64: (5e-6, 35e-12, 0.8e-9),
    ProductMethod.INT64: (5e-6, 1e-9, 1.0e-9),
}


def choose_method(a: Array, a_zero_point: int, b: Matrix) -> ProductMethod:
    """Return the cheapest method that is exact for a [m, k] (int8, uint8, int16) times b [k, n].

    It goes by types, sizes and zero points; only of int32 b the values are read.
    """
    m, k = a.shape
    n = b.values.shape[1]
    macs, elements = m * k * n, m * k + k * n
    largest = largest_sum(a, a_zero_point, b)
    best, lowest = ProductMethod.INT64, _cost(ProductMethod.INT64, macs, elements)
    if largest <= 1 << 53 and (cost := _cost(ProductMethod.FLOAT64, macs, elements)) < lowest:
        best, lowest = ProductMethod.FLOAT64, cost
    if largest <= 1 << 24 and (cost := _cost(ProductMethod.FLOAT32, macs, elements)) < lowest:
        best, lowest = ProductMethod.FLOAT32, cost
    halves = a.dtype.itemsize
    if (
        halves <= 2
        and b.values.dtype.itemsize == 1
        and _cost(ProductMethod.ONNXRUNTIME, macs * halves, elements) < lowest
        and a.shape[1] <= _most_products(b)
        and b.zero_point_fits
    ):
        best = ProductMethod.ONNXRUNTIME
    return best


def _cost(method: ProductMethod, macs: int, elements: int) -> float:
    """Return the expected seconds of a method."""
    fixed, per_mac, per_element = _COSTS[method]
    return fixed + macs * per_mac + elements * per_element


def largest_sum(a: Array, a_zero_point: int, b: Matrix) -> int:
    """Return the largest abs(sum) that a [m, k] of its type can give with b [k, n]."""
    lowest, highest = type_limits(a.dtype)
    return max(highest - a_zero_point, a_zero_point - lowest) * b.largest * a.shape[1]


def _most_products(b: Matrix) -> int:
    """Return the largest k at which the int32 sums of onnxruntime are exact: codes of a, less a zero point, reach 255.

    It is 65,793 for int8 b with zero point 0, and 33,025 where values and zero point of b span 255.
    """
    return ((1 << 31) - 1) // (255 * max(1, b.largest))


def product(a: Array, b: Matrix, *, a_zero_point: int = 0, wide: bool, method: ProductMethod | None = None) -> Array:
    """Return (a - a_zero_point) @ (b - b.zero_point) for a: int8, uint8 or int16 [m, k].

    `wide`: the result is int64[m, n], exact while sums fit int64; else int32[m, n], wrapped modulo 2**32.
    `method`: None: the cheapest exact one. Raise FixedPointError where sums may exceed what a forced method computes exactly.
    An array `a` of another library than numpy goes to `foreign_product`, whatever `method` says.
    """
    if is_foreign(a):
        return foreign_product(a, b.values, a_zero_point, b.zero_point, wide)
    if method is None:
        method = choose_method(a, a_zero_point, b)
    else:
        _require_exact(a, b, a_zero_point, method)
    if method is ProductMethod.ONNXRUNTIME:
        return _product_onnxruntime(a, b, a_zero_point, wide)
    if method is ProductMethod.INT64:
        exact = _product_int64(a, b, a_zero_point)
        return exact if wide else exact.astype(np.int32)
    if method is ProductMethod.FLOAT32:
        sums = _as_float(a, a_zero_point, np.float32) @ b.float32
    else:
        sums = _as_float(a, a_zero_point, np.float64) @ b.float64
        if not wide:
            sums = sums.astype(np.int64)
    return sums.astype(np.int64 if wide else np.int32)


def foreign_product(a: Array, b: Array, a_zero_point: int, b_zero_point: int | Array, wide: bool) -> Array:
    """Return `product` of arrays of another library, [..., m, k] by [..., k, n], all leading axes at once."""
    left = a.astype(np.int64) - a_zero_point
    right = b.astype(np.int64) - as_like(np.asarray(b_zero_point, np.int64), b)
    zeros = np.asarray(b_zero_point)
    largest = [
        max(highest - int(zero.min()), int(zero.max()) - lowest)
        for zero, (lowest, highest) in ((np.asarray(a_zero_point), type_limits(a.dtype)), (zeros, type_limits(b.dtype)))
    ]
    sums = _sum_in_float64(left, right, *largest)
    return sums if wide else sums.astype(np.int32)


def _sum_in_float64(a: Array, b: Array, largest_a: int, largest_b: int) -> Array:
    """Return a @ b as int64 for a, b: int64 of at most these magnitudes.

    Sums within 2**53 are exact in float64 in whatever order they are made. For larger ones a is split into upper and lower bits.
    """
    if largest_a * largest_b * a.shape[-1] <= 1 << 53:
        return np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(np.int64)
    bits = max(1, largest_a.bit_length() // 2)
    upper = _sum_in_float64(a >> bits, b, (largest_a >> bits) + 1, largest_b)
    return (upper << bits) + _sum_in_float64(a & ((1 << bits) - 1), b, (1 << bits) - 1, largest_b)


def _require_exact(a: Array, b: Matrix, a_zero_point: int, method: ProductMethod) -> None:
    """Raise FixedPointError where sums may exceed what the method computes exactly."""
    if method is ProductMethod.ONNXRUNTIME:
        named = f"product by onnxruntime: {a.dtype}[{a.shape[0]}, {a.shape[1]}] by {b.values.dtype}"
        if a.dtype.itemsize > 2 or b.values.dtype.itemsize != 1:
            raise FixedPointError(f"{named}; needs 8-bit operands (or int16 left); leave method to be chosen")
        if a.shape[1] > (most := _most_products(b)):
            raise FixedPointError(
                f"{named} that reaches {b.largest} off its zero point; needs k of at most {most}; leave method to be chosen"
            )
        return
    bound = {ProductMethod.FLOAT32: 1 << 24, ProductMethod.FLOAT64: 1 << 53, ProductMethod.INT64: 1 << 63}[method]
    largest = largest_sum(a, a_zero_point, b)
    if largest > bound:
        raise FixedPointError(
            f"product by {method.value}: sums reach {largest}, above {bound}, the largest that is exact; "
            f"leave method to be chosen, or force int64"
        )


def _product_int64(a: Array, b: Matrix, a_zero_point: int) -> Array:
    """Return the product in int64, modulo 2**64."""
    left = a.astype(np.int64) - a_zero_point
    right = b.values.astype(np.int64) - np.asarray(b.zero_point, np.int64)
    return left @ right


def _product_onnxruntime(a: Array, b: Matrix, a_zero_point: int, wide: bool) -> Array:
    """Return the product by onnxruntime's kernel, as int64 if wide, else int32."""
    if a.dtype.itemsize == 2:
        return _product_halves(a, b, a_zero_point, wide)
    if a.dtype == np.int8:
        a = np.bitwise_xor(a.view(np.uint8), np.uint8(128))
        a_zero_point += 128
    return _u8_product(a, b, a_zero_point, np.int64 if wide else np.int32)


def _u8_product(a: Array, b: Matrix, a_zero_point: int, dtype: DTypeLike) -> Array:
    """Return dtype[m, n] for a: uint8[m, k]. A zero point that is no uint8 is subtracted by the column sums instead."""
    if 0 <= a_zero_point <= 255:
        out = matmul_integer().run(a, b, a_zero_point)
        return out.astype(np.int64) if dtype is np.int64 else out
    out = matmul_integer().run(a, b, 0).astype(dtype, copy=False)
    out -= (b.column_sums * a_zero_point).astype(dtype)
    return out


def _product_halves(a: Array, b: Matrix, a_zero_point: int, wide: bool) -> Array:
    """Return the product of a 16-bit a, taken as 256 high + low: two products of 8 bits in one call."""
    m = a.shape[0]
    halves = np.empty((2 * m, a.shape[1]), np.uint8)
    signed = a.dtype == np.int16
    np.copyto(halves[:m], (a >> 8) + 128 if signed else a >> 8, casting="unsafe")
    np.copyto(halves[m:], a & 255, casting="unsafe")
    dtype = np.int64 if wide else np.int32
    sums = _u8_product(halves, b, 0, dtype)
    high, low = sums[:m], sums[m:]
    high *= dtype(256)
    high += low
    total_zero = (256 * 128 if signed else 0) + a_zero_point
    if total_zero:
        high -= (b.column_sums * total_zero).astype(dtype)
    return high


@dataclass(frozen=True)
class MatMulInteger:
    """A kernel of onnxruntime's MatMulInteger, for any shapes.

    `signed`: the right operand is int8, else uint8.
    """

    signed: bool

    def run(self, a: Array, b: Matrix, a_zero_point: int) -> Array:
        """Return sum (a - a_zero_point) (b - b.zero_point) as int32[m, n], modulo 2**32, for a: uint8[m, k].

        `a_zero_point`: 0..255; numpy raises OverflowError for others.
        Raise FixedPointError where a zero point of b is no code of the values' type.
        """
        values = b.signed8 if self.signed else b.unsigned8
        zero = b.zero_point
        if self.signed != (b.values.dtype == np.int8):
            zero = zero - 128 if self.signed else zero + 128
        feed: dict[str, Array] = {"a": a, "b": values}
        if isinstance(zero, np.ndarray) or zero != 0:
            feed["za"] = np.array(a_zero_point, np.uint8)
            feed["zb"] = np.asarray(zero)
            limits = np.iinfo(values.dtype)
            if feed["zb"].min() < limits.min or feed["zb"].max() > limits.max:
                raise FixedPointError(
                    f"product by onnxruntime: zero points {np.min(b.zero_point)}..{np.max(b.zero_point)} do not fit "
                    f"{b.values.dtype}; force float64 or int64"
                )
            feed["zb"] = feed["zb"].astype(values.dtype)
        elif a_zero_point:
            feed["za"] = np.array(a_zero_point, np.uint8)
        return product_session(self.signed, len(feed)).run(None, feed)[0]


@lru_cache(maxsize=1)
def matmul_integer() -> MatMulInteger:
    """Return the kernel that this CPU computes exactly with: u8s8 where full-range data does not saturate, else u8u8.

    Raise FixedPointError where neither is exact.
    """
    for signed in (True, False):
        kernel = MatMulInteger(signed)
        if is_exact(kernel):
            return kernel
    raise FixedPointError("onnxruntime's MatMulInteger is not exact on this CPU; force float64 or int64")


def is_exact(kernel: MatMulInteger) -> bool:
    """Return whether the kernel is right on full-range data, in the shapes that take different kernels (one row, few rows, odd
    tails)."""
    for m, k, n in ((1, 64, 16), (4, 64, 16), (7, 129, 33), (33, 67, 40)):
        a = np.full((m, k), 255, np.uint8)
        a[::3, 1::5] = 1
        b = np.full((k, n), 127, np.int8)
        b[1::7, ::2] = -128
        if not np.array_equal(kernel.run(a, Matrix(b, 0), 0), a.astype(np.int64) @ b.astype(np.int64)):
            return False
    return True
