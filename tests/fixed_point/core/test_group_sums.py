"""Weights in groups: group by group as the definition has it, each step in an accumulator of so many bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quant.fixed_point import FixedPointError, GroupForm, Numerics, ProductMethod, WeightGroups, conv2d, matmul

ACTIVATIONS = {"int8": (-128, 127), "int16": (-32768, 32767)}


def wrap_value(value: int, bits: int) -> int:
    return (value + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))


def group_by_group(x: np.ndarray, zero: int, codes: np.ndarray, groups: WeightGroups, bits: int) -> np.ndarray:
    """The definition: acc_g and the sum of x first, then their products, every step wrapped; in Python's own integers."""
    sums: Any = np.zeros((len(x), len(codes)), object)
    for p, o in np.ndindex(*sums.shape):
        for g in range(groups.scales.shape[1]):
            span = range(g * groups.size, min((g + 1) * groups.size, codes.shape[1]))
            acc = total = 0
            for k in span:
                acc = wrap_value(acc + (int(x[p, k]) - zero) * int(codes[o, k]), bits)
                total = wrap_value(total + int(x[p, k]) - zero, bits)
            sums[p, o] = wrap_value(sums[p, o] + wrap_value(acc * int(groups.scales[o, g]), bits), bits)
            if groups.minima is not None:
                sums[p, o] = wrap_value(sums[p, o] + wrap_value(total * int(groups.minima[o, g]), bits), bits)
    return sums


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    st.sampled_from(["int8", "int16"]), st.sampled_from([24, 32, 40, 48, 64]), st.sampled_from([8, 16]), st.integers(1, 75),
    st.booleans(), st.booleans(), st.integers(0, 2**32),
)  # fmt: skip
def test_products_are_those_of_the_definition(
    activation: str, bits: int, size: int, inner: int, minima: bool, extreme: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    low, high = ACTIVATIONS[activation]

    def drawn(least: int, most: int, shape: tuple[int, ...]) -> np.ndarray:
        return rng.choice([least, most], shape) if extreme else rng.integers(least, most + 1, shape)

    x, codes = drawn(low, high, (3, inner)).astype(activation), drawn(-128, 127, (4, inner)).astype(np.int8)
    zero, count = int(rng.integers(low, high + 1)), -(-inner // size)
    scales, least = drawn(0, 65535, (4, count)), drawn(-32768, 32767, (4, count))
    groups = WeightGroups(size, scales, least if minima else None)
    expected = group_by_group(x, zero, codes, groups, bits)
    integer_weights = groups.apply_scales(codes)
    sums = matmul(x, np.ascontiguousarray(integer_weights.T), a_zero_point=zero, accumulator_bits=bits)
    assert np.array_equal(sums, expected)
    image = conv2d(x[None, None], integer_weights.reshape(4, 1, 1, inner), x_zero_point=zero, accumulator_bits=bits)
    assert np.array_equal(image[0, 0], expected)


def test_every_way_to_compute_gives_the_same() -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(-32768, 32768, (5, 576)).astype(np.int16)
    groups = WeightGroups(32, rng.integers(0, 256, (9, 18)), rng.integers(-2048, 2048, (9, 18)))
    integer_weights = np.ascontiguousarray(groups.apply_scales(rng.integers(-8, 8, (9, 576)).astype(np.int8)).T)
    exact = x.astype(object) @ integer_weights.astype(object)
    for method in (ProductMethod.FLOAT64, ProductMethod.INT64, None):
        assert np.array_equal(matmul(x, integer_weights, accumulator_bits=48, method=method), exact)
    with pytest.raises(FixedPointError, match="product by float32: sums reach"):
        matmul(x, integer_weights, accumulator_bits=48, method=ProductMethod.FLOAT32)


def test_a_part_is_what_its_channels_and_groups_have() -> None:
    rng = np.random.default_rng(2)
    codes = rng.integers(-8, 8, (6, 80)).astype(np.int8)
    groups = WeightGroups(32, rng.integers(0, 256, (6, 3)), rng.integers(-99, 99, (6, 3)))
    part = groups.part(slice(2, 5), slice(1, 3))
    assert np.array_equal(part.apply_scales(codes[2:5, 32:]), groups.apply_scales(codes)[2:5, 32:])


@pytest.mark.parametrize(
    ("make_groups", "message"),
    [
        (lambda: WeightGroups(32, np.ones((4, 2)), np.ones((4, 3))), "groups of 32: minima have shape (4, 3)"),
        (lambda: WeightGroups(32, np.full((1, 1), 65536)), "groups: scales 65536..65536; must be 0..65535"),
        (lambda: WeightGroups(32, np.ones((1, 1)), np.full((1, 1), -32769)), "minima -32769..-32769; must be -32768..32767"),
        (lambda: WeightGroups(32, np.ones((4, 2))).apply_scales(np.zeros((4, 96), np.int8)), "in groups of 32 have (4, 3)"),
        (lambda: GroupForm((24,)), "groups: sizes=(24,); multiples of 16, 16 to 256"),
        (lambda: GroupForm((32,), 17), "scale_bits=17, minimum_bits=0; must be 1..16, and 0 or 2..16"),
        (lambda: Numerics(weight_group=32), "weight_group=32; must be 0 or one of groups.sizes=()"),
    ],
)
def test_faults_are_named(make_groups, message: str) -> None:
    with pytest.raises(FixedPointError) as fault:
        make_groups()
    assert message in str(fault.value)
