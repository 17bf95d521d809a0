"""The measure of whether the normal form computes what the file computes: rounding is none of its business, a fault is."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from quant.fixed_point.core.rounding import Rounding
from tests.semantics.case import Case
from tests.semantics.chip_tensors import HeldCodes, match_held_codes
from tests.semantics.judge import codes_db, find_changed_outputs, in_float, judge_build, sqnr_db
from tests.semantics.machines import int8_machine, int16_machine
from tests.semantics.rounding_oracle import Rounded, nearest
from tests.semantics.sqnr_floors import LEAST_DB, right_on_8, right_on_16
from toolchain.frontend import linear_rules
from toolchain.isa import load_machine
from toolchain.runtime import Session

# Its deviations are what rounding leaves of the mean of three equal numbers; the eps under the root makes them larger.
NORM_OF_EQUALS = Case(
    "norm_of_equals",
    "x 5,1,6,1; w 3",
    """shape = Constant<value_ints=[5,1,6,3]>() last = Constant<value_ints=[3]>() r = Expand(x, shape)
    m = ReduceMean<keepdims=1>(r, last) d = Sub(r, m) q = Mul(d, d) v = ReduceMean<keepdims=1>(q, last)
    e = Constant<value_float=0.001>() a = Add(v, e) s = Sqrt(a) n = Div(d, s) y = Mul(n, w)""",
)
# The same on the chip: the mean of seven equal numbers, whose range is an ulp from theirs.
LEFT_OF_EQUALS = Case(
    "left_of_equals", "x 6,4,8,1", "t = Sum(x,x,x,x,x,x,x) n = Constant<value_float=7.0>() m = Div(t, n) y = Sub(x, m)"
)
SCALED = Case("scaled", "x 1,3,8,8; w 4,3,3,3; wb 4; k 1,4,1,1", "a = Conv(x, w, wb) y = Mul(a, k)")
# What the chip holds under another name than the file: without the batch in front, behind a Pad of nothing, as the mean of a sum.
NARROWED = Case("narrowed", "x 2,3,8,8; k 1,1,1,1,1", "a = Add(k, x) y = Tanh(a) z = Sigmoid(a)", "y z")
PADDED_BY_NOTHING = Case(
    "padded_by_nothing",
    "x 2,3,8,8; w 4,3,3,3",
    """a = Conv(x, w) y = Relu(a) p = Constant<value_ints=[0,0,0,0,0,0,0,0]>() v = Constant<value_float=0.5>()
    z = Pad(a, p, v)""",
    "y z",
)
SUMMED = Case(
    "summed",
    "x 6,4,6,6",
    """n = Constant<value_ints=[0]>() l = Constant<value_float=-0.1>() h = Constant<value_float=0.5>()
    a = ReduceSum<keepdims=1>(x, n) y = Clip(a, l, h)""",
)
# h is all of 0..1, a twice all of +-127/256: each odd code of h is a half there. Upward they cancel in y, toward zero they add.
HALVES = Case(
    "halves",
    "x 4,3,8,1; w 1,2",
    "h = HardSigmoid(x) a = MatMul(h, w) v = Constant<value_floats=[1.0,-1.0]>() y = MatMul(a, v)",
    ranges={"x": (-4.0, 4.0)},
)


def find_changes(case: Case, folder: Path) -> list[tuple[str, float]]:
    onnx.save(case.proto, folder / "model.onnx")
    return find_changed_outputs(folder / "model.onnx", case.samples, in_float(case.proto, case.samples))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_is_as_bad_as_can_be(value: float) -> None:
    assert sqnr_db(np.ones(2, np.float32), np.array([1, value], np.float32)) == -np.inf


def test_rounding_changes_nothing(tmp_path: Path) -> None:
    assert not find_changes(NORM_OF_EQUALS, tmp_path)


@pytest.mark.parametrize("case", [NORM_OF_EQUALS, LEFT_OF_EQUALS], ids=lambda c: c.name)
def test_of_what_float_leaves_of_equal_numbers_no_decibels_are_asked(case: Case, tmp_path: Path) -> None:
    (on_16,) = judge_build(case.proto, int16_machine(), case.samples, tmp_path).outputs
    (on_8,) = judge_build(case.proto, int8_machine(), case.samples, tmp_path).outputs
    assert on_16.sqnr_db < LEAST_DB and on_8.sqnr_db < LEAST_DB
    assert right_on_16(on_16) and right_on_8(on_8, ()), (on_16, on_8)


@pytest.mark.parametrize("case", [NORM_OF_EQUALS, LEFT_OF_EQUALS], ids=lambda c: c.name)
def test_what_is_larger_than_float_leaves_of_equal_numbers_is_a_fault(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sound,) = judge_build(case.proto, int16_machine(), case.samples, tmp_path).outputs
    run, wrong = Session.run, 20 * sound.float_error
    assert 0 < wrong < 1e-3
    monkeypatch.setattr(Session, "run", lambda self, names, feeds: [y + np.float32(wrong) for y in run(self, names, feeds)])
    (faulty,) = judge_build(case.proto, int16_machine(), case.samples, tmp_path).outputs
    assert not right_on_16(faulty), faulty


def test_no_code_of_16_bits_is_within_float(tmp_path: Path) -> None:
    for case in (SCALED, NARROWED, PADDED_BY_NOTHING, SUMMED):
        for output in judge_build(case.proto, int16_machine(), case.samples, tmp_path).outputs:
            step = output.error / output.error_codes
            assert not output.within_float and 10 * output.float_error < step, output


def test_a_factor_that_misses_the_bias_changes_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not find_changes(SCALED, tmp_path)
    sound = linear_rules.fold_into_weights

    def faulty(n, weighted, row, scope):
        folded = sound(n, weighted, row, scope)
        return (*folded[:2], weighted.inputs[2]) if n.op.op_type == "Mul" and len(folded) == 3 else folded

    monkeypatch.setattr(linear_rules, "fold_into_weights", faulty)
    ((name, error), *_) = find_changes(SCALED, tmp_path)
    assert name == "y" and error > 1e-2


def test_a_code_of_one_number_is_within_the_rounding_of_few_and_a_code_of_all_is_not() -> None:
    expected, step = np.linspace(-1, 1, 48), 2 / 255
    one, all_of_them = expected.copy(), expected + step
    one[7] += step
    most = codes_db(expected, HeldCodes(step, 0, 8))
    assert sqnr_db(expected, one) > most > sqnr_db(expected, all_of_them) + 10
    assert codes_db(expected, None) == math.inf


@pytest.mark.parametrize("case", [NARROWED, PADDED_BY_NOTHING, SUMMED], ids=lambda c: c.name)
def test_the_rounded_file_rounds_what_the_chip_holds_under_another_name(case: Case, tmp_path: Path) -> None:
    for output in judge_build(case.proto, int8_machine(), case.samples, tmp_path).outputs:
        assert output.sqnr_db == pytest.approx(output.rounded_db, abs=0.1), output


def test_a_tensor_is_held_where_its_numbers_are_and_nowhere_else() -> None:
    runs = [{"held": np.random.default_rng(i).uniform(-1, 2, (3, 4)).astype(np.float32)} for i in range(2)]

    def others(run):
        x = run["held"]
        same_numbers = {"turned": x.T, "flat": x.reshape(-1), "float": x * (1 + 1e-6), "sum": x * 3}
        return same_numbers | {"negative": -x, "clipped": np.maximum(x, -0.99), "half": x[:2], "whole": x.astype(np.int32)}

    codes = {"held": HeldCodes(0.5, 3, 8), "inner": HeldCodes(0.25, 1, 16)}
    normal = [run | {"inner": run["held"] + 1} for run in runs]
    same = dict.fromkeys(("turned", "flat", "float"), HeldCodes(0.5, 3, 8))
    assert match_held_codes([others(r) for r in runs], normal, codes) == codes | same | {"sum": (pytest.approx(1.5), 3, 8)}
    file_runs = [{"inner": r["held"], "zero": 0 * r["held"]} for r in runs]
    of_nothing = [r | {"none": 0 * r["held"]} for r in normal]
    matched = match_held_codes(file_runs, of_nothing, {**codes, "none": HeldCodes(1e-9, 0, 8)})
    assert matched["inner"] == (0.25, 1, 16) and "zero" not in matched


def test_numbers_that_part_in_one_sample_are_not_the_same() -> None:
    x = np.arange(6.0)
    assert not match_held_codes([{"a": x}, {"a": x + 0.1}], [{"b": x}, {"b": x}], {"b": HeldCodes(1.0, 0, 8)}).keys() - {"b"}


def test_halves_go_where_the_machine_says_or_either_way() -> None:
    x = np.array([-1.5, -0.5, 0.5, 1.5, 2.5, 0.49, -0.49, 1.51])
    rounded_lists = [way(x).tolist() for way in nearest(Rounding.SINGLE_HALF_UP)]
    up, toward, away = [-1, 0, 1, 2, 3, 0, 0, 2], [-1, 0, 0, 1, 2, 0, 0, 2], [-2, -1, 1, 2, 3, 0, 0, 2]
    assert rounded_lists == [up, toward, away]
    assert [way(x).tolist() for way in nearest(Rounding.DOUBLE_ROUND)] == [away, toward]
    assert nearest(Rounding.FP32_RNE)[0](x).tolist() == [-2, 0, 0, 2, 2, 0, 0, 2]
    assert nearest(Rounding.FLOOR)[0](x).tolist() == [-2, -1, 0, 1, 2, 0, -1, 1]
    assert nearest(Rounding.TRUNCATE)[0](x).tolist() == [-1, 0, 0, 1, 2, 0, 0, 1]


def test_the_file_rounds_halves_where_the_machine_does() -> None:
    """Codes of 0.5 are halves between those of 1, which the file rounds to the even one."""
    proto = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) <float s = {1}, int8 z = {3}> {
        q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }"""
    )
    x = np.array([0.5, -0.5, 1.6, 200], np.float32)
    values = [Rounded(proto, {}, 8, way).run({"x": x})[0].tolist() for way in nearest(Rounding.DOUBLE_ROUND)]
    assert values == [[1, -1, 2, 124], [0, 0, 2, 124]]


def test_halves_that_add_up_cost_the_rounded_file_what_they_cost_the_chip(tmp_path: Path) -> None:
    (output,) = judge_build(HALVES.proto, int8_machine(), HALVES.samples, tmp_path).outputs
    assert output.sqnr_db == pytest.approx(output.rounded_db, abs=0.5), output


def test_an_output_that_is_moved_to_a_quantizer_keeps_its_values() -> None:
    """The optimizer of onnxruntime rounds the output y too."""
    proto = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[2,2] x) => (float[2,2] y, float[2,2] z)
        <float s = {0.001}, int8 p = {0}> {
        y = Elu(x) m = Transpose<perm = [1,0]>(y) q = QuantizeLinear(m, s, p) z = DequantizeLinear(q, s, p) }"""
    )
    y, z = in_float(proto, [{"x": np.array([[1, 2], [3, 4]], np.float32)}])[0]
    assert y.tolist() == [[1, 2], [3, 4]] and z.max() < 0.2


def test_codes_of_16_bits_beside_those_of_8_reach_as_far_as_they_do(tmp_path: Path) -> None:
    """A machine of both has 16 bits for tensors that the file leaves in float. Ended after 8 of them, they are at 0.2 dB."""
    proto = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[2,32] x) => (float[2,32] y) <float s = {0.03}, int8 p = {5}> {
        a = QuantizeLinear(x, s, p) b = DequantizeLinear(a, s, p) y = Tanh(b) }"""
    )
    samples = [{"x": x} for x in np.random.default_rng(3).uniform(-3, 3, (2, 2, 32)).astype(np.float32)]
    (output,) = judge_build(proto, load_machine("transformer64"), samples, tmp_path).outputs
    assert output.rounded_db > 60, output
