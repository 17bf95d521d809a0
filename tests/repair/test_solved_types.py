"""Wider codes go to the tensors whose rounding costs the outputs most, within a budget of cycles, and the file holds them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from unequal_networks import nothing

from quant.calibrate import calibrate
from quant.fixed_point.core.codes import CodeType
from quant.observe import Range
from quant.repair.choices import Quantization
from quant.structural_ranges import AdjustedRanges
from tests.support.run_in_process import run_script
from toolchain.api import Build, BuildOptions, build
from toolchain.compiler import make_cycle_counter, select_model
from toolchain.errors import CompileError
from toolchain.frontend import load_model
from toolchain.isa import load_machine
from toolchain.passes.type_overrides import decompose_for_types
from toolchain.repair.evaluate_outputs import OutputEvaluator
from toolchain.repair.network import Network
from toolchain.repair.norm_streams import list_norm_streams, measure_row_loss
from toolchain.repair.solve_types import count_measured_samples, list_groups, solve_types
from toolchain.repair.type_trials import TypeTrials
from toolchain.repair.weight_rounding import correct_biases

SCRIPT = Path(__file__).parents[2] / "scripts/calibrate.py"
ROWS, CHANNELS = 16, 32
CANCEL = "a = MatMul(x, w) b = Mul(u, large) s = Add(a, b) r = Relu(s) q = Sub(r, b) y = MatMul(q, v)"
NORM = "a = MatMul(x, w) b = Mul(a, rows) n = LayerNormalization(b, one) y = MatMul(n, v)"

STREAM = (
    "a = MatMul(x, w) b = Mul(a, huge) s = Add(x, b) m = LayerNormalization(s, one) c = MatMul(m, w) t = Add(m, c) "
    "n = LayerNormalization(t, one) y = MatMul(n, v)"
)


def write_network(folder: Path, nodes: str) -> Path:
    """Write a network that reads x and u as float32[1, rows, channels and 1], with 48 samples beside it."""
    second = f", float[1,{ROWS},1] u" if "(u" in nodes else ""
    proto = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 18]> g (float[1,{ROWS},{CHANNELS}] x{second}) => (float[1,{ROWS},8] y) {{ {nodes} }}'
    )
    rng = np.random.default_rng(0)
    values = {
        "w": rng.standard_normal((CHANNELS, CHANNELS)) / 6,
        "v": rng.standard_normal((CHANNELS, 8)) / 6,
        "large": np.array(1000.0),
        "rows": np.where(np.arange(ROWS) % 8 == 0, 8.0, 1.0).reshape(1, ROWS, 1),
        "huge": np.where(np.arange(ROWS) == 3, 300.0, 1.0).reshape(1, ROWS, 1),
        "one": np.ones(CHANNELS),
    }
    for name in values:
        if any(name in node.input for node in proto.graph.node):
            proto.graph.initializer.append(numpy_helper.from_array(values[name].astype(np.float32), name))
    onnx.save(onnx.shape_inference.infer_shapes(proto), folder / "m.onnx")
    data = {"x": rng.standard_normal((48, 1, ROWS, CHANNELS)), "u": 1 + 0.3 * rng.random((48, 1, ROWS, 1))}
    arrays: dict[str, Any] = {i.name: data[i.name].astype(np.float32) for i in proto.graph.input}
    np.savez(folder / "data.npz", **arrays)
    return folder / "m.onnx"


def build_network(folder: Path, nodes: str, max_slowdown: float = 1.1) -> Build:
    path = write_network(folder, nodes)
    options = BuildOptions(
        "transformer64", calibration=str(folder / "data.npz"), max_slowdown=max_slowdown, repair="fast", host_ports=False
    )
    return build(path, options)


def decibels(built: Build) -> float:
    return built.figures["outputs"][0]["sqnr_db"]


def test_a_sum_that_cancels_gets_wider_codes(tmp_path: Path) -> None:
    plain, widened = (build_network(tmp_path, CANCEL, most) for most in (1, 1.1))
    assert decibels(plain) < 10 and decibels(widened) > 30
    assert widened.figures["expected_cycles"] <= 1.1 * plain.figures["expected_cycles"]
    (note,) = [n for n in widened.notes if n.startswith("codes of int16 for r (100 % of the noise)")]
    assert " times the cycles that the plan expects" in note


def test_types_that_the_repair_chose_stand_in_the_file(tmp_path: Path) -> None:
    path = write_network(tmp_path, CANCEL)
    data, file = str(tmp_path / "data.npz"), tmp_path / "p.yaml"
    run_script(SCRIPT, path, "--data", data, "--hw", "transformer64", "--repair", "fast", "-o", file)
    assert file.read_text().count("type: int16") >= 1
    options = BuildOptions("transformer64", calibration=data, parameters=str(file), states=("none",))
    assert decibels(build(path, options)) > 30


def open_network(path: Path) -> Network:
    machine = load_machine("transformer64")
    model = decompose_for_types(load_model(path), machine.chip, (), (), {})
    return Network(model, select_model(model, machine), machine, max_slowdown=2.0, count_cycles=make_cycle_counter(1))


def test_an_operator_in_steps_gets_the_steps_of_its_type(tmp_path: Path) -> None:
    path, int16 = write_network(tmp_path, NORM), CodeType("int16")
    network = open_network(path)
    widened = network.with_types({"n": int16})
    expected = decompose_for_types(load_model(path), network.chip, (), (), {"n": int16})
    assert widened.model.types.keys() == expected.types.keys() != network.model.types.keys()
    assert network.with_types({}) is network
    pinned = replace(network, types={"n": CodeType("int8")}).with_types({"n": int16})
    assert pinned.types == {"n": CodeType("int8")} and pinned.model is network.model


def test_factors_stay_where_wider_codes_change_the_steps(tmp_path: Path) -> None:
    nodes = "a = MatMul(x, w) h = Relu(a) c = MatMul(h, w) n = LayerNormalization(c, one) y = MatMul(n, v)"
    network, int16 = open_network(write_network(tmp_path, nodes)), CodeType("int16")
    factors: dict[str, np.ndarray] = {name: 2.0 ** (np.arange(CHANNELS) % 3) for name in ("a/rows", "h/before_reshape")}
    scaled = network.through(Quantization({}, factors=factors))
    widened, expected = scaled.with_types({"n": int16}), network.through(Quantization({}, factors=factors, types={"n": int16}))
    assert widened.model.types.keys() == expected.model.types.keys() != scaled.model.types.keys()
    constants = widened.model.graph.constants
    assert any(name.endswith(" with factors") for name in constants)
    assert constants.keys() == expected.model.graph.constants.keys()
    assert widened.types == expected.types and widened.host_nodes == expected.host_nodes


def test_networks_whose_measurement_is_dear_are_left_alone(tmp_path: Path) -> None:
    network, before, macs = open_network(write_network(tmp_path, CANCEL)), Quantization({}), ROWS * CHANNELS * CHANNELS
    outcome = solve_types(network, before, (), nothing, dear_macs=macs, most_macs=macs)
    assert outcome.quantization is before


def test_tensors_are_measured_where_that_is_dear_but_no_norm_is_at_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = open_network(write_network(tmp_path, CANCEL))
    with np.load(tmp_path / "data.npz") as arrays:
        samples = [{"x": x, "u": u} for x, u in zip(arrays["x"][:24], arrays["u"][:24], strict=True)]
    ranges = calibrate(
        network.model.proto, samples, network.tensors, computed_by=network.model, decomposition=network.model.decomposition
    )
    before = Quantization({**ranges, **network.get_model_ranges({})})
    outcome = solve_types(network, before, samples, nothing, dear_macs=0)
    assert "r" in outcome.quantization.types and outcome.gains[0].layer == "r"
    monkeypatch.setattr(TypeTrials, "find_largest_gain", lambda *_: 2.9)  # as where weights make the noise
    assert solve_types(network, before, samples, nothing, dear_macs=0).quantization is before
    assert solve_types(network, before, samples, nothing).quantization is not before


@pytest.mark.parametrize("dear_macs", [0.0, 1e10])
def test_what_shifts_of_weights_hide_is_tried_with_biases_corrected(tmp_path: Path, dear_macs: float) -> None:
    """Weights of one size beside a large row shift every channel of a bright background: -6 dB, and -9 with all in int16."""
    path = write_network(tmp_path, CANCEL)
    proto = onnx.load(path)
    for constant in proto.graph.initializer:
        value = numpy_helper.to_array(constant).copy()
        value = np.where(np.arange(CHANNELS) == 0, 8.0, value.T).T if constant.name == "w" else value
        value = np.array(30.0) if constant.name == "large" else value
        constant.CopyFrom(numpy_helper.from_array(value.astype(np.float32), constant.name))
    onnx.save(proto, path)
    network = open_network(path)
    with np.load(tmp_path / "data.npz") as arrays:
        bright = np.where(np.arange(CHANNELS) == 0, 0, 32 + arrays["x"][:24]).astype(np.float32)
        samples = [{"x": x, "u": u} for x, u in zip(bright, arrays["u"][:24], strict=True)]
    ranges = calibrate(
        network.model.proto, samples, network.tensors, computed_by=network.model, decomposition=network.model.decomposition
    )
    before = Quantization({**ranges, **network.get_model_ranges({})})
    outcome = solve_types(network, before, samples, nothing, dear_macs=dear_macs)
    chosen, judge = outcome.quantization, OutputEvaluator(samples)
    assert "r" in chosen.types and chosen.layers
    narrow = correct_biases(network, before, samples, nothing).quantization
    assert judge.verdict(network.through(chosen), chosen).decibels > judge.verdict(network, narrow).decibels + 3


def test_the_loss_of_probabilities_is_that_of_their_logarithms(tmp_path: Path) -> None:
    losses = list[float]()
    for end in ("y = MatMul(q, v)", "l = MatMul(q, v) y = Softmax <axis=-1> (l)"):
        path = write_network(tmp_path, CANCEL.replace("y = MatMul(q, v)", end))
        proto = onnx.load(path)
        for constant in proto.graph.initializer:
            value = numpy_helper.to_array(constant).copy()
            value = value - value.mean(1, keepdims=True) if constant.name == "v" else value  # as the logarithms are taken
            value = np.array(10.0, np.float32) if constant.name == "large" else value
            constant.CopyFrom(numpy_helper.from_array(value, constant.name))
        onnx.save(proto, path)
        network = open_network(path)
        with np.load(tmp_path / "data.npz") as arrays:
            samples = [{"x": x, "u": u} for x, u in zip(arrays["x"][:24], arrays["u"][:24], strict=True)]
        ranges = calibrate(
            network.model.proto, samples, network.tensors, computed_by=network.model, decomposition=network.model.decomposition
        )
        outcome = solve_types(network, Quantization({**ranges, **network.get_model_ranges({})}), samples, nothing)
        losses += [gain.before for gain in outcome.gains if gain.layer == "r"]
    parts = (ROWS + 8) / 8  # a Softmax makes rows and columns, the product rows of one matrix, where columns alone are parts
    assert losses[1] == pytest.approx(parts * losses[0], rel=0.05)


def test_dear_tensors_are_measured_on_fewer_samples() -> None:
    assert [count_measured_samples(macs) for macs in (0, 1e10, 7e10, 1e11, 6e11)] == [4, 4, 2, 2, 1]


def test_ranges_that_an_earlier_step_measured_stay_beside_wider_ones(tmp_path: Path) -> None:
    network = open_network(write_network(tmp_path, NORM))
    with np.load(tmp_path / "data.npz") as arrays:
        samples = [{"x": x} for x in arrays["x"][:24]]
    ranges = calibrate(
        network.model.proto, samples, network.tensors, computed_by=network.model, decomposition=network.model.decomposition
    )
    before = Quantization({**ranges, **network.get_model_ranges({})})
    marked = Range(-77.0, 77.0)
    outcome = solve_types(
        network, before, samples, nothing, remeasure=lambda _: AdjustedRanges({**ranges, "a/rows": marked, "n": marked}, ())
    )
    widened = network.through(outcome.quantization)
    assert outcome.quantization.types and outcome.measure is not None and "n" in outcome.quantization.types
    remeasured = outcome.measure(samples).ranges
    assert set(widened.tensors) <= remeasured.keys() and remeasured["n"] != marked
    assert "a/rows" in outcome.quantization.types or remeasured["a/rows"] == marked


def open_stream(tmp_path: Path, max_slowdown: float) -> tuple[Network, Quantization, list[dict[str, np.ndarray]]]:
    """Return a network whose residual sum has one row of hundreds, its ranges and its samples."""
    network = replace(open_network(write_network(tmp_path, STREAM)), max_slowdown=max_slowdown)
    with np.load(tmp_path / "data.npz") as arrays:
        samples = [{"x": x} for x in arrays["x"][:24]]
    ranges = calibrate(
        network.model.proto, samples, network.tensors, computed_by=network.model, decomposition=network.model.decomposition
    )
    return network, Quantization({**ranges, **network.get_model_ranges({})}), samples


def test_sums_that_norms_read_get_wider_codes_where_measuring_is_dear(tmp_path: Path) -> None:
    network, before, samples = open_stream(tmp_path, 2.0)
    outcome = solve_types(network, before, samples, nothing, dear_macs=0)
    types = outcome.quantization.types
    assert {"b/before_reshape", "s", "m: x - mean", "m"} <= types.keys() and types.keys().isdisjoint(("y", "n"))
    (note,) = outcome.notes
    assert "the sums and steps of m (" in note and outcome.alternative is None
    (before_db,), (after_db,) = (
        [p.sqnr_db for p in OutputEvaluator(samples).verdict(network.through(q), q).parts] for q in (before, outcome.quantization)
    )
    assert after_db > before_db + 6


def test_what_a_larger_budget_gives_is_what_a_build_with_it_chooses(tmp_path: Path) -> None:
    network, before, samples = open_stream(tmp_path, 1.001)
    outcome = solve_types(network, before, samples, nothing, dear_macs=0)
    alternative = outcome.alternative
    assert alternative is not None and alternative.what.endswith(" tensors in int16")
    option, _, factor = alternative.option.partition(" ")
    assert option == "--max-slowdown" and float(factor) > 1.001
    allowed = solve_types(replace(network, max_slowdown=float(factor)), before, samples, nothing, dear_macs=0)
    assert allowed.alternative is None and len(allowed.quantization.types) > len(outcome.quantization.types)
    assert allowed.quantization.types == alternative.quantization.types
    assert allowed.quantization.ranges == alternative.quantization.ranges
    assert float(allowed.notes[0].partition("the worst part that gains has ")[2].partition(" ")[0]) > 4


def test_the_loss_of_codes_is_that_of_the_median_row(tmp_path: Path) -> None:
    rows = np.array([[0.0, 0.0], [1.0, -1.0], [1.0, -1.0], [254.0, 0.0]])
    assert measure_row_loss(rows, 256) == pytest.approx(1 / 12)  # a step of 1 against rows of 1
    assert measure_row_loss(np.zeros((2, 2)), 256) == 0
    network, _, samples = open_stream(tmp_path, 2.0)
    first, second = list_norm_streams(network.model, list_groups(network), network.chip_tensors, samples[:4], 256)
    assert (first.output, second.output) == ("m", "n") and first.loss > 1 > second.loss
    assert "m" in first.tensors and "n" not in second.tensors  # a sum reads m, only a product reads n


class ListedTrials(TypeTrials):
    """Trials whose worst parts are listed by the number of groups; all are within the budget."""

    def __init__(self, network: Network, levels: dict[int, float]) -> None:
        """Keep the levels in dB, by the number of groups."""
        super().__init__(network, Quantization({}), CodeType("int16"), [("n", ["n"])] * max(levels), (None, None))  # type: ignore[arg-type]
        self._worst_db = levels

    def count_cycles(self, count: int) -> int:
        """Return the same cycles for all counts."""
        return 100

    def measure_levels(self, count: int) -> dict[str, float]:
        """Return the listed level, and that of a part which no codes mend."""
        return {"y": self._worst_db[count], "y: slice 0": 0.0}


@pytest.mark.parametrize(
    ("levels", "count"),
    [
        ({0: 10.0, 8: 30.0, 4: 29.7, 2: 29.6, 1: 20.0}, 2),
        ({0: 10.0, 8: 30.0, 4: 29.7, 2: 29.3}, 4),  # compared with the best, not with the one before
        ({0: 10.0, 4: 10.8, 2: 10.4}, 4),  # half would gain nothing
        ({0: 10.0, 4: 10.4, 2: 10.2}, 0),
    ],
)
def test_the_level_is_that_of_the_tensors_that_get_wider_codes(tmp_path: Path, levels: dict[int, float], count: int) -> None:
    trials = ListedTrials(open_network(write_network(tmp_path, NORM)), levels)
    assert trials.find_largest_gain(max(levels)) == pytest.approx(levels[max(levels)] - levels[0])
    chosen, (before_db, after_db) = trials.solve(nothing, 1.1)
    assert chosen == count
    assert not count or (before_db, after_db) == (levels[0], levels[count])


def test_a_part_that_gains_its_little_by_few_groups_does_not_decide(tmp_path: Path) -> None:
    class TwoParts(ListedTrials):
        def measure_levels(self, count: int) -> dict[str, float]:
            return {"y": self._worst_db[count], "z": -10.0 if count == 0 else -7.5}

    trials = TwoParts(open_network(write_network(tmp_path, NORM)), {0: 18.0, 8: 30.0, 4: 29.7, 2: 22.0, 1: 19.0})
    assert trials.solve(nothing, 1.1) == (4, (-10.0, -7.5))


def test_machines_of_one_type_and_a_budget_of_1_change_nothing(tmp_path: Path) -> None:
    network = open_network(write_network(tmp_path, NORM))
    before = Quantization({})
    for other in (replace(network, max_slowdown=1.0), replace(network, machine=load_machine("edge16"))):
        assert solve_types(other, before, [], nothing).quantization is before
    with pytest.raises(CompileError, match=r"max-slowdown 0\.5: must be 1 or more"):
        BuildOptions("edge16", max_slowdown=0.5)
