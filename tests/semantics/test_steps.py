"""Operators taken apart: the chip against the same steps in float64, each tensor rounded to the codes that it has on the chip."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quant.calibration_data import open_data
from quant.fixed_point.core.numerics import Numerics
from quant.float_session import FloatSession, PlainModel
from quant.observe import Range
from quant.parameters import activation_quant
from quant.repair.choices import Quantization
from tests.semantics.chip_tensors import HeldCodes
from tests.semantics.judge import get_reported_codes, sqnr_db, without_room
from tests.semantics.machines import int16_machine
from tests.support.decompose_cases import (
    GROUP,
    GROUP_OF_ROWS,
    INSTANCE,
    LOG_SOFTMAX,
    NORM,
    QUOTIENT,
    ROOT_MEAN_SQUARE,
    SOFTMAX,
    decomposing,
    save_model,
)
from toolchain.api import BuildOptions, build
from toolchain.compiler import ignore_progress, select_model
from toolchain.frontend import NormalModel, load_model
from toolchain.ir.graph import Graph, OnnxNode, Quant
from toolchain.isa import Machine, load_machine
from toolchain.judging.evaluation_data import inputs_of
from toolchain.ops.kit.decomposition import POSITIVE, Decomposition, DecompositionBuilder
from toolchain.ops.kit.registry import DECOMPOSITIONS
from toolchain.passes.decompose import decompose_model
from toolchain.repair.calibrate_network import calibrate_network
from toolchain.repair.network import Network
from toolchain.runtime import Session

Array = np.ndarray[Any, Any]
COMPUTED: Mapping[str, Callable[..., Array]] = {
    "Add": np.add,
    "Exp": np.exp,
    "Gemm": lambda x, w: x @ w.T,
    "Log": np.log,
    "Mul": np.multiply,
    "Reciprocal": np.reciprocal,
    "ReduceMax": lambda x, axes: x.max(tuple(axes), keepdims=True),
    "ReduceMean": lambda x, axes: x.mean(tuple(axes), keepdims=True),
    "Reshape": lambda x, shape: x.reshape(tuple(int(d) for d in shape)),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Sqrt": np.sqrt,
    "Sub": np.subtract,
}
MACHINES = {"int8": lambda: load_machine("edge16"), "int16": int16_machine}


def moments(steps: DecompositionBuilder) -> None:
    """(x - mean) / sqrt(mean(x^2) - mean^2 + epsilon) * scale + bias."""
    (x, scale, bias), axes = steps.node.inputs, (2,)
    mean = steps.add("ReduceMean", x, axes, what="mean")
    squares = steps.add("ReduceMean", steps.add("Mul", x, x, what="square"), axes, what="mean of squares")
    variance = steps.add("Sub", squares, steps.add("Mul", mean, mean, what="mean squared"), what="variance", range=POSITIVE)
    root = steps.add("Sqrt", steps.add("Add", variance, steps.node.op.attributes["epsilon"], what="with epsilon"), what="root")
    less = steps.add("Sub", x, mean, what="x - mean")
    normal = steps.add("Mul", less, steps.add("Reciprocal", root, what="1 / root"), what="normal")
    steps.add("Add", steps.add("Mul", normal, scale, what="scaled"), bias, what="moved", output=0)


@dataclass(frozen=True)
class StepNetwork:
    """A model of one operator on a machine, its steps and their codes."""

    network: Network
    quantization: Quantization
    integer: Graph
    samples: tuple[Mapping[str, Array], ...]

    @property
    def codes(self) -> dict[str, HeldCodes]:
        return get_reported_codes(self.integer, self.network.origins)

    def on_the_chip(self) -> Array:
        session = self.network.session(self.quantization)
        return np.stack([session.run(["y"], dict(s))[0] for s in self.samples])

    def in_float(self) -> Array:
        undivided = self.network.model.undivided
        assert undivided is not None
        session = FloatSession(PlainModel(undivided.proto), ["y"])
        return np.stack([session.run(s)[0] for s in self.samples]).astype(np.float64)

    def in_rounded_steps(self) -> Array:
        """float64."""
        return np.stack([_round_steps(self.network.model, self.codes, self.network.chip.numerics, s) for s in self.samples])


def _round_steps(model: NormalModel, codes: Mapping[str, HeldCodes], numerics: Numerics, sample: Any) -> Array:
    def rounded(x: Array, quant: Quant) -> Array:
        low, high = numerics.activation.limits
        return (np.clip(np.rint(x / quant.scale) + quant.zero_point, low, high) - quant.zero_point) * quant.scale

    def round_to_codes(name: str, x: Array) -> Array:
        return rounded(x, Quant(codes[name].scale, codes[name].zero_point)) if name in codes else x

    def operand(node: OnnxNode, index: int) -> Array:
        name = node.inputs[index]
        x = model.graph.constants.get(name)
        if x is None:
            return values[name]
        small = x.dtype.kind == "i" or x.size == 1
        return x if small else rounded(x.astype(np.float64), activation_quant(Range.of(x), numerics))

    values = {name: round_to_codes(name, x.astype(np.float64)) for name, x in sample.items()}
    for node in model.graph.nodes:
        result = COMPUTED[node.op.op_type](*(operand(node, i) for i in range(len(node.inputs))))
        values[node.outputs[0]] = round_to_codes(node.outputs[0], np.asarray(result, np.float64))
    return values["y"]


def make_step_network(graph: str, machine: Machine, folder: Path) -> StepNetwork:
    path, data = save_model(graph, folder, opset=23 if graph == ROOT_MEAN_SQUARE else 21)
    machine = decomposing(machine)
    model = decompose_model(load_model(path), machine.chip)
    network = Network(model, select_model(model, machine), machine)
    samples = open_data(str(data), inputs_of(model))
    quantization = without_room(calibrate_network(network, samples, "minmax", "none", ignore_progress).quantization)
    assert not network.selection.fallbacks
    return StepNetwork(network, quantization, network.integer(quantization), tuple(samples))


@pytest.mark.parametrize("bits", MACHINES)
@pytest.mark.parametrize(
    ("graph", "rule", "least_db"),
    [
        (SOFTMAX, None, (25, 73)),
        (LOG_SOFTMAX, None, (45, 93)),
        (NORM, None, (32, 79)),
        (NORM, moments, (32, 79)),
        (ROOT_MEAN_SQUARE, None, (32, 79)),
        (INSTANCE, None, (36, 83)),
        (GROUP, None, (36, 83)),
        (GROUP_OF_ROWS, None, (30, 75)),
        (QUOTIENT, None, (28, 69)),
    ],
    ids=[
        "Softmax",
        "LogSoftmax",
        "LayerNormalization",
        "moments",
        "RMSNormalization",
        "InstanceNormalization",
        "GroupNormalization",
        "GroupNormalization of rows",
        "Div",
    ],
)
def test_the_chip_is_as_good_as_its_steps_rounded_in_float64(
    graph: str, rule: Any, least_db: tuple[float, float], bits: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rule is not None:
        monkeypatch.setitem(DECOMPOSITIONS, "LayerNormalization", Decomposition(rule))
    step_network = make_step_network(graph, MACHINES[bits](), tmp_path)
    expected = step_network.in_float()
    chip, rounded = sqnr_db(expected, step_network.on_the_chip()), sqnr_db(expected, step_network.in_rounded_steps())
    assert abs(chip - rounded) < 1.0, (chip, rounded)
    assert chip > least_db[bits == "int16"]


@pytest.mark.parametrize("bits", MACHINES)
def test_tensors_between_steps_have_ranges_of_their_own(bits: str, tmp_path: Path) -> None:
    step_network = make_step_network(SOFTMAX, MACHINES[bits](), tmp_path)
    steps = 2.0**step_network.network.chip.numerics.activation.bits - 1
    widths = {name: codes.scale * steps for name, codes in step_network.codes.items()}
    assert widths["y: exp"] == pytest.approx(1.0, rel=1e-3)
    lost = np.log(2 * steps) * (1 + 1 / (steps + 1))
    assert widths["y: x - max"] == pytest.approx(min(lost, 9.0))  # measured, and no wider than exp can tell
    assert widths["y: 1 / sum"] < 1.0
    assert widths["y: mean of exp"] < 1.0
    assert widths["x"] == pytest.approx(9.0)
    assert widths["y"] == pytest.approx(1.0)  # a score of the model


@pytest.mark.parametrize("bits", MACHINES)
@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax"])
def test_what_exp_loses_counts_nothing_in_a_sum(kind: str, bits: str, tmp_path: Path) -> None:
    """One number of 500 has all of the sum, where 20 of them share that of other rows."""
    path, data = save_model(f"g (float[1,500] x) => (float[1,500] y) {{ y = {kind}(x) }}", tmp_path)
    rows = np.full((12, 1, 500), -5.0, np.float32)
    rows[:, 0, 7] = rows[6:, 0, 100:119] = 5.0
    np.savez(data, x=rows)
    built = build(path, BuildOptions(decomposing(MACHINES[bits]()), calibration=str(data)))
    (actual,) = Session(built.container, backend="reference").run(None, {"x": rows[0]})
    share = actual[0, 7] if kind == "Softmax" else np.exp(actual[0, 7])
    assert share == pytest.approx(1.0, abs=0.12)  # half a step of the sum is 0.04, of the LogSoftmax 0.03
