"""LayerNorm and RMSNorm in integers against float64; exactness of the sums; refusals."""

from __future__ import annotations

import numpy as np
import pytest
from errors import Error, log_uniform, measure

from quant.fixed_point import FixedPointError, Requant, Rounding, ScaleForm, make_requant
from quant.fixed_point.curves.curve_tables import CurveTable
from quant.fixed_point.curves.norms import NormUnit, layer_norm, rms_norm

FORM = ScaleForm()


def requant(scale: float, zero_point: int, dtype: type = np.int8) -> Requant:
    limits = np.iinfo(dtype)
    low, high = int(limits.min), int(limits.max)
    return make_requant(scale, FORM, Rounding.SINGLE_HALF_UP, zero_point=zero_point, low=low, high=high)


def real(kind: str, x: np.ndarray, epsilon: float) -> np.ndarray:
    if kind == "layer":
        x = x - x.mean(axis=-1, keepdims=True)
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + epsilon)


def error_of(kind: str, unit: NormUnit, dtype: type, gamma_type: type, out_scale: tuple[float, float]) -> Error:
    """Rows from nearly constant to full range, n from 4 to 768, epsilon from 1e-12 to 1e-5, gamma and beta random."""
    rng = np.random.default_rng(1)
    wide = dtype == np.int16
    pairs = []
    for _ in range(120):
        n = int(rng.choice([4, 16, 64, 384, 768]))
        scale, zero = log_uniform(rng, 0.002, 0.5) / (128 if wide else 1), 0 if wide else int(rng.integers(-50, 50))
        spread, centre = rng.choice([1, 3, 10, 40]) * (100 if wide else 1), rng.integers(-30, 30)
        limits, gamma_limit = np.iinfo(dtype), np.iinfo(gamma_type).max
        x = np.clip(np.rint(rng.normal(centre, spread, (12, n))), limits.min, limits.max).astype(dtype)
        epsilon = float(rng.choice([1e-5, 1e-6, 1e-12]))
        gamma = rng.integers(-gamma_limit, gamma_limit + 1, n).astype(gamma_type)
        gamma_scale = float(rng.uniform(0.5, 2)) / gamma_limit
        unit_scale = gamma_scale / (1 << unit.fraction_bits)
        beta = np.rint(rng.uniform(-2, 2, n) / unit_scale).astype(np.int64 if wide else np.int32)
        out, out_zero = log_uniform(rng, *out_scale), int(rng.integers(-20, 20))
        r = requant(unit_scale / out, out_zero, dtype)
        if kind == "layer":
            y = layer_norm(x, gamma, beta, scale, epsilon, unit, r, dtype)
        else:
            y = rms_norm(x, gamma, beta, scale, zero, epsilon, unit, r, dtype)
        t = real(kind, scale * (x.astype(np.float64) - zero), epsilon) * gamma * gamma_scale + beta * unit_scale
        pairs.append((y, t / out + out_zero))
    return measure(pairs)


UNITS = {
    "default": (NormUnit(), 0.52, 0.002, 1),
    "5 12 8, 10 bits": (NormUnit(CurveTable(5, 12, 8), 10), 0.60, 0.008, 1),
    "8 16 0": (NormUnit(CurveTable(8, 16, 0)), 0.80, 0.014, 1),
    "6 8 8, 8 bits": (NormUnit(CurveTable(6, 8, 8), 8), 1.4, 0.05, 1),
}


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("gamma_type", [np.int8, np.int16])
@pytest.mark.parametrize("name", UNITS)
def test_int8_errs_by_at_most_a_step(kind: str, gamma_type: type, name: str) -> None:
    unit, largest, share, steps = UNITS[name]
    error = error_of(kind, unit, np.int8, gamma_type, (0.02, 0.06))
    assert error.largest <= largest and error.mean <= 0.26 and abs(error.bias) < 0.005, error
    assert error.share <= share and error.steps <= steps, error


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_int16_error(kind: str) -> None:
    unit = NormUnit(CurveTable(10, 24, 12), 18)
    error = error_of(kind, unit, np.int16, np.int16, (2e-4, 5e-4))
    assert error.largest <= 0.6 and error.share <= 0.01 and error.steps <= 1, error


def test_layer_norm_ignores_the_zero_point_and_rms_norm_does_not() -> None:
    x = np.random.default_rng(2).integers(-50, 50, (6, 40)).astype(np.int8)
    unit, r = NormUnit(), requant(1 / 4096 / 0.03, 0)
    moved = (x + 20).astype(np.int8)
    np.testing.assert_array_equal(
        layer_norm(x, None, None, 0.1, 1e-5, unit, r), layer_norm(moved, None, None, 0.1, 1e-5, unit, r)
    )
    np.testing.assert_array_equal(
        rms_norm(x, None, None, 0.1, 3, 1e-5, unit, r), rms_norm(moved, None, None, 0.1, 23, 1e-5, unit, r)
    )
    assert (rms_norm(x, None, None, 0.1, 0, 1e-5, unit, r) != rms_norm(moved, None, None, 0.1, 0, 1e-5, unit, r)).any()


def test_a_constant_row_gives_beta() -> None:
    unit, r = NormUnit(), requant(1 / 4096 / 0.03, 5)
    x = np.full((1, 7), -128, np.int8)
    assert layer_norm(x, None, None, 0.1, 0.0, unit, r).tolist() == [[5] * 7]
    beta = np.full(7, 4096, np.int32)  # 1.0
    assert layer_norm(x, np.ones(7, np.int8), beta, 0.1, 0.0, unit, r).tolist() == [[38] * 7]
    assert rms_norm(np.zeros((1, 4), np.int8), None, None, 0.1, 0, 0.0, unit, r).tolist() == [[5] * 4]


@pytest.mark.parametrize(("dtype", "n"), [(np.int8, 1 << 16), (np.int16, 1 << 15), (np.uint8, 1 << 16)])
def test_the_longest_rows_do_not_overflow(dtype: type, n: int) -> None:
    """Half of the row at each extreme: every sum is as large as it gets."""
    limits = np.iinfo(dtype)
    x = np.where(np.arange(n) % 2, limits.min, limits.max).astype(dtype)[None]
    r = requant(1 / 4096 / 0.05, 0)
    assert set(layer_norm(x, None, None, 0.01, 1e-5, NormUnit(), r).ravel().tolist()) == {-20, 20}
    spike = np.full((1, n), limits.min, dtype)
    spike[0, 3] = limits.max
    expected = real("layer", spike.astype(np.float64), 0.0)
    y = layer_norm(spike, None, None, 0.01, 0.0, NormUnit(), requant(1 / 4096 / 3.0, 0))
    np.testing.assert_allclose(y, expected / 3.0, atol=0.51)


REFUSALS = [
    (
        lambda: layer_norm(np.zeros((1, 1 << 16), np.int16), None, None, 0.1, 1e-5, NormUnit(), requant(1.0, 0)),
        "norm: 65536 elements of int16 on the last axis; sums in 62 bits hold 32768",
    ),
    (
        lambda: layer_norm(np.zeros((1, 4), np.int32), None, None, 0.1, 1e-5, NormUnit(), requant(1.0, 0)),
        "norm: input is int32; must be int8, uint8 or int16",
    ),
    (
        lambda: rms_norm(np.zeros((1, 1024), np.int8), None, None, 1e-6, 0, 1.0, NormUnit(), requant(1.0, 0)),
        "norm: epsilon is 1e+12 steps of the input squared, too large for 1024 elements",
    ),
    (lambda: NormUnit(fraction_bits=30), "NormUnit: fraction_bits=30; must be 2..24"),
]


@pytest.mark.parametrize(("call", "message"), REFUSALS)
def test_refusals(call, message: str) -> None:
    with pytest.raises(FixedPointError) as error:
        call()
    assert str(error.value) == message
