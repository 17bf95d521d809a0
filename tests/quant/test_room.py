"""Room in codes for values that calibration did not see: how much a tensor's tails make worth it, and where there is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from edge_numerics import EDGE
from models import model, node
from onnx import parser

from quant.calibrate import observe
from quant.file import Parameters, read_parameters, write_parameters
from quant.fixed_point import ScaleForm
from quant.fixed_point.core.codes import CodeType
from quant.observe import Histogram, MinMax, Range, Tails, percentile_range
from quant.parameters import activation_quant, least_error_range, quant_range, with_room
from toolchain.api import BuildOptions, build
from toolchain.report.warnings import few_values_warnings


def measure_range(samples: np.ndarray) -> Range:
    """Return the range that MinMax observes.

    `samples`: [n, values].
    """
    observer = MinMax()
    for sample in samples:
        observer.update(sample)
    return observer.range()


def test_tails_are_those_of_the_outermost_samples() -> None:
    tensor_range = measure_range(np.array([[0.0, 1.0], [0.0, 2.0], [-6.0, 5.0]]))
    assert (tensor_range, tensor_range.tails) == (Range(-6.0, 5.0), Tails(6, 3.0, 2.5))  # -6 and 0 over 0; 5 and 2 over 1
    assert measure_range(np.tile([0.0, 6.0], (20, 1))).tails == Tails(40, 0.0, 0.0)
    assert measure_range(np.array([[-1.0, 1.0]])).tails == Tails(2, 0.0, 0.0)
    assert measure_range(np.arange(20.0)[:, None]).tails == Tails(20, 4.5, 4.5)  # of eight: 11 is as far as they reach


def test_tensors_with_one_range_are_seen_sample_by_sample() -> None:
    """Check that tensors which share one range, as the steps of a sequence, do not tell how far other samples reach."""
    proto, ends = model([node("Neg", "x", "y")], {"x": [1]}, ["y"]), MinMax()
    samples = [{"x": np.array([value], np.float32)} for value in (1, 2)]
    observe(proto, samples, {"x": ends, "y": ends})
    assert (ends.range(), ends.range().tails) == (Range(-2.0, 2.0), Tails(4, 1.0, 1.0))


@pytest.mark.parametrize("codes", [CodeType.INT8, CodeType.INT16])
@pytest.mark.parametrize("values", [40, 4_000, 400_000, 10**8])
def test_room_is_of_least_expected_error(codes: CodeType, values: int) -> None:
    measured = Range(-1.0, 2.0, Tails(values, 0.02, 0.05))
    steps = min(codes.high - codes.low, 1 << 12)

    def cost(below: float, above: float) -> float:
        clipped = sum(2 * a**2 / values * np.exp(-x / a) for a, x in ((0.02, below), (0.05, above)))
        return (3 + below + above) ** 2 / 12 / steps**2 + clipped

    roomy = with_room(measured, None, replace(EDGE, activation=codes))
    below, above = -1 - roomy.low, roomy.high - 2
    least = cost(below := -below if below < 0 else below, above)
    assert below >= 0 and above >= 0
    for other in np.linspace(0, 2, 201):
        assert least <= cost(below, other) * (1 + 1e-6) and least <= cost(other, above) * (1 + 1e-6)
    assert (roomy is measured) == (values == 10**8 or (values, codes) == (400_000, CodeType.INT8))


def test_room_is_at_most_as_much_again() -> None:
    roomy = with_room(Range(-1.0, 1.0, Tails(10, 0.5, 0.25)), None, replace(EDGE, activation=CodeType.INT16))
    assert roomy.span == pytest.approx(4) and -roomy.low > roomy.high > 1


def test_a_range_that_nobody_measured_has_no_room() -> None:
    set_range = Range(-1.0, 1.0)
    assert with_room(set_range, None, replace(EDGE, activation=CodeType.INT16)) is set_range
    sure = Range(0.0, 6.0, Tails(10, 0.0, 0.0))
    assert with_room(sure, None, replace(EDGE, activation=CodeType.INT8)) is sure
    wide = Range(-1.0, 1.0, Tails(10, 0.5, 0.5))
    assert with_room(wide, None, replace(EDGE, activation=CodeType.INT32)) is wide


def test_an_end_keeps_its_tail() -> None:
    logits = Range(-1.0, 2.0, Tails(40, 0.1, 0.2))
    assert logits.union(Range(-3.0, 1.0)).tails == Tails(40, 0.0, 0.2)
    assert logits.union(Range(-0.5, 5.0)).tails == Tails(40, 0.1, 0.0)
    assert logits.union(Range(-3.0, 2.0, Tails(20, 0.3, 0.4))).tails == Tails(20, 0.3, 0.4)
    assert logits.within(-0.5, 9.0).tails == Tails(40, 0.0, 0.2) and logits.within(-0.5, 9.0) == Range(-0.5, 2.0)
    assert logits.within(-9.0, 2.0).tails == Tails(40, 0.1, 0.0)


@pytest.mark.parametrize("codes", [CodeType.INT8, CodeType.INT16])
def test_few_values_lose_less_with_room(codes: CodeType) -> None:
    """Check the room for unseen values on 24 samples of two numbers each, and as many others, many times over."""
    draw, lost = np.random.default_rng(0), np.zeros(2)
    for _ in range(200):
        fit_values, others = draw.standard_normal((2, 24, 2))
        for at, r in enumerate(
            (measure_range(fit_values), with_room(measure_range(fit_values), None, replace(EDGE, activation=codes)))
        ):
            scale = r.with_zero().span / (codes.high - codes.low)
            lost[at] += ((np.clip(np.rint(others / scale) * scale, r.low, r.high) - others) ** 2).sum()
    assert lost[1] < lost[0] / 10


def test_observers_that_clip_leave_room_for_others() -> None:
    """The same, of two observers beside the range of all that was seen."""
    draw, lost = np.random.default_rng(0), np.zeros(3)
    for _ in range(20):
        fit_values, others = draw.laplace(size=(2, 24, 2)).astype(np.float32)
        histogram = Histogram()
        for sample in fit_values:
            histogram.update(sample)
        plain_range = Range(histogram.extremes.low, histogram.extremes.high)
        for at, r in enumerate((plain_range, percentile_range(histogram), least_error_range(histogram, EDGE))):
            quant = activation_quant(r, EDGE)
            code_range = quant_range(quant, EDGE)
            lost[at] += (
                (np.clip(np.rint(others / quant.scale) * quant.scale, code_range.low, code_range.high) - others) ** 2
            ).sum()
    assert max(lost[1:]) < lost[0] / 4


def test_a_percentile_of_few_values_is_where_their_tail_says() -> None:
    histogram = Histogram()
    for value in range(1, 21):
        histogram.update(np.array([-4.0, value], np.float32))
    tensor_range = percentile_range(histogram, 99)  # less than a value of 40 lies beyond; the mean excess is 4.5
    assert tensor_range.low == -4.0 and tensor_range.high == pytest.approx(20 - 4.5 * np.log(0.4))
    assert percentile_range(histogram, 100) == Range(-4.0, 20.0)


def test_tails_go_through_the_file(tmp_path: Path) -> None:
    ranges = {"x": Range(-1.0, 2.0, Tails(40, 0.1, 0.25)), "y": Range(0.0, 6.0, Tails(40, 0.0, 0.0)), "z": Range(0.0, 1.0)}
    write_parameters(tmp_path / "p.yaml", Parameters(ranges))
    text = (tmp_path / "p.yaml").read_text()
    assert '"x": {low: -1.0, high: 2.0, values: 40, below: 0.1, above: 0.25}\n  "y": {low: 0.0, high: 6.0}\n' in text
    tensors = read_parameters(tmp_path / "p.yaml").tensors
    assert {n: r.tails for n, r in tensors.items() if isinstance(r, Range)} == {"x": ranges["x"].tails, "y": None, "z": None}


def test_no_room_beyond_what_an_operator_makes(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[1,2] x) => (float[1,2] s, float[1,2] c, float[1,2] y)
      { s = Sigmoid(x) low = Constant<value_float = -0.1>() high = Constant<value_float = 1.5>() a = Neg(x) c = Clip(a, low, high)
        y = Add(x, s) }"""
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    x = np.random.default_rng(0).standard_normal((32, 1, 2)).astype(np.float32)
    np.savez(tmp_path / "c.npz", x=x)
    build_result = build(tmp_path / "m.onnx", BuildOptions("wide32_w4a16", str(tmp_path / "c.npz"), level=0, repair="none"))
    largest = {n: t.quant.scale * 32767 for n, t in build_result.container.graph.types.items() if t.quant is not None}
    assert largest["s"] < 1.01 and largest["c"] < 1.51 and largest["y"] > 1.3 * (x + 1 / (1 + np.exp(-x))).max()
    (text,) = [w for w in build_result.warnings if "'y'" in w]
    assert text == few_values_warnings({"y": Range(0.0, 1.0, Tails(64, 0.1, 0.1))})[0]


def test_outputs_of_few_values_are_told() -> None:
    warnings = few_values_warnings(
        {
            "y": Range(-1.0, 1.0, Tails(64, 0.1, 0.0)),
            "many": Range(-1.0, 1.0, Tails(200, 0.1, 0.1)),
            "bounded": Range(0.0, 1.0, Tails(64, 0.0, 0.0)),
            "given": Range(0.0, 1.0),
        }
    )
    assert warnings == [
        "output 'y': its range rests on 64 values, so about one in 32 of other data lies beyond it; its codes have room for what "
        "these make likely. Give --calib more samples, or low and high in --quant FILE"
    ]


def test_scales_that_are_powers_of_two_leave_room_anyhow() -> None:
    r = Range(-1.0, 1.0, Tails(10, 0.5, 0.25))
    assert with_room(r, None, replace(EDGE, scale=ScaleForm(kind="pow2"))) is r
