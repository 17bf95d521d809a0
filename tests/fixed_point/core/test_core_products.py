"""Convolutions and matrix products: every method and every form gives the integers of the definition."""

from __future__ import annotations

import exact_products as exact
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from quant.fixed_point import (
    ConvWeights,
    FixedPointError,
    Matrix,
    ProductMethod,
    choose_method,
    conv1d,
    conv2d,
    conv_transpose2d,
    matmul,
    product,
)
from quant.fixed_point.sums import products as products_module
from quant.fixed_point.sums.sessions import make_product_model
from scripts.onnx_builder import build_model

SEEDS = st.integers(0, 2**32 - 1)
ACTIVATIONS = st.sampled_from([np.int8, np.uint8, np.int16])
WEIGHTS = st.sampled_from([np.int8, np.uint8])
PAIRS = st.tuples(st.integers(1, 3), st.integers(1, 3))
METHODS = [None, *ProductMethod]


def codes(rng: np.random.Generator, dtype: type, shape: tuple[int, ...], extreme: bool) -> np.ndarray:
    """Uniform codes, or only the two extremes of the type."""
    limits = np.iinfo(dtype)
    if extreme:
        return rng.choice(np.array([limits.min, limits.max], dtype), shape)
    return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)


def exact_method(method: ProductMethod | None, *operands: np.ndarray) -> bool:
    return method is not ProductMethod.FLOAT32 or all(o.dtype.itemsize == 1 for o in operands)


@settings(max_examples=150)
@given(
    SEEDS,
    ACTIVATIONS,
    WEIGHTS,
    PAIRS,
    PAIRS,
    PAIRS,
    st.tuples(*[st.integers(0, 2)] * 4),
    st.sampled_from([(1, 3, 5), (1, 1, 4), (2, 3, 2), (4, 1, 1), (4, 1, 2), (3, 2, 4)]),
    st.booleans(),
)
def test_conv2d(seed, x_type, w_type, kernel, strides, dilations, pads, grouping, extreme) -> None:
    rng = np.random.default_rng(seed)
    groups, ic, each = grouping
    x = codes(rng, x_type, (2, 8, 7, groups * ic), extreme)
    w = codes(rng, w_type, (groups * each, *kernel, ic), extreme)
    zero = int(codes(rng, x_type, (1,), extreme)[0])
    w_zero = codes(rng, w_type, (groups * each,), extreme).astype(np.int64)
    if seed % 3 == 0:
        w_zero = np.full_like(w_zero, w_zero[0])
    bias = rng.integers(-(2**31), 2**31, groups * each)
    want = exact.conv2d(x, w, strides, dilations, pads, groups, zero, w_zero, bias)
    for method in METHODS:
        if not exact_method(method, x, w) or (method is ProductMethod.ONNXRUNTIME and ic == 1 and x_type is np.int16):
            continue
        for bits in (32, 48, 64, 24):
            got = conv2d(
                x,
                w,
                strides=strides,
                dilations=dilations,
                pads=pads,
                groups=groups,
                x_zero_point=zero,
                w_zero_point=w_zero,
                bias=bias,
                accumulator_bits=bits,
                method=method,
            )
            assert got.dtype == (np.int64 if bits > 32 else np.int32)
            np.testing.assert_array_equal(got, exact.wrap(want, bits), err_msg=f"{method} {bits}")


@settings(max_examples=80)
@given(SEEDS, ACTIVATIONS, PAIRS, PAIRS, PAIRS, st.sampled_from([(1, 2, 3), (2, 1, 1), (2, 2, 1)]), st.data())
def test_conv_transpose2d(seed, x_type, kernel, strides, dilations, grouping, data) -> None:
    rng = np.random.default_rng(seed)
    groups, ic, each = grouping
    x = codes(rng, x_type, (1, 3, 4, groups * ic), False)
    w = codes(rng, np.int8, (groups * each, *kernel, ic), False)
    pads = data.draw(st.tuples(*[st.integers(0, 1)] * 4))
    extra = data.draw(st.tuples(st.integers(0, 1), st.integers(0, 1)))
    full = [(s - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 + extra[i] for i, s in enumerate((3, 4))]
    if full[0] <= pads[0] + pads[2] or full[1] <= pads[1] + pads[3]:
        return
    want = exact.conv_transpose2d(x, w, strides, dilations, pads, extra, groups, 5, 2)
    got = conv_transpose2d(
        x,
        w,
        strides=strides,
        dilations=dilations,
        pads=pads,
        output_padding=extra,
        groups=groups,
        x_zero_point=5,
        w_zero_point=2,
        accumulator_bits=48,
    )
    np.testing.assert_array_equal(got, want)


@settings(max_examples=150)
@given(
    SEEDS,
    st.sampled_from([np.int8, np.uint8, np.int16]),
    st.sampled_from([np.int8, np.uint8, np.int16]),
    st.tuples(st.integers(1, 40), st.integers(1, 300), st.integers(1, 40)),
    st.booleans(),
)
def test_matmul(seed, a_type, b_type, sizes, extreme) -> None:
    rng = np.random.default_rng(seed)
    m, k, n = sizes
    a, b = codes(rng, a_type, (m, k), extreme), codes(rng, b_type, (k, n), extreme)
    za = int(codes(rng, a_type, (1,), False)[0])
    zb = codes(rng, b_type, (n,), False).astype(np.int64) if seed % 2 else int(codes(rng, b_type, (1,), False)[0])
    bias = rng.integers(-1000, 1000, n)
    want = (a.astype(np.int64) - za) @ (b.astype(np.int64) - np.asarray(zb)) + bias
    for method in METHODS:
        if not exact_method(method, a, b) or (method is ProductMethod.ONNXRUNTIME and b_type is np.int16):
            continue
        if method is ProductMethod.FLOAT32 and 255 * 255 * k > 1 << 24:
            continue
        for bits in (32, 40, 16):
            got = matmul(a, b, a_zero_point=za, b_zero_point=zb, bias=bias, accumulator_bits=bits, method=method)
            np.testing.assert_array_equal(got, exact.wrap(want, bits), err_msg=f"{method} {bits}")


@pytest.mark.parametrize("k", [33_025, 33_026, 40_000, 65_793, 65_794])
@pytest.mark.parametrize(
    ("a", "a_zero"),
    [(np.uint8(255), 0), (np.int8(127), -128), (np.int16(32767), 0), (np.int16(-32768), 32767), (np.uint8(255), 300)],
)
@pytest.mark.parametrize(
    ("b", "b_zero", "most"), [(np.uint8(255), 0, 33_025), (np.int8(127), -128, 33_025), (np.int8(-128), 0, 65_793)]
)
def test_deep_wide_products_are_exact(k, a, a_zero, b, b_zero, most) -> None:
    """Onnxruntime sums in int32, so it is neither chosen nor forced where the deepest sums of these types leave it."""
    left, right = np.full((70, k), a), Matrix(np.full((k, 2), b), b_zero)
    want = (int(a) - a_zero) * (int(b) - b_zero) * k
    assert (product(left, right, a_zero_point=a_zero, wide=True) == want).all()
    forced = {"a_zero_point": a_zero, "wide": True, "method": ProductMethod.ONNXRUNTIME}
    if k <= most:
        assert (product(left, right, **forced) == want).all()
        return
    with pytest.raises(FixedPointError, match=f"off its zero point; needs k of at most {most}; leave method to be chosen"):
        product(left, right, **forced)


def test_matmul_broadcasts() -> None:
    rng = np.random.default_rng(0)
    a, b = codes(rng, np.int8, (2, 1, 5, 7), False), codes(rng, np.uint8, (3, 7, 4), False)
    want = (a.astype(np.int64) - 3) @ (b.astype(np.int64) - 9)
    np.testing.assert_array_equal(matmul(a, b, a_zero_point=3, b_zero_point=9), want)
    np.testing.assert_array_equal(matmul(a, b[0], a_zero_point=3, b_zero_point=9), want[:, 0:1])


def test_conv1d_is_conv2d_of_height_one() -> None:
    rng = np.random.default_rng(0)
    x, w = codes(rng, np.int8, (2, 20, 3), False), codes(rng, np.int8, (5, 4, 3), False)
    want = exact.conv2d(x[:, None], w[:, None], (1, 2), (1, 3), (0, 1, 0, 4), 1, 7, 0, None)[:, 0]
    np.testing.assert_array_equal(conv1d(x, w, stride=2, dilation=3, pads=(1, 4), x_zero_point=7), want)


@pytest.mark.parametrize("size", [1, 40, 150])
def test_large_maps_in_pieces(size: int) -> None:
    rng = np.random.default_rng(size)
    x, w = codes(rng, np.uint8, (2, size, 90, 24), False), codes(rng, np.int8, (9, 3, 3, 24), False)
    want = exact.conv2d(x, w, (1, 2), (1, 1), (1, 1, 1, 1), 1, 12, 0, None)
    np.testing.assert_array_equal(conv2d(x, w, strides=(1, 2), pads=(1, 1, 1, 1), x_zero_point=12), want)


@pytest.mark.parametrize("x_type", [np.int8, np.uint8, np.int16])
@pytest.mark.parametrize("strides", [(1, 1), (2, 2)])
@pytest.mark.parametrize("multiplier", [1, 3])
@pytest.mark.parametrize("c", [2, 31, 64])
def test_depthwise_extremes(x_type, strides, multiplier, c) -> None:
    rng = np.random.default_rng(c)
    limits = np.iinfo(x_type)
    w = codes(rng, np.int8, (c * multiplier, 3, 5, 1), True)
    for zero in (int(limits.min), 0, int(limits.max)):
        x = codes(rng, x_type, (1, 37, 50, c), True)
        want = exact.conv2d(x, w, strides, (1, 2), (1, 2, 0, 3), c, zero, 0, None)
        prepared = ConvWeights(w, groups=c)
        for bits in (32, 40):
            got = conv2d(
                x,
                prepared,
                strides=strides,
                dilations=(1, 2),
                pads=(1, 2, 0, 3),
                x_zero_point=zero,
                accumulator_bits=bits,
            )
            np.testing.assert_array_equal(got, exact.wrap(want, bits))


def test_prepared_and_transposed_weights_give_the_same() -> None:
    rng = np.random.default_rng(3)
    x, w = codes(rng, np.int8, (1, 9, 9, 8), False), codes(rng, np.int8, (6, 3, 3, 8), False)
    view = np.ascontiguousarray(w.transpose(1, 2, 3, 0)).transpose(3, 0, 1, 2)
    want = conv2d(x, w, x_zero_point=4)
    np.testing.assert_array_equal(conv2d(x, view, x_zero_point=4), want)
    np.testing.assert_array_equal(conv2d(x, ConvWeights(w), x_zero_point=4), want)
    assert np.shares_memory(ConvWeights(view).matrices[0].values, view)


def test_inputs_are_left_alone() -> None:
    rng = np.random.default_rng(3)
    x, w = codes(rng, np.int8, (1, 6, 6, 4), False), codes(rng, np.int8, (4, 1, 1, 4), False)
    before = x.copy(), w.copy()
    for method in METHODS:
        conv2d(x, w, x_zero_point=3, w_zero_point=1, bias=np.arange(4), method=method)
    np.testing.assert_array_equal(x, before[0])
    np.testing.assert_array_equal(w, before[1])


def test_choice_by_size_and_type() -> None:
    def chosen(m: int, k: int, n: int, a_type: type = np.int8, b_type: type = np.int8) -> ProductMethod:
        return choose_method(np.zeros((m, k), a_type), 0, Matrix(np.zeros((k, n), b_type), 0))

    assert chosen(4, 8, 8) is ProductMethod.FLOAT32
    assert chosen(1000, 256, 256) is ProductMethod.ONNXRUNTIME
    assert chosen(1000, 256, 256, np.int16) is ProductMethod.ONNXRUNTIME
    assert chosen(1000, 256, 256, np.int16, np.int16) is ProductMethod.FLOAT64
    assert chosen(2, 70_000, 2) is ProductMethod.FLOAT64


def test_self_test_finds_saturation() -> None:
    class Saturating:
        signed = True

        def run(self, a: np.ndarray, b: Matrix, a_zero_point: int) -> np.ndarray:
            pairs = np.einsum("mkp,kpn->mkn", *(_pairs(a, b.values)))
            return np.clip(pairs, -32768, 32767).sum(axis=1)

    assert products_module.is_exact(products_module.matmul_integer())
    assert not products_module.is_exact(Saturating())  # type: ignore[arg-type]


def _pairs(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Operands padded to an even depth, as maddubs takes them: sums of two products saturate at 16 bits."""
    odd = a.shape[1] % 2
    a = np.pad(a.astype(np.int64), ((0, 0), (0, odd)))
    b = np.pad(b.astype(np.int64), ((0, odd), (0, 0)))
    return a.reshape(a.shape[0], -1, 2), b.reshape(-1, 2, b.shape[1])


def test_unsigned_kernel_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    kernel = products_module.MatMulInteger(False)
    monkeypatch.setattr(products_module, "matmul_integer", lambda: kernel)
    for a_type in (np.int8, np.uint8, np.int16):
        for b_type in (np.int8, np.uint8):
            a, b = codes(rng, a_type, (20, 33), True), codes(rng, b_type, (33, 9), True)
            zb = codes(rng, b_type, (9,), False).astype(np.int64)
            want = (a.astype(np.int64) - 3) @ (b.astype(np.int64) - zb)
            got = matmul(a, b, a_zero_point=3, b_zero_point=zb, accumulator_bits=48, method=ProductMethod.ONNXRUNTIME)
            np.testing.assert_array_equal(got, want)


def test_int32_accumulators_wrap() -> None:
    a, b = np.full((1, 70_000), 255, np.uint8), np.full((70_000, 1), 127, np.int8)
    exact_sum = 70_000 * 255 * 127
    assert matmul(a, b)[0, 0] == exact_sum - (1 << 32)
    assert matmul(a, b, accumulator_bits=33)[0, 0] == exact_sum


def test_zero_points_beyond_their_type() -> None:
    rng = np.random.default_rng(0)
    a, b = codes(rng, np.int8, (40, 64), False), codes(rng, np.int8, (64, 40), False)
    want = (a.astype(np.int64) + 1000) @ (b.astype(np.int64) - 300)
    np.testing.assert_array_equal(matmul(a, b, a_zero_point=-1000, b_zero_point=300), want)
    want = (a.astype(np.int64) + 1000) @ (b.astype(np.int64) - 3)
    for method in (ProductMethod.ONNXRUNTIME, ProductMethod.FLOAT64, ProductMethod.INT64):
        np.testing.assert_array_equal(matmul(a, b, a_zero_point=-1000, b_zero_point=3, method=method), want)


@pytest.mark.parametrize("strides", [(1, 1), (2, 1)])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("x_type", [np.int8, np.uint8])
@pytest.mark.parametrize("size", [40, 130])
def test_depthwise_methods(strides, method, x_type, size) -> None:
    rng = np.random.default_rng(5)
    x, w = codes(rng, x_type, (2, size, 91, 24), True), codes(rng, np.int8, (24, 3, 3, 1), False)
    bias = rng.integers(-1000, 1000, 24)
    want = exact.conv2d(x, w, strides, (1, 1), (1, 1, 1, 1), 24, 77, 0, bias)
    weights = ConvWeights(w, groups=24)
    for _ in range(2):
        got = conv2d(x, weights, strides=strides, pads=(1, 1, 1, 1), x_zero_point=77, bias=bias, method=method)
        np.testing.assert_array_equal(got, want)


REFUSALS = [
    (lambda: conv2d(np.zeros((4, 4, 3), np.int8), np.zeros((1, 1, 1, 3), np.int8)), "must be [n, h, w, c] (1-D: h = 1)"),
    (
        lambda: conv2d(np.zeros((1, 4, 4, 5), np.int8), np.zeros((2, 1, 1, 3), np.int8)),
        "conv2d: x has 5 channels, w (2, 1, 1, 3) with groups=1 takes 3",
    ),
    (
        lambda: conv2d(np.zeros((1, 4, 4, 3), np.int8), np.zeros((2, 5, 1, 3), np.int8)),
        "conv2d: kernel (5, 1) with dilations (1, 1) is larger than the padded input 4x4; enlarge pads or the input",
    ),
    (
        lambda: conv2d(np.zeros((1, 4, 4, 3), np.int8), np.zeros((3, 1, 1, 1), np.int8), groups=2),
        "conv weights: 3 output channels do not divide into groups=2",
    ),
    (
        lambda: conv2d(np.zeros((1, 4, 4, 3), np.int8), np.zeros((2, 1, 1, 3), np.int8), bias=np.zeros(3, int)),
        "bias has shape (3,); must be [2]",
    ),
    (
        lambda: conv2d(np.zeros((1, 4, 4, 3), np.int8), np.zeros((2, 1, 1, 3), np.int8), accumulator_bits=65),
        "accumulator_bits=65; must be 2..64",
    ),
    (lambda: matmul(np.zeros((2, 3), np.int8), np.zeros((4, 2), np.int8)), "matmul: a (2, 3) by b (4, 2); must be"),
    (
        lambda: matmul(np.zeros((2, 2000), np.int8), np.zeros((2000, 2), np.int8), method=ProductMethod.FLOAT32),
        "product by float32: sums reach 32768000, above 16777216, the largest that is exact; leave method to be chosen",
    ),
    (
        lambda: matmul(np.zeros((2, 9), np.int8), np.zeros((9, 2), np.int16), method=ProductMethod.ONNXRUNTIME),
        "product by onnxruntime: int8[2, 9] by int16; needs 8-bit operands (or int16 left)",
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSALS, ids=[m[:40] for _, m in REFUSALS])
def test_refusals(call, message) -> None:
    with pytest.raises(FixedPointError) as error:
        call()
    assert message in str(error.value)


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("inputs", [2, 3, 4])
def test_the_product_model_is_the_one_that_onnx_makes(signed: bool, inputs: int) -> None:
    right = TensorProto.INT8 if signed else TensorProto.UINT8
    types = {"a": TensorProto.UINT8, "b": right, "za": TensorProto.UINT8, "zb": right}
    names = list(types)[:inputs]
    types["y"] = TensorProto.INT32
    node = helper.make_node("MatMulInteger", names, ["y"])
    expected = build_model(
        [node], dict.fromkeys(names), {"y": None}, opset=10, name="product", types=types | {"y": TensorProto.INT32}
    )
    assert onnx.load_model_from_string(make_product_model(signed, inputs)).SerializeToString() == expected.SerializeToString()
