"""LSTM, GRU and RNN on a chip with int16 codes: against onnxruntime on the file, in every form that they have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from scripts.onnx_builder import build_model
from tests.semantics.judge import sqnr_db
from tests.support.recurrent import GATES, recurrent
from toolchain.api import Build, BuildOptions, build
from toolchain.codegen import Region
from toolchain.errors import ToolchainError
from toolchain.frontend import load_model
from toolchain.hw import load_chip
from toolchain.passes.decompose import decompose_model
from toolchain.runtime import Session

Array = np.ndarray[Any, Any]
SAMPLES = 8


def samples_of(model: onnx.ModelProto, folder: Path) -> tuple[str, list[dict[str, Array]]]:
    rng = np.random.default_rng(5)
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
    drawn_samples = [{n: rng.normal(0, 0.9, s).astype(np.float32) for n, s in shapes.items()} for _ in range(SAMPLES)]
    np.savez(folder / "data.npz", allow_pickle=False, **{n: np.stack([s[n] for s in drawn_samples]) for n in shapes})
    (folder / "data.py").write_text(
        f"import numpy as np\n\n\ndef samples():\n    found = np.load({str(folder / 'data.npz')!r})\n"
        "    yield from ({n: found[n][i] for n in found.files} for i in range(len(found['x'])))\n"
    )
    return f"{folder / 'data.py'}:samples", drawn_samples


def on_the_chip(
    model: onnx.ModelProto, folder: Path, hw: str = "transformer64", types: tuple[str, ...] = ("x=int16",)
) -> tuple[Build, list[list[Array]], list[dict[str, Array]]]:
    onnx.save(model, folder / "model.onnx")
    data, samples = samples_of(model, folder)
    built = build(folder / "model.onnx", BuildOptions(hw, calibration=data, types=types))
    session = Session(built.data)
    return built, [session.run(None, dict(s)) for s in samples], samples


CASES: dict[str, Callable[[], onnx.ModelProto]] = {
    "LSTM": lambda: recurrent("LSTM"),
    "LSTM, states given": lambda: recurrent("LSTM", initial="inputs"),
    "LSTM, both directions, peepholes, lengths": lambda: recurrent(
        "LSTM", lengths=(5, 3), peepholes=True, direction="bidirectional", initial="inputs"
    ),
    "LSTM, clipped, constant states": lambda: recurrent("LSTM", clip=0.6, initial="constants", biases=False),
    "LSTM, input forgets": lambda: recurrent("LSTM", input_forget=1, batch=1),
    "LSTM, other functions": lambda: recurrent(
        "LSTM",
        activations=["HardSigmoid", "ScaledTanh", "Softsign"],
        activation_alpha=[0.25, 1.2],
        activation_beta=[0.4, 0.9],
    ),
    "GRU": lambda: recurrent("GRU", initial="inputs"),
    "GRU, linear": lambda: recurrent("GRU", linear_before_reset=1),
    "GRU, backwards, lengths, constant states": lambda: recurrent(
        "GRU", lengths=(1, 4), direction="reverse", linear_before_reset=1, initial="constants"
    ),
    "GRU, both directions, lengths": lambda: recurrent("GRU", lengths=(2, 5), direction="bidirectional", initial="constants"),
    "GRU, one step": lambda: recurrent("GRU", length=1, batch=1, initial="inputs"),
    "RNN": lambda: recurrent("RNN", direction="bidirectional", initial="inputs"),
    "RNN, unbounded": lambda: recurrent(
        "RNN", direction="bidirectional", activations=["Relu", "Affine"], activation_alpha=[0.5], activation_beta=[0.1]
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_chip_against_float(case: str, tmp_path: Path) -> None:
    model = CASES[case]()
    built, actual, samples = on_the_chip(model, tmp_path)
    assert not [row for row in built.figures["nodes"] if row["engine"] == "host"]
    session = onnxruntime.InferenceSession(model.SerializeToString())
    expected: list[Any] = [session.run(None, s) for s in samples]
    for index in range(len(expected[0])):
        assert sqnr_db(np.stack([e[index] for e in expected]), np.stack([m[index] for m in actual])) > 42, index


@pytest.mark.parametrize("op", GATES)
def test_batches_of_sequences_are_sequences_of_batches(op: str, tmp_path: Path) -> None:
    """onnxruntime has none of them."""
    _, actual, samples = on_the_chip(recurrent(op, layout=1, initial="inputs"), tmp_path)
    session = onnxruntime.InferenceSession(recurrent(op, initial="inputs").SerializeToString())
    for y, sample in zip(actual, samples):
        expected: Any = session.run(None, {n: v.transpose(1, 0, 2) for n, v in sample.items()})
        transposed = [expected[0].transpose(2, 0, 1, 3), *(state.transpose(1, 0, 2) for state in expected[1:])]
        assert all(sqnr_db(e, m) > 40 for e, m in zip(transposed, y, strict=True))


def test_steps_share_their_scales_and_constants(tmp_path: Path) -> None:
    built, _, _ = on_the_chip(recurrent("LSTM", length=9), tmp_path)
    few, _, _ = on_the_chip(recurrent("LSTM", length=3), tmp_path)
    graph = built.container.graph
    cells = {graph.types[n].quant for n in graph.types if "cell, step" in n and "f cell" not in n}
    assert len(cells) == 1 and len({graph.types[n].quant for n in graph.types if ": h, step" in n}) == 1
    assert all(graph.types[n].dtype == "int16" for n in graph.types if ", step" in n and graph.types[n].quant is not None)
    constants = [
        sum(len(data) for r in b.container.segments if isinstance(r, Region) for _, data in r.constants) for b in (built, few)
    ]
    assert constants[0] == constants[1]


@pytest.mark.parametrize(("op", "initial"), [("LSTM", ""), ("LSTM", "inputs"), ("GRU", "inputs")])
def test_sequences_that_go_further_than_those_seen(op: str, initial: str, tmp_path: Path) -> None:
    """Inputs that lean one way for the whole sequence: the states add up to up to twice what calibration saw."""
    model = recurrent(op, length=12, initial=initial, seed=4)
    built, _, samples = on_the_chip(model, tmp_path)
    session, rng, levels_db = onnxruntime.InferenceSession(model.SerializeToString()), np.random.default_rng(9), list[float]()
    for _ in range(8):
        others = {n: rng.normal(0, 0.9, v.shape).astype(np.float32) for n, v in samples[0].items()}
        others["x"] = np.clip(others["x"] + 0.6 * rng.choice([-1, 1], 12), -2.5, 2.5).astype(np.float32)
        expected: list[Any] = [*session.run(None, others)]
        levels_db += [sqnr_db(e, y) for e, y in zip(expected[1:], Session(built.data).run(None, others)[1:], strict=True)]
    assert min(levels_db) > 32


def test_a_state_of_a_scan_goes_further_than_seen(tmp_path: Path) -> None:
    """A sum over the steps; what calibration saw reaches half as far."""
    body = onnx.parser.parse_graph("body (float[4] s, float[4] x) => (float[4] n, float[4] y) { n = Add(s, x) y = Identity(n) }")
    scan = onnx.helper.make_node("Scan", ["first", "x"], ["last", "all"], name="scan", body=body, num_scan_inputs=1)
    onnx.save(build_model([scan], {"first": [4], "x": [6, 4]}, {"last": None, "all": None}), tmp_path / "m.onnx")
    turning = np.tile(np.array([[1.0], [1.0], [1.0], [-1.0], [-1.0], [-1.0]], np.float32), 4)
    np.savez(tmp_path / "d.npz", x=np.stack([turning, -turning]), first=np.zeros((2, 4), np.float32) + 0.1)
    built = build(tmp_path / "m.onnx", BuildOptions("transformer64", calibration=str(tmp_path / "d.npz"), types=("*=int16",)))
    last, _ = Session(built.data).run(None, {"x": np.ones((6, 4), np.float32), "first": np.full(4, 0.1, np.float32)})
    assert np.abs(last - 6.1).max() < 0.01


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"lengths": (0, 3)}, "one of its sequences has no step, and ONNX does not say what its last state is"),
        (
            {"activations": ["Sigmoid", "ScaledTanh"]},
            "its ScaledTanh has no parameters, of which onnxruntime has other defaults than ONNX",
        ),
        ({"length": 1100, "units": 2, "batch": 1}, "1100 steps of its sequence would be written out; 1024 are the most"),
    ],
)
def test_what_stays_on_the_host(changed: dict[str, Any], reason: str, tmp_path: Path) -> None:
    built, _, _ = on_the_chip(recurrent("GRU", **changed), tmp_path, types=())
    assert [row["reason"] for row in built.figures["nodes"] if row["engine"] == "host"] == [reason]
    other, _, _ = on_the_chip(recurrent("GRU"), tmp_path, "ethos_u65_512", ())
    assert "no operator" in str([row["reason"] for row in other.figures["nodes"] if row["engine"] == "host"])


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"W": (1, 48, 11)}, "its weights have shape [1, 48, 11], not [1, 48, 12]"),
        ({"R": (2, 48, 16)}, "its recurrent weights have shape [2, 48, 16], not [1, 48, 16]"),
        ({"B": (1, 48)}, "its biases have shape [1, 48], not [1, 96]"),
        ({"activations": ["Sigmoid"]}, "its activations are 1, not 2"),
        ({"activations": ["Sigmoid", "Tanh", "Tanh"]}, "its activations are 3, not 2"),
        ({"clip": -1.0}, "its clip is -1, not above 0"),
        ({"lengths": (9, 3)}, "one of its sequences has 9 steps of 5"),
    ],
)
def test_what_a_node_says_against_itself(changed: dict[str, Any], reason: str, tmp_path: Path) -> None:
    """Check that contradictory nodes are left to onnxruntime, which refuses them."""
    shapes = {name: changed.pop(name) for name in "WRB" if name in changed}
    proto = recurrent("GRU", **changed)
    for tensor in proto.graph.initializer:
        if tensor.name in shapes:
            tensor.CopyFrom(numpy_helper.from_array(np.zeros(shapes[tensor.name], np.float32), tensor.name))
    onnx.save(proto, tmp_path / "m.onnx")
    decomposed_model = decompose_model(load_model(tmp_path / "m.onnx"), load_chip("transformer64"))
    assert decomposed_model.reasons_undivided == {"cell": reason}
    with pytest.raises(ToolchainError):
        build(tmp_path / "m.onnx", BuildOptions("transformer64"))
