"""Samples that judge are dealt by what they hold, count in what is written, and are told where they are copies of others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from unequal_networks import convolutions, nothing, samples

from quant.near_copies import find_similar_lag, group_near_copies
from quant.observe import MinMax, Range
from quant.sample_traits import describe_sample
from toolchain.api import Build, BuildOptions, build
from toolchain.judging.evaluation_data import count_judges
from toolchain.repair.calibrate_network import CalibratedNetwork, calibrate_network
from toolchain.repair.sample_folds import hold_out
from toolchain.report.gate import OPEN, Gate
from toolchain.runtime import Session

Array = np.ndarray[Any, Any]


def clips(count: int, loud: int, seed: int = 0) -> Array:
    """float32[count, 4, 8, 8], of which the last are six times as loud."""
    x = np.random.default_rng(seed).standard_normal((count, 4, 8, 8))
    x[count - loud :] *= 6
    return x.astype(np.float32)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    graph = "a = Conv<pads=[1,1,1,1]>(x, w) b = Relu(a) y = Conv(b, u)"
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g (float[1,4,8,8] x) => (float y) {{ {graph} }}')
    rng = np.random.default_rng(3)
    for name, shape in {"w": (8, 4, 3, 3), "u": (4, 8, 1, 1)}.items():
        proto.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    onnx.save(onnx.shape_inference.infer_shapes(proto), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def built(model: Path, x: Array, **options: Any) -> Build:
    data = str(model.parent / "c.npz")
    np.savez(data, x=x)
    return build(model, BuildOptions("edge16", calibration=data, **options))


def decibels(model: Path, model_build: Build, x: Array) -> float:
    """Of the file that is written, against float, over these samples."""
    import onnxruntime

    session, chip = onnxruntime.InferenceSession(model), Session(model_build.container, backend="reference")
    real, integer = (np.stack([np.asarray(run.run(None, {"x": s[None]})[0]) for s in x]) for run in (session, chip))
    return float(10 * np.log10(np.square(real).sum() / np.square(real - integer).sum()))


@pytest.mark.parametrize("effort", ["none", "fast"])
def test_the_order_of_samples_changes_nothing(effort: str, model: Path) -> None:
    x = clips(24, 2)
    one, other = (built(model, x[order], repair=effort) for order in (np.arange(24), np.random.default_rng(1).permutation(24)))
    assert other.data == one.data
    assert effort == "none" or other.figures["outputs"] == one.figures["outputs"]


@pytest.mark.parametrize(("gate", "judged"), [(OPEN, ("calibration", 4)), (Gate(min_sqnr=1.0), ("held out", 6))], ids=str)
def test_nothing_is_held_out_where_nothing_judges(gate: Gate, judged: tuple[str, int], model: Path) -> None:
    model_build = built(model, clips(24, 2), repair="none", gate=gate)
    assert model_build.figures["calibration_samples"] == 24
    assert (model_build.figures["judged_on"], model_build.figures["judged_samples"]) == judged


@pytest.mark.parametrize("loud", [1, 2])
def test_rare_samples_are_in_what_is_written_wherever_they_lie(loud: int, model: Path) -> None:
    x = clips(24, loud)
    others = np.concatenate([clips(6, 0, seed=8), clips(6, 6, seed=9)])
    all_db = decibels(model, built(model, x, repair="none"), others)
    model_build = built(model, x[np.roll(np.arange(24), -7)], repair="fast")
    assert decibels(model, model_build, others) > all_db - 1
    assert not [w for w in model_build.warnings if "outside" in w or "clipped" in w]


def test_what_is_judged_saw_none_of_the_samples_that_judge(model: Path) -> None:
    model_build = built(model, clips(24, 0), repair="fast")
    assert (
        model_build.figures["judged_on"],
        model_build.figures["judged_samples"],
        model_build.figures["calibration_samples"],
    ) == ("held out", 4, 24)
    beginning = "the file has ranges of all 24 samples; figures against float are of the same choices with those of 20"
    assert any(note.startswith(beginning) for note in model_build.notes)


def test_choices_stay_and_ranges_are_of_all_samples(tmp_path: Path) -> None:
    net = convolutions(tmp_path, per_tensor=True)
    drawn = samples((1, 3, 8, 8), 24)
    drawn[5] = {"x": 3 * drawn[5]["x"]}
    dealt = hold_out(drawn, lambda _: 4)
    judging = [*dealt.held]
    calibrating = [s for s in dealt.seen if not np.array_equal(s["x"], drawn[5]["x"])]
    calibrated = calibrate_network(net, calibrating, None, "fast", nothing, [*calibrating, drawn[5], *judging])
    judged = calibrated.judged
    assert isinstance(judged, CalibratedNetwork) and calibrated.tried == judged.tried and any(t.is_kept for t in calibrated.tried)
    assert (calibrated.samples, judged.samples) == (24, 19)
    ends = [q.quantization.ranges["x"] for q in (calibrated, judged)]
    assert all(isinstance(r, Range) for r in ends) and ends[0].high > 1.5 * ends[1].high  # type: ignore[union-attr]
    assert (
        calibrated.quantization.layers is judged.quantization.layers
        and calibrated.quantization.factors is judged.quantization.factors
    )


@pytest.mark.parametrize("count", [17, 20, 24, 64, 200])
def test_strata_are_of_magnitude(count: int) -> None:
    """Never the largest sample; small and large ones."""
    x = np.random.default_rng(count).permutation(count).astype(np.float32)
    dealt = hold_out([{"x": np.full((1, 2), v)} for v in x], count_judges)
    magnitudes = sorted(float(s["x"].max()) for s in dealt.held)
    assert len(magnitudes) == count_judges(count) and magnitudes[-1] < count - 1
    assert len(magnitudes) == 1 or (magnitudes[0] < count / 3 and magnitudes[-1] > 2 * count / 3)
    assert {int(x[i]) for i in dealt.indices} == {int(v) for v in magnitudes}


def pictures(count: int, seed: int = 0) -> list[Array]:
    """float32[1, 3, 32, 32] each, smooth, as photographs are."""
    rng, arrays = np.random.default_rng(seed), list[Array]()
    for _ in range(count):
        x = rng.standard_normal((1, 3, 32, 32)).cumsum(2).cumsum(3)
        arrays.append((x / np.abs(x).max()).astype(np.float32))
    return arrays


def groups_of(arrays: list[Array]) -> list[int]:
    return group_near_copies([describe_sample({"x": x}) for x in arrays])


def test_near_copies_are_told_from_independent_samples() -> None:
    one, *others = pictures(24)
    rng = np.random.default_rng(4)
    assert groups_of([one, *others]) == list(range(24))
    assert groups_of([one] * 20) == [0] * 20
    assert len(set(groups_of([one + 0.01 * rng.standard_normal(one.shape).astype(np.float32) for _ in range(20)]))) == 1
    assert len(set(groups_of([np.roll(one, i // 4, 3) for i in range(20)] + others))) < 40
    assert groups_of([one, others[0], 1.01 * one, *others[1:]])[2] == 0
    for shape in ((1, 4), (1, 24), (1, 8, 20)):  # features, of unlike unit and far from zero, are no copies
        unit = 10.0 ** rng.integers(-2, 3, shape)
        assert len(set(groups_of([(1e4 + unit * rng.standard_normal(shape)).astype(np.float32) for _ in range(40)]))) == 40


def crops(sources: int, each: int) -> list[Array]:
    """float32[1, 3, 20, 20] each, of `sources` pictures in turn."""
    corners = np.random.default_rng(1).integers(0, 12, (each, sources, 2))
    return [x[:, :, i : i + 20, j : j + 20] for row in corners.tolist() for x, (i, j) in zip(pictures(sources), row)]


def similar_lag(arrays: Sequence[Array]) -> int | None:
    return find_similar_lag([describe_sample({"x": x}) for x in arrays])


def test_quiet_samples_beside_loud_ones_are_no_near_copies() -> None:
    rng = np.random.default_rng(4)
    quiet, loud = 0.05 * rng.standard_normal((36, 1, 64)), 5 * rng.standard_normal((4, 1, 64))
    assert groups_of([*loud, *quiet]) == [*range(40)]
    assert groups_of([*loud, *quiet, quiet[3] + 1e-3 * rng.standard_normal((1, 64))])[-1] == 7


def test_crops_of_a_picture_are_similar_by_their_order() -> None:
    in_turn = crops(6, 8)
    assert len(set(groups_of(in_turn))) > 24
    assert similar_lag(in_turn) == 6
    assert similar_lag([in_turn[i + 6 * k] for i in range(6) for k in range(8)]) == 1
    panned = [pictures(1)[0][:, :, y : y + 12, y : y + 12] for y in range(20)]
    assert similar_lag(panned) == 1


def test_independent_samples_are_similar_at_no_lag() -> None:
    """One of 100 sets of two kinds in any order may be."""
    rng, count = np.random.default_rng(2), 0
    for trial in range(10):
        assert similar_lag(pictures(20, trial)) is None
    for _ in range(40):
        two_kinds = rng.standard_normal((20, 1, 8, 8)) + 9 * rng.integers(0, 2, (20, 1, 1, 1))
        count += similar_lag([*two_kinds.astype(np.float32)]) is not None
    assert count <= 2
    assert similar_lag(pictures(1) * 20) is None  # equal, which makes them near-copies
    assert similar_lag([np.zeros((1, 4), np.float32)] * 20) is None and find_similar_lag([]) is None


def test_judging_on_crops_of_what_was_calibrated_is_a_note(model: Path) -> None:
    rng = np.random.default_rng(6)
    sources = 20 * rng.standard_normal((6, 4, 8, 8))
    x = np.stack([sources[i % 6] + 6 * rng.standard_normal((4, 8, 8)) for i in range(36)]).astype(np.float32)
    start = "samples 6 places apart in --calib are less than half as far from each other as samples usually are"
    build = built(model, x, repair="fast")
    assert [n for n in build.notes if n.startswith(start)] and build.figures["near_copies_judged"] == 0
    assert not [n for n in built(model, x, repair="none").notes if start in n]  # nothing is held out
    assert not [n for n in built(model, clips(36, 0), repair="fast").notes if "places apart" in n]


def test_near_copies_are_on_one_side_where_that_can_be() -> None:
    copies = [{"x": x} for x in pictures(10) for _ in range(4)]
    dealt = hold_out(copies, lambda _: 8)
    sides = [{s["x"].tobytes() for s in fold} for fold in (dealt.seen, dealt.held)]
    assert not sides[0] & sides[1] and (dealt.held.count, dealt.copies) == (8, 0)


def test_judging_on_copies_is_a_warning(model: Path) -> None:
    x = np.repeat(clips(1, 0), 24, 0)
    beginning = "judged on 4 samples, among which are 4 near-copies of samples calibrated on"
    model_build = built(model, x, repair="fast")
    assert model_build.figures["near_copies_judged"] == 4 and [w for w in model_build.warnings if w.startswith(beginning)]
    assert not [w for w in built(model, clips(24, 0), repair="fast").warnings if "near-cop" in w]


def test_what_few_samples_alone_reach_is_not_clipped() -> None:
    """By an observer that is chosen by what others gain: of 40 samples eight are few, of 12 three."""
    for count, few, clipped in ((40, 8, 9), (12, 3, 4)):
        for loud, high in ((few, 9.0), (clipped, 4.0)):
            observer = MinMax()
            for i in range(count):
                observer.update(np.array([-1.0, 9.0 if i < loud else 2.0]))
            assert observer.with_rare_ends(Range(-1.0, 4.0)).high == high


def test_a_poor_sample_among_those_that_judge_repair_is_told(model: Path) -> None:
    """The few samples of the report may all be loud."""
    x = clips(24, loud=16)
    x[:8] /= 30
    (note,) = [n for n in built(model, x, repair="fast").notes if "samples that judged it has" in n]
    assert re.fullmatch(
        r"repair: one of the \d+ samples that judged it has -?\d\.\d dB at y, all of them [23]\d\.\d dB: .*", note
    )
    assert not any("samples that judged it has" in n for n in built(model, clips(24, loud=24), repair="fast").notes)
