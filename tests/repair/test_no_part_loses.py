"""Check that no output, and no part of one, loses for the gain of others; states are judged as they run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from unequal_networks import Sample, convolutions, network, nothing, plain, samples

from quant.calibration_data import Samples
from quant.observe import Range
from quant.part_sums import TensorSlice
from quant.repair.choices import AS_IN_THE_MODEL, Alternative, LayerParameters, Quantization, StepOutcome
from toolchain.frontend.state_pairs import pair_states
from toolchain.judging.stateful_samples import run_states_in_float
from toolchain.repair.calibrate_network import calibrate_network
from toolchain.repair.evaluate_outputs import OutputEvaluator, OutputQuality, compare_worst_parts
from toolchain.repair.network import Network
from toolchain.repair.repair_pipeline import RepairStep, find_upstream_layers, run_repair
from toolchain.repair.sample_folds import STRETCH, deal_folds
from toolchain.repair.weight_rounding import round_layer_weights
from toolchain.report.fidelity import FidelityPart

STEADY = (0.1, -0.1, 0.2, -0.2, 0.1, -0.1, 0.0, 0.0)


def verdict(**levels: float | tuple[float, ...]) -> OutputQuality:
    """Return a quality by part: dB of each sample, or of all with a small spread."""
    each = {n: v if isinstance(v, tuple) else tuple(v + s for s in STEADY) for n, v in levels.items()}
    return OutputQuality(tuple(FidelityPart(n, float(np.mean(v)), 1.0, 0.0, 0.0, f"tensor {n}") for n, v in each.items()), each)


PLAIN = verdict(a=20.0, b=20.0)


@pytest.mark.parametrize(
    ("before", "after", "losing"),
    [
        ((20.0, 20.0), (23.0, 20.0), {}),
        ((20.0, 20.0), (23.0, 19.9), {"tensor b": "b falls from 20.00 to 19.90 dB"}),
        ((23.0, 22.0), (25.0, 21.6), {}),  # what a step before it gained
        ((23.0, 22.0), (25.0, 21.4), {"tensor b": "b falls from 22.00 to 21.40 dB"}),
    ],
)
def test_a_part_may_neither_end_below_plain_nor_lose_much(
    before: tuple[float, float], after: tuple[float, float], losing: dict[str, str]
) -> None:
    a, b = before
    assert verdict(a=after[0], b=after[1]).losses(verdict(a=a, b=b), PLAIN) == losing


def test_a_part_that_a_few_samples_decide_is_not_trusted() -> None:
    wild = tuple(20.5 + d for d in (9.0, -7.0, 5.0, -6.0, 0.0, 3.0, -8.0, 4.0))
    reason = "b may fall: +0.50 dB a sample, with a standard error of 2.21"
    assert verdict(a=25.0, b=wild).losses(PLAIN, PLAIN) == {"tensor b": reason}


def with_channels(whole_db: float, first_db: float, second_db: float) -> OutputQuality:
    """Return the quality of an output of two channels of unlike size, by dB of all, of the large and of the small one."""
    slices = tuple(TensorSlice(1, 4, (i,), 1.0, 1.0, 1.0, db, None) for i, db in enumerate((first_db, second_db)))
    quality = verdict(a=whole_db)
    return OutputQuality(tuple(replace(part, slices=slices) for part in quality.parts), quality.each)


@pytest.mark.parametrize(
    ("after", "gains"),
    [
        ((30.0, 30.0, 8.0), True),  # the small channel gains what it is for
        ((30.0, 30.0, 6.9), False),  # 2.9 dB
        ((30.4, 30.4, 8.0), True),  # what gains 0.5 dB or less is no part that gains
        ((31.0, 31.0, 5.0), False),
    ],
)
def test_a_step_for_parts_is_judged_by_the_worst_part_that_gains(after: tuple[float, float, float], gains: bool) -> None:
    before = with_channels(30.0, 30.0, 4.0)
    assert with_channels(*after).gains_in_parts(before) is gains


def test_a_part_that_others_pay_for_is_no_gain() -> None:
    assert not with_channels(30.0, 3.4, 8.0).gains_in_parts(with_channels(30.0, 30.0, 4.0))
    assert compare_worst_parts({"y": 20.0, "y: axis 1": 12.0}, {"y": 20.2}) == (12.0, 30.0)  # no index is low any more


def test_only_what_the_judge_would_keep_is_advised(tmp_path: Path) -> None:
    """The step changes nothing, and says what an option would give: better ranges, or ranges that clip."""
    net, data, held_out = convolutions(tmp_path), samples((1, 3, 8, 8), 16), samples((1, 3, 8, 8), 8, seed=1)
    right = plain(net, data)
    by_tensor = {n: r for n, r in right.ranges.items() if isinstance(r, Range)}
    wide, narrow = (replace(right, ranges={n: Range(f * r.low, f * r.high) for n, r in by_tensor.items()}) for f in (8, 1 / 16))

    def advise(before: Quantization, alternative: Quantization) -> tuple[str, ...]:
        outcome = StepOutcome(before, alternative=Alternative(alternative, "ranges", "nothing", "--wide 1"))
        (tried,) = run_repair(net, before, data, held_out, [RepairStep("step", lambda *_: outcome)], nothing).tried
        assert not tried.is_kept
        return tried.advice

    (sentence,) = advise(wide, right)
    assert sentence.startswith("--wide 1 gives ranges, for nothing: ") and sentence.endswith(" on the samples that judge repair")
    assert advise(right, narrow) == ()
    assert advise(right, right) == ()  # no gain


def two_heads(folder: Path) -> Network:
    rng = np.random.default_rng(1)
    shapes = {"w1": (8, 3, 3, 3), "w2": (4, 8, 1, 1), "w3": (4, 8, 1, 1), "w4": (4, 4, 1, 1)}
    return network(
        """g (float[1,3,8,8] x) => (float[1,4,8,8] p, float[1,4,8,8] q) {
            a = Conv <pads=[1,1,1,1]> (x, w1)
            r = Relu(a)
            p = Conv(r, w2)
            b = Conv(r, w3)
            c = Relu(b)
            q = Conv(c, w4)
        }""",
        {n: rng.standard_normal(s) / np.sqrt(np.prod(s[1:])) for n, s in shapes.items()},
        folder,
        "wide32_w4a16",
    )


def test_layers_behind_a_part(tmp_path: Path) -> None:
    net = two_heads(tmp_path)
    layer_by_tensor = {node.outputs[0]: node.name for node in net.weighted}
    trunk = find_upstream_layers(net, ["r"])
    assert len(trunk) == 1 and len(layer_by_tensor) == 4
    assert len(find_upstream_layers(net, ["p"])) == 2 and len(find_upstream_layers(net, ["q"])) == 3
    assert find_upstream_layers(net, ["p"]) & find_upstream_layers(net, ["q"]) == trunk and not find_upstream_layers(net, ["x"])


def test_a_step_that_costs_one_part_is_kept_for_the_layers_of_others(tmp_path: Path) -> None:
    """The step sets right the biases of what makes q, and spoils that of what makes p."""
    net, data, held_out = two_heads(tmp_path), samples((1, 3, 8, 8), 16), samples((1, 3, 8, 8), 8, seed=1)
    p, q = find_upstream_layers(net, ["p"]), find_upstream_layers(net, ["q"])
    (spoiled,) = p - q

    def step(
        net: Network, before: Quantization, fit_samples: list[Sample], progress: object, leave: frozenset[str] = frozenset()
    ) -> StepOutcome:
        rounded_quantization = round_layer_weights(net, before, fit_samples, nothing, leave=leave).quantization
        if spoiled in leave:
            return StepOutcome(rounded_quantization)
        wrong = LayerParameters(rounded_quantization.layers[spoiled].weight, np.full(4, 0.1))
        return StepOutcome(replace(rounded_quantization, layers={**rounded_quantization.layers, spoiled: wrong}))

    before = replace(plain(net, data), layers={name: LayerParameters(None, np.full(4, 0.2)) for name in q - p})
    result = run_repair(net, before, data, held_out, [RepairStep("step", step, by_layer=True)], nothing)
    (tried,) = result.tried
    assert tried.is_kept and tried.why.endswith(" dB, with 2 layers left as before, which parts hang on that would lose")
    assert result.quantization.layers.keys() == q - p
    assert not run_repair(net, before, data, held_out, [RepairStep("step", step)], nothing).tried[0].is_kept


def test_ranges_are_of_all_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolchain.repair.calibrate_network.STEPS", (RepairStep("rounding", round_layer_weights, by_layer=True),))
    net, drawn = two_heads(tmp_path), samples((1, 3, 8, 8), 16)
    drawn[15] = {"x": 3 * drawn[15]["x"]}  # held out
    data = Samples("", 16, lambda: iter(drawn))
    none, fast = (calibrate_network(net, data, None, effort, nothing) for effort in ("none", "fast"))
    assert fast.tried[0].is_kept and fast.samples == none.samples == 16
    assert dict(fast.quantization.ranges) == dict(none.quantization.ranges)


def cell(folder: Path) -> Network:
    """A state that takes in a little of each input, and what is made of it."""
    rng = np.random.default_rng(2)
    weights = {"w": rng.standard_normal((8, 8)) / 4, "u": np.eye(8) * 0.98, "v": rng.standard_normal((8, 4))}
    cell_network = network(
        """g (float[1,8] x, float[1,8] h) => (float[1,4] y, float[1,8] hn) {
            a = MatMul(x, w)
            b = MatMul(h, u)
            hn = Add(a, b)
            y = MatMul(hn, v)
        }""",
        weights,
        folder,
    )
    return replace(cell_network, model=pair_states(cell_network.model, ("h=hn",)))


def test_states_are_judged_over_their_own_steps(tmp_path: Path) -> None:
    net = cell(tmp_path)
    inputs = {n: net.model.types[n] for n in ("x", "h")}
    steps = list(run_states_in_float(Samples("", 24, lambda: iter(samples((1, 8), 24))), net.model, inputs))
    quantization = plain(net, steps)
    over_steps, alone = (OutputEvaluator(data).verdict(net, quantization) for data in (steps[:16], steps[15::-1]))
    assert {p.name for p in over_steps.parts} == {"y", "hn"}
    assert np.mean(over_steps.each["hn"]) < np.mean(alone.each["hn"]) - 3  # what a state loses is lost at later steps too


def test_a_sequence_is_held_out_in_stretches() -> None:
    data = Samples("", 64, lambda: ({"x": np.array([float(i)])} for i in range(64)))
    held_out = [int(s["x"][0]) for s in deal_folds(data, stretch=STRETCH).held]
    assert held_out == [*range(8, 16), *range(40, 48)]


def test_a_state_that_a_later_layer_reads_is_walked_over(tmp_path: Path) -> None:
    """An output that the chip reads as well."""
    net = network(
        "g (float[1,8] x) => (float[1,8] y, float[1,4] z) { y = MatMul(x, w) z = MatMul(y, v) }",
        {"w": np.eye(8), "v": np.ones((8, 4))},
        tmp_path,
    )
    data = samples((1, 8))
    layers = round_layer_weights(net, plain(net, data), data, nothing).quantization.layers
    assert len(layers) == 2 and all(p is not AS_IN_THE_MODEL for p in layers.values())


def test_an_operator_with_a_constant_first_is_walked_over(tmp_path: Path) -> None:
    net = network(
        "g (float[1,8,8] x) => (float[1,8,8] y) { a = Sub(c, x) y = MatMul(a, v) }",
        {"c": np.ones((1, 8, 8)), "v": np.eye(8) - 0.1},
        tmp_path,
    )
    data = samples((1, 8, 8))
    assert len(round_layer_weights(net, plain(net, data), data, nothing).quantization.layers) == 1
