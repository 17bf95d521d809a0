"""The reference's functions give the same integers on arrays of another library, a stand-in for CuPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_core_vectors import MACHINES

from quant.fixed_point import ProductMethod, Requant, Rounding, float32_bits, matmul, product, requantize
from quant.fixed_point.conformance.draw import Contents
from quant.fixed_point.conformance.vectors import make_vectors, replay
from quant.fixed_point.sums.grouped_sums import WeightGroups
from quant.fixed_point.sums.products import Matrix
from tests.support.device_arrays import DeviceArray

OPERATORS = (
    "requantize", "conv2d", "matmul", "add", "sub", "mul", "rescale", "prelu", "leaky_relu", "max_pool",
    "average_pool", "table",
)  # fmt: skip


def read(result: Any) -> np.ndarray:
    """The numbers of an array, which is none of numpy's."""
    assert isinstance(result, DeviceArray)
    return result._boxed


@pytest.mark.parametrize("name", MACHINES)
def test_every_vector_of_the_kit(name: str) -> None:
    for case in make_vectors(MACHINES[name], Contents(OPERATORS)):
        inputs: dict[str, Any] = {key: DeviceArray(value.copy()) for key, value in case.inputs.items()}
        result = read(replay(case.op, inputs, case.parameters))
        assert result.dtype == case.expected.dtype, case.name
        np.testing.assert_array_equal(result, case.expected, err_msg=case.name)
        for key, value in case.inputs.items():
            np.testing.assert_array_equal(inputs[key]._boxed, value, err_msg=f"{case.name} changes its input {key}")


MULTIPLIERS = {Rounding.POW2: 1, Rounding.SCALE16: 1 << 15, Rounding.FP32_RNE: 1}
SHIFTS = {Rounding.REDUCED16: (17, 50), Rounding.FP32_RNE: (0, 1)}


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("rounding", Rounding)
def test_every_rounding_of_any_accumulator(rounding: Rounding, dtype: type) -> None:
    rng, limits = np.random.default_rng(6), np.iinfo(dtype)
    acc = rng.integers(limits.min, limits.max, (40, 3, 50), dtype, endpoint=True) >> rng.integers(0, limits.bits - 1, (40, 3, 50))
    acc = acc.astype(dtype)
    acc[0, :, :3] = limits.min, limits.max, 0
    low, high = SHIFTS.get(rounding, (0, 50))
    is_float = rounding is Rounding.FP32_RNE
    most = MULTIPLIERS.get(rounding, (1 << 31) - 1)
    multiplier = float32_bits(rng.random(3)) if is_float else rng.integers(max(1, most // 2), most, 3, endpoint=True)
    kind = "float32" if is_float else "pow2" if rounding is Rounding.POW2 else "multiplier"
    multiplier = np.minimum(multiplier, most - 1) if rounding is Rounding.SCALE16 else multiplier
    r = Requant(multiplier, rng.integers(low, high, 3), rounding, 5, -30000, 30001, kind=kind)
    device: Any = DeviceArray(acc)
    np.testing.assert_array_equal(read(requantize(device, r, np.int16, axis=1)), requantize(acc, r, np.int16, axis=1))


def test_products_whose_sums_pass_float64_are_exact() -> None:
    rng = np.random.default_rng(3)
    a = rng.integers(-(1 << 15), 1 << 15, (5, 4096)).astype(np.int16)
    b = rng.integers(-(1 << 31), 1 << 31, (4096, 3)).astype(np.int32)
    a[0], b[:, 0] = -(1 << 15), -(1 << 31)
    expected = product(a, Matrix(b, 7), a_zero_point=-32768, wide=True, method=ProductMethod.INT64)
    device: Any = Matrix(DeviceArray(b), 7)  # type: ignore[arg-type]
    np.testing.assert_array_equal(read(product(DeviceArray(a), device, a_zero_point=-32768, wide=True)), expected)  # type: ignore[arg-type]


def test_batches_of_products_are_one_product() -> None:
    rng = np.random.default_rng(4)
    a = rng.integers(-128, 128, (2, 3, 5, 70)).astype(np.int8)
    b = rng.integers(-128, 128, (3, 70, 6)).astype(np.int8)
    boxed: list[Any] = [DeviceArray(a), DeviceArray(b)]
    result = matmul(*boxed, a_zero_point=3, b_zero_point=-4, accumulator_bits=24)
    np.testing.assert_array_equal(read(result), matmul(a, b, a_zero_point=3, b_zero_point=-4, accumulator_bits=24))


def test_weights_in_groups() -> None:
    rng = np.random.default_rng(5)
    groups = WeightGroups(4, rng.integers(0, 1 << 16, (6, 3)), rng.integers(-100, 100, (6, 3)))
    codes = rng.integers(-8, 8, (6, 1, 3, 4)).astype(np.int8)
    boxed: Any = DeviceArray(codes)
    np.testing.assert_array_equal(read(groups.apply_scales(boxed)), groups.apply_scales(codes))
