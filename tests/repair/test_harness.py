"""Steps are kept where samples that none of them saw gain, and only there."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from unequal_networks import convolutions, make_norm_network, network, nothing, plain, samples

from quant.calibration_data import Samples
from quant.observe import Range
from quant.repair.choices import Quantization, StepOutcome
from toolchain.api import BuildOptions
from toolchain.compiler import select_model
from toolchain.errors import CompileError
from toolchain.frontend import load_model
from toolchain.isa import load_machine
from toolchain.judging.evaluation_data import open_build_data
from toolchain.passes.decompose import decompose_model
from toolchain.repair.calibrate_network import calibrate_network, steps_of
from toolchain.repair.equalize import equalize
from toolchain.repair.evaluate_outputs import OutputEvaluator, OutputQuality, pick_trial_samples
from toolchain.repair.layerwise_reference import pick_resident_samples
from toolchain.repair.network import Network
from toolchain.repair.repair_pipeline import OBSERVERS_STEP, STEPS, SWEEPS, RepairStep, run_repair
from toolchain.repair.sample_folds import HELD_OUT, LEAST_JUDGES, Fold, deal_folds, join_folds, spread_over
from toolchain.report.fidelity import FidelityPart

CLASSIFIER = Path(__file__).parents[2] / "examples/classifier"


def make_numbered_samples(count: int, *, has_count: bool = True) -> Samples:
    return Samples("", count if has_count else None, lambda: ({"x": np.array([float(i)])} for i in range(count)))


@pytest.mark.parametrize(
    ("count", "has_count", "judging"),
    [
        (16, True, 8),
        (30, True, 8),
        (32, True, 8),
        (64, True, 16),
        (1000, True, 16),
        (16, False, 8),
        (64, False, 16),
        (1000, False, 16),
    ],
)
def test_folds(count: int, has_count: bool, judging: int) -> None:
    dealt = deal_folds(make_numbered_samples(count, has_count=has_count))
    numbers = [[int(s["x"][0]) for s in fold] for fold in (dealt.seen, dealt.held)]
    assert sorted(numbers[0] + numbers[1]) == list(range(count)) and LEAST_JUDGES <= len(numbers[1]) == judging <= HELD_OUT
    assert [[int(s["x"][0]) for s in fold] for fold in (dealt.seen, dealt.held)] == numbers  # again the same
    assert (dealt.seen.count, dealt.held.count) == (count - judging, judging)
    assert numbers[1][0] > 0.9 * count - 5 and numbers[1][-1] < 0.1 * count + 5  # from the largest to the smallest...
    assert numbers[0][0] == count - 1  # ...but for the largest of all


def test_a_fold_that_is_not_kept_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolchain.repair.sample_folds.KEPT_BYTES", 16)
    reads = 0

    def start():
        nonlocal reads
        reads += 1
        return iter([{"x": np.full(1, float(i))} for i in range(20)])

    dealt = deal_folds(Samples("", 20, start))
    assert [len(list(f)) for f in (dealt.seen, dealt.seen, dealt.held, dealt.held)] == [12, 12, 8, 8]
    assert reads == 5  # once more to deal them


def verdict(*levels: float) -> OutputQuality:
    """Return the quality of one output from its dB of each sample."""
    return OutputQuality((FidelityPart("y", float(np.mean(levels)), 1.0, 0.0, 0.0, "y"),), {"y": levels})


BEFORE = (20.0, 22.0, 31.0, 25.0, 28.0, 21.0, 26.0, 24.0)


@pytest.mark.parametrize(
    ("count", "has_count", "taken"),
    [
        (80, True, [0, 10, 20, 30, 40, 50, 60, 70]),
        (20, True, [0, 3, 5, 8, 10, 13, 15, 18]),
        (8, True, list(range(8))),
        (80, False, [0, 3, 6, 9, 12, 15, 18, 21]),
    ],
)
def test_what_ways_are_tried_on_is_spread_over_what_is_seen(count: int, has_count: bool, taken: list[int]) -> None:
    fold = Fold(lambda: ({"x": np.array(i)} for i in range(count)), count if has_count else None)
    assert [int(s["x"]) for s in pick_trial_samples(fold)] == taken


@pytest.mark.parametrize(
    ("count", "has_count", "most", "expected"),
    [
        (1000, True, 4, [0, 250, 500, 750]),
        (10, True, 4, [0, 3, 5, 8]),
        (3, True, 4, [0, 1, 2]),
        (1000, False, 4, [0, 1, 2, 3]),
    ],
)
def test_what_layers_are_chosen_on_is_spread_over_what_is_seen(
    count: int, has_count: bool, most: int, expected: list[int]
) -> None:
    fold = Fold(lambda: ({"x": np.array(i)} for i in range(count)), count if has_count else None)
    assert [int(s["x"]) for s in spread_over(fold, most)] == expected


def test_as_many_samples_are_held_as_memory_has_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = convolutions(tmp_path)
    quantization, fold = plain(net, samples((1, 3, 8, 8))), Fold(lambda: iter(samples((1, 3, 8, 8), 600)), 600)
    assert pick_resident_samples(net, quantization, fold).first.size == 256
    monkeypatch.setattr("toolchain.repair.layerwise_reference.HELD_BYTES", 100_000)
    few = pick_resident_samples(net, quantization, fold)
    assert 1 < few.first.size < 256


def test_a_gain_within_the_spread_of_the_samples_is_not_kept() -> None:
    lucky = np.add(BEFORE, (9.0, -2.0, -2.0, -1.0, -1.0, 1.0, -1.0, 1.0))
    objection = (
        "the outputs gain 0.50 dB over all samples; that of the mean sample, 0.50 dB with a standard error of 1.28, may be chance"
    )
    assert verdict(*lucky).objection(verdict(*BEFORE)) == objection
    quiet = np.subtract(BEFORE, 9.1)  # one loud sample decides what all together have
    loud = OutputQuality((FidelityPart("y", 24.74, 1.0, 0.0, 0.0, "y"),), {"y": tuple(quiet)})
    assert loud.objection(verdict(*BEFORE)) == "the outputs gain 0.11 dB over all samples, but the mean sample loses 9.10 dB"
    steady = np.add(BEFORE, (0.7, 0.3, 0.4, 0.6, 0.5, 0.5, 0.2, 0.8))
    assert verdict(*steady).objection(verdict(*BEFORE)) is None
    assert verdict(*np.add(BEFORE, 0.04)).objection(verdict(*BEFORE)) == "the outputs gain 0.04 dB"
    assert verdict(*np.subtract(BEFORE, 0.5)).objection(verdict(*BEFORE)) == "the outputs lose 0.50 dB"


@pytest.mark.parametrize("steps", [False, True], ids=["host", "steps of the chip"])
@pytest.mark.parametrize("form", [("1,6", "1,5", "Gemm"), ("1,1,6", "1,1,5", "MatMul")], ids=["Gemm", "rows of a MatMul"])
def test_probabilities_are_judged_by_their_logarithms(form: tuple[str, str, str], steps: bool, tmp_path: Path) -> None:
    read, made_shape, op = form
    text = f"g (float[{read}] x) => (float[{made_shape}] y) {{{{ {{}} = {op}(x, w) {{}} }}}}"
    weights = {"w": np.random.default_rng(0).standard_normal((6, 5))}
    for column in weights["w"]:
        column -= column.mean()  # as the logarithms are taken
    drawn, levels_db = samples(tuple(map(int, read.split(","))), 8), list[float]()
    for tail in (("l", "y = Softmax <axis=-1> (l)"), ("y", "")):
        net = network(text.format(*tail), weights, tmp_path)
        if steps:
            decomposed_model = decompose_model(net.model, net.chip)
            net = replace(net, model=decomposed_model, selection=select_model(decomposed_model, net.machine))
        ranges = {n: Range(2 * r.low, 2 * r.high) for n, r in plain(net, drawn).ranges.items() if isinstance(r, Range)}
        levels_db.append(OutputEvaluator(drawn).verdict(net, Quantization(ranges)).decibels)
    probabilities, logits = levels_db
    assert probabilities == pytest.approx(logits, abs=1) and 20 < logits < 45


def test_probabilities_of_scores_that_no_step_makes_are_judged_themselves(tmp_path: Path) -> None:
    """The Transpose before a Softmax in steps becomes part of its maximum and its difference."""
    text = "g (float[1,2,6,6] x) => (float[1,2,6,6] y) { s = Relu(x) t = Transpose<perm=[0,1,3,2]>(s) y = Softmax<axis=-1>(t) }"
    net = network(text, {}, tmp_path)
    decomposed_model = decompose_model(net.model, net.chip)
    assert decomposed_model.undivided is not None
    assert "t" in decomposed_model.undivided.types and "t" not in decomposed_model.types
    net = replace(net, model=decomposed_model, selection=select_model(decomposed_model, net.machine))
    drawn = samples((1, 2, 6, 6), 8)
    assert OutputEvaluator(drawn).verdict(net, plain(net, drawn)).decibels > 20


def test_few_samples_keep_nothing() -> None:
    few = BEFORE[: LEAST_JUDGES - 1]
    assert verdict(*np.add(few, 3)).objection(verdict(*few)) == "the outputs gain 3.00 dB, on 7 samples: it takes 8 to tell"
    enough = BEFORE[:LEAST_JUDGES]
    assert verdict(*np.add(enough, 3)).objection(verdict(*enough)) is None


def test_where_nothing_is_kept_all_samples_are_calibrated_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = convolutions(tmp_path, per_tensor=True)
    monkeypatch.setattr("toolchain.repair.calibrate_network.STEPS", (RepairStep("halved", halve_ranges),))
    drawn = samples((1, 3, 8, 8), 16)
    data = Samples("", 16, lambda: iter(drawn))
    none, fast = (calibrate_network(net, data, None, effort, nothing) for effort in ("none", "fast"))
    assert not fast.tried[0].is_kept and (fast.samples, fast.held_out) == (16, 8)
    assert dict(fast.quantization.ranges) == dict(none.quantization.ranges)


@pytest.mark.parametrize(
    ("make", "shape", "name"),
    [
        (lambda folder: convolutions(folder, per_tensor=True), (1, 3, 8, 8), "equalization"),
        (make_norm_network, (1, 16, 8), "region ends"),
    ],
    ids=["equalization", "region ends"],
)
def test_what_a_step_chose_has_ranges_of_all_samples(make, shape: tuple[int, ...], name: str, tmp_path: Path) -> None:
    """The largest values are in those that judge: the half of sixteen that steps choose by has seen little of them."""
    net, fit_samples, held_out = make(tmp_path), samples(shape, 8), [{"x": 1.5 * s["x"]} for s in samples(shape, 8, seed=1)]
    result = run_repair(
        net, plain(net, [*fit_samples, *held_out]), fit_samples, held_out, [s for s in STEPS if s.name == name], nothing
    )
    largest = max(float(s["x"].max()) for s in held_out)
    assert result.tried[0].is_kept and largest > 1.2 * max(float(s["x"].max()) for s in fit_samples)
    assert result.quantization.ranges["x"].high == pytest.approx(largest)  # pyright: ignore[reportAttributeAccessIssue]


def test_the_whole_of_what_was_dealt() -> None:
    dealt = deal_folds(make_numbered_samples(20))
    together = join_folds(dealt.seen, dealt.held)
    assert together.count == 20 and sorted(int(s["x"][0]) for s in together) == list(range(20))
    assert join_folds([], dealt.held).count is None


def halve_ranges(_net: Network, before: Quantization, _samples: object, _progress: object) -> StepOutcome:
    """Clips most of every tensor."""
    ranges = {n: Range(r.low / 16, r.high / 16) for n, r in before.ranges.items() if isinstance(r, Range)}
    return StepOutcome(replace(before, ranges=ranges))


def impossible(_net: Network, _before: Quantization, _samples: object, _progress: object) -> StepOutcome:
    raise CompileError("scale 9 (channel 0) is above 2")


def test_what_hurts_is_not_kept(tmp_path: Path) -> None:
    net = convolutions(tmp_path, per_tensor=True)
    data, held_out = samples((1, 3, 8, 8), 16), samples((1, 3, 8, 8), 8, seed=1)
    before = plain(net, data)
    steps = [RepairStep("halved", halve_ranges), RepairStep("impossible", impossible), RepairStep("equalize", equalize)]
    result = run_repair(net, before, data, held_out, steps, nothing)
    first, second, third = result.tried
    assert not first.is_kept and first.after_db is not None and first.after_db < first.before_db - 3
    assert not second.is_kept and second.why == "the machine cannot express it: scale 9 (channel 0) is above 2"
    assert third.is_kept and third.after_db is not None and third.after_db > third.before_db + 6
    assert third.before_db == first.before_db  # as if the others had not been tried
    assert result.quantization.factors and result.network.model is not net.model
    assert dict(result.quantization.ranges) != dict(before.ranges)


@pytest.fixture(scope="module")
def classifier() -> tuple[Network, Quantization, list, list]:
    machine, model = load_machine("edge16"), load_model(CLASSIFIER / "classifier.onnx", {})
    options = BuildOptions(machine, str(CLASSIFIER / "calib.npz"), samples=48)
    net = Network(model, select_model(model, machine), machine)
    dealt = deal_folds(open_build_data(model, options).calibration)
    fit_samples, held_out = list(dealt.seen), list(dealt.held)
    return net, plain(net, [*fit_samples, *held_out]), fit_samples, held_out


@pytest.mark.slow
def test_on_a_real_network_steps_that_hurt_are_not_kept(classifier) -> None:
    """Equalization costs the shipped classifier, whose weights have a scale for each channel, 0.6 dB; no other observer gains."""
    net, before, fit_samples, held_out = classifier
    result = run_repair(net, before, fit_samples, held_out, [RepairStep("equalize", equalize), OBSERVERS_STEP], nothing)
    equalized, observed = result.tried
    assert not equalized.is_kept and equalized.after_db is not None and equalized.after_db < equalized.before_db
    assert not observed.is_kept and observed.notes == ("ranges of tensors: minmax 47",)
    assert result.quantization is before and result.network is net


def test_the_same_samples_give_the_same(tmp_path: Path) -> None:
    net = convolutions(tmp_path, per_tensor=True)
    data, held_out = samples((1, 3, 8, 8), 16), samples((1, 3, 8, 8), 8, seed=1)
    steps = [RepairStep("equalize", equalize), OBSERVERS_STEP]
    one, two = (run_repair(net, plain(net, data), data, held_out, steps, nothing) for _ in range(2))
    assert one.tried == two.tried and dict(one.quantization.ranges) == dict(two.quantization.ranges)
    assert all(np.array_equal(f, two.quantization.factors[n]) for n, f in one.quantization.factors.items())


def test_the_time_left_is_said_before_it_starts_and_with_each_step(tmp_path: Path) -> None:
    net = convolutions(tmp_path, per_tensor=True)
    data, held_out = samples((1, 3, 8, 8), 16), samples((1, 3, 8, 8), 8, seed=1)
    stages: list[str] = []
    steps = [RepairStep("halved", halve_ranges), RepairStep("equalization", equalize)]
    run_repair(net, plain(net, data), data, held_out, steps, lambda stage, done, total: stages.append(stage))
    assert re.fullmatch(r"repair: 2 steps, about \d+ s", stages[0])
    assert re.fullmatch(r"repair 1 of 2, halved, about \d+ s left", stages[1])
    assert any(re.fullmatch(r"repair 2 of 2, equalization, about \d+ s left: channels", stage) for stage in stages)


def test_the_full_effort_sweeps_and_passes_where_the_fast_one_rounds_once() -> None:
    fast, full = (steps_of(effort, None) for effort in ("fast", "full"))
    passes = ["second pass", "third pass"]
    assert [s.name for s in fast] == [s.name for s in full if s.name not in passes]
    assert [s.name for s in full if s not in fast] == ["types", "rounding", "answering", *passes]
    assert all(getattr(s.run, "keywords", {}) == ({"sweeps": SWEEPS} if s not in fast else {}) for s in full if s.name != "types")


@pytest.mark.parametrize(
    ("gained", "chosen"),
    [((5.0, 0.0), 1), ((5.0, 0.5), 2), ((0.3, 3.0), 2), ((0.3, 0.1), 0), ((5.0, -1.0), 1)],
    ids=["no gain", "a gain that may be chance", "the first was none", "nothing is", "worse"],
)
def test_of_two_ways_the_better_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gained: tuple[float, float], chosen: int
) -> None:
    """Check that the better of two alternative steps is kept.

    `gained`: dB by the first step, and by the second beyond it, in the mean of samples that spread by 2 either way.
    """
    spread = np.array([2.0, -2.0, 2.0, -2.0, 2.0, -2.0, 2.0, -2.0])
    levels = [np.array(BEFORE), BEFORE + spread + gained[0], BEFORE + spread[::-1] + sum(gained)]

    def make_step(way: int):
        return lambda _net, before, _samples, _progress: StepOutcome(replace(before, ranges={"way": Range(0.0, way)}))

    class FixedEvaluator:
        def __init__(self, _samples: object) -> None: ...

        def verdict(self, _net: Network, quantization: Quantization) -> OutputQuality:
            way_range = quantization.ranges.get("way")
            return verdict(*levels[int(way_range.high) if isinstance(way_range, Range) else 0])

    monkeypatch.setattr("toolchain.repair.repair_pipeline.OutputEvaluator", FixedEvaluator)
    steps = [RepairStep("one", make_step(1)), RepairStep("other", make_step(2), instead_of="one")]
    way_range = run_repair(convolutions(tmp_path), Quantization({}), [], [], steps, nothing).quantization.ranges.get("way")
    assert (int(way_range.high) if isinstance(way_range, Range) else 0) == chosen
