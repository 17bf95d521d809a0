"""Check that an exported model computes a machine's requantization in float64, for any sum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quant.fixed_point.core.codes import CodeType
from quant.fixed_point.core.requant import Requant
from quant.fixed_point.core.requantization import requantize
from quant.fixed_point.core.rounding import Rounding
from toolchain.export.exact_sums import real_rounding

RULES = ["double_round", "single_half_up", "half_away", "truncate", "floor", "reduced16"]
WIDEST = 1 << 15  # no clamp is in the way
INT16 = CodeType("int16")


@pytest.mark.parametrize("rule", RULES)
@given(data=st.data())
def test_of_any_sum_and_next_to_halves(rule: str, data: st.DataObject) -> None:
    """Sums that lie next to where a code begins, multipliers of few bits among them: halves of every kind."""
    bits = data.draw(st.integers(1, 31))
    top = data.draw(st.integers(1 << (bits - 1), (1 << bits) - 1)) << (31 - bits)
    shift = data.draw(st.integers(17 if rule == "reduced16" else 1, 36))
    requant = Requant(np.array([top]), np.array([shift]), Rounding(rule), 0, 1 - WIDEST, WIDEST - 1, codes=INT16)
    scale = requant.real_scale[0]
    code = data.draw(st.integers(-WIDEST // 2, WIDEST // 2))
    near = np.rint((code + data.draw(st.sampled_from([-0.5, 0.0, 0.5]))) / scale)
    sums = np.unique(np.clip(near + np.arange(-3, 4), 1 - (1 << 31), (1 << 31) - 1)).astype(np.int64)
    rounding = real_rounding(requant)
    assert rounding is not None
    codes = np.floor(sums * rounding.factor + rounding.offset + np.sign(sums) * rounding.away)
    np.testing.assert_array_equal(np.clip(codes, requant.low, requant.high), requantize(sums[:, None], requant, np.int16)[:, 0])


@pytest.mark.parametrize("rule", ["single_half_up", "half_away", "truncate", "floor"])
@pytest.mark.parametrize("shift", [-2, -1, 0, 1, 2])
def test_of_powers_of_two_that_leave_whole_codes(rule: str, shift: int) -> None:
    requant = Requant(np.array([1]), np.array([shift]), Rounding(rule), 0, 1 - WIDEST, WIDEST - 1, kind="pow2", codes=INT16)
    sums, rounding = np.arange(-20, 21), real_rounding(requant)
    assert rounding is not None
    codes = np.floor(sums * rounding.factor + rounding.offset + np.sign(sums) * rounding.away)
    np.testing.assert_array_equal(codes, requantize(sums[:, None], requant, np.int16)[:, 0])


@pytest.mark.parametrize(("rule", "wrap"), [("half_even", False), ("double_round", True)])
def test_not_of_roundings_to_even_nor_of_what_wraps(rule: str, wrap: bool) -> None:
    assert real_rounding(Requant(np.array([3]), np.array([4]), Rounding(rule), 0, -128, 127, wrap)) is None
