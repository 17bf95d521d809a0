"""Choice of multiplier and shift from a real scale: nearest, with its error, or refused with the numbers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quant.fixed_point import FixedPointError, Rounding, ScaleForm, ScaleRangeError, choose_scale, make_requant

FORMS = st.builds(
    lambda bits, low, span: ScaleForm("multiplier", bits, low, min(62, low + span)),
    st.integers(1, 31),
    st.integers(0, 40),
    st.integers(0, 62),
)


def value(multiplier: int, shift: int) -> Fraction:
    return Fraction(multiplier) / Fraction(2) ** shift


@settings(max_examples=2000)
@given(st.floats(2.0**-70, 2.0**34), FORMS)
def test_nearest_that_the_form_expresses(real: float, form: ScaleForm) -> None:
    bits = form.multiplier_bits
    try:
        s = choose_scale(real, form)
    except ScaleRangeError:
        largest = value((1 << bits) - 1, form.shift_min)
        smallest = value(1, form.shift_max)
        assert Fraction(real) > largest - largest / (1 << (bits + 1)) or Fraction(real) < smallest / 2
        return
    m, shift = int(s.multiplier[0]), int(s.shift[0])
    assert 0 < m < 1 << bits
    assert form.shift_min <= shift <= form.shift_max
    assert m >= 1 << (bits - 1) or shift == form.shift_max
    assert abs(value(m, shift) - Fraction(real)) <= value(1, shift) / 2
    assert s.relative_error[0] == pytest.approx(float((value(m, shift) - Fraction(real)) / Fraction(real)), abs=1e-15)


def test_tflite_quantize_multiplier() -> None:
    # q, e = frexp(M); m = round_half_away(q 2**31), s = 31 - e
    s = choose_scale([0.75, 1.0, 1 / 3, 1 - 2.0**-40, 2.0**-12], ScaleForm())
    assert s.multiplier.tolist() == [0x60000000, 1 << 30, 1431655765, 1 << 30, 1 << 30]
    assert s.shift.tolist() == [31, 30, 32, 30, 42]


def test_zero_scale_has_multiplier_zero() -> None:
    s = choose_scale([0.0, 0.5], ScaleForm("multiplier", 8, 4, 20))
    assert s.multiplier.tolist() == [0, 128]
    assert s.relative_error.tolist() == [0.0, 0.0]


def test_denormal_multiplier_before_refusal() -> None:
    s = choose_scale(2.0**-20 * 1.3, ScaleForm("multiplier", 8, 0, 22))
    assert (s.multiplier[0], s.shift[0]) == (5, 22)
    assert s.relative_error[0] == pytest.approx(5 / 5.2 - 1)


@settings(max_examples=500)
@given(st.floats(2.0**-40, 2.0**20))
def test_power_of_two_is_nearest_in_log2(real: float) -> None:
    s = choose_scale(real, ScaleForm("pow2", shift_min=-31, shift_max=62))
    assert s.multiplier[0] == 1
    assert abs(np.log2(real) + int(s.shift[0])) <= 0.5 + 1e-12


def test_float32_keeps_its_bits() -> None:
    r = make_requant([1 / 3, 2.0], ScaleForm("float32"), Rounding.FP32_RNE, low=-128, high=127)
    assert r.kind == "float32"
    assert r.real_scale.tolist() == [float(np.float32(1 / 3)), 2.0]


REFUSALS = [
    (
        [0.5, 3.0],
        ScaleForm("multiplier", 8, 8, 20),
        "scale 3 (channel 1) is above 0.99609375, the largest that 8 multiplier bits and shift_min=8 express; "
        "lower shift_min, or choose a larger output scale",
    ),
    (
        [1e-9],
        ScaleForm("multiplier", 15, 0, 20),
        "scale 1e-09 (channel 0) is below 4.76837158e-07, half the smallest that shift_max=20 expresses; "
        "raise shift_max, or choose a smaller output scale",
    ),
    (
        [4.0],
        ScaleForm("pow2", shift_min=0, shift_max=15),
        "scale 4 (channel 0) needs 2**2, above 2**0, the largest that shift_min=0 gives; "
        "lower shift_min, or choose a larger output scale",
    ),
    (
        [0.5, 32.0, 512.0],
        ScaleForm("pow2", shift_min=0, shift_max=15),
        "scale 32 (channel 1) needs 2**5, above 2**0, the largest that shift_min=0 gives; "
        "lower shift_min, or choose a larger output scale",
    ),
    (
        [0.5, 2.0**-20, 2.0**-30],
        ScaleForm("pow2", shift_min=0, shift_max=15),
        "scale 9.53674316e-07 (channel 1) needs 2**-20, below 2**-15, the smallest that shift_max=15 gives; "
        "raise shift_max, or choose a smaller output scale",
    ),
    (
        [2.0**-20],
        ScaleForm("pow2", shift_min=0, shift_max=15),
        "scale 9.53674316e-07 (channel 0) needs 2**-20, below 2**-15, the smallest that shift_max=15 gives; "
        "raise shift_max, or choose a smaller output scale",
    ),
    ([np.nan], ScaleForm(), "scale nan (channel 0): must be finite and >= 0"),
    ([-1.0], ScaleForm(), "scale -1.0 (channel 0): must be finite and >= 0"),
    (
        [1e39],
        ScaleForm("float32"),
        "scale 1e+39 (channel 0) is above 3.4028235e38, the largest float32; choose a larger output scale",
    ),
]


@pytest.mark.parametrize(("real", "form", "message"), REFUSALS, ids=[m[:45] for *_, m in REFUSALS])
def test_refusals(real: list[float], form: ScaleForm, message: str) -> None:
    with pytest.raises(ScaleRangeError) as error:
        choose_scale(real, form)
    assert str(error.value) == message


def test_form_refusals() -> None:
    with pytest.raises(FixedPointError, match=r"multiplier_bits 32: must be 1..31"):
        ScaleForm("multiplier", 32)
    with pytest.raises(FixedPointError, match=r"shift range -1..62: must lie within 0..62 for kind 'multiplier'"):
        ScaleForm("multiplier", 31, -1)
