"""Computes depthwise convolutions: one or more outputs from each input channel, without a matrix product.

`quant.fixed_point.sums.conv` calls it. All methods give the same integers:
`FLOAT32`, `FLOAT64`: one fused multiply-add loop (einsum) over long rows, where the largest sum is exact in that type.
`ONNXRUNTIME`: onnxruntime's float32 Conv, under the same bound; a session for each kernel, kept with prepared weights.
`INT64`: integer taps, always exact.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quant.fixed_point.core.device_arrays import as_contiguous, as_like, is_foreign
from quant.fixed_point.core.fixed_point_errors import FixedPointError
from quant.fixed_point.sums.products import ProductMethod
from quant.fixed_point.sums.sessions import single_thread_session
from quant.fixed_point.sums.window_patches import Pair, Slide, tap

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

Array = NDArray[Any]
# From here on a session (1 ms to open, twice the speed) pays for prepared weights; measured on one AVX512 core.
_SESSION_MACS = 200_000
_LONG_CHANNELS = 192
_STRIP_ELEMENTS = 110_000
_WHOLE_ELEMENTS = 250_000


@dataclass(frozen=True, eq=False)
class DepthwiseKernel:
    """A depthwise kernel; output channel c m + j reads input channel c.

    `values`: int8, uint8 or int16 [c m, kh, kw, 1].
    `zero_point`: int or [c m].
    `prepared`: more than one use is to come, so that a session may pay.
    """

    values: Array
    zero_point: int | Array
    prepared: bool = False
    _sessions: dict[tuple[str, Pair, Pair, int], InferenceSession] = field(
        default_factory=dict[tuple[str, Pair, Pair, int], "InferenceSession"], repr=False
    )

    @cached_property
    def taps(self) -> Array:
        """The values less their zero points, int64[kh, kw, c m]."""
        zero = as_like(np.asarray(self.zero_point, np.int64), self.values)
        return as_contiguous(self.values[..., 0].transpose(1, 2, 0).astype(np.int64) - zero)

    @cached_property
    def float32(self) -> Array:
        """The taps as float32[kh, kw, c m]."""
        return self.taps.astype(np.float32)

    @cached_property
    def float64(self) -> Array:
        """The taps as float64[kh, kw, c m]."""
        return self.taps.astype(np.float64)

    @cached_property
    def largest_sum(self) -> int:
        """The largest sum over the taps of abs(value - zero_point), over all channels."""
        return int(np.abs(self.taps).sum(axis=(0, 1)).max(initial=0))

    def session(self, dtype: np.dtype, strides: Pair, dilations: Pair, x_zero_point: int) -> InferenceSession:
        """Return the onnxruntime session of this kernel, opened once for each set of arguments."""
        key = (dtype.name, strides, dilations, x_zero_point)
        if key not in self._sessions:
            self._sessions[key] = _open_session(self.float32, *key)
        return self._sessions[key]


def depthwise_sums(
    x: Array,
    kernel: DepthwiseKernel,
    slide: Slide,
    x_zero_point: int,
    wide: bool,
    method: ProductMethod | None = None,
) -> Array:
    """Return the sums as int32 (modulo 2**32) or, if wide, int64 [n, oh, ow, c m], for padded x: [n, h, w, c].

    `method`: None: chosen by size. Raise FixedPointError where a forced one is not exact.
    """
    if is_foreign(x):
        multiplier = kernel.values.shape[0] // x.shape[3]
        return _integer_taps(np.repeat(x, multiplier, axis=3) if multiplier > 1 else x, kernel, slide, x_zero_point, wide)
    limits = np.iinfo(x.dtype)
    # onnxruntime's way sums codes and takes the zero point off in the bias: both must stay exact
    reach = max(abs(int(limits.min)), int(limits.max)) + abs(x_zero_point)
    largest = reach * kernel.largest_sum
    macs = x.shape[0] * slide.size[0] * slide.size[1] * kernel.taps.size
    if method is None:
        method = _choose(largest, kernel.prepared and macs >= _SESSION_MACS)
    limit = 53 if method is ProductMethod.FLOAT64 else 24
    if method is not ProductMethod.INT64 and largest > 1 << limit:
        raise FixedPointError(
            f"depthwise convolution by {method.value}: sums reach {largest}, above {1 << limit}, the largest that is "
            f"exact; leave method to be chosen, or force int64"
        )
    multiplier = kernel.taps.shape[2] // x.shape[3]
    if multiplier > 1:
        x = np.repeat(x, multiplier, axis=3)
    if method is ProductMethod.ONNXRUNTIME:
        sums = _session_strips(x, kernel, slide, x_zero_point)
        return sums.astype(np.int64) if wide else sums
    if method is ProductMethod.INT64:
        return _integer_taps(x, kernel, slide, x_zero_point, wide)
    return _to_integer(_float_rows(x, kernel, slide, x_zero_point, method), wide)


def _session_strips(x: Array, kernel: DepthwiseKernel, slide: Slide, x_zero_point: int) -> Array:
    """Return int32[n, oh, ow, c] by the kernel's session, large maps in strips of lines whose float32 form stays in cache."""
    strides, dilations, size = slide.strides, slide.dilations, slide.size
    session = kernel.session(x.dtype, strides, dilations, x_zero_point)
    n, _, width, c = x.shape
    if x.size <= _WHOLE_ELEMENTS:
        return session.run(None, {"x": x})[0]
    reach = (kernel.taps.shape[0] - 1) * dilations[0]
    lines = max(1, (_STRIP_ELEMENTS // (width * c) - reach) // strides[0])
    out = np.empty((n, *size, c), np.int32)
    for image in range(n):
        for y in range(0, size[0], lines):
            end = min(size[0], y + lines)
            part = x[image : image + 1, y * strides[0] : (end - 1) * strides[0] + reach + 1]
            out[image : image + 1, y:end] = session.run(None, {"x": part})[0]
    return out


def _choose(largest: int, session_pays: bool) -> ProductMethod:
    """Return the fastest method that is exact for sums up to `largest`."""
    if largest <= 1 << 24:
        return ProductMethod.ONNXRUNTIME if session_pays else ProductMethod.FLOAT32
    return ProductMethod.FLOAT64 if largest <= 1 << 53 else ProductMethod.INT64


def _to_integer(sums: Array, wide: bool) -> Array:
    """Return float sums as int64 if wide, else as int32 modulo 2**32."""
    if wide:
        return sums.astype(np.int64)
    if sums.dtype == np.float64:
        # beyond int32 the cast is undefined: wrap in int64 first
        return sums.astype(np.int64).astype(np.int32)
    return sums.astype(np.int32)


def _float_rows(x: Array, kernel: DepthwiseKernel, slide: Slide, x_zero_point: int, method: ProductMethod) -> Array:
    """Return float[n, oh, ow, c]. Rows of ow c elements lie side by side for every tap: the inner loop runs along them."""
    dtype = np.float32 if method is ProductMethod.FLOAT32 else np.float64
    weights = kernel.float32 if method is ProductMethod.FLOAT32 else kernel.float64
    n, h, width, c = x.shape
    kh, kw, _ = weights.shape
    strides, dilations, (oh, ow) = slide.strides, slide.dilations, slide.size
    if strides[1] == 1:
        rows = np.ascontiguousarray(x, dtype) if not x_zero_point else np.subtract(x, dtype(x_zero_point), dtype=dtype, order="C")
        item = rows.itemsize
        image, line, column = h * width * c * item, width * c * item, dilations[1] * c * item
    else:
        rows = np.empty((kw, n, h, ow, c), dtype)
        for kx in range(kw):
            start = kx * dilations[1]
            part = x[:, :, start : start + (ow - 1) * strides[1] + 1 : strides[1]]
            np.subtract(part, dtype(x_zero_point), out=rows[kx], casting="unsafe")
        item = rows.itemsize
        image, line, column = h * ow * c * item, ow * c * item, n * h * ow * c * item
    if c >= _LONG_CHANNELS:
        steps = (image, line * strides[0], c * item, line * dilations[0], column, item)
        view = np.ndarray((n, oh, ow, kh, kw, c), dtype, rows, 0, steps)
        return np.einsum("nyxabc,abc->nyxc", view, weights)
    steps = (image, line * strides[0], line * dilations[0], column, item)
    view = np.ndarray((n, oh, kh, kw, ow * c), dtype, rows, 0, steps)
    return np.einsum("nyabc,abc->nyc", view, np.tile(weights, (1, 1, ow))).reshape(n, oh, ow, c)


def _integer_taps(x: Array, kernel: DepthwiseKernel, slide: Slide, x_zero_point: int, wide: bool) -> Array:
    """Return the sums tap by tap, int64 if wide, else int32 modulo 2**32."""
    dtype = np.int64 if wide else np.int32
    centred = x.astype(dtype) - dtype(x_zero_point)
    kh, kw, c = kernel.taps.shape
    out = np.zeros((x.shape[0], *slide.size, c), dtype, like=x)
    for ky in range(kh):
        for kx in range(kw):
            out += tap(centred, ky, kx, slide) * kernel.taps[ky, kx].astype(dtype)
    return out


def _open_session(taps: Array, type_name: str, strides: Pair, dilations: Pair, x_zero_point: int) -> InferenceSession:
    """Return a session from type_name[n, h, w, c] to int32[n, oh, ow, c]. The transpositions become part of Conv's blocked
    layout."""
    from onnx import TensorProto, helper, numpy_helper

    c = taps.shape[2]
    weights = np.ascontiguousarray(taps.transpose(2, 0, 1)[:, None])
    bias = (-x_zero_point * taps.sum(axis=(0, 1), dtype=np.float64)).astype(np.float32)
    nodes = [
        helper.make_node("Cast", ["x"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["real"], ["first"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["first", "w", "b"], ["sums"], group=c, strides=strides, dilations=dilations),
        helper.make_node("Transpose", ["sums"], ["last"], perm=[0, 2, 3, 1]),
        helper.make_node("Cast", ["last"], ["y"], to=TensorProto.INT32),
    ]
    graph = helper.make_graph(
        nodes,
        "depthwise",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(np.dtype(type_name)), ["n", "h", "w", c])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, None)],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(bias, "b")],
    )
    return single_thread_session(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8))
