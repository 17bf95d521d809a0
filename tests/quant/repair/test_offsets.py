"""Zero points of sums and means: what is left of the half step that a machine loses, and when there is nothing to be had."""

from __future__ import annotations

import numpy as np
import pytest

from quant.fixed_point import Rounding
from quant.repair.rounding_offsets import mean_offset, sum_offset

INT8 = (-128, 127)


def test_floor_grows_by_half_a_step() -> None:
    rng, remainders = np.random.default_rng(0), []
    for _ in range(50):
        steps = [float(s) for s in rng.uniform(0.2, 1.0, 2) * [1, rng.choice([-1, 1])]]
        zeros = [int(z) for z in rng.integers(-100, 100, 2)]
        offset = sum_offset(Rounding.FLOOR, steps, zeros, 3, -128, INT8)
        assert offset is not None and offset.output == 0
        assert all(-128 <= z + o <= 127 for z, o in zip(zeros, offset.operands))
        remainders.append(abs(sum(-o * s for o, s in zip(offset.operands, steps)) - 0.5))
    assert max(remainders) < 0.25 and np.mean(remainders) < 0.03


def test_truncate_moves_the_sum_above_zero() -> None:
    offset = sum_offset(Rounding.TRUNCATE, (0.83, 0.57), (10, -20), -5, -60, INT8)
    assert offset is not None and offset.output == -55
    assert abs(sum(-o * s for o, s in zip(offset.operands, (0.83, 0.57))) - 55.5) < 0.05


@pytest.mark.parametrize(
    ("rounding", "steps", "zeros", "zero"),
    [
        (Rounding.FLOOR, (1.0, 1.0), (0, 0), 0),  # whole steps alone
        (Rounding.FLOOR, (0.0, 0.0), (0, 0), 0),  # two constants
        (Rounding.TRUNCATE, (0.5, 0.5), (-128, -128), 127),  # no room below
    ],
)
def test_nothing_to_be_gained(rounding: Rounding, steps, zeros, zero: int) -> None:
    assert sum_offset(rounding, steps, zeros, zero, -128, INT8) is None


def test_a_mean_grows_by_half_a_step_and_whole_ones() -> None:
    rng, remainders = np.random.default_rng(0), []
    for _ in range(50):
        step, zero, zero_of_y = float(rng.uniform(0.2, 5)), int(rng.integers(-100, 100)), int(rng.integers(-100, 100))
        offset = mean_offset(Rounding.FLOOR, step, zero, zero_of_y, -128, INT8, INT8)
        assert offset is not None and len(offset.operands) == 1
        assert -128 <= zero + offset.operands[0] <= 127 and -128 <= zero_of_y + offset.output <= 127
        remainders.append(abs(-offset.operands[0] * step + offset.output - 0.5))
    assert max(remainders) < 0.25 and np.mean(remainders) < 0.03


def test_a_mean_that_is_cut_off_toward_zero_moves_above_it() -> None:
    offset = mean_offset(Rounding.TRUNCATE, 0.83, 10, -5, -60, INT8, INT8)
    assert offset is not None and -offset.operands[0] * 0.83 > 55 and offset.output <= -55
    assert abs(-offset.operands[0] * 0.83 + offset.output - 0.5) < 0.05


@pytest.mark.parametrize(("rounding", "step"), [(Rounding.FLOOR, 1.0), (Rounding.FLOOR, 2.0), (Rounding.TRUNCATE, 0.01)])
def test_a_mean_of_whole_steps_or_without_room_stays(rounding: Rounding, step: float) -> None:
    assert mean_offset(rounding, step, 0, 0, -128, INT8, INT8) is None
