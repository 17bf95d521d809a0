"""Softmax and log softmax against float64: largest and mean error, bias and share, for every form; refusals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from errors import Error, log_uniform, measure

from quant.fixed_point import FixedPointError
from quant.fixed_point.curves.curve_tables import CurveTable
from quant.fixed_point.curves.softmax import SoftmaxUnit, log_softmax, log_softmax8, softmax, softmax8, softmax16

SMALL = SoftmaxUnit(CurveTable(4, 12, 8), CurveTable(4, 12, 8), CurveTable(4, 12, 8))
PLAIN = SoftmaxUnit(CurveTable(8, 16, 0), CurveTable(8, 16, 0), CurveTable(8, 16, 0))
BYTES = SoftmaxUnit(CurveTable(8, 8, 0), CurveTable(8, 8, 0), CurveTable(8, 8, 0))
FINE = SoftmaxUnit(CurveTable(8, 20, 10), CurveTable(8, 20, 10), CurveTable(8, 20, 10), 18, 24, sum_bits=40)


def rows(rng: np.random.Generator, dtype: type, n: int) -> np.ndarray:
    limits = np.iinfo(dtype)
    width, low = int(rng.choice([3, 20, 80, 400, 3000, 70000])), rng.integers(limits.min, limits.max)
    return np.clip(rng.integers(low, low + width, (24, n)), limits.min, limits.max).astype(dtype)


def real(x: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """float64 softmax and log softmax."""
    t = scale * (x.astype(np.float64) - x.max(axis=-1, keepdims=True))
    total = np.exp(t).sum(axis=-1, keepdims=True)
    return np.exp(t) / total, t - np.log(total)


def error_of(function: Callable[[np.ndarray, float], np.ndarray], dtype: type, log: bool, out_scale: float, zero: int) -> Error:
    rng = np.random.default_rng(1)
    pairs = []
    for _ in range(150):
        n = int(rng.choice([1, 2, 5, 10, 100, 500, 1000]))
        scale = float(np.float32(log_uniform(rng, 0.0005, 2.0) / (1 if dtype == np.int8 else 200)))
        x = rows(rng, dtype, n)
        pairs.append((function(x, scale), real(x, scale)[log] / out_scale + zero))
    return measure(pairs)


# function, input type, log, output scale, zero point; largest, mean, |bias|, share of results off, steps
FORMS = {
    "tflite int8": (softmax8, np.int8, False, 1 / 256, -128, 0.501, 0.30, 0.08, 1e-4, 1),
    "tflite int8 log": (log_softmax8, np.int8, True, 1 / 16, 127, 0.501, 0.31, 0.04, 1e-4, 1),
    "tflite int16": (softmax16, np.int16, False, 1 / 32768, 0, 18.1, 0.28, 0.14, 0.01, 18),
}
UNITS = {
    "default": (SoftmaxUnit(), 0.52, 2e-4, 1, 0.51, 0.005),
    "4 12 8": (SMALL, 0.75, 1e-3, 1, 0.53, 0.03),
    "8 16 0": (PLAIN, 0.90, 2e-3, 1, 0.56, 0.06),
    "8 8 0": (BYTES, 3.5, 8e-3, 3, 0.66, 0.20),
}


@pytest.mark.parametrize("name", FORMS)
def test_tflite_forms(name: str) -> None:
    *form, largest, mean, bias, share, steps = FORMS[name]
    error = error_of(*form)
    assert error.largest <= largest and error.mean <= mean and abs(error.bias) <= bias, error
    assert error.share <= share and error.steps <= steps, error


@pytest.mark.parametrize("name", UNITS)
def test_units_int8(name: str) -> None:
    """1 step for the units that a chip would have; a unit of bytes only is shown to be worse."""
    unit, largest, share, steps, log_largest, log_share = UNITS[name]
    error = error_of(lambda x, s: softmax(x, s, 1 / 256, -128, unit), np.int8, False, 1 / 256, -128)
    assert error.largest <= largest and error.share <= share and error.steps <= steps and abs(error.bias) < 0.08, error
    error = error_of(lambda x, s: log_softmax(x, s, 1 / 16, 127, unit), np.int8, True, 1 / 16, 127)
    assert error.largest <= log_largest and error.share <= log_share and error.steps <= 1, error


def heavy_tails(n: int) -> list[tuple[np.ndarray, float]]:
    """One peak, and n - 1 values at one distance below: their exponentials all err alike."""
    x = np.full((85, n), 127, np.int8)
    x[:, 1:] = np.arange(-128, 127, 3)[:, None]
    return [(x, float(np.float32(s))) for s in np.geomspace(0.01, 0.2, 6)]


@pytest.mark.parametrize("function", [softmax8, lambda x, s: softmax(x, s, 1 / 256, -128, SoftmaxUnit())])
@pytest.mark.parametrize("n", [500, 4095])
def test_heavy_tails_err_by_at_most_a_step(function, n: int) -> None:
    error = measure([(function(x, s)[:, :2], (real(x, s)[0] * 256 - 128)[:, :2]) for x, s in heavy_tails(n)])
    assert error.largest <= (0.75 if n == 500 else 1.3) and error.steps <= 1, error


def test_units_int16() -> None:
    error = error_of(lambda x, s: softmax(x, s, 1 / 32768, 0, FINE, dtype=np.int16), np.int16, False, 1 / 32768, 0)
    assert error.largest <= 0.8 and error.mean <= 0.28 and error.steps <= 1, error
    coarse = SoftmaxUnit()
    error = error_of(lambda x, s: softmax(x, s, 1 / 32768, 0, coarse, dtype=np.int16), np.int16, False, 1 / 32768, 0)
    assert error.largest <= 4.5 and error.steps <= 4, error


@pytest.mark.parametrize("function", [softmax8, log_softmax8, lambda x, s: softmax(x, s, 1 / 256, -128, SoftmaxUnit())])
def test_only_differences_count(function) -> None:
    x = np.random.default_rng(2).integers(-60, 60, (5, 33)).astype(np.int8)
    np.testing.assert_array_equal(function(x, 0.05), function((x + 60).astype(np.int8), 0.05))
    np.testing.assert_array_equal(function(x, 0.05)[:, ::-1], function(x[:, ::-1], 0.05))


def test_precision_of_the_int16_tables_matters() -> None:
    """LiteRT and TFLite Micro disagree on one row in a few hundred, by one step."""
    x = np.stack([np.zeros(20000), -np.arange(20000)], axis=1).astype(np.int16)
    differs = softmax16(x, 10 / 65535) - softmax16(x, 10 / 65535, precision=np.float32)
    assert np.abs(differs).max() == 1 and 0 < (differs != 0).any(axis=1).mean() < 0.02


def test_rows_are_independent_and_beta_scales() -> None:
    x = np.random.default_rng(3).integers(-128, 128, (2, 3, 17)).astype(np.int8)
    for function in (softmax8, lambda v, s, beta=1.0: softmax(v, s, 1 / 256, -128, SoftmaxUnit(), beta=beta)):
        np.testing.assert_array_equal(function(x, 0.1)[1, 2], function(x[1, 2], 0.1))
        np.testing.assert_array_equal(function(x, 0.125, 0.5), function(x, 0.0625))


def test_widths_are_bounded() -> None:
    """The longest row of a unit, all alike and at the top: the sum reaches its width and no more."""
    unit = SoftmaxUnit(sum_bits=24)
    assert unit.max_elements == 16
    assert softmax(np.full((1, 16), 127, np.int8), 0.1, 1 / 256, -128, unit).tolist() == [[-112] * 16]


REFUSALS = [
    (lambda: softmax8(np.zeros((2, 2), np.int16), 0.1), "softmax8: input is int16; must be int8 or uint8"),
    (lambda: softmax8(np.zeros((2, 0), np.int8), 0.1), "softmax: shape (2, 0) has no elements on its last axis"),
    (
        lambda: softmax8(np.zeros((1, 4096), np.int8), 0.1),
        "softmax: 4096 elements on the last axis; the sum of exponentials holds 4095",
    ),
    (
        lambda: softmax8(np.zeros((1, 4), np.int8), 1e-9),
        "softmax: beta * input_scale = 1e-09; must be above 2**-26, else every output is 1 / n",
    ),
    (
        lambda: softmax(np.zeros((1, 17), np.int8), 0.1, 1 / 256, -128, SoftmaxUnit(sum_bits=24)),
        "softmax: 17 elements on the last axis; the sum of exponentials holds 16",
    ),
    (
        lambda: softmax(np.zeros((1, 4), np.int8), 0.1, 0.01, -128, SoftmaxUnit()),
        "softmax: output_scale=0.01; must be a power of two (1/256 for 8 bits)",
    ),
    (
        lambda: SoftmaxUnit(sum_bits=20),
        "SoftmaxUnit: sum_bits=20; must be above the exponential's 20 (exponential.value_bits + guard_bits)",
    ),
    (lambda: SoftmaxUnit(argument_bits=3), "SoftmaxUnit: argument_bits=3; must be 4..24"),
]


@pytest.mark.parametrize(("call", "message"), REFUSALS)
def test_refusals(call, message: str) -> None:
    with pytest.raises(FixedPointError) as error:
        call()
    assert str(error.value) == message
