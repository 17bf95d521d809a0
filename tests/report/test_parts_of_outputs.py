"""Check that each output is judged by part: operands of its Concats, channels, elements and rows of unlike size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from quant.part_sums import PartSums
from toolchain.api import Build, BuildOptions, build
from toolchain.repair.sample_folds import Fold
from toolchain.report.build_text import fidelity_text
from toolchain.report.fidelity import LOW_DB, FidelityPart, ScoreAgreement
from toolchain.report.gate import Gate
from toolchain.report.part_verdicts import judge_parts, output_lines

RNG = np.random.default_rng(0)


def save(
    folder: Path, graph: str, ranges: dict[str, float] | None = None, x: np.ndarray | None = None, **constants: object
) -> BuildOptions:
    """Save a model of input [1, 4, 8, 8] with data for it. ranges: magnitudes of some tensors in a file of --quant; others: 8."""
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 17]> g (float[1,4,8,8] x) => {graph}')
    for name, value in constants.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
    onnx.save(onnx.shape_inference.infer_shapes(proto), folder / "m.onnx")
    drawn = RNG.standard_normal((24, 4, 8, 8)) if x is None else x
    np.savez(folder / "data.npz", x=drawn.astype(np.float32))
    options = BuildOptions("edge16", calibration=str(folder / "data.npz"), repair="none", level=0)
    if ranges is None:
        return options
    names = ["x", *(o for n in proto.graph.node for o in n.output)]
    lines = (f"  {n}: {{low: {-ranges.get(n, 8.0)}, high: {ranges.get(n, 8.0)}}}" for n in names)
    (folder / "p.yaml").write_text("\n".join(["version: 1", "tensors:", *lines, ""]))
    return replace(options, parameters=str(folder / "p.yaml"))


def lines_of(built: Build) -> tuple[list[str], list[str]]:
    """Return warnings and notes on what is far from float."""
    warnings, notes = ([line for line in lines if "against float" in line] for lines in (built.warnings, built.notes))
    return warnings, notes


SIZES = np.array([1.0, 1.0, 600.0, 2000.0]).reshape(4, 1, 1, 1) * np.eye(4).reshape(4, 4, 1, 1)


def test_a_signal_that_is_lost_can_lose_no_more() -> None:
    sums = PartSums()
    sums.update(np.array([[1.0, 1e-9]]), np.array([[1.5, 1e3]]))
    assert sums.list_noise_ratios().tolist() == [0.25, 1]


def test_channels_that_the_others_scale_has_lost_are_warned_of(tmp_path: Path) -> None:
    options = save(tmp_path, "(float[1,4,8,8] y) { y = Conv(x, w) }", {"y": 8000.0}, w=SIZES)
    built = build(tmp_path / "m.onnx", options)
    (output,) = built.figures["outputs"]
    assert output["sqnr_db"] > 30 and [p["part"] for p in output["parts"]] == ["y[:, 2:4, :, :]", "y[:, 0:2, :, :]"]
    (warning,) = lines_of(built)[0]
    assert warning.startswith("part y[:, 0:2, :, :]: SQNR 0.0 dB against float; its values are ") and "times smaller" in warning
    (row,) = [line for line in fidelity_text(built.figures, "outputs", "outputs").splitlines() if "y[:, 0:2, :, :]" in line]
    assert row.endswith("POOR")


def test_the_gate_sees_parts_of_unlike_size(tmp_path: Path) -> None:
    options = save(tmp_path, "(float[1,4,8,8] y) { y = Conv(x, w) }", {"y": 8000.0}, w=SIZES)
    failed = build(tmp_path / "m.onnx", replace(options, gate=Gate(min_sqnr=20.0)))
    assert [f.splitlines()[0].partition(": ")[0] for f in failed.failures] == ["part y[:, 0:2, :, :]"]


def test_sparse_scores_that_say_what_float_says_are_a_note(tmp_path: Path) -> None:
    """Check posteriors of a few notes in silence: all of the error is that of small scores."""
    x = np.where(RNG.uniform(size=(24, 4, 8, 8)) < 0.02, 3.0, -3.5) + 0.1 * RNG.standard_normal((24, 4, 8, 8))
    options = save(
        tmp_path,
        "(float[1,4,8,8] y) { a = Conv(x, w) y = Sigmoid(a) }",
        {"y": 10.0},
        x,
        w=np.eye(4).reshape(4, 4, 1, 1),
    )
    built = build(tmp_path / "m.onnx", options)
    warnings, notes = lines_of(built)
    assert built.figures["outputs"][0]["sqnr_db"] < 16 and built.figures["outputs"][0]["poor"] is False
    assert warnings == [] and len(notes) == 1 and "% (F1) of its scores above 0.25 and 0.5 are float's" in notes[0]
    lost = build(
        tmp_path / "m.onnx",
        save(
            tmp_path,
            "(float[1,4,8,8] y) { a = Conv(x, w) y = Sigmoid(a) }",
            {"y": 400.0},
            x,
            w=np.eye(4).reshape(4, 4, 1, 1),
        ),
    )
    assert len(lines_of(lost)[0]) == 1 and lost.figures["outputs"][0]["poor"] is True


def test_an_inner_concat_is_no_output(tmp_path: Path) -> None:
    graph = "(float[1,4,8,8] y) { p = Mul(x, k) c = Concat<axis=1>(p, x) y = Conv(c, w) }"
    weights = RNG.standard_normal((4, 8, 1, 1)) * np.repeat([0.002, 1e-6], 4).reshape(1, 8, 1, 1)
    built = build(tmp_path / "m.onnx", save(tmp_path, graph, k=500.0, w=weights))
    assert built.figures["concats"] == [] and lines_of(built)[0] == []


def test_what_does_not_vary_is_no_signal_from_eight_samples_on() -> None:
    rng, sums = np.random.default_rng(0), PartSums()
    for _ in range(8):
        x = 300 + rng.standard_normal((1, 3, 50))
        sums.update(x, x + 0.5 * rng.standard_normal((1, 3, 50)))
    assert sums.varying_db(sums) == pytest.approx(6, abs=0.5)
    constant = PartSums()
    constant.update(np.full((1, 3, 50), 300.0), np.full((1, 3, 50), 299.0))
    assert constant.varying_db(constant) is None


def test_a_sample_that_is_lost_makes_its_output_poor() -> None:
    part = FidelityPart("y", 15.0, 0.995, 1.0, 0.0, tensor="y", outputs=("y",), worst_sample_db=-4.7)
    (line,) = output_lines(judge_parts([part], [], (), ()))
    assert line[0].poor and line[1] == "output y: SQNR 15.0 dB, -4.7 dB in the worst sample against float"
    (line,) = output_lines(judge_parts([replace(part, worst_sample_db=5.0)], [], (), ()))
    assert not line[0].poor


def test_a_quiet_sample_that_is_lost_is_named(tmp_path: Path) -> None:
    """One of the samples is silent, and one is quiet and below half a step of the codes."""
    x = np.random.default_rng(3).standard_normal((24, 4, 8, 8))
    x[20], x[21] = 1e-4 * x[20], 0.003 * x[21]
    options = save(tmp_path, "(float[1,4,8,8] y) { y = Conv(x, w) }", x=x, w=np.eye(4).reshape(4, 4, 1, 1))
    np.savez(tmp_path / "judge.npz", x=x[20:24].astype(np.float32))
    built = build(tmp_path / "m.onnx", replace(options, judge=str(tmp_path / "judge.npz")))
    (note,) = (n for n in built.notes if "zeros" in n)
    assert note.startswith("y: sample 1 of --judge has 0.0 dB, where zeros would have 0; its values are 247 times")


def test_samples_that_were_picked_know_their_places() -> None:
    samples = [{"x": np.full(4, i)} for i in range(5)]
    assert Fold.of(samples).pick([3, 1, 0]).pick([1, 2]).places == (1, 3) and Fold.of(samples).places == ()


def test_scores_of_what_is_not_there_are_no_parts() -> None:
    part = FidelityPart("y", 3.0, 0.9, 1.0, 0.0, tensor="y", outputs=("y",), peak=0.1, scores=ScoreAgreement())
    (line,) = output_lines(judge_parts([part], [], (), ()))
    assert not line[0].poor and "no score in it passes 0.25" in line[1]


def test_a_name_that_its_kind_contains_is_counted_behind_the_name() -> None:
    steps = [FidelityPart(n, 3.0, 0.999, 1.0, 0.0, tensor=n, outputs=("t",), steps_of="t") for n in ("t", "t2")]
    ((_, sentence),) = output_lines(judge_parts(steps, [], (), ()))
    assert sentence == "output t, and 1 more such step: SQNR 3.0 dB against float"


def test_rows_of_one_size_are_one_part() -> None:
    rng, sums = np.random.default_rng(0), PartSums()
    for _ in range(8):
        x = rng.standard_normal((1, 1000))
        sums.update(x, x)
    assert sums.slices() == [] and sums.list_weak_slices(10.0) == []
    sums.update(np.where(np.arange(1000) == 7, 1e-3, 1.0)[None], np.ones((1, 1000)))
    assert sums.slices() == []


def measure(error: np.ndarray, unit: np.ndarray | float = 1.0, samples: int = 16) -> FidelityPart:
    """Return the part that an output [1, 8] is, of normal values of a unit and errors of a size."""
    rng, sums = np.random.default_rng(0), PartSums()
    for _ in range(samples):
        x = unit * rng.standard_normal((1, 8))
        sums.update(x, x + error * rng.standard_normal((1, 8)))
    level = -10 * np.log10(np.mean(np.broadcast_to(error, 8) ** 2))
    weak = tuple(sums.list_weak_slices(LOW_DB, sums))
    return FidelityPart("y", level, 1.0, 1.0, 0.0, tensor="y", outputs=("y",), weak=weak)


def test_an_output_is_named_with_its_indices_below_30_db() -> None:
    part = measure(np.array([1e-2] * 5 + [0.04, 0.04, 0.04]))
    ((verdict, sentence),) = output_lines(judge_parts([part], [], (), ()))
    assert not verdict.warns and sentence == "output y: SQNR 31.8 dB against float"
    assert verdict.low_text.startswith("; below 30 dB: y[:, 5:8] (at least 2") and ", at " in verdict.low_text
    assert list(output_lines(judge_parts([measure(np.full(8, 1e-2))], [], (), ()))) == []


def test_an_index_that_a_good_output_hides_is_a_warning() -> None:
    error = np.array([1e-4] * 7 + [0.3])
    ((verdict, _),) = output_lines(judge_parts([replace(measure(error), sqnr_db=40.0)], [], (), ()))
    assert verdict.warns and not verdict.poor and "y[:, 7] (" in verdict.low_text
    few = replace(measure(error, samples=8), sqnr_db=40.0)
    ((verdict, _),) = output_lines(judge_parts([few], [], (), ()))
    assert not verdict.warns  # of 8 values one in a hundred stands so low by chance


def test_indices_of_scores_that_find_nothing_are_not_named() -> None:
    part = replace(measure(np.full(8, 0.3)), sqnr_db=15.0, peak=0.1, scores=ScoreAgreement())
    assert list(output_lines(judge_parts([part], [], (), ()))) == []


def test_an_index_far_from_zero_is_judged_by_what_varies() -> None:
    rng, sums = np.random.default_rng(0), PartSums()
    for _ in range(16):
        x = np.array([[300.0, 0.0]]) + rng.standard_normal((1, 2))
        sums.update(x, x + 0.1 * rng.standard_normal((1, 2)))
    assert [weak.indices for weak in sums.list_weak_slices(30.0)] == [(1,)]
    assert [weak.indices for weak in sums.list_weak_slices(30.0, sums)] == [(0, 1)]


@pytest.mark.parametrize(("unit", "warns"), [(0.3, False), (0.1, True)])
def test_a_build_names_channels_that_are_low(unit: float, warns: bool, tmp_path: Path) -> None:
    weights = np.diag([1.0, 1.0, unit, unit]).reshape(4, 4, 1, 1)
    built = build(tmp_path / "m.onnx", save(tmp_path, "(float[1,4,8,8] y) { y = Conv(x, w) }", {"x": 4.5, "y": 5.0}, w=weights))
    warnings, notes = lines_of(built)
    assert built.figures["outputs"][0]["sqnr_db"] > 30 and not built.figures["outputs"][0]["poor"]
    (line,) = warnings + notes
    assert bool(warnings) is warns and line.startswith("output y: SQNR 3") and "; below 30 dB: y[:, 2:4, :, :] (at least " in line
