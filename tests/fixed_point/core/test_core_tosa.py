"""Bit for bit against the TOSA 1.0 reference model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tosa_graph
from recorded import Oracle
from tosa_graph import TosaGraph, dtype_number, resize_mode, rounding_mode

from quant import fixed_point as fp
from quant.fixed_point import Requant, Rounding, ScaleForm

IGNORE = 2
INT32_LIMITS = (-(1 << 31), (1 << 31) - 1)


def codes(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...], extreme: bool = False) -> np.ndarray:
    limits = np.iinfo(dtype)
    if extreme:
        return rng.choice(np.array([limits.min, limits.max], dtype), shape)
    return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)


def check(oracle: Oracle, graph: TosaGraph, expected: list[np.ndarray]) -> None:
    missing = tosa_graph.missing()
    outputs = graph.run() if missing is None else []
    for i, got in enumerate(expected):
        oracle.check(got, lambda i=i: outputs[i], missing)


CONVS = [
    # kernel, strides, dilations, pads (top, left, bottom, right)
    ((3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    ((1, 1), (2, 2), (1, 1), (0, 0, 0, 0)),
    ((3, 2), (2, 1), (1, 2), (1, 0, 1, 1)),
]


def tosa_pads(pads: tuple[int, int, int, int]) -> list[int]:
    top, left, bottom, right = pads
    return [top, bottom, left, right]


@pytest.mark.parametrize("depthwise", [False, True])
def test_conv2d(oracle: Oracle, depthwise: bool) -> None:
    rng = np.random.default_rng(1)
    graph, expected = TosaGraph(), []
    ic, oc = (4, 8) if depthwise else (5, 6)
    for case in CONVS:
        # exact fit: TOSA requires that strides divide the padded input
        kernel, strides, dilations, pads = case
        h = 8 * strides[0] + (kernel[0] - 1) * dilations[0] + 1 - pads[0] - pads[2]
        width = 6 * strides[1] + (kernel[1] - 1) * dilations[1] + 1 - pads[1] - pads[3]
        for x_type, acc, extreme in [(np.int8, "INT32", False), (np.int8, "INT32", True), (np.int16, "INT48", True)]:
            x = codes(rng, x_type, (1, h, width, ic), extreme)
            w = np.maximum(codes(rng, np.int8, (oc, *kernel, 1 if depthwise else ic), extreme), -127)
            zx, zw = (-77, 0) if x_type is np.int8 else (0, 0)
            bias = rng.integers(-3000, 3000, oc).astype(np.int32 if x_type is np.int8 else np.int64)
            y = fp.conv2d(
                x,
                w,
                strides=strides,
                dilations=dilations,
                pads=pads,
                groups=ic if depthwise else 1,
                x_zero_point=zx,
                bias=bias,
                accumulator_bits=32 if x_type is np.int8 else 48,
            )
            stored = w.reshape(ic, oc // ic, *kernel).transpose(2, 3, 0, 1) if depthwise else w
            inputs = [x, np.ascontiguousarray(stored), bias]
            inputs += [graph.constant(zx, "INT16" if x_type is np.int16 else "INT8"), graph.constant(zw, "INT8")]
            graph.add(
                "DEPTHWISE_CONV2D" if depthwise else "CONV2D",
                inputs,
                y.shape,
                acc,
                tosa_pads(pads),
                list(strides),
                list(dilations),
                False,
                dtype_number(acc),
            )
            expected.append(y)
    check(oracle, graph, expected)


def test_transpose_conv2d(oracle: Oracle) -> None:
    rng = np.random.default_rng(2)
    graph, expected = TosaGraph(), []
    for kernel, strides, out_pad in [
        ((3, 3), (2, 2), (0, 0, 0, 0)),
        ((3, 2), (1, 3), (-1, 0, -1, -1)),
        ((2, 2), (2, 1), (1, 2, 0, 1)),
    ]:
        x = codes(rng, np.int8, (1, 4, 5, 3))
        w = codes(rng, np.int8, (6, *kernel, 3))
        bias = rng.integers(-3000, 3000, 6).astype(np.int32)
        top, bottom, left, right = out_pad
        y = fp.conv_transpose2d(
            x,
            w,
            strides=strides,
            pads=tuple(max(0, -v) for v in (top, left, bottom, right)),  # type: ignore[arg-type]
            output_padding=(max(0, bottom), max(0, right)),
            x_zero_point=-77,
            bias=bias,
        )
        # what out_pad adds before the first output has no term but the bias
        y = np.pad(y, ((0, 0), (max(0, top), 0), (max(0, left), 0), (0, 0)))
        y[:, : max(0, top)] = bias
        y[:, :, : max(0, left)] = bias
        graph.add(
            "TRANSPOSE_CONV2D",
            [x, w, bias, graph.constant(-77, "INT8"), graph.constant(0, "INT8")],
            y.shape,
            "INT32",
            [top, bottom, left, right],
            list(strides),
            False,
            dtype_number("INT32"),
        )
        expected.append(y)
    check(oracle, graph, expected)


def test_matmul(oracle: Oracle) -> None:
    rng = np.random.default_rng(3)
    graph, expected = TosaGraph(), []
    for dtype, acc, zeros in [(np.int8, "INT32", (-128, 127)), (np.int8, "INT32", (5, 0)), (np.int16, "INT48", (0, 0))]:
        a, b = codes(rng, dtype, (2, 9, 33)), codes(rng, dtype, (2, 33, 7))
        kind = "INT8" if dtype is np.int8 else "INT16"
        y = fp.matmul(a, b, a_zero_point=zeros[0], b_zero_point=zeros[1], accumulator_bits=32 if dtype is np.int8 else 48)
        graph.add("MATMUL", [a, b, graph.constant(zeros[0], kind), graph.constant(zeros[1], kind)], y.shape, acc)
        expected.append(y)
    check(oracle, graph, expected)


def test_pools(oracle: Oracle) -> None:
    rng = np.random.default_rng(4)
    graph, expected = TosaGraph(), []
    for dtype, zx, zy in [(np.int8, -9, 13), (np.int8, 0, 0), (np.int16, 0, 0)]:
        kind = "INT8" if dtype is np.int8 else "INT16"
        for kernel, strides, pads, size in [
            ((2, 2), (2, 2), (0, 0, 0, 0), (8, 6)),
            ((3, 3), (1, 1), (1, 1, 1, 1), (7, 5)),
            ((3, 2), (2, 1), (1, 0, 1, 1), (9, 6)),
            ((7, 9), (1, 1), (0, 0, 0, 0), (7, 9)),
        ]:
            x = codes(rng, dtype, (1, *size, 5))
            average = fp.average_pool_tosa(x, kernel=kernel, strides=strides, pads=pads, x_zero_point=zx, out_zero_point=zy)
            graph.add(
                "AVG_POOL2D",
                [x, graph.constant(zx, kind), graph.constant(zy, kind)],
                average.shape,
                kind,
                list(kernel),
                list(strides),
                tosa_pads(pads),
                dtype_number("INT32"),
            )
            largest = fp.max_pool(x, kernel=kernel, strides=strides, pads=pads)
            graph.add("MAX_POOL2D", [x], largest.shape, kind, list(kernel), list(strides), tosa_pads(pads), IGNORE)
            expected += [average, largest]
    check(oracle, graph, expected)


RESCALES = [
    # input, output, 32-bit scale, rounding
    (np.int32, np.int8, True, "SINGLE_ROUND"),
    (np.int32, np.int8, True, "DOUBLE_ROUND"),
    (np.int32, np.int16, True, "DOUBLE_ROUND"),
    (np.int32, np.int32, True, "SINGLE_ROUND"),
    (np.int32, np.int32, True, "DOUBLE_ROUND"),
    (np.int8, np.uint8, True, "SINGLE_ROUND"),
    (np.int16, np.uint8, True, "DOUBLE_ROUND"),
    (np.int8, np.int32, True, "SINGLE_ROUND"),
    (np.int8, np.int8, True, "DOUBLE_ROUND"),
    (np.int16, np.int32, True, "SINGLE_ROUND"),
    (np.int32, np.int8, False, "SINGLE_ROUND"),
    (np.int64, np.int16, False, "SINGLE_ROUND"),
    (np.int64, np.int32, False, "SINGLE_ROUND"),
    (np.int16, np.int8, False, "SINGLE_ROUND"),
]


@pytest.mark.parametrize("case", RESCALES, ids=str)
@pytest.mark.parametrize("per_channel", [False, True])
def test_rescale(oracle: Oracle, case: tuple, per_channel: bool) -> None:
    x_type, y_type, scale32, mode = case
    rng = np.random.default_rng(5)
    graph, expected = TosaGraph(), []
    c = 12
    form = ScaleForm("multiplier", 31 if scale32 else 15, 2, 62)
    rounding = Rounding.SCALE16 if not scale32 else Rounding(mode.lower().replace("single_round", "single_half_up"))
    low, high = fp.type_limits(np.dtype(y_type))
    x_bits = 48 if x_type is np.int64 else np.iinfo(x_type).bits
    for span in (4, 8, x_bits - 1):
        limit = 1 << min(span, x_bits - 1)
        x = rng.integers(-limit, limit, (60, c)).astype(x_type)
        x.flat[:3] = -limit, limit - 1, 0
        zx = 9 if x_type is np.int8 else 0
        zy = {np.int8: -7, np.uint8: 130}.get(y_type, 0)
        # results must fit int32 before the clamp
        top = min(2.0 ** (30 - span), 2.0**9)
        r = fp.make_requant(
            rng.uniform(top / 64, top, c if per_channel else 1), form, rounding, zero_point=zy, low=low, high=high
        )
        y = fp.rescale(x, r, x_zero_point=zx, dtype=y_type)
        kinds = {np.int8: "INT8", np.uint8: "INT8", np.int16: "INT16", np.int32: "INT32", np.int64: "INT48"}
        inputs = [
            x,
            graph.constant(r.multiplier, "INT32" if scale32 else "INT16"),
            graph.constant(r.shift, "INT8"),
            graph.constant(zx, kinds[x_type]),
            graph.constant(np.array([zy]).astype(y_type).view(f"i{np.dtype(y_type).itemsize}"), kinds[y_type]),
        ]
        unsigned = y_type is np.uint8
        graph.add("RESCALE", inputs, y.shape, kinds[y_type], scale32, rounding_mode(mode), per_channel, False, unsigned)
        expected.append(y.view(f"i{np.dtype(y_type).itemsize}"))
    check(oracle, graph, expected)


def test_elementwise(oracle: Oracle) -> None:
    rng = np.random.default_rng(6)
    graph, expected = TosaGraph(), []
    a, b = (rng.integers(-(2**30), 2**30, (40, 9)).astype(np.int32) for _ in range(2))
    one = fp.identity_requant(0, *INT32_LIMITS)
    graph.add("ADD", [a, b], a.shape, "INT32")
    expected.append(fp.add(a, b, one, one, one, dtype=np.int32))
    graph.add("SUB", [a, b], a.shape, "INT32")
    expected.append(fp.add(a, b, one, one, one, subtract=True, dtype=np.int32))
    for shift in (30, 31, 40):
        graph.add("MUL", [a, b, graph.constant(shift, "INT8")], a.shape, "INT32")
        r = Requant(np.array([1]), np.array([shift]), Rounding.SINGLE_HALF_UP, 0, *INT32_LIMITS)
        expected.append(fp.mul(a, b, r, dtype=np.int32))
    for dtype in (np.int8, np.int16):
        x, y = codes(rng, dtype, (40, 9)), codes(rng, dtype, (1, 9))
        graph.add("MUL", [x, y, graph.constant(0, "INT8")], x.shape, "INT32")
        expected.append(fp.mul(x, y, one, dtype=np.int32))
    for dtype, kind in ((np.int8, "INT8"), (np.int16, "INT16"), (np.int32, "INT32")):
        x = codes(rng, dtype, (300, 4))
        for rounds in (False, True):
            for shift in (1, np.iinfo(dtype).bits - 1):
                amounts = np.full((1, 4), shift, dtype)
                graph.add("ARITHMETIC_RIGHT_SHIFT", [x, amounts], x.shape, kind, rounds)
                rule = Rounding.POW2 if rounds else Rounding.FLOOR
                low, high = fp.type_limits(np.dtype(dtype))
                r = Requant(np.array([1]), np.array([shift]), rule, 0, low, high)
                expected.append(fp.rescale(x, r, dtype=dtype))
    x = codes(rng, np.int8, (300,))
    limits = np.array([-50, 90], np.int8)
    graph.add("CLAMP", [x], x.shape, "INT8", list(limits[:1].tobytes()), list(limits[1:].tobytes()), IGNORE)
    expected.append(fp.rescale(x, fp.identity_requant(0, -50, 90)))
    check(oracle, graph, expected)


@pytest.mark.parametrize("dtype", [np.int8, np.int16])
def test_resize(oracle: Oracle, dtype: Any) -> None:
    rng = np.random.default_rng(7)
    graph, expected = TosaGraph(), []
    x = codes(rng, dtype, (1, 7, 6, 3))
    kind = "INT8" if dtype is np.int8 else "INT16"
    for scale, offset, border in [
        ((4, 2, 4, 2), (-1, -1), (1, 1)),
        ((2, 1, 6, 2), (0, 0), (0, 0)),
        ((16, 9, 10, 4), (-3, 2), (3, 6)),
        ((2, 3, 2, 1), (0, -1), (2, 0)),
    ]:
        sizes = []
        for i in range(2):
            n, d, size = scale[2 * i], scale[2 * i + 1], x.shape[1 + i]
            span = (size - 1) * n - offset[i] + border[i]
            border = (border[0] - span % d, border[1]) if i == 0 else (border[0], border[1] - span % d)
            sizes.append(span // d + 1)
        axes = [(x.shape[1 + i], sizes[i], scale[2 * i], scale[2 * i + 1], offset[i]) for i in range(2)]
        shapes = [graph.shape(scale), graph.shape(offset), graph.shape(border)]
        nearest = fp.resize_nearest(x, *(fp.nearest_indices_tosa(*a) for a in axes))
        graph.add("RESIZE", [x, *shapes], nearest.shape, kind, resize_mode("NEAREST"))
        sums = fp.bilinear_sums(x, *(fp.linear_axis_tosa(*a) for a in axes))
        wide = "INT32" if dtype is np.int8 else "INT48"
        graph.add("RESIZE", [x, *shapes], sums.shape, wide, resize_mode("BILINEAR"))
        expected += [nearest, sums]
    check(oracle, graph, expected)
