"""Bit for bit against onnxruntime's quantized operators: random and adversarial values, every zero point, edge scales."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from one_node_model import nchw, nhwc, run, scalar

from quant import fixed_point as fp
from quant.fixed_point import Rounding, ScaleForm

MS = "com.microsoft"
TYPES = [np.uint8, np.int8]
# The edges of float32 scaling: everything rounds to 0, ordinary, everything saturates.
RATIOS = [2.0**-40, 3e-5, 1 / 512, 0.02, 0.3, 1.0, 90.0, 2.0**20]


def codes(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...], extreme: bool = False) -> np.ndarray:
    limits = np.iinfo(dtype)
    if extreme:
        return rng.choice(np.array([limits.min, limits.max], dtype), shape)
    return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)


def zero_points(dtype: Any) -> list[int]:
    limits = np.iinfo(dtype)
    return [int(limits.min), int(limits.max), int(limits.min) + 7, (int(limits.min) + int(limits.max) + 1) // 2]


def float32_requant(x_scale: Any, w_scale: Any, out_scale: Any, zero: int, dtype: Any) -> fp.Requant:
    """S_x S_w / S_y in float32, as onnxruntime forms it."""
    scale = np.float32(x_scale) * np.asarray(w_scale, np.float32) / np.float32(out_scale)
    low, high = fp.type_limits(np.dtype(dtype))
    return fp.make_requant(scale, ScaleForm("float32"), Rounding.FP32_RNE, zero_point=zero, low=low, high=high)


CONVS = [
    # kernel, strides, dilations, pads, groups, ic, oc
    ((3, 3), (1, 1), (1, 1), (1, 1, 1, 1), 1, 5, 7),
    ((1, 1), (1, 1), (1, 1), (0, 0, 0, 0), 1, 16, 24),
    ((3, 2), (2, 1), (1, 2), (0, 2, 1, 1), 1, 3, 4),
    ((3, 3), (2, 2), (1, 1), (1, 1, 1, 1), 8, 8, 8),
    ((5, 5), (1, 1), (1, 1), (2, 2, 2, 2), 32, 32, 32),
    ((3, 3), (1, 1), (2, 2), (2, 2, 2, 2), 2, 6, 4),
    ((1, 7), (1, 2), (1, 1), (0, 3, 0, 3), 1, 4, 6),
]


@pytest.mark.parametrize("x_type", TYPES)
@pytest.mark.parametrize("w_type", TYPES)
@pytest.mark.parametrize("case", CONVS, ids=str)
@pytest.mark.parametrize("extreme", [False, True])
def test_conv_integer(x_type: Any, w_type: Any, case: tuple, extreme: bool) -> None:
    if (x_type, w_type) == (np.int8, np.uint8):
        pytest.skip("onnxruntime's ConvInteger has no s8u8 kernel")
    kernel, strides, dilations, pads, groups, ic, oc = case
    rng = np.random.default_rng(1)
    x = codes(rng, x_type, (2, 9, 11, ic), extreme)
    w = codes(rng, w_type, (oc, *kernel, ic // groups), extreme)
    for zx in zero_points(x_type)[:3]:
        zw = zero_points(w_type)[2]
        want = run(
            "ConvInteger",
            {"x": nchw(x), "w": nchw(w), "zx": scalar(zx, x_type), "zw": scalar(zw, w_type)},
            np.int32,
            strides=strides,
            dilations=dilations,
            pads=pads,
            group=groups,
        )
        got = fp.conv2d(x, w, strides=strides, dilations=dilations, pads=pads, groups=groups, x_zero_point=zx, w_zero_point=zw)
        np.testing.assert_array_equal(got, nhwc(want))


@pytest.mark.parametrize(("x_type", "w_type"), [(np.uint8, np.int8), (np.int8, np.int8), (np.uint8, np.uint8)])
@pytest.mark.parametrize("case", CONVS, ids=str)
@pytest.mark.parametrize("per_channel", [False, True])
def test_qlinear_conv(x_type: Any, w_type: Any, case: tuple, per_channel: bool) -> None:
    kernel, strides, dilations, pads, groups, ic, oc = case
    rng = np.random.default_rng(2)
    for index, ratio in enumerate(RATIOS):
        x = codes(rng, x_type, (1, 9, 11, ic), index % 2 == 1)
        w = codes(rng, w_type, (oc, *kernel, ic // groups), index % 3 == 2)
        zx, zy = zero_points(x_type)[index % 4], zero_points(x_type)[(index + 1) % 4]
        zw = 0 if w_type is np.int8 else 128
        bias = rng.integers(-5000, 5000, oc).astype(np.int32)
        w_scale = (rng.uniform(0.5, 1.5, oc) if per_channel else np.array([1.0])).astype(np.float32) * np.float32(ratio)
        x_scale, y_scale = np.float32(0.37), np.float32(0.41)
        w_zero = np.full(oc, zw, w_type) if per_channel else scalar(zw, w_type)
        want = run(
            "QLinearConv",
            {
                "x": nchw(x),
                "xs": scalar(float(x_scale)),
                "xz": scalar(zx, x_type),
                "w": nchw(w),
                "ws": w_scale if per_channel else w_scale[0],
                "wz": w_zero,
                "ys": scalar(float(y_scale)),
                "yz": scalar(zy, x_type),
                "b": bias,
            },
            x_type,
            constants=("xs", "xz", "w", "ws", "wz", "ys", "yz", "b"),
            strides=strides,
            dilations=dilations,
            pads=pads,
            group=groups,
        )
        acc = fp.conv2d(
            x,
            w,
            strides=strides,
            dilations=dilations,
            pads=pads,
            groups=groups,
            x_zero_point=zx,
            w_zero_point=zw,
            bias=bias,
        )
        got = fp.requantize(acc, float32_requant(x_scale, w_scale, y_scale, zy, x_type), x_type)
        np.testing.assert_array_equal(got, nhwc(want), err_msg=f"ratio {ratio}")


@pytest.mark.parametrize("a_type", TYPES)
@pytest.mark.parametrize("b_type", TYPES)
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 64, 17), (50, 33, 64), (1, 300, 40)], ids=str)
def test_matmul_integer(a_type: Any, b_type: Any, shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    rng = np.random.default_rng(3)
    for extreme in (False, True):
        a, b = codes(rng, a_type, (m, k), extreme), codes(rng, b_type, (k, n), extreme)
        for za, zb in zip(zero_points(a_type), zero_points(b_type), strict=True):
            want = run("MatMulInteger", {"a": a, "b": b, "az": scalar(za, a_type), "bz": scalar(zb, b_type)}, np.int32)
            np.testing.assert_array_equal(fp.matmul(a, b, a_zero_point=za, b_zero_point=zb), want)
        zb = codes(rng, b_type, (n,))
        want = run("MatMulInteger", {"a": a, "b": b, "az": scalar(5, a_type), "bz": zb}, np.int32)
        np.testing.assert_array_equal(fp.matmul(a, b, a_zero_point=5, b_zero_point=zb.astype(np.int64)), want)


@pytest.mark.parametrize(("a_type", "b_type"), [(np.uint8, np.int8), (np.int8, np.int8), (np.uint8, np.uint8)])
@pytest.mark.parametrize("per_column", [False, True])
def test_qlinear_matmul(a_type: Any, b_type: Any, per_column: bool) -> None:
    rng = np.random.default_rng(4)
    m, k, n = 19, 70, 33
    for index, ratio in enumerate(RATIOS):
        a, b = codes(rng, a_type, (m, k), index % 2 == 1), codes(rng, b_type, (k, n), index % 3 == 2)
        za, zb, zy = (zero_points(t)[index % 4] for t in (a_type, b_type, a_type))
        b_scale = (rng.uniform(0.5, 1.5, n) if per_column else np.array([1.0])).astype(np.float32) * np.float32(ratio)
        want = run(
            "QLinearMatMul",
            {
                "a": a,
                "as": scalar(0.7),
                "az": scalar(za, a_type),
                "b": b,
                "bs": b_scale if per_column else b_scale[0],
                "bz": np.full(n, zb, b_type) if per_column else scalar(zb, b_type),
                "ys": scalar(0.9),
                "yz": scalar(zy, a_type),
            },
            a_type,
            constants=("as", "az", "b", "bs", "bz", "ys", "yz"),
        )
        acc = fp.matmul(a, b, a_zero_point=za, b_zero_point=zb)
        got = fp.requantize(acc, float32_requant(0.7, b_scale, 0.9, zy, a_type), a_type)
        np.testing.assert_array_equal(got, want, err_msg=f"ratio {ratio}")


def awkward_floats(rng: np.random.Generator, scale: float) -> np.ndarray:
    """Values around every tie of the scale, large, tiny and infinite ones."""
    ties = (np.arange(-300, 300) + 0.5).astype(np.float32) * np.float32(scale)
    around = np.concatenate([ties, np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf))])
    special = np.array([0, -0.0, 1e-45, 3e38, -3e38, np.inf, -np.inf], np.float32)
    return np.concatenate([around, special, rng.normal(0, 100 * scale, 2000).astype(np.float32)])


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
@pytest.mark.parametrize("scale", [1.0, 0.1, 1 / 3, 7.7e-5, 123.4])
def test_quantize_and_dequantize_linear(dtype: Any, scale: float) -> None:
    rng = np.random.default_rng(5)
    x = awkward_floats(rng, scale)
    for zero in zero_points(dtype):
        want = run("QuantizeLinear", {"x": x, "s": scalar(scale), "z": scalar(zero, dtype)}, dtype)
        np.testing.assert_array_equal(fp.quantize_linear(x, scale, zero, dtype), want)
        q = codes(rng, dtype, (4000,))
        back = run("DequantizeLinear", {"q": q, "s": scalar(scale), "z": scalar(zero, dtype)}, np.float32)
        np.testing.assert_array_equal(fp.dequantize_linear(q, scale, zero), back)


def test_quantize_linear_per_axis() -> None:
    rng = np.random.default_rng(6)
    x = rng.normal(0, 20, (3, 5, 4)).astype(np.float32)
    scales, zeros = rng.uniform(0.05, 1, 5).astype(np.float32), codes(rng, np.int8, (5,))
    want = run("QuantizeLinear", {"x": x, "s": scales, "z": zeros}, np.int8, axis=1)
    np.testing.assert_array_equal(fp.quantize_linear(x, scales, zeros, np.int8, axis=1), want)
    back = run("DequantizeLinear", {"q": want, "s": scales, "z": zeros}, np.float32, axis=1)
    np.testing.assert_array_equal(fp.dequantize_linear(want, scales, zeros, axis=1), back)


def every_pair(dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """All 65,536 pairs of codes."""
    c = np.arange(256).astype(np.uint8).view(dtype)
    a, b = np.meshgrid(c, c)
    return np.ascontiguousarray(a), np.ascontiguousarray(b)


SCALES = [(0.1, 0.2, 0.3), (1.0, 1.0, 1.0), (0.013, 1.7, 0.9), (1 / 3, 1 / 7, 1 / 5), (0.5, 0.25, 0.125)]


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("scales", SCALES, ids=str)
def test_qlinear_add_and_mul(op: str, dtype: Any, scales: tuple[float, float, float]) -> None:
    a, b = every_pair(dtype)
    function = fp.qlinear_add if op == "QLinearAdd" else fp.qlinear_mul
    sa, sb, sy = scales
    for za, zb, zy in [(0, 0, 0), zero_points(dtype)[:3], zero_points(dtype)[1:]]:
        for left, right in ((a, b), (a, b[:1, :1]), (a[:3, :5], b[:1, :5])):
            want = run(
                op,
                {
                    "a": left,
                    "as": scalar(sa),
                    "az": scalar(za, dtype),
                    "b": right,
                    "bs": scalar(sb),
                    "bz": scalar(zb, dtype),
                    "ys": scalar(sy),
                    "yz": scalar(zy, dtype),
                },
                dtype,
                domain=MS,
            )
            got = function(
                left,
                right,
                a_scale=sa,
                b_scale=sb,
                out_scale=sy,
                a_zero_point=int(za),
                b_zero_point=int(zb),
                out_zero_point=int(zy),
            )
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("dtype", TYPES)
def test_qlinear_add_and_mul_with_awkward_scales(op: str, dtype: Any) -> None:
    """Scales whose ratios make many sums ties: the order of float32 operations shows. Vectors, a scalar on either side.

    onnxruntime's kernels disagree among themselves: a scalar left operand is added first, a vector last.
    """
    rng = np.random.default_rng(20)
    codes256 = np.arange(256).astype(np.uint8).view(dtype)
    function = fp.qlinear_add if op == "QLinearAdd" else fp.qlinear_mul
    mismatches = 0
    for _ in range(60):
        sa, sb, sy = (float(v) for v in rng.choice([0.1, 0.2, 0.3, 0.05, 0.7, 0.25, 0.5, 1.0, 0.15, 1 / 3, 1 / 7], 3))
        za, zb, zy = (int(v) for v in codes(rng, dtype, (3,)))
        one = codes(rng, dtype, (1,))
        results = []
        for left, right in [(one, codes256), (np.repeat(one, 256), codes256), (codes256, one)]:
            inputs = {"a": left, "as": scalar(sa), "az": scalar(za, dtype), "b": right, "bs": scalar(sb)}
            inputs |= {"bz": scalar(zb, dtype), "ys": scalar(sy), "yz": scalar(zy, dtype)}
            results.append(run(op, inputs, dtype, domain=MS))
            got = function(
                left,
                right,
                a_scale=sa,
                b_scale=sb,
                out_scale=sy,
                a_zero_point=za,
                b_zero_point=zb,
                out_zero_point=zy,
            )
            np.testing.assert_array_equal(got, results[-1])
        mismatches += int((results[0] != results[1]).sum())
    assert (mismatches > 0) == (op == "QLinearAdd")


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize(
    ("kernel", "strides", "pads"),
    [((2, 2), (2, 2), (0, 0, 0, 0)), ((3, 3), (1, 1), (1, 1, 1, 1)), ((3, 2), (2, 1), (1, 0, 1, 1))],
    ids=str,
)
def test_qlinear_average_pool(dtype: Any, include: bool, kernel: tuple, strides: tuple, pads: tuple) -> None:
    rng = np.random.default_rng(7)
    x = codes(rng, dtype, (2, 13, 12, 19))
    for sx, sy, zx, zy in [(0.1, 0.1, 3, 3), (0.37, 0.2, 100, 7), (0.02, 0.5, 0, 1)]:
        got = fp.qlinear_average_pool(
            x,
            kernel=kernel,
            strides=strides,
            pads=pads,
            count_include_pad=include,
            x_scale=sx,
            x_zero_point=zx,
            out_scale=sy,
            out_zero_point=zy,
        )
        for last in (0, 1):
            want = run(
                "QLinearAveragePool",
                {
                    "x": x if last else nchw(x),
                    "xs": scalar(sx),
                    "xz": scalar(zx, dtype),
                    "ys": scalar(sy),
                    "yz": scalar(zy, dtype),
                },
                dtype,
                domain=MS,
                constants=("xs", "xz", "ys", "yz"),
                kernel_shape=kernel,
                strides=strides,
                pads=pads,
                count_include_pad=int(include),
                channels_last=last,
            )
            np.testing.assert_array_equal(got, want if last else nhwc(want))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", [(7, 7), (1, 1), (16, 13)], ids=str)
def test_qlinear_global_average_pool(dtype: Any, size: tuple[int, int]) -> None:
    """onnxruntime's NCHW and NHWC kernels: the integer sum, scaled as FP32_RNE."""
    rng = np.random.default_rng(8)
    x = codes(rng, dtype, (2, *size, 21))
    low, high = fp.type_limits(np.dtype(dtype))
    count = size[0] * size[1]
    for sx, sy, zx, zy in [(0.1, 0.1, 3, 3), (0.37, 0.02, high, 7), (0.02, 0.5, 0, low)]:
        scale = np.float32(sx) / (np.float32(sy) * np.float32(count))
        r = fp.make_requant(scale, ScaleForm("float32"), Rounding.FP32_RNE, zero_point=zy, low=low, high=high)
        got = fp.requantize(fp.pool_sum(x, kernel=size, x_zero_point=zx), r, dtype)
        for last in (0, 1):
            want = run(
                "QLinearGlobalAveragePool",
                {
                    "x": x if last else nchw(x),
                    "xs": scalar(sx),
                    "xz": scalar(zx, dtype),
                    "ys": scalar(sy),
                    "yz": scalar(zy, dtype),
                },
                dtype,
                domain=MS,
                channels_last=last,
            )
            np.testing.assert_array_equal(got, want if last else nhwc(want))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("alpha", [0.01, 0.3])
def test_qlinear_leaky_relu(dtype: Any, alpha: float) -> None:
    x = np.arange(256).astype(np.uint8).view(dtype)
    for sx, sy, zx, zy in [(0.1, 0.1, 3, 3), (0.37, 0.2, 100, 7), (0.02, 0.5, 0, 1)]:
        parameters = {"xs": scalar(sx), "xz": scalar(zx, dtype), "ys": scalar(sy), "yz": scalar(zy, dtype)}
        want = run("QLinearLeakyRelu", {"x": x} | parameters, dtype, domain=MS, alpha=alpha)
        got = fp.qlinear_leaky_relu(x, alpha, x_scale=sx, x_zero_point=zx, out_scale=sy, out_zero_point=zy)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", TYPES)
def test_qlinear_sigmoid(dtype: Any) -> None:
    """onnxruntime's sigmoid is a rational approximation in float32; its table equals the rounded float64 sigmoid here."""
    x = np.arange(256).astype(np.uint8).view(dtype)
    for sx, zx, zy in [(0.05, 3, 0), (0.02, 100, 7), (0.11, 0, 1), (0.4, 60, 0)]:
        parameters = {"xs": scalar(sx), "xz": scalar(zx, dtype), "ys": scalar(1 / 256), "yz": scalar(zy, dtype)}
        want = run("QLinearSigmoid", {"x": x} | parameters, dtype, domain=MS)
        table = fp.qlinear_table(
            lambda v: (1 / (1 + np.exp(-v.astype(np.float64)))).astype(np.float32),
            x_scale=sx,
            x_zero_point=zx,
            out_scale=1 / 256,
            out_zero_point=zy,
            dtype=dtype,
        )
        np.testing.assert_array_equal(table[x.view(np.uint8)], want)


@pytest.mark.parametrize("dtype", TYPES)
def test_qlinear_concat(dtype: Any) -> None:
    rng = np.random.default_rng(9)
    parts = [codes(rng, dtype, (2, 6, n)) for n in (3, 300, 5)]
    scales, zeros = [0.1, 0.037, 0.25], [3, 100, 7]
    inputs: dict[str, np.ndarray | None] = {"ys": scalar(0.1), "yz": scalar(3, dtype)}
    for i, part in enumerate(parts):
        inputs |= {f"x{i}": part, f"s{i}": scalar(scales[i]), f"z{i}": scalar(zeros[i], dtype)}
    constants = tuple(n for n in inputs if not n.startswith("x"))
    want = run("QLinearConcat", inputs, dtype, domain=MS, constants=constants, axis=2)
    got = fp.qlinear_concat(parts, scales=scales, zero_points=zeros, out_scale=0.1, out_zero_point=3)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
@pytest.mark.parametrize("nearest", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_resize_nearest(coordinates: Any, nearest: Any) -> None:
    x = np.arange(7 * 11, dtype=np.int8).reshape(1, 7, 11, 1)
    for size in [(14, 22), (5, 8), (21, 4), (1, 13), (10, 10)]:
        want = run(
            "Resize",
            {"x": nchw(x), "roi": None, "scales": None, "sizes": np.array([1, 1, *size], np.int64)},
            np.int8,
            constants=("sizes",),
            mode="nearest",
            coordinate_transformation_mode=coordinates,
            nearest_mode=nearest,
        )
        rows, columns = (
            fp.nearest_indices(i, o, coordinates=coordinates, nearest=nearest) for i, o in zip((7, 11), size, strict=True)
        )
        np.testing.assert_array_equal(fp.resize_nearest(x, rows, columns), nhwc(want), err_msg=str(size))


def test_upsample_and_max_pool() -> None:
    rng = np.random.default_rng(10)
    x = codes(rng, np.int8, (2, 9, 8, 5))
    want = run(
        "Resize",
        {"x": nchw(x), "roi": None, "scales": np.array([1, 1, 2, 3], np.float32)},
        np.int8,
        constants=("scales",),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    np.testing.assert_array_equal(fp.upsample_nearest(x, (2, 3)), nhwc(want))
    for kernel, strides, dilations, pads in [((3, 3), (2, 2), (1, 1), (1, 1, 1, 1)), ((2, 3), (1, 2), (2, 1), (0,) * 4)]:
        want = run(
            "MaxPool",
            {"x": nchw(x)},
            np.int8,
            kernel_shape=kernel,
            strides=strides,
            pads=pads,
            dilations=dilations,
        )
        got = fp.max_pool(x, kernel=kernel, strides=strides, pads=pads, dilations=dilations)
        np.testing.assert_array_equal(got, nhwc(want))


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pad(mode: Any) -> None:
    rng = np.random.default_rng(11)
    x = codes(rng, np.int8, (2, 5, 6))
    for before, after in [((0, 1, 2), (0, 2, 1)), ((0, -1, 2), (0, 2, -1))]:
        if mode != "constant" and min(*before, *after) < 0:
            continue
        want = run(
            "Pad",
            {"x": x, "p": np.array([*before, *after], np.int64), "v": scalar(-7, np.int8) if mode == "constant" else None},
            np.int8,
            mode=mode,
        )
        value = -7 if mode == "constant" else 0
        np.testing.assert_array_equal(fp.pad(x, list(zip(before, after, strict=True)), value=value, mode=mode), want)
