"""Bit for bit against TFLite's reference kernels: LiteRT with the reference resolver, and TFLite Micro where it has them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import tflite_model as tfl
from recorded import Oracle
from tflite_forms import add_requants, product_scale, product_scale_float32, requant, same_pads
from tflite_model import Tensor, constant, single_operator

from quant import fixed_point as fp
from quant.fixed_point import Rounding

ENGINES: list[tfl.Engine] = ["reference", "micro"]
PADDING = {"SAME": 0, "VALID": 1}  # the schema's numbers


def codes(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...], extreme: bool = False) -> np.ndarray:
    limits = np.iinfo(dtype)
    if extreme:
        return rng.choice(np.array([limits.min, limits.max], dtype), shape)
    return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)


def same(x: np.ndarray, kernel: tuple, strides: tuple, dilations: tuple = (1, 1)) -> tuple[int, int, int, int]:
    top, bottom = same_pads(x.shape[1], kernel[0], strides[0], dilations[0])
    left, right = same_pads(x.shape[2], kernel[1], strides[1], dilations[1])
    return top, left, bottom, right


CONVS = [
    # kernel, strides, dilations, padding, output scale
    ((3, 3), (1, 1), (1, 1), "SAME", 0.5),
    ((1, 1), (1, 1), (1, 1), "VALID", 3.0),
    ((3, 2), (2, 1), (1, 1), "VALID", 0.02),
    ((3, 3), (1, 1), (2, 2), "SAME", 40.0),
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CONVS, ids=str)
@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("depthwise", [False, True])
def test_conv_int8(oracle: Oracle, engine: Any, case: tuple, extreme: bool, depthwise: bool) -> None:
    kernel, strides, dilations, padding, out_scale = case
    rng = np.random.default_rng(1)
    ic, oc = (4, 8) if depthwise else (5, 7)
    x = codes(rng, np.int8, (1, 9, 8, ic), extreme)
    w = codes(rng, np.int8, (oc, *kernel, 1 if depthwise else ic), extreme)
    w = np.maximum(w, -127)
    w_scale = rng.uniform(0.01, 0.03, oc).astype(np.float32)
    x_scale, zx, zy = 0.13, -11, 7
    bias = rng.integers(-3000, 3000, oc).astype(np.int32)
    pads = same(x, kernel, strides, dilations) if padding == "SAME" else (0, 0, 0, 0)
    acc = fp.conv2d(
        x,
        w,
        strides=strides,
        dilations=dilations,
        pads=pads,
        groups=ic if depthwise else 1,
        x_zero_point=zx,
        bias=bias,
    )
    got = fp.requantize(acc, requant(product_scale(x_scale, w_scale, out_scale), zy, np.int8))
    stored = np.ascontiguousarray(w.transpose(3, 1, 2, 0)) if depthwise else w
    fields = {"strideH": strides[0], "strideW": strides[1], "dilationHFactor": dilations[0]}
    fields |= {"dilationWFactor": dilations[1], "padding": PADDING[padding]}
    if depthwise:
        fields["depthMultiplier"] = oc // ic
    model = partial(
        single_operator,
        "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D",
        [
            Tensor(x.shape, np.int8, x_scale, zx),
            constant(stored, w_scale, [0] * oc, axis=3 if depthwise else 0),
            constant(bias, np.float32(x_scale) * w_scale, [0] * oc),
        ],
        [Tensor(got.shape, np.int8, out_scale, zy)],
        "DepthwiseConv2DOptions" if depthwise else "Conv2DOptions",
        version=3,
        **fields,
    )
    oracle.check(got, lambda: tfl.run(model(), [x], engine)[0], tfl.missing(engine))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CONVS, ids=str)
@pytest.mark.parametrize("extreme", [False, True])
def test_conv_int16(oracle: Oracle, engine: Any, case: tuple, extreme: bool) -> None:
    kernel, strides, dilations, padding, out_scale = case
    rng = np.random.default_rng(2)
    x = codes(rng, np.int16, (1, 9, 8, 5), extreme)
    w = np.maximum(codes(rng, np.int8, (7, *kernel, 5), extreme), -127)
    w_scale = rng.uniform(0.01, 0.03, 7).astype(np.float32)
    x_scale = 0.0013
    bias = rng.integers(-(10**7), 10**7, 7).astype(np.int64)
    pads = same(x, kernel, strides, dilations) if padding == "SAME" else (0, 0, 0, 0)
    acc = fp.conv2d(x, w, strides=strides, dilations=dilations, pads=pads, bias=bias, accumulator_bits=64)
    out_scale = out_scale / 300
    scale = product_scale(x_scale, w_scale, out_scale)
    got = fp.requantize(acc, requant(scale, 0, np.int16, Rounding.REDUCED16), np.int16)
    fields = {"strideH": strides[0], "strideW": strides[1], "dilationHFactor": dilations[0]}
    fields |= {"dilationWFactor": dilations[1], "padding": PADDING[padding]}
    model = partial(
        single_operator,
        "CONV_2D",
        [
            Tensor(x.shape, np.int16, x_scale),
            constant(w, w_scale, [0] * 7),
            constant(bias, np.float32(x_scale) * w_scale, [0] * 7),
        ],
        [Tensor(got.shape, np.int16, out_scale)],
        "Conv2DOptions",
        version=4,
        **fields,
    )
    oracle.check(got, lambda: tfl.run(model(), [x], engine)[0], tfl.missing(engine))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("out_scale", [0.02, 1.7, 60.0])
@pytest.mark.parametrize("dtype", [np.int8, np.int16])
def test_fully_connected(oracle: Oracle, engine: Any, extreme: bool, out_scale: float, dtype: Any) -> None:
    """LiteRT's reference rounds once, with all 31 bits for int16 too; TFLite Micro twice, with 16 bits for int16."""
    rng = np.random.default_rng(3)
    a = codes(rng, dtype, (6, 40), extreme)
    w = np.maximum(codes(rng, np.int8, (12, 40), extreme), -127)
    wide = dtype is np.int16
    x_scale, zx, zy = (0.0007, 0, 0) if wide else (0.13, 21, -9)
    out_scale = out_scale / 200 if wide else out_scale
    bias = rng.integers(-3000, 3000, 12).astype(np.int64 if wide else np.int32)
    acc = fp.matmul(a, np.ascontiguousarray(w.T), a_zero_point=zx, bias=bias, accumulator_bits=64 if wide else 32)
    micro = Rounding.REDUCED16 if wide else Rounding.DOUBLE_ROUND
    rounding = Rounding.SINGLE_HALF_UP if engine == "reference" else micro
    scale = product_scale(x_scale, 0.02, out_scale)
    got = fp.requantize(acc, requant(scale, zy, dtype, rounding), dtype)
    model = partial(
        single_operator,
        "FULLY_CONNECTED",
        [
            Tensor(a.shape, dtype, x_scale, zx),
            constant(w, 0.02, 0),
            constant(bias, np.float32(x_scale) * np.float32(0.02), 0),
        ],
        [Tensor(got.shape, dtype, out_scale, zy)],
        "FullyConnectedOptions",
        version=4,
    )
    oracle.check(got, lambda: tfl.run(model(), [a], engine)[0], tfl.missing(engine))


ELEMENTWISE_SCALES = [(0.1, 0.2, 0.3), (1.0, 1.0, 1.0), (0.013, 1.7, 0.9), (0.3, 0.001, 0.005)]


def pairs(rng: np.random.Generator, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    if dtype is np.int8:
        c = np.arange(-128, 128).astype(np.int8)
        a, b = np.meshgrid(c, c)
        return a.reshape(1, 256, 256), b.reshape(1, 256, 256)
    return codes(rng, dtype, (1, 100, 200)), codes(rng, dtype, (1, 100, 200))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("scales", ELEMENTWISE_SCALES, ids=str)
@pytest.mark.parametrize(("op", "dtype"), [("ADD", np.int8), ("SUB", np.int8), ("ADD", np.int16)])
def test_add_and_sub(oracle: Oracle, engine: Any, scales: tuple[float, float, float], op: str, dtype: Any) -> None:
    a, b = pairs(np.random.default_rng(4), dtype)
    sa, sb, so = scales
    za, zb, zo = (0, 0, 0) if dtype is np.int16 else (-7, 30, 11)
    ra, rb, ro, shift = add_requants(sa, sb, so, dtype, zo)
    got = fp.add(
        a,
        b,
        ra,
        rb,
        ro,
        a_zero_point=za,
        b_zero_point=zb,
        left_shift=shift,
        subtract=op == "SUB",
        dtype=dtype,
    )
    fields = {"potScaleInt16": False} if op == "ADD" else {}
    model = partial(
        single_operator,
        op,
        [Tensor(a.shape, dtype, sa, za), Tensor(b.shape, dtype, sb, zb)],
        [Tensor(a.shape, dtype, so, zo)],
        "AddOptions" if op == "ADD" else "SubOptions",
        version=2,
        **fields,
    )
    oracle.check(got, lambda: tfl.run(model(), [a, b], engine)[0], tfl.missing(engine))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("scales", ELEMENTWISE_SCALES, ids=str)
@pytest.mark.parametrize("dtype", [np.int8, np.int16])
def test_mul(oracle: Oracle, engine: Any, scales: tuple[float, float, float], dtype: Any) -> None:
    a, b = pairs(np.random.default_rng(5), dtype)
    sa, sb, so = scales if dtype is np.int8 else (scales[0] / 100, scales[1] / 100, scales[2] / 10)
    za, zb, zo = (0, 0, 0) if dtype is np.int16 else (-7, 30, 11)
    if engine == "reference":
        scale = product_scale_float32(sa, sb, so)
    else:
        scale = product_scale(sa, sb, so)
    got = fp.mul(a, b, requant(scale, zo, dtype), a_zero_point=za, b_zero_point=zb, dtype=dtype)
    model = partial(
        single_operator,
        "MUL",
        [Tensor(a.shape, dtype, sa, za), Tensor(b.shape, dtype, sb, zb)],
        [Tensor(a.shape, dtype, so, zo)],
        "MulOptions",
        version=2,
    )
    oracle.check(got, lambda: tfl.run(model(), [a, b], engine)[0], tfl.missing(engine))


POOLS = [((2, 2), (2, 2), "VALID"), ((3, 3), (1, 1), "SAME"), ((3, 2), (2, 1), "SAME"), ((9, 8), (1, 1), "VALID")]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("pool", POOLS, ids=str)
@pytest.mark.parametrize("op", ["AVERAGE_POOL_2D", "MAX_POOL_2D"])
@pytest.mark.parametrize("dtype", [np.int8, np.int16])
def test_pools(oracle: Oracle, engine: Any, pool: tuple, op: str, dtype: Any) -> None:
    kernel, strides, padding = pool
    x = codes(np.random.default_rng(6), dtype, (1, 9, 8, 6))
    pads = same(x, kernel, strides) if padding == "SAME" else (0, 0, 0, 0)
    function = fp.average_pool_tflite if op == "AVERAGE_POOL_2D" else fp.max_pool
    got = function(x, kernel=kernel, strides=strides, pads=pads)
    zero = 0 if dtype is np.int16 else 5
    model = partial(
        single_operator,
        op,
        [Tensor(x.shape, dtype, 0.1, zero)],
        [Tensor(got.shape, dtype, 0.1, zero)],
        "Pool2DOptions",
        version=3,
        filterHeight=kernel[0],
        filterWidth=kernel[1],
        strideH=strides[0],
        strideW=strides[1],
        padding=PADDING[padding],
    )
    oracle.check(got, lambda: tfl.run(model(), [x], engine)[0], tfl.missing(engine))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("axes", [(1, 2), (3,), (1,)], ids=str)
@pytest.mark.parametrize(("sx", "sy"), [(0.1, 0.1), (0.13, 0.02), (0.01, 0.7)])
def test_mean(oracle: Oracle, engine: Any, axes: tuple[int, ...], sx: float, sy: float) -> None:
    x = codes(np.random.default_rng(7), np.int8, (2, 9, 7, 11))
    zx, zy = -20, 14
    sums, count = fp.mean_sum(x, axes, x_zero_point=zx)
    s = fp.choose_scale(np.float64(np.float32(sx)) / np.float64(np.float32(sy)), fp.ScaleForm())
    r = fp.tflite_mean_requant(int(s.multiplier[0]), int(s.shift[0]), count, zy, np.int8)
    got = fp.requantize(sums, r)
    model = partial(
        single_operator,
        "MEAN",
        [Tensor(x.shape, np.int8, sx, zx), constant(np.array(axes, np.int32))],
        [Tensor(got.shape, np.int8, sy, zy)],
        "ReducerOptions",
        version=2,
        keepDims=True,
    )
    oracle.check(got, lambda: tfl.run(model(), [x], engine)[0], tfl.missing(engine))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("corners", [(False, False), (True, False), (False, True)], ids=str)
@pytest.mark.parametrize("size", [(18, 16), (5, 3), (20, 9), (1, 1)], ids=str)
@pytest.mark.parametrize("op", ["RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"])
def test_resize(oracle: Oracle, engine: Any, corners: tuple[bool, bool], size: tuple[int, int], op: str) -> None:
    x = codes(np.random.default_rng(8), np.int8, (2, 9, 8, 3))
    flags = {"align_corners": corners[0], "half_pixel_centers": corners[1]}
    if op == "RESIZE_BILINEAR":
        rows, columns = (fp.linear_axis_tflite(i, o, **flags) for i, o in zip((9, 8), size, strict=True))
        got = fp.resize_bilinear_tflite(x, rows, columns)
    else:
        indices = [fp.nearest_indices_tflite(i, o, **flags) for i, o in zip((9, 8), size, strict=True)]
        got = fp.resize_nearest(x, *indices)
    model = partial(
        single_operator,
        op,
        [Tensor(x.shape, np.int8, 0.1, 5), constant(np.array(size, np.int32))],
        [Tensor(got.shape, np.int8, 0.1, 5)],
        "ResizeBilinearOptions" if op == "RESIZE_BILINEAR" else "ResizeNearestNeighborOptions",
        version=3,
        alignCorners=corners[0],
        halfPixelCenters=corners[1],
    )
    oracle.check(got, lambda: tfl.run(model(), [x], engine)[0], tfl.missing(engine))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("sx", "sy", "alpha"), [(0.1, 0.1, 0.2), (0.13, 0.02, 0.01), (0.01, 0.7, 0.9)])
@pytest.mark.parametrize("dtype", [np.int8, np.int16])
def test_leaky_relu(oracle: Oracle, engine: Any, sx: float, sy: float, alpha: float, dtype: Any) -> None:
    rng = np.random.default_rng(9)
    x = np.arange(-128, 128).astype(np.int8) if dtype is np.int8 else codes(rng, dtype, (5000,))
    zx, zy = (-20, 14) if dtype is np.int8 else (0, 0)
    if engine == "reference":
        positive = product_scale_float32(sx, 1.0, sy)
        negative = product_scale_float32(sx, alpha, sy)
    else:
        positive, negative = product_scale(sx, 1.0, sy), product_scale(sx, alpha, sy)
    got = fp.leaky_relu(x, requant(positive, zy, dtype), requant(negative, zy, dtype), x_zero_point=zx, dtype=dtype)
    model = partial(
        single_operator,
        "LEAKY_RELU",
        [Tensor(x.shape, dtype, sx, zx)],
        [Tensor(x.shape, dtype, sy, zy)],
        "LeakyReluOptions",
        version=2,
        alpha=alpha,
    )
    oracle.check(got, lambda: tfl.run(model(), [x], engine)[0], tfl.missing(engine))


def test_prelu(oracle: Oracle) -> None:
    rng = np.random.default_rng(10)
    x, alpha = codes(rng, np.int8, (1, 6, 7, 9)), codes(rng, np.int8, (1, 1, 9))
    sx, sa, sy = (np.float64(np.float32(v)) for v in (0.1, 0.02, 0.07))
    got = fp.prelu(
        x,
        alpha,
        requant(sx / sy, 14, np.int8),
        requant(sx * sa / sy, 14, np.int8),
        x_zero_point=-20,
        alpha_zero_point=5,
    )
    model = partial(
        single_operator,
        "PRELU",
        [Tensor(x.shape, np.int8, 0.1, -20), constant(alpha, 0.02, 5)],
        [Tensor(x.shape, np.int8, 0.07, 14)],
    )
    oracle.check(got, lambda: tfl.run(model(), [x])[0], tfl.missing())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", [np.int8, np.int16])
def test_concatenation(oracle: Oracle, engine: Any, dtype: Any) -> None:
    rng = np.random.default_rng(11)
    parts = [codes(rng, dtype, (1, 5, 6, n)) for n in (3, 8)]
    zero = 4 if dtype is np.int8 else 0
    got = fp.concatenate(parts, [None, None], zero_points=[zero, zero], dtype=dtype)
    model = partial(
        single_operator,
        "CONCATENATION",
        [Tensor(p.shape, dtype, 0.1, zero) for p in parts],
        [Tensor(got.shape, dtype, 0.1, zero)],
        "ConcatenationOptions",
        version=2,
        axis=3,
    )
    oracle.check(got, lambda: tfl.run(model(), parts, engine)[0], tfl.missing(engine))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", [np.int8, np.int16])
def test_pad(oracle: Oracle, engine: Any, dtype: Any) -> None:
    x = codes(np.random.default_rng(12), dtype, (1, 5, 6, 3))
    pads = [(0, 0), (1, 2), (3, 0), (0, 1)]
    zero = -9 if dtype is np.int8 else 0
    got = fp.pad(x, pads, value=zero)
    model = partial(
        single_operator,
        "PAD",
        [Tensor(x.shape, dtype, 0.1, zero), constant(np.array(pads, np.int32))],
        [Tensor(got.shape, dtype, 0.1, zero)],
        "PadOptions",
        version=2,
    )
    oracle.check(got, lambda: tfl.run(model(), [x], engine)[0], tfl.missing(engine))


def test_transpose_conv(oracle: Oracle) -> None:
    rng = np.random.default_rng(13)
    x, w = codes(rng, np.int8, (1, 4, 5, 3)), np.maximum(codes(rng, np.int8, (6, 3, 3, 3)), -127)
    w_scale = rng.uniform(0.01, 0.03, 6).astype(np.float32)
    # SAME: the output is stride times the input, (kernel - stride) of the full scatter cut off, less before than after
    acc = fp.conv_transpose2d(x, w, strides=(2, 2), pads=(0, 0, 1, 1), x_zero_point=-11)
    got = fp.requantize(acc, requant(product_scale(0.13, w_scale, 0.5), 7, np.int8))
    model = partial(
        single_operator,
        "TRANSPOSE_CONV",
        [
            constant(np.array([1, 8, 10, 6], np.int32)),
            constant(w, w_scale, [0] * 6),
            Tensor(x.shape, np.int8, 0.13, -11),
        ],
        [Tensor(got.shape, np.int8, 0.5, 7)],
        "TransposeConvOptions",
        version=2,
        strideH=2,
        strideW=2,
        padding=PADDING["SAME"],
    )
    oracle.check(got, lambda: tfl.run(model(), [x])[0], tfl.missing())
