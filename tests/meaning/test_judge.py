"""The measure of whether the normal form computes what the file computes: rounding is none of its business, a fault is."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.meaning.case import Case
from tests.meaning.judge import changed_outputs, codes_db, in_float, sqnr_db
from toolchain.frontend import linear

# Its deviations are what rounding leaves of the mean of three equal numbers; the eps under the root makes them larger.
NORM_OF_EQUALS = Case(
    "norm_of_equals",
    "x 5,1,6,1; w 3",
    """shape = Constant<value_ints=[5,1,6,3]>() last = Constant<value_ints=[3]>() r = Expand(x, shape)
    m = ReduceMean<keepdims=1>(r, last) d = Sub(r, m) q = Mul(d, d) v = ReduceMean<keepdims=1>(q, last)
    e = Constant<value_float=0.001>() a = Add(v, e) s = Sqrt(a) n = Div(d, s) y = Mul(n, w)""",
)
SCALED = Case("scaled", "x 1,3,8,8; w 4,3,3,3; wb 4; k 1,4,1,1", "a = Conv(x, w, wb) y = Mul(a, k)")


def changed(case: Case, folder: Path) -> list[tuple[str, float]]:
    onnx.save(case.proto, folder / "model.onnx")
    return changed_outputs(folder / "model.onnx", case.samples, in_float(case.proto, case.samples))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_is_as_bad_as_can_be(value: float) -> None:
    assert sqnr_db(np.ones(2, np.float32), np.array([1, value], np.float32)) == -np.inf


def test_rounding_changes_nothing(tmp_path: Path) -> None:
    assert not changed(NORM_OF_EQUALS, tmp_path)


def test_a_factor_that_misses_the_bias_changes_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not changed(SCALED, tmp_path)
    sound = linear.folded_inputs

    def faulty(n, weighted, row, scope):
        found = sound(n, weighted, row, scope)
        return (*found[:2], weighted.inputs[2]) if n.op.op_type == "Mul" and len(found) == 3 else found

    monkeypatch.setattr(linear, "folded_inputs", faulty)
    ((name, error), *_) = changed(SCALED, tmp_path)
    assert name == "y" and error > 1e-2


def test_a_code_of_one_number_is_within_the_rounding_of_few_and_a_code_of_all_is_not() -> None:
    expected, step = np.linspace(-1, 1, 48), 2 / 255
    one, all_of_them = expected.copy(), expected + step
    one[7] += step
    most = codes_db(expected, (step, 0))
    assert sqnr_db(expected, one) > most > sqnr_db(expected, all_of_them) + 10
    assert codes_db(expected, None) == math.inf
