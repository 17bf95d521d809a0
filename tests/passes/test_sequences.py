"""Builds of recurrent layers: their lengths, several of them in one file, and what people are told of their steps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.semantics.judge import sqnr_db
from tests.support.recurrent import recurrent
from toolchain.api import BuildOptions, build
from toolchain.frontend import load_model
from toolchain.report.build_text import fidelity_text
from toolchain.report.error_page import rows_text
from toolchain.report.report_text import explain_text, layers_text
from toolchain.runtime import Session

WARNED = (
    'dimension 0 of input "x" is taken as 1, and it is the number of steps of {0}: the file is for sequences of one step; '
    "give --shape x=N,{1}"
)


def any_length(folder: Path, op: str = "LSTM", **attributes: Any) -> Path:
    """A recurrent layer of one batch whose input says no number of steps."""
    model = recurrent(op, batch=1, **attributes)
    dim = model.graph.input[0].type.tensor_type.shape.dim[1 if attributes.get("layout") else 0]
    dim.Clear()
    dim.dim_param = "T"
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def data(folder: Path, length: int) -> str:
    x = np.random.default_rng(length).normal(0, 0.9, (17, length, 1, 12)).astype(np.float32)
    np.savez(folder / f"{length}.npz", x=x)
    return str(folder / f"{length}.npz")


def test_a_sequence_of_unknown_length_is_a_warning(tmp_path: Path) -> None:
    model = any_length(tmp_path)
    assert load_model(model).warnings == (WARNED.format("cell (LSTM)", "1,12"),)
    assert build(model, BuildOptions("transformer64")).warnings[0] == WARNED.format("cell (LSTM)", "1,12")
    assert not load_model(model, {"x": (1, 1, 12)}).warnings


def test_a_scan_of_unknown_length_is_a_warning(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[T,4] x, float[4] first) => (float[4] last, float[T,4] all) {
        last, all = Scan <num_scan_inputs = 1, body = b (float[4] s, float[4] v) => (float[4] n, float[4] y)
            { n = Add(s, v) y = Tanh(n) }> (first, x) }"""
    proto = onnx.parser.parse_model(text)
    proto.graph.node[0].name = "scan"
    onnx.save(proto, tmp_path / "m.onnx")
    assert load_model(tmp_path / "m.onnx").warnings == (WARNED.format("scan (Scan)", "4"),)


def test_a_batch_of_unknown_size_is_none(tmp_path: Path) -> None:
    """A sequence of one step, known, of any number of batches."""
    model = recurrent("LSTM", length=1, batch=1, layout=1)
    dim = model.graph.input[0].type.tensor_type.shape.dim[0]
    dim.Clear()
    dim.dim_param = "N"
    onnx.save(model, tmp_path / "m.onnx")
    loaded = load_model(tmp_path / "m.onnx")
    assert loaded.notes == ('input "x": dimension 0 (N) is dynamic and not bound; taken as 1',) and not loaded.warnings


@pytest.mark.parametrize("steps", [1, "T"])
def test_an_input_of_unknown_size_that_the_data_binds(steps: int | str) -> None:
    """The input `sizes` becomes a constant, which no `--shape` can lengthen."""
    text = f"""<ir_version: 9, opset_import: ["": 17]>
        g (float[{steps},1,3] x, float[1] z, int64[n] sizes, float[1,4,3] w, float[1,4,4] r) => (float[L,1,1,4] y, float[m] e) {{
            y = RNN <hidden_size = 4> (x, w, r) e = Expand(z, sizes) }}"""
    model = onnx.parser.parse_model(text)
    model.graph.node[0].name = "cell"
    weights = {"w": (".5",) * 12, "r": (".5",) * 16}
    sample = {"x": np.zeros((1, 1, 3), np.float32), "z": np.ones(1, np.float32), "sizes": np.array([5])}
    built = build(model, BuildOptions("transformer64", calibration=[sample] * 2, values=weights))
    assert any(WARNED.format("cell (RNN)", "1,3") == warning for warning in built.warnings) == (steps == "T")


@pytest.mark.parametrize("lengths", [(4, 9), (9, 4), (4, 1)])
def test_entries_of_several_lengths_have_the_ranges_of_the_first(lengths: tuple[int, int], tmp_path: Path) -> None:
    """Steps that the first has not have the ranges and types of those that it has."""
    model = any_length(tmp_path)
    entries = {str(n): {"x": (n, 1, 12)} for n in lengths}
    options = BuildOptions("transformer64", data(tmp_path, lengths[0]), entries=entries, types=("x=int16",))
    built, session = build(model, options), onnxruntime.InferenceSession(model)
    for length in lengths:
        x = np.random.default_rng(7).normal(0, 0.7, (length, 1, 12)).astype(np.float32)
        expected: list[Any] = [*session.run(None, {"x": x})]
        actual = Session(built.data, entry=str(length)).run(None, {"x": x})
        assert min(map(sqnr_db, expected, actual)) > 38, length


def test_a_parameters_file_of_one_length_serves_others(tmp_path: Path) -> None:
    model = any_length(tmp_path)
    tensors = sorted({load_model(model).name(n) for n in ("x", "Y", "Yh", "Yc")})
    steps = ("inputs", "inputs of iof", "inputs of c", *"iof", "before c", "before iof", "f cell", "cell")
    tensors += [f"Y: {what}" for what in (*steps, "state of c", "state of iof", "outputs 0")]
    lines = "".join(f'  "{name}": {{low: -3.0, high: 3.0}}\n' for name in tensors)
    (tmp_path / "p.yaml").write_text(f"version: 1\ntensors:\n{lines}")
    for length in (3, 6):
        shapes = {"x": (length, 1, 12)}
        built = build(model, BuildOptions("transformer64", shapes=shapes, parameters=str(tmp_path / "p.yaml")))
        assert min(p["sqnr_db"] for p in built.figures["outputs"]) > 20


def test_the_type_of_a_tensor_at_all_steps(tmp_path: Path) -> None:
    built = build(any_length(tmp_path), BuildOptions("transformer64", shapes={"x": (5, 1, 12)}, types=("Y: cell=int8",)))
    types = built.container.graph.types
    cells, others = ({types[f"Y: {what}, step {t}"].dtype for t in range(1, 4)} for what in ("cell", "f cell"))
    assert (cells, others) == ({"int8"}, {"int16"})


def test_equal_steps_are_one_line(tmp_path: Path) -> None:
    """Check that reports for people show equal steps in one line, and that the JSON has all of them."""
    model = any_length(tmp_path)
    few, many = (
        build(model, BuildOptions("transformer64", data(tmp_path, n), shapes={"x": (n, 1, 12)}, error_report=True))
        for n in (6, 20)
    )
    assert many.errors is not None and few.errors is not None
    for text in (layers_text, explain_text):
        assert len(text(many.figures).splitlines()) - len(text(few.figures).splitlines()) in (0, 1)
    assert len(rows_text(many.errors.rows).splitlines()) < 36 < len(many.errors.rows)
    assert len({f.name for f in many.errors.findings}) == len(many.errors.findings)
    layers = [layer for layer in many.figures["layers"] if layer["steps_of"] == "Y: i c"]
    assert len(layers) == 20 and many.figures["cycles"] == sum(layer["cycles"] for layer in many.figures["layers"])
    lines = layers_text(many.figures).splitlines()
    line = next(line for line in lines if line.startswith("cell: i c, step 0, and 19 more such steps "))
    assert line.split()[10:13] == ["Binary", "vector", f"{sum(layer['cycles'] for layer in layers):,}"]


def test_equal_steps_of_both_directions_are_one_line_each(tmp_path: Path) -> None:
    """Check products that the model has only inside others, and operands of the Concats that make the sequences."""
    model = any_length(tmp_path, "GRU", direction="bidirectional", linear_before_reset=1)
    few, many = (
        build(model, BuildOptions("transformer64", data(tmp_path, n), shapes={"x": (n, 1, 12)}, level=0)) for n in (4, 10)
    )
    for text in (layers_text, explain_text, operands_text):
        assert len(text(many.figures).splitlines()) == len(text(few.figures).splitlines())
    parts = [part for part in many.figures["concats"] if part["steps_of"] == "Y: h, backwards"]
    worst = min(parts, key=lambda part: part["sqnr_db"])
    (line,) = (line for line in operands_text(many.figures).splitlines() if "backwards" in line)
    step = worst["name"].rpartition(", ")[2]
    assert f"{step}, and 9 more such steps " in line and line.split()[-3] == f"{worst['sqnr_db']:.1f}" and len(parts) == 10


def operands_text(figures: Mapping[str, Any]) -> str:
    return fidelity_text(figures, "concats", "operands")


@pytest.mark.parametrize(("name", "narrow"), [("W", "inputs of"), ("R", "state of"), ("*", ""), ("cell", "")])
def test_weights_of_a_recurrent_layer_are_named_as_in_the_file(name: str, narrow: str, tmp_path: Path) -> None:
    built = build(any_length(tmp_path), BuildOptions("transformer64", shapes={"x": (3, 1, 12)}, types=(f"{name}=int4",)))
    layers = {layer["name"]: layer["weight_type"] for layer in built.figures["layers"] if layer["weight_type"] is not None}
    assert layers and {n for n, kind in layers.items() if kind == "int4"} == {n for n in layers if f"cell: {narrow}" in n}
