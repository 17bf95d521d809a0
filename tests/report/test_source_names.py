"""Products over rows of more dimensions: the chip has tensors under other shapes, people have them by the names of the file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from quant.file import read_parameters
from scripts.onnx_builder import build_model
from tests.semantics.machines import make_mixed_machine
from toolchain.api import Build, BuildOptions, build
from toolchain.errors import CompileError, ConfigError
from toolchain.frontend import load_model
from toolchain.report.error_page import rows_text

INNER = {"x/rows": "x", "a/rows": "a", "r/before_reshape": "r", "b/rows": "b", "y/before_reshape": "y"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """x[1, 8, 16] -> MatMul a -> Relu r -> MatMul b -> Sigmoid y."""
    rng = np.random.default_rng(2)
    weights = {n: rng.normal(0, 0.3, (16, 16)).astype(np.float32) for n in ("fc.weight", "g.weight")}
    nodes = [
        helper.make_node("MatMul", ["x", "fc.weight"], ["a"], name="fc"),
        helper.make_node("Relu", ["a"], ["r"], name="relu"),
        helper.make_node("MatMul", ["r", "g.weight"], ["b"], name="second"),
        helper.make_node("Sigmoid", ["b"], ["y"], name="score"),
    ]
    onnx.save(build_model(nodes, {"x": [1, 8, 16]}, {"y": [1, 8, 16]}, weights), tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", x=rng.normal(0, 1, (8, 8, 16)).astype(np.float32))
    return tmp_path / "net.onnx"


def built(model: Path, *types: str, report: bool = False, parameters: Path | None = None) -> Build:
    data, file = str(model.parent / "data.npz"), None if parameters is None else str(parameters)
    options = BuildOptions(make_mixed_machine(), calibration=data, types=types, error_report=report, parameters=file, level=0)
    return build(model, options)


def types_of(compiled: Build) -> dict[str, list[str]]:
    return {layer["name"]: [*layer["input_types"], *layer["output_types"]] for layer in compiled.figures["layers"]}


def test_the_file_has_a_name_for_every_shape(model: Path) -> None:
    assert load_model(model).source_name_by_tensor == INNER


@pytest.mark.parametrize("override", ["a=int16", "r=int16", "fc=int16", "a/rows=int16"])
def test_types_go_by_the_names_of_the_file(override: str, model: Path) -> None:
    """A node is what it makes, not what it reads under another shape."""
    assert types_of(built(model, override)) == {
        "fc": ["int8", "int16"],
        "second": ["int16", "int8"],
        "score": ["int8", "int8"],
    }


def test_what_was_meant_is_a_name_of_the_file(model: Path) -> None:
    for override, near in (
        ("aa=int16", '; did you mean "a"?'),
        ("xrows=int16", ""),  # no inner name
        ("secnd=int16", '; did you mean "second"?'),
        ("fc.wieght=int8", '; did you mean "fc.weight"?'),  # a type that weights and activations have
        ("fc.wieght=int16", '; did you mean "fc.weight"?'),  # weights as two planes of int8
    ):
        with pytest.raises(CompileError) as caught:
            built(model, override)
        message = str(caught.value).splitlines()[0]
        assert (
            message
            == f"--type {override}: the chip holds no such tensor and no such weights, nor the result of such a node{near}"
        )
    with pytest.raises(CompileError, match="scorre=int4: no layer of the chip has such weights, or is such a node\n"):
        built(model, "scorre=int4")  # which is a node without weights


def test_reports_tell_the_names_of_the_file(model: Path) -> None:
    compiled = built(model, report=True)
    assert compiled.errors is not None
    rows = compiled.errors.as_json()["layers"]
    assert {row["tensor"] for row in rows} == set("xry")
    assert not any(inner in rows_text(compiled.errors.rows) for inner in INNER)
    assert not any(inner in str(compiled.errors.as_json()) for inner in INNER)
    assert any(note.startswith("b: the data's largest logit") for note in compiled.notes)
    graph = compiled.container.graph
    shown_tensors = {graph.shown(name).tensor for node in graph.nodes for name in node.outputs}
    assert shown_tensors <= set("xabry")


def test_parameters_go_by_the_names_of_the_file(model: Path) -> None:
    ranges = {"x": 4, "a": 5, "r": 5, "b": 4, "y": 1}
    inner = {**{tensor: ranges[source_name] for tensor, source_name in INNER.items()}, "x": 4, "y": 1}
    files = {}
    for name, entries in (("own", ranges), ("inner", inner)):  # those of before say inner names
        files[name] = model.parent / f"{name}.yaml"
        lines = [f'  "{n}": {{low: {-end}, high: {end}{", type: int16" if n[0] == "a" else ""}}}' for n, end in entries.items()]
        files[name].write_text("\n".join(["version: 1", "tensors:", *lines, ""]))
    one, other = (built(model, parameters=file) for file in files.values())
    assert one.data == other.data and types_of(one)["fc"] == ["int8", "int16"]
    other_range = files["own"].read_text().replace("low: -4, high: 4}", "low: -8, high: 8}")
    files["own"].write_text(other_range.replace('  "x"', '  "x/row"'))
    with pytest.raises(ConfigError) as caught:
        built(model, parameters=files["own"])
    assert caught.value.faults == [
        f"{files['own']}:3: tensors.x/row: the model has no such tensor; mend or remove its entry",
        f"{files['own']}:2: tensors: tensor 'x' of the model has no entry; add it, or calibrate again",
    ]
    files["own"].write_text(other_range)
    assert built(model, parameters=files["own"]).data != one.data


def test_a_file_of_calibration_has_one_entry_a_tensor(model: Path) -> None:
    file, data = model.parent / "p.yaml", model.parent / "data.npz"
    script = Path(__file__).parents[2] / "scripts" / "calibrate.py"
    line = [sys.executable, str(script), str(model), "--data", str(data), "--hw", "transformer64", "-o", str(file)]
    done = subprocess.run([*line, "--type", "fc=int16"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    parameters = read_parameters(file)
    assert list(parameters.tensors) == ["x", "a", "r", "b", "y"] and set(parameters.types) == {"a", "r"}
    assert '"a": {' in file.read_text() and file.read_text().count("# fc (Gemm)") == 1
    by_file = build(model, BuildOptions("transformer64", parameters=str(file)))
    assert by_file.data == build(model, BuildOptions("transformer64", calibration=str(data), types=("fc=int16",))).data
