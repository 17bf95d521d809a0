"""Scales, codes, biases and rounding offsets: exact where they must be, least error where they may choose, never silent."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from edge_numerics import machine
from hypothesis import given, settings
from hypothesis import strategies as st

from quant.fixed_point import Numerics
from quant.observe import Histogram, Range
from quant.parameters import (
    SMALLEST_SCALE,
    activation_quant,
    bias_compensation,
    bias_quant,
    least_error_range,
    quant_range,
    weight_code_range,
    weight_quant,
)
from toolchain.errors import CompileError
from toolchain.ir.graph import Quant

settings.register_profile("quant", derandomize=True, deadline=None, max_examples=100)
settings.load_profile("quant")


POW2 = {"kind": "pow2"}
MACHINES = [
    machine(activation=a, weight=w, scale={"kind": k}, symmetric_activations=s, weights_per_channel=c)
    for a in ("int8", "int16")
    for w in ("int8", "int4")
    for k in ("multiplier", "pow2")
    for s in (False, True)
    for c in (False, True)
]
ENDS = st.floats(-1e4, 1e4).map(lambda v: 0.0 if abs(v) < 1e-6 else v)
RANGES = st.tuples(ENDS, ENDS).map(lambda v: Range(min(v), max(v)))


def round_values(x: np.ndarray, quant: Quant, numerics: Numerics) -> np.ndarray:
    first, last = numerics.activation.limits
    return quant.scale * (np.clip(np.rint(x / quant.scale) + quant.zero_point, first, last) - quant.zero_point)


# --- activations


@given(RANGES, st.sampled_from(MACHINES))
def test_activation_quant(r: Range, numerics: Numerics) -> None:
    quant = activation_quant(r, numerics)
    first, last = numerics.activation.limits
    assert quant.scale >= SMALLEST_SCALE and math.isfinite(quant.scale)
    assert first <= quant.zero_point <= last  # so that 0 is a code
    assert isinstance(quant.zero_point, int) and isinstance(quant.scale, float)
    if numerics.symmetric_activations:
        assert quant.zero_point == 0
    full = r.with_zero()
    if numerics.scale.kind == "pow2":
        assert math.frexp(quant.scale)[0] == 0.5
        slack = 0.04 * full.span  # clipped rather than lose a bit
    else:
        slack = quant.scale * (0.5 + 1e-9)
    covered = quant_range(quant, numerics)
    assert covered.low <= full.low + slack and covered.high >= full.high - slack


@given(RANGES, st.sampled_from(MACHINES))
def test_a_range_made_of_codes_gives_its_quant_back(r: Range, numerics: Numerics) -> None:
    quant = activation_quant(r, numerics)
    again = activation_quant(quant_range(quant, numerics), numerics)
    assert again.zero_point == quant.zero_point and again.scale == pytest.approx(quant.scale, rel=1e-12)
    if numerics.scale.kind == "pow2":
        assert again == quant


@pytest.mark.parametrize("r", [Range(0, 0), Range(1e-30, 1e-29), Range(-1e-300, 0)])
@pytest.mark.parametrize("numerics", MACHINES)
def test_no_range_degenerates(r: Range, numerics: Numerics) -> None:
    quant = activation_quant(r, numerics)
    assert quant.scale == SMALLEST_SCALE
    assert round_values(np.zeros(1), quant, numerics) == 0


def test_known_scales() -> None:
    assert activation_quant(Range(0, 6), machine()) == Quant(6 / 255, -128)
    assert activation_quant(Range(2, 6), machine()) == Quant(6 / 255, -128)
    assert activation_quant(Range(-1, 1), machine(symmetric_activations=True)) == Quant(1 / 127, 0)
    assert activation_quant(Range(-1, 1), machine(activation="int16", symmetric_activations=True)) == Quant(1 / 32767, 0)
    # 1.0 would need 128 steps of 2**-7: one clipped step costs less than half of all resolution
    assert activation_quant(Range(-1, 1), machine(scale=POW2, symmetric_activations=True)) == Quant(2**-7, 0)
    assert activation_quant(Range(-1.1, 1.1), machine(scale=POW2, symmetric_activations=True)) == Quant(2**-6, 0)
    assert activation_quant(Range(0, 1), machine(scale=POW2)) == Quant(2**-8, -128)


@given(st.integers(0, 2**31), st.sampled_from([1.0, 0.01, 300.0]), st.sampled_from([-0.5, 0.0, 2.0]))
def test_chosen_power_of_two_is_no_worse_than_its_neighbours(seed: int, size: float, shift: float) -> None:
    numerics = machine(scale=POW2)
    x = size * (np.random.default_rng(seed).standard_normal(4000) + shift)
    histogram = Histogram()
    histogram.update(x.astype(np.float32))

    def error(quant: Quant) -> float:
        return float(((x - round_values(x, quant, numerics)) ** 2).mean())

    chosen = activation_quant(least_error_range(histogram, numerics), numerics)
    low, high = float(x.min()), float(x.max())
    for e in (-1, 1):
        scale = chosen.scale * 2.0**e
        for zero_point in {round(-128 - low / scale), round(127 - high / scale), chosen.zero_point}:
            other = Quant(scale, int(np.clip(zero_point, -128, 127)))
            assert error(chosen) <= error(other) * 1.01
    assert math.frexp(chosen.scale)[0] == 0.5


@settings(max_examples=25)
@given(st.integers(0, 2**31), st.booleans(), st.sampled_from(["normal", "laplace", "standard_t"]))
def test_least_error_is_no_worse_than_minmax(seed: int, symmetric: bool, shape: str) -> None:
    numerics = machine(symmetric_activations=symmetric)
    rng = np.random.default_rng(seed)
    n = 40_000  # so that the sample's own noise stays below the 0.5 % allowed
    x = (rng.standard_t(3, n) if shape == "standard_t" else getattr(rng, shape)(0.3, 1, n)).astype(np.float32)
    histogram = Histogram()
    histogram.update(x)

    def error(r: Range) -> float:
        return float(((x - round_values(x, activation_quant(r, numerics), numerics)) ** 2).mean())

    assert error(least_error_range(histogram, numerics)) <= error(Range(float(x.min()), float(x.max()))) * 1.005


# --- weights


WEIGHTS = st.tuples(st.integers(0, 2**31), st.sampled_from([(6, 3, 3, 3), (4, 7), (1, 1)]), st.sampled_from([0, 1, -1]))


@given(WEIGHTS, st.sampled_from(MACHINES), st.sampled_from([None, "minmax", "mse"]))
def test_weight_quant(case, numerics: Numerics, method) -> None:
    seed, shape, axis = case
    rng = np.random.default_rng(seed)
    w = (rng.standard_normal(shape) * rng.lognormal(0, 3, shape[0]).reshape(-1, *[1] * (len(shape) - 1))).astype(np.float32)
    weight = weight_quant(w, axis, numerics, method=method)
    first, last = weight_code_range(numerics.weight)
    assert weight.codes.dtype == np.int8 and weight.codes.shape == w.shape
    assert weight.codes.min() >= first and weight.codes.max() <= last
    assert weight.scales.shape == ((shape[axis],) if numerics.weights_per_channel else (1,))
    if numerics.scale.kind == "pow2":
        assert (np.frexp(weight.scales)[0] == 0.5).all()
    elif method == "minmax" or (method is None and numerics.weight == "int8"):
        steps = np.abs(weight.dequantize() - w) / np.moveaxis(weight.scales * np.ones(shape[axis]), 0, 0).reshape(
            [-1 if a == axis % len(shape) else 1 for a in range(len(shape))]
        )
        assert steps.max() <= 0.5 + 1e-6


def test_each_channel_has_its_own_scale() -> None:
    w = np.array([[1.27, 0.1], [12.701, -127.0]])
    assert weight_quant(w, 0, machine()).scales.tolist() == [0.01, 1.0]
    assert weight_quant(w, 1, machine()).scales.tolist() == pytest.approx([0.1, 1.0], rel=1e-3)
    assert weight_quant(w, 0, machine()).codes.tolist() == [[127, 10], [13, -127]]
    assert weight_quant(w, 0, machine(weights_per_channel=False)).scales.tolist() == [1.0]


@pytest.mark.parametrize("ratio", [[1, 3, 3, 9], [1, 2, 4], [-1, 7, 49], [1, 10], [5, 0, 3], [2, 2]])
def test_weights_in_small_whole_ratios_are_held_exactly(ratio: list[int]) -> None:
    w = np.array([[v / 24 for v in ratio]], np.float32)  # 24: no power of two
    weight = weight_quant(w, 0, machine())
    np.testing.assert_allclose(weight.dequantize()[0], w[0], rtol=1e-6)
    assert 64 <= np.abs(weight.codes[0]).max() <= 127


@pytest.mark.parametrize(("kind", "last"), [("int8", 127), ("int4", 7)])
def test_every_peak_that_a_code_can_be_is_held_exactly(kind: str, last: int) -> None:
    """Smaller ones are doubled until they cannot be: the largest code is above half of the last."""
    w = np.array([[1 / 24, peak / 24] for peak in range(1, last + 1)], np.float32)
    weight = weight_quant(w, 0, machine(weight=kind))
    np.testing.assert_allclose(weight.dequantize(), w, rtol=1e-6)
    largest = np.abs(weight.codes.astype(int)).max(1)
    assert (last // 2 < largest).all() and (largest <= last).all()


def test_a_late_weight_out_of_ratio_is_seen() -> None:
    w = np.ones((1, 5000), np.float32)
    w[0, 4] = 9.0
    assert weight_quant(w, 0, machine()).codes.max() == 126
    for at in (63, 4999):
        odd = w.copy()
        odd[0, at] = 0.123
        assert weight_quant(odd, 0, machine()).codes.max() == 127


def test_int4_clips_where_that_is_better() -> None:
    w = np.random.default_rng(0).standard_normal((8, 500))
    numerics = machine(weight="int4")
    errors = {m: ((weight_quant(w, 0, numerics, method=m).dequantize() - w) ** 2).mean() for m in ("minmax", "mse")}
    assert errors["mse"] < 0.8 * errors["minmax"]


def test_power_of_two_weights_are_searched_not_rounded() -> None:
    w = np.random.default_rng(1).standard_normal((16, 400))
    numerics = machine(scale=POW2)
    covering = np.abs(w).max(1) / 127
    chosen = weight_quant(w, 0, numerics)
    for scales in (2.0 ** np.floor(np.log2(covering)), 2.0 ** np.ceil(np.log2(covering))):
        other = np.clip(np.rint(w / scales[:, None]), -127, 127) * scales[:, None]
        assert (((chosen.dequantize() - w) ** 2).sum(1) <= ((other - w) ** 2).sum(1) * (1 + 1e-12)).all()


def test_a_power_of_two_that_clips_a_little_beats_one_that_loses_a_bit() -> None:
    w = np.concatenate([np.random.default_rng(2).uniform(-1, 1, 500), [128.2 / 127]])[None]
    assert weight_quant(w * 127 / 128, 0, machine(scale=POW2)).scales.tolist() == [2.0**-7]
    assert weight_quant(w * 127 / 64, 0, machine(scale=POW2)).scales.tolist() == [2.0**-6]
    assert weight_quant(w * 1.2, 0, machine(scale=POW2)).scales.tolist() == [2.0**-6]


@pytest.mark.parametrize("numerics", MACHINES)
def test_zero_and_vanishing_channels(numerics: Numerics) -> None:
    w = np.array([[0.0, 0.0], [1.0, -1.0], [1e-30, 0.0]])
    weight = weight_quant(w, 0, numerics)
    assert (weight.scales > 1e-12).all() and np.isfinite(weight.scales).all()
    assert not weight.codes[0].any() and not weight.codes[2].any()
    assert weight_quant(np.zeros((2, 2)), 0, numerics).scales.min() == 2.0**-7


def test_bad_weights() -> None:
    with pytest.raises(CompileError) as caught:
        weight_quant(np.array([[1.0, np.nan]]), 0, machine(), name="conv_7.weight")
    assert str(caught.value) == "conv_7.weight: holds nan at [0, 1]; weights must be finite, mend the model"


# --- biases


def reachable(weight, codes: np.ndarray, x: Quant, numerics: Numerics) -> np.ndarray:
    """The largest magnitude by trying the worst input of each sign."""
    first, last = numerics.activation.limits
    rows = weight.codes.reshape(len(codes), -1).astype(object)
    worst = np.zeros(len(codes), object)
    for sign in (1, -1):
        inputs = np.where(sign * rows > 0, last - x.zero_point, first - x.zero_point)
        sums = (rows * inputs).sum(1)
        worst = np.maximum(worst, np.maximum(abs(sums), abs(sums + codes.astype(object))))
    return worst


@given(
    st.integers(0, 2**31),
    st.sampled_from(MACHINES),
    st.sampled_from([1e-9, 1.0, 1e6]),
    st.sampled_from([24, 32, 48]),
    st.integers(-128, 127),
)
def test_no_input_overflows(seed: int, numerics: Numerics, bias_size: float, bits: int, zero_point: int) -> None:
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((5, 40))
    bias = bias_size * rng.standard_normal(5)
    x = Quant(2.0**-5, 0 if numerics.symmetric_activations else zero_point)
    weight = weight_quant(w, 0, numerics)
    try:
        bias_codes = bias_quant(bias, w, weight, x, replace(numerics, accumulator_bits=bits))
    except CompileError:
        assert bits == 24 and numerics.activation == "int16"
        return
    assert bias_codes.codes.dtype == np.int32
    worst = reachable(bias_codes.weight, bias_codes.codes, x, numerics)
    assert (worst == bias_codes.peak).all() and (worst < 2 ** (bits - 1)).all()
    assert {e.channel for e in bias_codes.enlarged} == set(
        np.flatnonzero(bias_codes.weight.scales / weight.scales * np.ones(5) > 1)
    )
    step = x.scale * bias_codes.weight.scales
    assert (np.abs(bias_codes.codes * step - bias) <= step * 0.5 + 1e-9 * np.abs(bias)).all()
    if numerics.scale.kind == "pow2":
        assert (np.frexp(bias_codes.weight.scales)[0] == 0.5).all()


def test_codes_so_small_that_they_round_alike_are_enlarged_until_they_fit() -> None:
    """int16 by int8 in 24 bits leaves weights few codes: the next finer enlargement often rounds to the same ones."""
    numerics, most = machine(24, activation="int16"), 0.0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        w, bias = rng.standard_normal((5, 40)), rng.standard_normal(5)
        weight = weight_quant(w, 0, numerics)
        bias_codes = bias_quant(bias, w, weight, Quant(2.0**-5, 0), numerics)
        assert (bias_codes.peak < 2**23).all()
        least = np.abs(weight.codes.astype(np.int64)).sum(1) * 2**15 / 2**23
        most = max(most, float((bias_codes.weight.scales / weight.scales / least).max()))
    assert most < 1.05  # what was lacking, and little more


def test_a_large_bias_enlarges_its_channel_only() -> None:
    w = np.array([[1e-6, -1e-6], [1.0, 0.5]])
    weight = weight_quant(w, 0, machine())
    bias_codes = bias_quant(np.array([100.0, 0.1]), w, weight, Quant(0.01, 0), machine())
    assert [(e.channel, e.cause) for e in bias_codes.enlarged] == [(0, "bias")]
    assert bias_codes.weight.scales[1] == weight.scales[1] and bias_codes.weight.scales[0] > weight.scales[0]
    assert bias_codes.codes[0] * 0.01 * bias_codes.weight.scales[0] == pytest.approx(100, rel=1e-9)


@pytest.mark.parametrize("numerics", MACHINES[:4])
def test_matrices_with_their_outputs_last(numerics: Numerics) -> None:
    rng = np.random.default_rng(3)
    w, bias = rng.standard_normal((6, 9)) * rng.lognormal(0, 2, (6, 1)), 1e6 * rng.standard_normal(6)
    x = Quant(2.0**-9, 7 if not numerics.symmetric_activations else 0)
    rows = bias_quant(bias, w, weight_quant(w, 0, numerics), x, numerics)
    columns = bias_quant(bias, w.T, weight_quant(w.T, -1, numerics), x, numerics)
    np.testing.assert_array_equal(rows.codes, columns.codes)
    np.testing.assert_array_equal(rows.peak, columns.peak)
    np.testing.assert_array_equal(rows.weight.codes, columns.weight.codes.T)
    assert rows.enlarged == columns.enlarged and rows.enlarged


def test_without_bias() -> None:
    w = np.ones((2, 3))
    bias_codes = bias_quant(None, w, weight_quant(w, 0, machine()), Quant(0.1, -128), machine())
    assert bias_codes.codes.tolist() == [0, 0] and bias_codes.peak.tolist() == [127 * 255 * 3] * 2 and bias_codes.enlarged == ()


def test_products_that_outgrow_the_accumulators_are_refused() -> None:
    w = np.ones((2, 50_000))
    with pytest.raises(CompileError) as caught:
        bias_quant(None, w, weight_quant(w, 0, machine()), Quant(0.1, -128), machine(24), name="fc1")
    assert str(caught.value) == (
        "fc1: the products of output channel 0 outgrow 24-bit accumulators (engines.mac.accumulators.bits), and shrinking "
        "its weights to fit would cost 7.6 of their 8 bits; accumulators of 32 bits would do, or fewer input channels"
    )


def test_bad_bias() -> None:
    w = np.ones((2, 3))
    with pytest.raises(CompileError) as caught:
        bias_quant(np.array([1.0, np.inf]), w, weight_quant(w, 0, machine()), Quant(0.1, 0), machine(), name="conv.bias")
    assert str(caught.value) == "conv.bias: bias must be 2 finite numbers, one for each output channel; mend the model"


# --- rounding offsets


def requantize(acc: np.ndarray, shift: int, rounding: str) -> np.ndarray:
    if rounding == "truncate":
        return np.where(acc < 0, -(-acc >> shift), acc >> shift)
    return (acc + (1 << (shift - 1) if rounding == "half_up" and shift else 0)) >> shift


@given(
    st.sampled_from(["floor", "truncate"]),
    st.integers(0, 16),
    st.integers(-128, 127),
    st.integers(0, 255),
    st.integers(0, 2**31),
)
def test_compensated_rounding_is_half_up_exactly(rounding: str, shift: int, zero_point: int, low: int, seed: int) -> None:
    clamp_low = min(-128 + low, 127)
    numerics = machine(scale=POW2, rounding=rounding)
    compensation = bias_compensation(np.array([2.0**-shift]), Quant(1.0, zero_point), numerics, clamp_low=clamp_low)
    assert compensation.exact.all() and compensation.complete
    acc = np.random.default_rng(seed).integers(-(300 << shift), 300 << shift, 2000)
    expected = np.clip(requantize(acc, shift, "half_up") + zero_point, clamp_low, 127)
    got = np.clip(requantize(acc + compensation.offsets[0], shift, rounding) + compensation.output_zero_point, clamp_low, 127)
    np.testing.assert_array_equal(got, expected)


def test_compensation_with_multipliers_removes_the_bias() -> None:
    scale = np.array([0.00123, 0.0478])
    acc = np.random.default_rng(0).integers(-90_000, 90_000, (20_000, 2))
    for rounding, convert in (("floor", np.floor), ("truncate", np.trunc)):
        compensation = bias_compensation(scale, Quant(1.0, 3), machine(rounding=rounding))
        assert not compensation.exact.any()
        real = acc * scale + 3
        inside = (real > -127) & (real < 126)
        got = convert((acc + compensation.offsets) * scale) + compensation.output_zero_point
        assert abs((got - real)[inside].mean()) < 0.03
        assert np.abs(got - real)[inside].max() <= 0.5 + scale.max()
        plain = convert(acc * scale) + 3
        assert np.abs(plain - real)[inside].max() > 0.9


def test_what_cannot_be_compensated_says_so() -> None:
    symmetric = machine(scale=POW2, rounding="truncate", symmetric_activations=True)
    signed = bias_compensation(np.array([0.25]), Quant(1.0, 0), symmetric)
    assert not signed.complete and not signed.exact.any() and signed.offsets.tolist() == [0]
    after_relu = bias_compensation(np.array([0.25]), Quant(1.0, 0), symmetric, clamp_low=0)
    assert after_relu.complete and after_relu.exact.all() and after_relu.offsets.tolist() == [2]
    assert after_relu.output_zero_point == 0


def test_other_roundings_need_nothing_and_per_op_decides() -> None:
    assert bias_compensation(np.array([0.25]), Quant(1.0, 5), machine()).offsets.tolist() == [0]
    for per_op, offsets in (("matrix_product", [0]), ("convolution", [2])):
        mixed = machine(rounding="half_even", per_op={per_op: "floor"})
        assert bias_compensation(np.array([0.25]), Quant(1.0, 5), mixed).offsets.tolist() == offsets


def test_an_offset_goes_as_far_as_the_accumulators() -> None:
    compensation = bias_compensation(
        np.array([2.0**-10]), Quant(1.0, 0), machine(24, scale=POW2, rounding="floor"), peak=np.array([2**23 - 100])
    )  # fmt: skip
    assert (compensation.offsets.tolist(), compensation.exact.tolist()) == ([99], [False])


def test_an_offset_that_moves_the_zero_point_and_overflows_is_refused() -> None:
    with pytest.raises(CompileError) as caught:
        bias_compensation(
            np.array([2.0**-10]), Quant(1.0, -127), machine(24, scale=POW2, rounding="truncate"),
            peak=np.array([2**23 - 100]), name="conv_1",
        )  # fmt: skip
    assert str(caught.value) == (
        "conv_1: output channel 0 reaches 8390044 with its rounding offset, 24-bit accumulators 8388607 "
        "(engines.mac.accumulators.bits); wider accumulators would do, or another rounding"
    )
