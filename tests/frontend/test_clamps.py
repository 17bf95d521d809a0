"""Limits that contradict each other: ONNX's Clip gives max where min is above it, wherever the clamp ends up."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from chip_against_file import against_file
from onnx_text import model, save

from quant.fixed_point.core.codes import CodeType
from toolchain.errors import InternalError
from toolchain.ir.graph import Quant
from toolchain.ops.kit.operator import clamp_codes
from toolchain.ops.scalar_functions import X, affine_bounds, clip_bounds, find_function_fault

MACHINES = ["edge16", "ws8_pow2", "wide32_w4a16"]
TAILS = [
    "a = float {0.4} b = float {-0.4} y = Clip(m, a, b)",
    "a = float {0.4} b = float {-0.4} z = Min(m, b) y = Max(z, a)",
    "a = float {0.4} b = float {-0.4} z = Relu(m) y = Clip(z, a, b)",
    "a = float {-0.4} z = Relu(m) y = Min(z, a)",
    "a = float {0.4} b = float {-0.4} z = Clip(m, , b) k = Clip(z, a) y = Relu(k)",
]
PRODUCERS = {
    "a product": "(float[2,6] x, float[6,4] w) => (float[a,b] y) {{ m = MatMul(x, w) {tail} }}",
    "a sum": "(float[2,6] x, float[2,6] z0) => (float[a,b] y) {{ m = Add(x, z0) {tail} }}",
    "a mean": "(float[1,2,4,4] x) => (float[a,b,c,d] y) {{ m = AveragePool<kernel_shape = [2,2]>(x) {tail} }}",
    "the input": "(float[2,6] x) => (float[a,b] y) {{ m = Identity(x) {tail} }}",
    "a slice": "(float[2,6] x) => (float[a,b] y) {{ i = int64[2] {{1,4}} m = Gather<axis = 1>(x, i) {tail} }}",
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize("tail", TAILS)
def test_the_last_limit_wins(tail: str, producer: str, machine: str, tmp_path: Path) -> None:
    built = against_file(save(model(PRODUCERS[producer].format(tail=tail)), tmp_path), machine, least_db=35.0)
    assert not built.figures["fallbacks"]


def test_bounds_of_any_chain() -> None:
    """Against the chain itself, where the frontend did not merge it."""
    rng = np.random.default_rng(2)
    x = np.linspace(-4, 4, 33)
    for _ in range(200):
        function, y = X, x
        for _ in range(rng.integers(1, 5)):
            kind, value = str(rng.choice(["min", "max"])), float(rng.integers(-3, 4))
            function, y = (kind, function, value), (np.minimum if kind == "min" else np.maximum)(y, value)
        bounds = clip_bounds(function)
        assert bounds is not None
        assert np.array_equal(np.clip(x, *bounds), y), function


def test_contradictory_codes_are_our_bug() -> None:
    with pytest.raises(InternalError, match="a clamp from 1 to -1"):
        clamp_codes((1.0, -1.0), Quant(0.1, 0), CodeType.INT8)


def test_whole_numbers_are_constants_of_functions_like_real_ones() -> None:
    assert affine_bounds(("neg", 3)) is None
    assert affine_bounds(("max", ("sub", ("mul", X, 2), 1), 0)) == (2, -1, (0, None))


def test_a_clamp_at_nan_has_no_bounds() -> None:
    assert affine_bounds(("max", X, math.nan)) is None


def test_a_function_without_x_is_a_fault_as_a_number_is() -> None:
    assert find_function_fault(("add", 1.0, 2.0)) == "add: is a constant, not a function of x"
    assert find_function_fault(("add", 1.0, X)) is None
