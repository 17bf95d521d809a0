"""The mean of a layer's output becomes float's on the machine's own arithmetic, whatever its rounding and clamps."""

from __future__ import annotations

import numpy as np
import pytest

from quant.fixed_point.core.requant import Requant, make_requant
from quant.fixed_point.core.requantization import requantize
from quant.fixed_point.core.rounding import Rounding
from quant.fixed_point.core.scale import ScaleForm
from quant.repair.bias import bias_shift

ROWS = 4000


def requant(rounding: Rounding, low: int, channels: int, kind: str = "multiplier") -> Requant:
    scale = np.full(channels, 1 / 64) if kind == "pow2" else np.linspace(0.004, 0.03, channels)
    form = ScaleForm(kind, 31, -31 if kind == "pow2" else 0, 31 if kind == "pow2" else 62)  # type: ignore[arg-type]
    return make_requant(scale, form, rounding, zero_point=-3, low=low, high=127)


@pytest.mark.parametrize("rounding", [Rounding.FLOOR, Rounding.TRUNCATE, Rounding.SINGLE_HALF_UP, Rounding.DOUBLE_ROUND])
@pytest.mark.parametrize("low", [-128, -3], ids=["open", "relu"])
def test_means(rounding: Rounding, low: int) -> None:
    rng = np.random.default_rng(0)
    r = requant(rounding, low, 6)
    sums = (rng.normal(20, 30, (ROWS, 6)) / r.real_scale).astype(np.int64)
    # Float's output: other means than the sums have, as rounded weights leave them, within the same clamps.
    real = np.clip(sums * r.real_scale + rng.normal(0, 2, 6), low + 3, 130)
    target_mean = real.mean(0)

    def error(shift: np.ndarray) -> np.ndarray:
        return requantize(sums + shift, r, np.int8).mean(0) + 3 - target_mean

    before, after = error(np.zeros(6, np.int64)), error(bias_shift(sums, r, np.int8, -3, target_mean))
    assert np.abs(before).max() > 0.5
    assert (np.abs(after) <= r.real_scale).all()  # what one code of the bias moves


def test_a_channel_that_no_bias_brings_there_keeps_the_nearest() -> None:
    """All rows at the clamp, and float's mean beyond it."""
    r = requant(Rounding.FLOOR, -3, 1)
    sums = np.full((100, 1), -(10**6))
    assert np.array_equal(bias_shift(sums, r, np.int8, -3, np.array([-5.0])), [0])
