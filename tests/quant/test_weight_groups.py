"""Quantizing weights into groups: from float, and from the blocks that other files hold them in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quant.fixed_point import CodeType, GroupForm, Numerics, ScaleForm, WeightScaling, make_requant, matmul, requantize
from quant.parameters import (
    WeightQuant,
    bias_quant,
    check_chosen_weight,
    chosen_rows,
    expressible_weight,
    quantize_file_groups,
    requantize_weight,
    rescale_groups,
    weight_code_range,
    weight_quant,
)
from toolchain.errors import CompileError
from toolchain.ir.file_quantization import FileWeightGroups
from toolchain.ir.graph import Quant

BLOCK = 32
IN_GROUPS = WeightScaling(0, BLOCK)
Q4_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("codes", "u1", BLOCK // 2)])  # of ggml: w = d code + m, low nibbles first half
Q8_0 = np.dtype([("d", "<f2"), ("codes", "i1", BLOCK)])


def make_grouped_numerics(weight: str = "int4", bits: int = 8, minimum: int = 16, **changes: Any) -> Numerics:
    form = GroupForm((BLOCK,), bits, minimum)
    return Numerics(
        **{"activation": CodeType.INT16, "weight": CodeType(weight), "accumulator_bits": 64, "groups": form} | changes
    )


def q4_1_blocks(w: np.ndarray) -> np.ndarray:
    """float[o, k] -> Q4_1[o, k / 32], as ggml's quantize_row_q4_1 makes them."""
    blocks = w.reshape(len(w), -1, BLOCK).astype(np.float32)
    low, high = blocks.min(2), blocks.max(2)
    blocks_q4_1 = np.zeros(blocks.shape[:2], Q4_1)
    blocks_q4_1["d"], blocks_q4_1["m"] = (high - low) / 15, low
    step = np.where(high > low, (high - low) / 15, 1)[..., None]
    codes = np.minimum(15, ((blocks - low[..., None]) / step + 0.5).astype(np.uint8))
    blocks_q4_1["codes"] = codes[..., : BLOCK // 2] | (codes[..., BLOCK // 2 :] << 4)
    return blocks_q4_1


def unpack_q4_1(blocks: np.ndarray) -> tuple[FileWeightGroups, np.ndarray]:
    """Codes, scales and minima; and the real weights."""
    low, high = blocks["codes"] & 15, blocks["codes"] >> 4
    codes = np.concatenate([low, high], 2).astype(np.int64)
    d, m = blocks["d"].astype(np.float64), blocks["m"].astype(np.float64)
    real = d[..., None] * codes + m[..., None]
    return FileWeightGroups(codes.reshape(len(codes), -1), d, m, BLOCK), real.reshape(len(codes), -1)


def db(expected: np.ndarray, actual: np.ndarray) -> float:
    return float(10 * np.log10(np.sum(expected**2) / np.sum((actual - expected) ** 2)))


def weights(o: int, k: int, seed: int = 0) -> np.ndarray:
    """Heavy tails and channels of unequal size, as language models have them."""
    rng = np.random.default_rng(seed)
    return rng.standard_t(5, (o, k)) * np.exp(rng.normal(0, 0.5, (o, 1))) * 0.02


@pytest.mark.parametrize(("bits", "floor"), [(8, 45), (16, 70)])
def test_a_product_of_q4_1_is_that_of_the_real_weights(bits: int, floor: float) -> None:
    file_groups, real = unpack_q4_1(q4_1_blocks(weights(1536, 576)))
    numerics = make_grouped_numerics(bits=bits)
    weight = quantize_file_groups(file_groups, real.shape, numerics)
    assert weight is not None
    x = np.random.default_rng(5).normal(0, 1, (24, 576))
    s_x, y = np.abs(x).max() / 32767, x @ real.T
    codes, s_y = np.rint(x / s_x).astype(np.int16), np.abs(y).max() / 32767
    bias_codes = bias_quant(None, real, weight, Quant(s_x, 0), numerics)
    sums = matmul(codes, np.ascontiguousarray(bias_codes.weight.integers.T), accumulator_bits=64)
    requant = make_requant(s_x * bias_codes.weight.scales / s_y, ScaleForm(), numerics.rounding, low=-32768, high=32767)
    out = requantize(sums, requant, np.dtype(np.int16)) * s_y
    exact = x @ bias_codes.weight.dequantize().T
    assert not bias_codes.enlarged
    assert db(exact, out) > 70  # of what is held, int16's rounding alone
    assert db(y, out) > floor  # of the file's weights, by as many bits as its scales are held in


@pytest.mark.parametrize("bits", [8, 12, 16])
def test_scales_and_minima_are_as_near_as_their_bits(bits: int) -> None:
    file_groups, real = unpack_q4_1(q4_1_blocks(weights(64, 192)))
    weight = quantize_file_groups(file_groups, real.shape, make_grouped_numerics(bits=bits))
    assert weight is not None and weight.groups is not None and weight.scaling == WeightScaling(0, BLOCK)
    assert np.array_equal(weight.codes, file_groups.codes - 8)
    assert int(weight.groups.scales.max()) < 1 << bits
    lost = np.abs(weight.dequantize() - real)  # half a step of the scale at each code, and half of one for the minimum
    assert (lost <= weight.scales[:, None] * (0.5 * np.abs(weight.codes) + 0.5) * (1 + 1e-9)).all()


def test_q8_0_is_held_by_its_codes() -> None:
    w = weights(16, 96)
    blocks = w.reshape(16, 3, BLOCK)
    blocks_q8_0 = np.zeros((16, 3), Q8_0)
    blocks_q8_0["d"] = np.abs(blocks).max(2) / 127
    blocks_q8_0["codes"] = np.rint(blocks / blocks_q8_0["d"].astype(np.float64)[..., None])
    file_groups = FileWeightGroups(
        blocks_q8_0["codes"].reshape(16, 96).astype(np.int64), blocks_q8_0["d"].astype(np.float64), None, BLOCK
    )
    weight = quantize_file_groups(file_groups, w.shape, make_grouped_numerics("int8", 16, 0))
    assert weight is not None and weight.groups is not None and weight.groups.minima is None
    assert np.array_equal(weight.codes, file_groups.codes)
    real = file_groups.codes * np.repeat(file_groups.scales, BLOCK, 1)
    assert db(real, weight.dequantize()) > 85


def test_zero_points_with_fractions_are_minima() -> None:
    rng = np.random.default_rng(3)
    codes, d, z = rng.integers(0, 16, (8, 64)), rng.uniform(0.5, 1, (8, 2)), rng.uniform(0, 15, (8, 2))
    weight = quantize_file_groups(FileWeightGroups(codes, d, -d * z, BLOCK), codes.shape, make_grouped_numerics(bits=16))
    assert weight is not None
    assert db((codes - np.repeat(z, BLOCK, 1)) * np.repeat(d, BLOCK, 1), weight.dequantize()) > 75


def test_what_a_machine_cannot_hold_is_not_taken() -> None:
    d, ones = np.ones((1, 1)), np.ones((1, 1))
    wide = FileWeightGroups(np.arange(32)[None], d, None, BLOCK)
    assert quantize_file_groups(wide, (1, 32), make_grouped_numerics()) is None  # 5 bits of codes
    shifted = FileWeightGroups(np.arange(32)[None] % 16, d, None, BLOCK)
    assert quantize_file_groups(shifted, (1, 32), make_grouped_numerics()) is not None
    assert quantize_file_groups(shifted, (1, 32), make_grouped_numerics(minimum=0)) is None  # 0 to 15 is -8 to 7 and a minimum
    signed = FileWeightGroups(np.arange(32)[None] % 16 - 8, d, None, BLOCK)
    assert quantize_file_groups(signed, (1, 32), make_grouped_numerics(minimum=0)) is not None
    assert quantize_file_groups(replace(signed, minima=ones), (1, 32), make_grouped_numerics(minimum=0)) is None
    assert quantize_file_groups(replace(signed, size=64), (1, 32), make_grouped_numerics()) is None
    assert quantize_file_groups(signed, (1, 32), make_grouped_numerics(groups=None)) is None


def test_a_scale_below_zero_turns_the_codes() -> None:
    codes = np.arange(-7, 8).repeat(3)[None, :32]
    weight = quantize_file_groups(
        FileWeightGroups(codes, np.full((1, 1), -0.5), None, BLOCK), codes.shape, make_grouped_numerics(minimum=0)
    )
    assert weight is not None
    np.testing.assert_allclose(weight.dequantize(), codes * -0.5)


CASES = st.tuples(
    st.sampled_from(["int4", "int8"]),
    st.sampled_from([4, 8, 16]),
    st.sampled_from([0, 12, 16]),
    st.sampled_from(["multiplier", "pow2"]),
    st.booleans(),
    st.integers(33, 100),
    st.integers(0, 2**32),
)


@settings(derandomize=True, deadline=None, max_examples=80)
@given(CASES)
def test_groups_from_float(case: tuple[Any, ...]) -> None:
    weight, bits, minimum, kind, each, k, seed = case
    rng = np.random.default_rng(seed)
    w = rng.normal(0, 1, (5, k)) * np.exp(rng.normal(0, 1, (5, 1))) + rng.normal(0, 0.3)
    w[0] = 0
    numerics = make_grouped_numerics(weight, bits, minimum, scale=ScaleForm(kind), weights_per_channel=each)
    group_weight = weight_quant(w, 0, numerics, scaling=IN_GROUPS, method="minmax")
    first, last = weight_code_range(numerics.weight)
    assert group_weight.groups is not None and group_weight.groups.scales.shape == (5, -(-k // BLOCK))
    assert group_weight.scales.shape == (5 if each else 1,)
    assert first <= group_weight.codes.min() and group_weight.codes.max() <= last
    assert group_weight.groups.scales.max() <= (1 << bits) - 1
    assert (group_weight.groups.minima is None) == (minimum == 0)
    if kind == "pow2":
        assert (np.frexp(group_weight.scales)[0] == 0.5).all()
    steps = np.repeat(group_weight.groups.scales, BLOCK, 1)[:, :k] * group_weight.scales[:, None]
    step = group_weight.scales[:, None]
    # half a step of the group; a scale that was rounded down moves the outermost code by half a step of the channel each
    assert (np.abs(group_weight.dequantize() - w) <= 0.5 * steps + 0.5 * step * (last - first + 1) + 1e-12).all()
    assert not group_weight.dequantize()[0].any()


def test_groups_lose_less_than_channels() -> None:
    w = weights(64, 576)
    lost = {}
    for name, numerics, scaling in (
        ("channel", make_grouped_numerics(), None),
        ("symmetric", make_grouped_numerics(minimum=0), IN_GROUPS),
        ("minima", make_grouped_numerics(), IN_GROUPS),
    ):
        lost[name] = db(w, weight_quant(w, 0, numerics, scaling=scaling).dequantize())
    assert lost["channel"] + 3 < lost["symmetric"] < lost["minima"]


def test_other_scales_keep_what_groups_mean() -> None:
    w, numerics = weights(8, 96), make_grouped_numerics(bits=16)
    weight = weight_quant(w, 0, numerics, scaling=IN_GROUPS)
    grown = requantize_weight(w, weight, weight.scales * 3, numerics)
    assert grown.groups is not None and weight.groups is not None
    assert np.abs(grown.groups.scales - weight.groups.scales / 3).max() <= 0.5
    assert db(weight.dequantize(), grown.dequantize()) > 60
    assert expressible_weight(w, weight, 1.0, numerics) is weight


def test_other_scales_use_the_codes_that_the_weights_used() -> None:
    """Scales of groups that shrink by rounding make codes larger: those of float stay above -128, those of a file may be it."""
    w, numerics = -np.ones((2, 64)), make_grouped_numerics("int8", 2, 0)
    w[:, 32:] *= 0.5
    weight = weight_quant(w, 0, numerics, scaling=IN_GROUPS)
    assert weight.groups is not None and weight.codes.min() == -127
    grown = requantize_weight(w, weight, weight.scales * 2.2, numerics)
    assert grown.codes.min() == -127 and check_chosen_weight(grown, w, numerics, name="w") is grown
    of_file = replace(weight, codes=np.full_like(weight.codes, -128))
    assert requantize_weight(w, of_file, weight.scales * 2.2, numerics).codes.min() == -128
    channel = WeightQuant(of_file.codes, np.full(2, 1 / 128), 0)
    assert requantize_weight(w, channel, channel.scales, numerics).codes.min() == -128


def test_narrow_accumulators_take_bits_of_the_scales() -> None:
    w = np.full((2, 64), 0.5)
    numerics = make_grouped_numerics("int8", 8, 0, activation=CodeType.INT8, accumulator_bits=28)
    weight = weight_quant(w, 0, numerics, scaling=IN_GROUPS)
    bias_codes = bias_quant(None, w, weight, Quant(0.1, 0), numerics)
    assert bias_codes.enlarged and bias_codes.peak.max() <= numerics.largest_sum
    np.testing.assert_allclose(bias_codes.weight.dequantize(), w, rtol=0.01)
    narrow = make_grouped_numerics("int8", 8, 0, activation=CodeType.INT8, accumulator_bits=20)
    with pytest.raises(CompileError, match=r"shrinking the scales of its groups to fit would cost 9\.0 of their 8 bits"):
        bias_quant(None, w, weight, Quant(0.1, 0), narrow, name="fc")


def test_a_bias_beside_groups_may_be_wider() -> None:
    w, numerics = weights(4, 64), make_grouped_numerics(bits=16, accumulator_bits=48)
    weight = weight_quant(w, 0, numerics, scaling=IN_GROUPS)
    bias_codes = bias_quant(np.full(4, 3.0), w, weight, Quant(1e-4, 0), numerics)
    assert not bias_codes.enlarged and bias_codes.codes.min() > 2**31
    np.testing.assert_allclose(bias_codes.codes * 1e-4 * weight.scales, 3.0)


@pytest.mark.parametrize("minimum_bits", [0, 12])
def test_rows_of_two_quantizations(minimum_bits: int) -> None:
    rng, form = np.random.default_rng(8), GroupForm((16,), minimum_bits=minimum_bits)
    numerics = Numerics(CodeType.INT16, CodeType.INT4, groups=form)
    w = rng.standard_normal((5, 1, 1, 40))
    one, other = (weight_quant(x, 0, numerics, scaling=WeightScaling(0, 16)) for x in (w, 3 * w + 0.5))
    first = np.array([True, False, False, True, False])
    rows = chosen_rows(first, one, other).dequantize()
    assert np.array_equal(rows, np.where(first[:, None, None, None], one.dequantize(), other.dequantize()))
    assert (one.dequantize() != other.dequantize()).any((1, 2, 3)).all()


@pytest.mark.parametrize("minimum_bits", [0, 12])
def test_groups_at_other_scales_mean_as_much_more(minimum_bits: int) -> None:
    rng, form = np.random.default_rng(9), GroupForm((16,), minimum_bits=minimum_bits)
    numerics = Numerics(CodeType.INT16, CodeType.INT4, groups=form)
    weight = weight_quant(rng.standard_normal((5, 1, 1, 40)) + 1, 0, numerics, scaling=WeightScaling(0, 16))
    times = rng.uniform(0.6, 1.7, (5, 3))
    moved = rescale_groups(weight, times, numerics)
    before, after = weight.steps(), moved.steps()
    np.testing.assert_allclose(after[0].reshape(5, 40), before[0].reshape(5, 40) * np.repeat(times, 16, 1)[:, :40], rtol=0.01)
    np.testing.assert_allclose(after[1], before[1], atol=0.01 * np.abs(before[1]).max())
    assert np.array_equal(moved.codes, weight.codes)
